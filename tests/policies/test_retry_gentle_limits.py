"""A limit that only keeps further attempts from beginning, hints that are not looked at, rejections like any error."""

from __future__ import annotations

import pytest

from everkeel import BulkheadFullError, NotRetryable, events, retry
from everkeel.testing import Flaky, VirtualClock


def test_an_attempt_that_outlives_the_limit_is_not_interrupted(guarded):
    assert guarded(retry("fetch", max_duration=0.2, cut_short=False), Flaky("late", takes=1.0))() == "late"
    assert guarded.clock.monotonic() == pytest.approx(1.0)


def test_an_attempt_that_fails_after_the_limit_is_not_retried_and_raises_its_own_error(guarded):
    refused = ConnectionError("refused")
    fetch = Flaky(refused, takes=1.0)
    with pytest.raises(ConnectionError) as raised:
        guarded(retry("fetch", backoff=0, max_duration=0.2, cut_short=False), fetch)()
    assert raised.value is refused
    assert fetch.calls == 1


def test_time_counts_from_the_beginning_of_the_first_attempt(guarded):
    fetch = Flaky(ConnectionError("refused"), takes=0.4)
    with pytest.raises(ConnectionError):
        guarded(retry("fetch", attempts=9, backoff=0, max_duration=1.0, cut_short=False), fetch)()
    assert fetch.calls == 3  # begun at 0, 0.4 and 0.8


def test_a_wait_that_would_cross_the_limit_is_not_begun(guarded):
    fetch = Flaky(ConnectionError("refused"), takes=0.1)
    policy = retry("fetch", attempts=9, backoff=0.5, jitter=None, max_duration=0.6, cut_short=False)
    with pytest.raises(ConnectionError):
        guarded(policy, fetch)()
    assert (fetch.calls, guarded.clock.monotonic()) == (1, pytest.approx(0.1))
    assert policy.snapshot()["gave_up"] == {"duration": 1}


class Oversleeping(VirtualClock):
    """Sleeps longer than asked for, as real clocks do."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds * 3)

    async def asleep(self, seconds: float) -> None:
        await super().asleep(seconds * 3)


@pytest.mark.parametrize("form", ["sync", "async", "block"])
def test_after_a_wait_that_took_too_long_nothing_begins(form):
    clock = Oversleeping()
    refused = ConnectionError("refused")
    fetch = Flaky(refused)
    policy = retry(attempts=9, backoff=0.5, jitter=None, max_duration=1.0, cut_short=False, clock=clock)

    async def afetch() -> object:
        return fetch()

    def in_a_block() -> None:
        for attempt in policy.attempts():
            with attempt:
                fetch()

    call = {
        "sync": lambda: policy.call(fetch),
        "async": lambda: clock.run(policy.acall(afetch)),
        "block": in_a_block,
    }[form]
    with pytest.raises(ConnectionError) as raised:
        call()
    assert raised.value is refused
    assert raised.value.__traceback__ is not None
    assert fetch.calls == 1
    assert policy.snapshot()["gave_up"] == {"duration": 1}


def test_it_is_told_as_the_end_of_its_time(guarded, clock):
    policy = retry("fetch", backoff=0, max_duration=0.2, cut_short=False)
    heard: list[events.RetryGaveUp] = []
    policy.subscribe(heard.append, events.RetryGaveUp)
    with pytest.raises(ConnectionError):
        guarded(policy, Flaky(ConnectionError("refused"), takes=1.0))()
    assert [event.reason for event in heard] == ["duration"]


class BusyError(Exception):
    retry_after = 30.0


def test_hints_may_be_left_unread(guarded):
    fetch = Flaky(BusyError("later"), "answer")
    assert guarded(retry("fetch", backoff=1, jitter=None, obey_retry_after=False), fetch)() == "answer"
    assert guarded.clock.sleeps == [1]


class OutOfStock(NotRetryable):
    pass


@pytest.mark.parametrize("error", [BulkheadFullError("shop", None, 1, 0), OutOfStock("no more")])
def test_rejections_and_business_errors_may_be_errors_like_any_other(guarded, error):
    assert guarded(retry("fetch", backoff=0, rejections="failure"), Flaky(error, "answer"))() == "answer"


def test_where_they_are_they_must_still_be_named(guarded):
    fetch = Flaky(BulkheadFullError("shop", None, 1, 0), "answer")
    with pytest.raises(BulkheadFullError):
        guarded(retry("fetch", on=OSError, backoff=0, rejections="failure"), fetch)()
