"""The forms of calling are one policy: a script gives the same answers, counts, waits and events in all of them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everkeel import NotRetryable, RejectedError, RetryBudget, current_attempt, deadline, fallback, pipeline, retry
from everkeel.policies.retry import attempt as marks
from everkeel.testing import Flaky, record_events

# Not how long it takes, but how long a machine may take that does ten other things.
pytestmark = pytest.mark.timeout(300)


class BusyError(Exception):
    """An error that says when to come back."""

    retry_after = 3.0


OUTCOMES: dict[str, Any] = {
    "answer": "answer",
    "bad": "bad",
    "refused": ConnectionRefusedError("refused"),
    "timeout": TimeoutError("slow"),
    "key": KeyError("id"),
    "busy": BusyError("busy"),
    "business": NotRetryable("out of stock"),
    "rejected": RejectedError("payments", 2.0),
}

retries = st.fixed_dictionaries(
    {},
    optional={
        "attempts": st.integers(1, 4),
        "on": st.sampled_from([OSError, (KeyError, BusyError), RejectedError, lambda error: "e" in str(error)]),
        "ignore": st.sampled_from([TimeoutError, lambda error: isinstance(error, KeyError)]),
        "on_result": st.just(lambda result: result == "bad"),
        "backoff": st.sampled_from([0, 1, [0, 2], {OSError: 0.5, KeyError: 0}]),
        "jitter": st.sampled_from([None, "full", "equal", "decorrelated", 0.5]),
        "max_retry_after": st.sampled_from([0, 2.5, 60]),
        "max_duration": st.sampled_from([0.5, 2.5, 60]),
        "exhausted": st.just(lambda outcome: ("mapped", outcome.attempts, repr(outcome.error))),
        "nested": st.sampled_from(["each", "outermost"]),
        "mode": st.sampled_from(["enforce", "shadow", "off"]),
    },
)
fallbacks = st.fixed_dictionaries(
    {},
    optional={
        "on": st.sampled_from([OSError, (KeyError, BusyError)]),
        "on_result": st.just(lambda result: result == "bad"),
        "mode": st.sampled_from(["enforce", "shadow", "off"]),
    },
)
scripts = st.lists(st.lists(st.sampled_from(sorted(OUTCOMES)), min_size=1, max_size=5), min_size=1, max_size=3)


def told(event: Any) -> tuple[Any, ...]:
    """An event as plain values; errors by what they say, since each form has raised them anew."""
    values = ((field.name, getattr(event, field.name)) for field in fields(event))
    return type(event).__name__, *((name, repr(value)) for name, value in values)


def happen(policy: Any, script: list[str], form: Any, limit: float | None) -> Any:
    """One call, and how it ended."""
    call = form(policy, Flaky(*(OUTCOMES[word] for word in script)))
    try:
        if limit is None:
            return call()
        with deadline(limit):
            return call()
    except Exception as error:
        return type(error).__name__, str(error), getattr(error, "__notes__", None)


def clean() -> None:
    """The scripts share their errors: what one form has noted on them is none of the next one's business.

    Nor is whether anybody has ever asked for the current attempt, which decides how attempts are marked.
    """
    marks.wanted = False
    for outcome in OUTCOMES.values():
        if isinstance(outcome, Exception):
            outcome.__dict__.pop("__notes__", None)
            outcome.__dict__.pop("__everkeel__", None)
            outcome.__traceback__ = outcome.__context__ = None


def same_everywhere(every_form: Any, make: Any, scripts: list[list[str]], limit: float | None, heard: bool) -> None:
    def act(form: Any) -> dict[str, Any]:
        clean()
        policies = make()
        policy = pipeline(*policies) if len(policies) > 1 else policies[0]
        with record_events() if heard else nullcontext(()) as events:
            ended = [happen(policy, script, form, limit) for script in scripts]
        return {
            "ended": ended,
            "snapshots": [one.snapshot() for one in policies],
            "events": [told(event) for event in events],
            "sleeps": form.clock.sleeps,
            "now": form.clock.monotonic(),
            "attempt": marks.CURRENT.get(),
        }

    came = every_form(act)
    for name, one in came.items():
        assert one == came["plain-sync"], name


repeated = settings(
    max_examples=min(300, settings.default.max_examples),  # each is a dozen event loops
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@repeated
@given(retries, scripts, st.none() | st.sampled_from([0.0, 1.5, 30.0]), st.booleans())
def test_a_retry_is_the_same_in_every_form(every_form, config, scripts, limit, heard):
    if config.get("max_duration") is not None:
        config = {**config, "runs": "inline"}  # a worker's events come when it is done with what nobody waits for
    same_everywhere(every_form, lambda: [retry("fetch", **config)], scripts, limit, heard)


@repeated
@given(fallbacks, scripts, st.booleans())
def test_a_fallback_is_the_same_in_every_form(every_form, config, scripts, heard):
    same_everywhere(
        every_form, lambda: [fallback({KeyError: "key"}, "other", name="f", **config)], scripts, None, heard
    )


@repeated
@given(fallbacks, retries, retries, scripts, st.none() | st.sampled_from([1.5, 30.0]), st.booleans())
def test_a_pipeline_is_the_same_in_every_form(every_form, config, outer, inner, scripts, limit, heard):
    def make() -> list[Any]:
        budget = RetryBudget(ratio=0, floor=0.3)
        return [
            fallback("other", name="f", **config),
            retry("outer", **{**outer, "runs": "inline"}),
            retry("inner", **{**inner, "runs": "inline", "budget": budget}),
        ]

    same_everywhere(every_form, make, scripts, limit, heard)


@repeated
@given(retries, scripts, st.booleans(), st.booleans())
def test_a_block_is_the_same_as_a_function(clock, anew, config, scripts, awaited, heard):
    unlike = ("max_duration", "exhausted")  # a sync block is checked between attempts only, and has no value to replace
    config = {name: value for name, value in config.items() if name not in unlike}

    def act(form: Any) -> Any:
        clean()
        policy = retry("fetch", **config)
        with record_events() if heard else nullcontext(()) as events:
            ended = [happen(policy, script, form, None) for script in scripts]
        return ended, policy.snapshot(), [told(event) for event in events], form.clock.sleeps

    assert anew("block", awaited, act) == anew("plain", awaited, act)


# ------------------------------------------------------------------ whether anybody looks changes nothing


@repeated
@given(retries, scripts)
def test_being_listened_to_changes_nothing(every_form, config, scripts):
    config = {**config, "runs": "inline"}

    def act(heard: bool) -> dict[str, Any]:
        def run(form: Any) -> Any:
            clean()
            policy = retry("fetch", **config)
            if heard:
                policy.subscribe(lambda event: None)
            return [happen(policy, script, form, None) for script in scripts], policy.snapshot(), form.clock.sleeps

        return every_form(run)

    assert act(True) == act(False)


def test_asking_for_the_attempt_for_the_first_time_finds_it(retried):
    # Nobody has asked before: the attempts under way were not marked for anyone.
    policy, fetch = retry("fetch", backoff=0, attempts=5), Flaky(ConnectionError, ConnectionError, ConnectionError, 1)
    retried(policy, fetch)()  # now the policy knows this class of errors
    seen, calls = [], []

    def ask() -> int | None:
        attempt = current_attempt()
        return None if attempt is None else attempt.number

    def later() -> str:
        calls.append(1)
        if len(calls) >= 3:
            seen.append(ask())
        if len(calls) < 5:
            raise ConnectionError
        return "answer"

    assert retried(policy, later)() == "answer"
    assert seen == [3, 4, 5]
    assert current_attempt() is None
