"""The short cut for attempts that follow at once: it decides as the long way does, or leaves the decision to it."""

from __future__ import annotations

import asyncio

import pytest

from everkeel import NotRetryable, RejectedError, RetryBudget, current_attempt, events, explain, retry
from everkeel.policies.retry import attempt as marks
from everkeel.policies.retry import config
from everkeel.policies.retry.core import Run
from everkeel.policies.retry.state import Retrying
from everkeel.testing import Flaky


class HintedError(Exception):
    """Says when to come back."""

    retry_after = 5.0


class WellHintedError(Exception):
    def __init__(self) -> None:
        self.retry_after = 5.0


class SecretiveError(Exception):
    def __getattr__(self, name: str) -> object:
        raise AttributeError(name)


class CardRefusedError(NotRetryable):
    pass


@pytest.fixture
def decided(clock, monkeypatch):
    """The errors that the long way was asked about; nobody in the process has asked for the current attempt yet."""
    monkeypatch.setattr(marks, "wanted", False)
    asked, decide = [], Retrying.decide

    def watched(self, run, error, *args):
        asked.append(type(error))
        return decide(self, run, error, *args)

    monkeypatch.setattr(Retrying, "decide", watched)
    return asked


def learned(policy, error=OSError):
    """The policy, after it has seen such an error."""
    policy(Flaky(error, "answer"))()
    return policy


def guarded(policy, *outcomes):
    fetch = Flaky(*outcomes)
    return policy(lambda: fetch())


def test_the_first_error_of_a_class_goes_the_long_way_and_the_next_ones_do_not(decided):
    policy = retry(backoff=0)
    call = guarded(policy, OSError, "first", OSError, OSError, "second")
    assert (call(), call()) == ("first", "second")
    assert decided == [OSError]


def test_giving_up_is_always_decided_the_long_way(decided):
    policy = learned(retry(backoff=0))
    decided.clear()
    with pytest.raises(OSError):
        guarded(policy, OSError)()
    assert decided == [OSError]


def test_the_record_is_the_same(decided):
    policy = learned(retry("fetch", backoff=0))
    with pytest.raises(OSError) as raised:
        guarded(policy, OSError("one"), OSError("two"), OSError("three"))()
    assert str(explain(raised.value)) == (
        "retry 'fetch' gave up: all 3 attempts failed\n"
        "  attempt 1: OSError: one; waited 0 s\n"
        "  attempt 2: OSError: two; waited 0 s\n"
        "  attempt 3: OSError: three"
    )


def test_the_counts_are_the_same(decided):
    policy = learned(retry(backoff=0))
    guarded(policy, OSError, OSError, "answer")()
    snapshot = policy.snapshot()
    assert (snapshot["success"], snapshot["retries"], snapshot["recovered"]) == (2, 3, 2)


def test_a_run_made_on_the_short_way_has_everything_a_run_has(decided, clock):
    policy = learned(retry(backoff=0))
    short, long = policy.state.failed(None, OSError()), Run(clock.monotonic(), policy.config, policy)
    long.attempts, long.history = short.attempts, short.history
    assert {name: getattr(short, name) for name in Run.__slots__} == {
        name: getattr(long, name) for name in Run.__slots__
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"backoff": 1},
        {"backoff": 0, "jitter": 1.0},
        {"backoff": lambda attempt: 0},
        {"backoff": 0, "ignore": KeyError},
        {"backoff": 0, "budget": RetryBudget()},
        {"backoff": 0, "before_retry": print},
        {"backoff": 0, "nested": "outermost"},
        {"backoff": 0, "max_duration": 5, "runs": "inline"},
        {"backoff": 0, "on": lambda error: True},
        {"backoff": 0, "on": (OSError, KeyError)},
    ],
)
def test_settings_that_give_others_a_say_have_no_short_way(clock, settings):
    policy = learned(retry(**settings))
    assert policy.config.at_once == set()
    assert policy.snapshot()["retries"] == 1


@pytest.mark.parametrize("error", [HintedError, WellHintedError, SecretiveError])
def test_errors_that_may_say_when_to_come_back_go_the_long_way(decided, error):
    guarded(retry(backoff=0), error, error, "answer")()
    assert decided == [error, error]


def test_what_an_error_of_a_known_class_says_is_heeded(decided, clock):
    policy = learned(retry(backoff=0))
    hinted = OSError()
    hinted.retry_after = 5.0
    guarded(policy, hinted, "answer")()
    assert clock.sleeps == [5.0]


@pytest.mark.parametrize("error", [RejectedError("other"), CardRefusedError(), KeyError()])
def test_errors_that_are_not_failures_are_never_taken_for_such(decided, error):
    policy = learned(retry(backoff=0, on=OSError if isinstance(error, KeyError) else Exception))
    for _ in range(2):
        with pytest.raises(type(error)):
            guarded(policy, error)()
    assert policy.snapshot()["retries"] == 1


def test_when_somebody_listens_all_is_told(decided):
    policy, heard = learned(retry(backoff=0)), []
    policy.subscribe(heard.append, events.Retrying)
    guarded(policy, OSError, OSError, "answer")()
    assert [event.attempt for event in heard] == [1, 2]


def test_a_change_of_settings_in_the_middle_of_a_call_is_left_to_the_long_way(decided):
    policy = learned(retry(attempts=5, backoff=0))
    changes = iter([4, 6])

    @policy
    def fetch():
        if attempts := next(changes, None):
            policy.reconfigure(attempts=attempts)
            raise OSError
        return "answer"

    decided.clear()
    assert fetch() == "answer"
    assert decided == [OSError, OSError]


def test_only_so_many_classes_are_kept(decided, monkeypatch):
    monkeypatch.setattr(config, "_MOST_CLASSES", 2)
    policy = retry(backoff=0)
    for error in (OSError, KeyError, ValueError):
        learned(policy, error)
    assert policy.config.at_once == {OSError, KeyError}


# ------------------------------------------------------------------ the current attempt


def test_the_first_to_ask_for_the_current_attempt_is_answered(decided):
    policy, seen = learned(retry("fetch", backoff=0)), []

    @policy
    def fetch():
        seen.append(current_attempt() if seen else None)
        if len(seen) < 2:
            raise OSError

    fetch()
    assert (seen[1].policy, seen[1].number, seen[1].total) == ("fetch", 2, 3)


def test_so_it_is_in_a_coroutine(decided):
    policy, seen = learned(retry("fetch", backoff=0)), []

    @policy
    async def fetch():
        seen.append(current_attempt() if len(seen) == 2 else None)
        if len(seen) < 3:
            raise OSError

    asyncio.run(fetch())
    assert seen[2].number == 3


def test_it_is_the_innermost_retry_that_is_past_its_first_attempt(decided):
    outer, inner, seen = learned(retry("outer", backoff=0)), retry("inner", backoff=0), []

    @inner
    def fetch():
        seen.append(current_attempt() if len(seen) == 1 else None)

    @outer
    def call():
        if not seen:
            seen.append(None)
            raise OSError
        fetch()

    call()
    assert seen[1].policy == "outer"


def test_from_then_on_every_attempt_is_marked_and_unmarked(decided):
    policy, seen = learned(retry("fetch", backoff=0)), []
    assert current_attempt() is None

    @policy
    def fetch():
        seen.append(current_attempt() and current_attempt().number)
        if len(seen) < 3:
            raise OSError

    fetch()
    assert seen == [None, 2, 3]
    assert current_attempt() is None


def test_a_retry_that_leaves_it_to_the_outermost_has_everybody_marked(decided):
    retry(nested="outermost")
    assert marks.wanted
