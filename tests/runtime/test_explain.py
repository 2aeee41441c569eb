"""Why a call failed the way it did."""

from __future__ import annotations

import pytest

from everkeel import (
    BulkheadFullError,
    CircuitOpenError,
    RejectedError,
    TimeoutExceededError,
    WorkersExhaustedError,
    explain,
    fallback,
    pipeline,
    retry,
)
from everkeel.runtime.explain import Decision, FailedAttempt, attach, describe
from everkeel.testing import Flaky


def failure_of(policy, fetch):
    with pytest.raises(Exception) as raised:
        policy.call(fetch)
    return raised.value


def test_an_error_no_policy_saw_has_no_record():
    explanation = explain(ValueError("no"))
    assert explanation.decisions == ()
    assert (explanation.attempts, explanation.delays) == (1, ())
    assert str(explanation) == "ValueError: no policy decided anything about it"


def test_a_retry_that_gave_up_tells_every_attempt(fresh_everkeel, virtual_time):
    error = failure_of(
        retry("fetch", backoff=[1, 2], jitter=None), Flaky(OSError("refused"), OSError("reset"), OSError)
    )
    explanation = explain(error)
    assert explanation.error is error
    assert (explanation.attempts, explanation.delays) == (3, (1.0, 2.0))
    assert str(explanation) == (
        "retry 'fetch' gave up: all 3 attempts failed\n"
        "  attempt 1: OSError: refused; waited 1 s\n"
        "  attempt 2: OSError: reset; waited 2 s\n"
        "  attempt 3: OSError"
    )


def test_the_innermost_decision_comes_first(fresh_everkeel):
    policies = pipeline(retry("outer", attempts=2, backoff=0), retry("inner", attempts=3, backoff=0))
    explanation = explain(failure_of(policies, Flaky(OSError)))
    assert [decision.policy for decision in explanation.decisions] == ["inner", "outer"]
    assert explanation.attempts == 2


def test_what_led_to_an_error_is_in_its_record(fresh_everkeel):
    def broken(error):
        raise KeyError("cache is empty")

    error = failure_of(
        pipeline(fallback(broken, name="cached"), retry("fetch", attempts=2, backoff=0)), Flaky(OSError("refused"))
    )
    assert isinstance(error, KeyError)
    assert [decision.policy for decision in explain(error).decisions] == ["fetch", "cached"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RejectedError("payments", 1.0), "policy 'payments' rejected: rejected by 'payments'"),
        (
            CircuitOpenError("payments", 3.2, 0.52, 100),
            "circuit breaker 'payments' rejected: circuit 'payments' is open (52% of the last 100 calls failed); "
            "next probe in 3.2 s",
        ),
        (
            BulkheadFullError("payments", None, 10, 5),
            "bulkhead 'payments' rejected: bulkhead 'payments' is full (10 running, 5 waiting)",
        ),
        (
            WorkersExhaustedError("report", None, 64),
            "timeout 'report' rejected: timeout 'report': 64 abandoned calls still occupy their threads; "
            "refusing to start another",
        ),
        (TimeoutExceededError("quote", 2.0), "timeout 'quote' timed out: no answer within 2 s"),
    ],
)
def test_errors_of_our_own_explain_themselves(error, text):
    assert str(explain(error)) == text


def test_it_walks_along_causes_and_contexts():
    inner, middle, outer = TimeoutExceededError("quote", 2.0), KeyError(), ValueError()
    middle.__context__, outer.__cause__ = inner, middle
    assert [decision.policy for decision in explain(outer).decisions] == ["quote"]


def test_a_context_that_was_suppressed_is_left_out():
    outer = ValueError()
    outer.__context__, outer.__suppress_context__ = TimeoutExceededError("quote", 2.0), True
    assert explain(outer).decisions == ()


def test_a_chain_that_bites_its_own_tail_is_walked_once():
    first, second = RejectedError("first"), RejectedError("second")
    first.__cause__, second.__cause__ = second, first
    assert [decision.policy for decision in explain(first).decisions] == ["second", "first"]


def test_an_error_object_that_is_raised_for_ever_keeps_a_bounded_record():
    error = OSError()
    for n in range(100):
        attach(error, Decision("fetch", "retry", "gave_up", str(n)))
    assert [decision.reason for decision in explain(error).decisions] == [str(n) for n in range(84, 100)]


def test_an_error_that_takes_no_attributes_goes_unexplained():
    class SealedError(Exception):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    error = SealedError()
    attach(error, Decision("fetch", "retry", "gave_up", "all attempts failed"))
    assert explain(error).decisions == ()


def test_a_long_message_is_cut():
    assert len(describe(ValueError, ("x" * 10_000,))) < 250


def test_errors_of_our_own_are_described_by_what_they_say():
    assert describe(BulkheadFullError, ("payments", None, 10, 5)) == (
        "BulkheadFullError: bulkhead 'payments' is full (10 running, 5 waiting)"
    )


def test_a_failed_attempt_that_returned_says_so():
    assert str(FailedAttempt(2, None, 0.25)) == "attempt 2: a result that counts as a failure; waited 0.25 s"


def test_an_argument_that_cannot_be_shown_does_not_replace_the_error(fresh_everkeel):
    class Shy:
        def __str__(self) -> str:
            raise ZeroDivisionError

    error = failure_of(retry("fetch", attempts=2, backoff=0), Flaky(OSError(Shy())))
    assert isinstance(error, OSError)
    assert explain(error).attempts == 2
