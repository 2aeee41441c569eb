"""How often a retry tries, and on what."""

from __future__ import annotations

import asyncio

import pytest

from everkeel import NotRetryable, RejectedError, current_attempt, events, retry
from everkeel.testing import Flaky


class OutOfStockError(NotRetryable):
    """Trying again does not fill the shelf."""


def test_a_call_that_succeeds_is_made_once(retried):
    fetch = Flaky("answer")
    assert retried(retry("fetch"), fetch)() == "answer"
    assert fetch.calls == 1


def test_a_call_is_tried_three_times_by_default(retried):
    fetch = Flaky(ConnectionError("refused"))
    with pytest.raises(ConnectionError, match="refused"):
        retried(retry("fetch"), fetch)()
    assert fetch.calls == 3


def test_a_call_that_recovers_gives_its_answer(retried):
    fetch = Flaky(ConnectionError, ConnectionError, "answer")
    assert retried(retry("fetch"), fetch)() == "answer"
    assert fetch.calls == 3


@pytest.mark.parametrize("attempts", [1, 2, 7])
def test_attempts_counts_the_first_try(retried, attempts):
    fetch = Flaky(ConnectionError)
    with pytest.raises(ConnectionError):
        retried(retry("fetch", attempts=attempts, backoff=0), fetch)()
    assert fetch.calls == attempts


def test_every_attempt_gets_the_same_arguments(guarded):
    fetch = Flaky(ConnectionError, "answer")
    guarded(retry("fetch"), fetch)("/orders", page=2)
    assert fetch.arguments == [(("/orders",), {"page": 2})] * 2


def test_the_last_exception_leaves_as_the_very_object_it_is(retried):
    last = ConnectionError("last")
    with pytest.raises(ConnectionError) as raised:
        retried(retry("fetch", attempts=2), Flaky(ConnectionError("first"), last))()
    assert raised.value is last


def test_an_attempt_is_not_chained_to_the_one_before(retried):
    with pytest.raises(ConnectionError) as raised:
        retried(retry("fetch", attempts=2), Flaky(KeyError("first"), ConnectionError("last")))()
    assert raised.value.__context__ is None
    assert raised.value.__cause__ is None


def test_an_error_that_on_does_not_name_is_raised_at_once(retried):
    fetch = Flaky(ValueError("no such order"))
    policy = retry("fetch", on=ConnectionError)
    with pytest.raises(ValueError, match="no such order"):
        retried(policy, fetch)()
    assert fetch.calls == 1
    assert policy.snapshot()["ignored"] == 1


def test_on_takes_several_classes_and_predicates(retried):
    fetch = Flaky(KeyError(1), OSError(28, "full"), ValueError("no"))
    policy = retry("fetch", attempts=9, on=(KeyError, lambda error: getattr(error, "errno", 0) == 28))
    with pytest.raises(ValueError, match="no"):
        retried(policy, fetch)()
    assert fetch.calls == 3


def test_ignore_wins_over_on(retried):
    fetch = Flaky(ConnectionRefusedError)
    with pytest.raises(ConnectionRefusedError):
        retried(retry("fetch", on=OSError, ignore=ConnectionRefusedError), fetch)()
    assert fetch.calls == 1


def test_ignore_takes_a_predicate(retried):
    fetch = Flaky(OSError(28, "full"))
    with pytest.raises(OSError, match="full"):
        retried(retry("fetch", ignore=lambda error: error.errno == 28), fetch)()
    assert fetch.calls == 1


def test_a_business_error_is_not_retried(retried):
    fetch = Flaky(OutOfStockError)
    with pytest.raises(OutOfStockError):
        retried(retry("fetch"), fetch)()
    assert fetch.calls == 1


def test_a_business_error_that_on_names_is_retried(retried):
    fetch = Flaky(OutOfStockError)
    with pytest.raises(OutOfStockError):
        retried(retry("fetch", on=OutOfStockError, backoff=0), fetch)()
    assert fetch.calls == 3


def test_a_rejection_by_our_own_policies_is_not_retried(retried):
    fetch = Flaky(RejectedError("payments", 1.0))
    with pytest.raises(RejectedError):
        retried(retry("fetch"), fetch)()
    assert fetch.calls == 1


def test_a_rejection_that_on_names_is_retried_not_before_its_retry_after(retried):
    fetch = Flaky(RejectedError("payments", 7.5), "answer")
    assert retried(retry("fetch", on=RejectedError, backoff=1, jitter=None), fetch)() == "answer"
    assert retried.clock.sleeps == [7.5]


def test_causes_lets_on_look_along_the_chain(retried):
    wrapped = RuntimeError("could not load")
    wrapped.__cause__ = ConnectionError("refused")
    fetch = Flaky(wrapped, "answer")
    assert retried(retry("fetch", on=ConnectionError, causes=True), fetch)() == "answer"


def test_without_causes_only_the_error_itself_counts(retried):
    wrapped = RuntimeError("could not load")
    wrapped.__cause__ = ConnectionError("refused")
    fetch = Flaky(wrapped)
    with pytest.raises(RuntimeError):
        retried(retry("fetch", on=ConnectionError), fetch)()
    assert fetch.calls == 1


def test_a_chain_of_causes_that_bites_its_tail_is_walked_once(guarded):
    one, two = KeyError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    fetch = Flaky(one)
    with pytest.raises(KeyError):
        guarded(retry("fetch", on=ConnectionError, causes=True), fetch)()
    assert fetch.calls == 1


def test_a_predicate_that_raises_makes_it_a_failure_and_is_logged(retried, caplog):
    fetch = Flaky(ConnectionError("refused"))
    with pytest.raises(ConnectionError, match="refused"):
        retried(retry("fetch", on=lambda error: error.no_such_thing, backoff=0), fetch)()
    assert fetch.calls == 3
    assert "a predicate raised" in caplog.text


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_is_never_retried_or_counted(threaded, interruption):
    policy, fetch = retry("fetch", on=lambda error: True), Flaky(interruption)
    with pytest.raises(interruption):
        threaded(policy, fetch)()
    snapshot = policy.snapshot()
    assert (fetch.calls, snapshot["success"], snapshot["failure"], snapshot["ignored"]) == (1, 0, 0, 0)


def test_cancellation_is_never_retried(awaited):
    # tenacity retries it: `wait_for(0.1)` around a retried call then returns normally, much later.
    policy, begun = retry("fetch", on=lambda error: True, ignore=KeyError), []

    async def fetch() -> None:
        begun.append(1)
        await asyncio.sleep(10)

    guarded = awaited.guarded(policy, fetch)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(guarded(), 0.1)

    awaited.clock.run(main)
    assert len(begun) == 1
    assert policy.snapshot()["failure"] == 0


def test_the_operation_can_read_its_attempt_from_the_second_on(retried):
    seen = []

    def fetch() -> str:
        seen.append(current_attempt() and (current_attempt().policy, current_attempt().number, current_attempt().last))
        if len(seen) < 3:
            raise ConnectionError
        return "answer"

    retried(retry("fetch", backoff=0), fetch)()
    assert seen == [None, ("fetch", 2, False), ("fetch", 3, True)]
    assert current_attempt() is None


def test_an_attempt_bounded_by_time_only_is_never_known_to_be_the_last(guarded):
    seen = []

    def fetch() -> str:
        attempt = current_attempt()
        seen.append(attempt and (attempt.total, attempt.last, repr(attempt)))
        if attempt is None:
            raise ConnectionError
        return "answer"

    guarded(retry("fetch", attempts=None, max_duration=5, backoff=0, runs="inline"), fetch)()
    assert seen == [None, (None, False, "Attempt(2 of any number, policy='fetch')")]


def test_the_attempt_is_forgotten_when_the_call_has_failed(retried):
    with pytest.raises(ConnectionError):
        retried(retry("fetch", backoff=0), Flaky(ConnectionError))()
    assert current_attempt() is None


def test_before_retry_hears_of_the_next_attempt_before_the_wait(retried):
    heard = []
    fetch = Flaky(ConnectionError("one"), ConnectionError("two"), "answer")
    policy = retry(
        "fetch",
        backoff=2,
        jitter=None,
        before_retry=lambda attempt: heard.append((attempt.number, str(attempt.error), retried.clock.monotonic())),
    )
    assert retried(policy, fetch)() == "answer"
    assert heard == [(2, "one", 0.0), (3, "two", 2.0)]


def test_a_before_retry_that_raises_harms_nobody(retried, caplog):
    def hook(attempt: object) -> None:
        raise RuntimeError("broken hook")

    assert retried(retry("fetch", before_retry=hook, backoff=0), Flaky(ConnectionError, "answer"))() == "answer"
    assert "before_retry raised" in caplog.text


def test_before_retry_is_not_called_when_no_attempt_follows(retried):
    heard = []
    with pytest.raises(ConnectionError):
        retried(retry("fetch", attempts=1, before_retry=heard.append), Flaky(ConnectionError))()
    assert heard == []


def test_the_snapshot_tells_what_happened(retried):
    policy = retry("fetch", attempts=2, on=ConnectionError, backoff=0)
    for outcomes in (["a"], [ConnectionError, "b"], [ConnectionError], [ValueError]):
        call = retried(policy, Flaky(*outcomes))
        try:
            call()
        except (ConnectionError, ValueError):
            pass
    assert policy.snapshot() == {
        "name": "fetch",
        "type": "retry",
        "mode": "enforce",
        "success": 2,
        "failure": 1,
        "ignored": 1,
        "rejected": 0,
        "would": {},
        "retries": 2,
        "recovered": 1,
        "gave_up": {"attempts": 1, "not_retryable": 1},
        "attempt_expired": 0,
        "abandoned": 0,
    }


def test_the_events_tell_what_happened(retried, heard):
    retried(retry("fetch", backoff=1, jitter=None), Flaky(error := ConnectionError("reset"), "answer"))()
    told = heard.of(events.Retrying, events.RetrySucceeded)
    assert told == [
        events.Retrying(policy="fetch", policy_type="retry", attempt=1, delay=1.0, error=error),
        events.RetrySucceeded(policy="fetch", policy_type="retry", attempts=2),
    ]


def test_giving_up_is_told_with_its_reason(retried, heard):
    with pytest.raises(ConnectionError):
        retried(retry("fetch", attempts=2, backoff=0), Flaky(error := ConnectionError("reset")))()
    assert heard.of(events.RetryGaveUp) == [
        events.RetryGaveUp(policy="fetch", policy_type="retry", attempts=2, reason="attempts", error=error)
    ]


def test_a_call_that_succeeds_at_once_tells_nothing_but_that(retried, heard):
    retried(retry("fetch"), Flaky("answer"))()
    assert heard.names() == ["PolicyAdded", "Succeeded"]


def test_a_call_that_failed_is_told_as_one_failure(retried, heard):
    with pytest.raises(ConnectionError):
        retried(retry("fetch", backoff=0), Flaky(ConnectionError))()
    assert heard.names() == ["PolicyAdded", "Retrying", "Retrying", "RetryGaveUp", "Failed"]


def test_an_error_not_to_retry_on_is_told_as_ignored(retried, heard):
    with pytest.raises(ValueError):
        retried(retry("fetch", on=ConnectionError), Flaky(ValueError))()
    assert heard.names() == ["PolicyAdded", "RetryGaveUp", "Ignored"]


def test_a_listener_that_raises_harms_nobody(retried, caplog):
    policy = retry("fetch", backoff=0)

    def broken(event: object) -> None:
        raise RuntimeError("broken listener")

    policy.subscribe(broken)
    assert retried(policy, Flaky(ConnectionError, "answer"))() == "answer"
    assert "a listener raised on Retrying" in caplog.text


def test_a_cancelled_subscription_hears_no_more(retried):
    policy, told = retry("fetch", backoff=0), []
    subscription = policy.subscribe(told.append, events.Retrying)
    call = retried(policy, Flaky(ConnectionError, "answer", ConnectionError, "answer"))
    call()
    subscription.cancel()
    subscription.cancel()
    call()
    assert [event.attempt for event in told] == [1]
