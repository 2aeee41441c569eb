"""Whatever happens to a breaker, every form of calling answers the same, counts the same and tells the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everkeel import CircuitOpenError, NotRetryable, RejectedError, circuit_breaker, exponential
from everkeel.events import CallRejected, CircuitClosed, CircuitForced, CircuitHalfOpened, CircuitOpened, Event


class OutOfStockError(NotRetryable):
    """A business error."""


class Interrupt(BaseException):
    """Ctrl-C, or a cancellation."""


OUTCOMES: dict[str, Any] = {
    "success": "ok",
    "bad result": 503,
    "failure": ConnectionError,
    "ignored": KeyError,
    "unnamed": ValueError,
    "rejection": RejectedError,
    "business": OutOfStockError,
    "interrupt": Interrupt,
}
ENDINGS = (CircuitOpenError, *(outcome for outcome in OUTCOMES.values() if isinstance(outcome, type)))
CHANGES: dict[str, dict[str, Any]] = {
    "shadow": {"mode": "shadow"},
    "off": {"mode": "off"},
    "enforce": {"mode": "enforce"},
    "by time": {"window_duration": 8.0},
    "by count": {"window_duration": None},
    "slow": {"slow_duration": 2.0, "slow_rate": 0.5},
    "not slow": {"slow_duration": None},
    "results": {"on_result": lambda answer: answer == 503},
    "no results": {"on_result": None},
    "strict": {"failure_rate": 0.2, "minimum_calls": 2},
    "lax": {"failure_rate": 0.9, "minimum_calls": 6},
}
TROUBLE = (CircuitOpened, CircuitHalfOpened, CircuitClosed, CircuitForced, CallRejected)
MANUAL = ("force_open", "force_closed", "half_open", "reset", "save and restore", "isolate and release")

rules = st.fixed_dictionaries(
    {
        "failure_rate": st.sampled_from([0.3, 0.5, 1.0]),
        "window": st.sampled_from([6, 10]),
        "window_duration": st.sampled_from([None, 5.0]),
        "minimum_calls": st.integers(1, 6),
        "consecutive": st.sampled_from([None, 2, 4]),
        "slow_duration": st.sampled_from([None, 2.0]),
        "slow_rate": st.sampled_from([0.5, 1.0]),
        "on": st.sampled_from([Exception, ConnectionError, (ConnectionError, ValueError)]),
        "ignore": st.sampled_from([None, KeyError]),
        "on_result": st.sampled_from([None, CHANGES["results"]["on_result"]]),
        "open_for": st.sampled_from([3.0, exponential(1.0)]),
        "probes": st.integers(1, 3),
        "probe_lease": st.sampled_from([2.0, 60.0]),
        "max_half_open": st.sampled_from([None, 4.0]),
        "lost_probe": st.sampled_from(["no_evidence", "failure"]),
        "ignored": st.sampled_from(["no_evidence", "success"]),
        "rejections": st.sampled_from(["no_evidence", "failure"]),
    }
)
one_call = st.tuples(st.just("call"), st.sampled_from(list(OUTCOMES)), st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.5]))


def steps(in_flight: bool) -> st.SearchStrategy[Any]:
    # The fast lines do not look at results while there is no on_result: one that is set during a call is not asked.
    changes = [name for name in CHANGES if not (in_flight and name == "results")]
    return st.one_of(
        one_call,
        one_call,
        st.tuples(st.just("wait"), st.sampled_from([0.5, 1.0, 3.0, 9.0])),
        st.tuples(st.just("change"), st.sampled_from(changes)),
        st.tuples(st.just("manual"), st.sampled_from(MANUAL)),
        # a call during which all this happens
        st.tuples(st.just("during"), st.sampled_from(list(OUTCOMES)), st.lists(in_between, max_size=4)),
    )


in_between = st.deferred(lambda: steps(in_flight=True))


def happened(value: object) -> object:
    """A value that can be compared between runs: errors by what they say."""
    if isinstance(value, BaseException):
        return type(value).__name__, value.args
    return value


def told(event: object) -> object:
    return type(event).__name__, {field.name: happened(getattr(event, field.name)) for field in fields(event)}  # type: ignore[arg-type]


class Play:
    """A script played through one breaker in one form of calling."""

    def __init__(self, calls: Any, clock: Any, rules: dict[str, Any]) -> None:
        self.clock, self.record = clock, []
        self.breaker = circuit_breaker("payments", clock=clock, replace=True, **rules)
        self.calls = calls(self.breaker)

    def heard(self, script: list[Any], *types: type[Event]) -> list[Any]:
        with self.breaker.subscribe(lambda event: self.record.append(told(event)), *types):
            self.play(script)
        return self.record

    def play(self, script: list[Any]) -> None:
        for step in script:
            getattr(self, f"_{step[0]}")(*step[1:])
            self.record.append({**self.breaker.snapshot()})

    def _call(self, outcome: str, takes: float) -> None:
        self._ended(outcome, lambda: self.clock.advance(takes))

    def _during(self, outcome: str, script: list[Any]) -> None:
        self._ended(outcome, lambda: self.play(script))

    def _ended(self, outcome: str, during: Any) -> None:
        try:
            ending: object = self.calls(OUTCOMES[outcome], during)
        except ENDINGS as error:
            ending = happened(error)
        self.record.append(ending)

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def _change(self, name: str) -> None:
        self.breaker.reconfigure(**CHANGES[name])

    def _manual(self, name: str) -> None:
        if name == "save and restore":
            self.breaker.restore_state(self.breaker.save_state())
        elif name == "isolate and release":
            self.breaker.isolate().release()
        else:
            getattr(self.breaker, name)()


# Who listens for how each call ended adds a layer; without that one the fast lines are on their own.
@pytest.mark.parametrize("types", [TROUBLE, ()], ids=["trouble is heard", "everything is heard"])
@settings(
    max_examples=min(settings.default.max_examples, 250),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rules=rules, script=st.lists(steps(in_flight=False), min_size=5, max_size=25))
def test_every_form_of_calling_does_the_same(clock, every_form, types, rules, script):
    came = every_form(lambda calls, own: Play(calls, own, rules).heard(script, *types))
    expected = came["plain-sync"]
    for form, record in came.items():
        assert record == expected, form
