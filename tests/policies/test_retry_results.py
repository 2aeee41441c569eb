"""Results that count as failures, and what to do when attempts run out."""

from __future__ import annotations

import pytest

from everkeel import RetryExhaustedError, events, explain, retry
from everkeel.testing import Flaky


def pending(result: object) -> bool:
    return result == "pending"


def test_a_result_that_counts_as_a_failure_is_tried_again(retried):
    poll = Flaky("pending", "pending", "done")
    assert retried(retry("poll", on_result=pending), poll)() == "done"
    assert poll.calls == 3


def test_a_result_that_is_fine_is_returned_at_once(retried):
    poll = Flaky("done")
    assert retried(retry("poll", on_result=pending), poll)() == "done"
    assert poll.calls == 1


def test_when_attempts_run_out_on_a_result_an_error_carries_the_last(retried):
    with pytest.raises(RetryExhaustedError) as raised:
        retried(retry("poll", attempts=2, on_result=pending), Flaky("pending"))()
    error = raised.value
    assert (error.policy, error.attempts, error.result) == ("poll", 2, "pending")
    assert str(error) == "retry 'poll': 2 attempts, and the last result still counts as a failure: 'pending'"


def test_an_attempt_that_raised_is_never_replaced_by_that_error(retried):
    with pytest.raises(ConnectionError):
        retried(retry("poll", attempts=2, on_result=pending), Flaky("pending", ConnectionError))()


def test_errors_and_results_share_the_attempts(retried):
    poll = Flaky(ConnectionError, "pending", "done")
    assert retried(retry("poll", on_result=pending), poll)() == "done"


def test_a_predicate_on_the_result_that_raises_makes_it_a_failure(retried, caplog):
    with pytest.raises(RetryExhaustedError):
        retried(retry("poll", attempts=2, on_result=lambda result: result.no_such_thing, backoff=0), Flaky("done"))()
    assert "a predicate raised" in caplog.text


def test_the_events_carry_the_result(retried, heard):
    retried(retry("poll", backoff=0, on_result=pending), Flaky("pending", "done"))()
    (retrying,) = heard.of(events.Retrying)
    assert (retrying.result, retrying.error) == ("pending", None)


def test_running_out_on_a_result_is_told_as_a_failure_whatever_on_says(retried, heard):
    policy = retry("poll", attempts=1, on=ConnectionError, on_result=pending)
    with pytest.raises(RetryExhaustedError):
        retried(policy, Flaky("pending"))()
    assert heard.names() == ["PolicyAdded", "RetryGaveUp", "Failed"]
    assert policy.snapshot()["failure"] == 1


def test_the_record_says_that_results_failed(retried):
    with pytest.raises(RetryExhaustedError) as raised:
        retried(retry("poll", attempts=2, backoff=0, on_result=pending), Flaky("pending"))()
    assert str(explain(raised.value)) == (
        "retry 'poll' gave up: all 2 attempts failed\n"
        "  attempt 1: a result that counts as a failure; waited 0 s\n"
        "  attempt 2: a result that counts as a failure"
    )


def test_a_mapper_answers_when_attempts_ran_out_on_an_error(guarded):
    policy = retry("poll", attempts=2, backoff=0, exhausted=lambda outcome: ("mapped", outcome.attempts, outcome.error))
    error = ConnectionError("refused")
    assert guarded(policy, Flaky(error))() == ("mapped", 2, error)


def test_a_mapper_answers_when_attempts_ran_out_on_a_result(guarded):
    policy = retry("poll", attempts=2, backoff=0, on_result=pending, exhausted=lambda outcome: outcome.value)
    assert guarded(policy, Flaky("pending"))() == "pending"


def test_a_mapper_may_raise_an_error_of_its_own(guarded):
    def mapper(outcome: object) -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there") as raised:
        guarded(retry("poll", attempts=1, exhausted=mapper), Flaky(error := ConnectionError("refused")))()
    assert raised.value.__context__ is error


def test_a_mapper_may_unwrap_the_outcome(guarded):
    error = ConnectionError("refused")
    with pytest.raises(ConnectionError) as raised:
        guarded(retry("poll", attempts=1, exhausted=lambda outcome: outcome.unwrap()), Flaky(error))()
    assert raised.value is error


def test_a_mapper_is_not_asked_about_an_error_that_is_not_retried(guarded):
    with pytest.raises(ValueError):
        guarded(retry("poll", on=ConnectionError, exhausted=lambda outcome: "mapped"), Flaky(ValueError))()


def test_a_mapped_call_still_counts_as_a_failure(guarded):
    policy = retry("poll", attempts=2, backoff=0, exhausted=lambda outcome: "mapped")
    guarded(policy, Flaky(ConnectionError))()
    snapshot = policy.snapshot()
    assert (snapshot["success"], snapshot["failure"], snapshot["gave_up"]) == (0, 1, {"attempts": 1})
