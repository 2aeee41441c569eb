"""The end of the whole call, the end of one attempt, and the deadline that travels with it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everkeel import (
    ConfigError,
    TimeoutExceededError,
    WorkersExhaustedError,
    current_attempt,
    current_deadline,
    deadline,
    events,
    explain,
    retry,
    sleep,
)
from everkeel.testing import Flaky


def test_a_limit_of_a_fifth_of_a_second_on_a_one_second_attempt_takes_a_fifth_of_a_second(guarded):
    # tenacity, stamina, api_core and redress take the whole second.
    fetch = Flaky("late", takes=1.0)
    with pytest.raises(TimeoutExceededError, match=r"^retry 'fetch': no answer within 0.2 s$"):
        guarded(retry("fetch", max_duration=0.2), fetch)()
    assert guarded.clock.monotonic() == pytest.approx(0.2)


def test_an_async_block_is_cut_short_too(clock):
    async def main() -> None:
        async for attempt in retry("fetch", max_duration=0.2).attempts():
            async with attempt:
                await asyncio.sleep(1)

    with pytest.raises(TimeoutExceededError):
        clock.run(main)
    assert clock.monotonic() == pytest.approx(0.2)


def test_the_limit_bounds_all_attempts_together(guarded):
    fetch = Flaky(ConnectionError("refused"), takes=0.3)
    with pytest.raises(TimeoutExceededError):
        guarded(retry("fetch", attempts=9, backoff=0.1, jitter=None, max_duration=1.0), fetch)()
    assert (fetch.calls, guarded.clock.monotonic()) == (3, pytest.approx(1.0))


def test_expiring_in_an_attempt_shows_the_last_error_as_context(guarded):
    last = ConnectionError("refused")
    with pytest.raises(TimeoutExceededError) as raised:
        guarded(retry("fetch", backoff=0, max_duration=0.5), Flaky(last, "late", takes=0.3))()
    assert raised.value.__context__ is last
    assert not raised.value.__suppress_context__


def test_expiring_in_an_async_block_shows_the_last_error_as_context(clock):
    last = ConnectionError("refused")
    fetch = Flaky(last, "late", takes=0.3).async_()

    async def main() -> None:
        async for attempt in retry("fetch", backoff=0, max_duration=0.5).attempts():
            async with attempt:
                await fetch()

    with pytest.raises(TimeoutExceededError) as raised:
        clock.run(main)
    assert raised.value.__context__ is last
    assert not raised.value.__suppress_context__


def test_expiring_in_the_first_attempt_leaks_no_signal_of_ours(guarded):
    with pytest.raises(TimeoutExceededError) as raised:
        guarded(retry("fetch", max_duration=0.2), Flaky("late", takes=1.0))()
    assert raised.value.__context__ is None
    assert type(raised.value) is TimeoutExceededError


def test_a_call_cut_short_explains_its_attempts(guarded):
    policy = retry("fetch", backoff=0, max_duration=0.5)
    with pytest.raises(TimeoutExceededError) as raised:
        guarded(policy, Flaky(ConnectionError("refused"), "late", takes=0.3))()
    assert "retry 'fetch' gave up: time ran out during attempt 2" in str(explain(raised.value))
    assert explain(raised.value).attempts == 1
    assert policy.snapshot()["gave_up"] == {"duration": 1}


def test_a_call_cut_short_is_told_with_its_reason(guarded, heard):
    with pytest.raises(TimeoutExceededError):
        guarded(retry("fetch", on=OSError, max_duration=0.2), Flaky("late", takes=1.0))()
    gave_up, failed = heard.of(events.RetryGaveUp, events.Failed)
    assert (gave_up.attempts, gave_up.reason) == (1, "duration")
    assert type(failed) is events.Failed


def test_a_sleep_that_would_not_fit_is_not_started(retried):
    # and the last error is raised at once
    fetch = Flaky(ConnectionError("refused"))
    policy = retry("fetch", backoff=2, jitter=None, max_duration=1.5, runs="inline")
    with pytest.raises(ConnectionError, match="refused") as raised:
        retried(policy, fetch)()
    assert (fetch.calls, retried.clock.sleeps, retried.clock.monotonic()) == (1, [], 0.0)
    assert explain(raised.value).decisions[0].reason == "another attempt would not fit into its 1.5 s"


def test_a_sleep_that_would_end_exactly_at_the_limit_is_not_started(retried):
    fetch = Flaky(ConnectionError)
    with pytest.raises(ConnectionError):
        retried(retry("fetch", backoff=1.5, jitter=None, max_duration=1.5, runs="inline"), fetch)()
    assert fetch.calls == 1


def test_a_call_within_its_limit_is_as_without_one(guarded):
    fetch = Flaky(ConnectionError, "answer", takes=0.1)
    assert guarded(retry("fetch", backoff=0, max_duration=1.0), fetch)() == "answer"


def test_no_bound_but_time_tries_until_the_time_is_up(retried):
    fetch = Flaky(ConnectionError)
    with pytest.raises(ConnectionError):
        retried(retry("fetch", attempts=None, max_duration=10, backoff=1, jitter=None, runs="inline"), fetch)()
    assert fetch.calls == 10


def test_no_bound_but_the_ambient_deadline_tries_until_it_is_up(retried):
    fetch = Flaky(ConnectionError)
    call = retried(retry("fetch", attempts=None, backoff=1, jitter=None), fetch)
    with deadline(5), pytest.raises(ConnectionError):
        call()
    assert fetch.calls == 5


def test_no_bound_at_all_is_refused_before_the_first_attempt(retried):
    fetch = Flaky("answer")
    with pytest.raises(ConfigError) as raised:
        retried(retry("fetch", attempts=None), fetch)()
    assert (
        str(raised.value) == "retry 'fetch': attempts None needs max_duration, or a call under a deadline (got neither)"
    )
    assert fetch.calls == 0


# ------------------------------------------------------------------ the ambient deadline


def test_a_sleep_that_would_not_fit_before_the_deadline_is_not_started(retried, heard):
    fetch = Flaky(ConnectionError("refused"))
    call = retried(retry("fetch", backoff=2, jitter=None), fetch)
    with deadline(1), pytest.raises(ConnectionError) as raised:
        call()
    assert (fetch.calls, retried.clock.sleeps) == (1, [])
    assert heard.of(events.RetryGaveUp)[0].reason == "deadline"
    assert "another attempt would not fit before the deadline" in str(explain(raised.value))


def test_the_deadline_ends_an_async_attempt(awaited):
    call = awaited(retry("fetch"), Flaky("late", takes=5))
    with deadline(1), pytest.raises(TimeoutExceededError, match=r"^deadline 'fetch': no answer within 1 s$"):
        call()
    assert awaited.clock.monotonic() == pytest.approx(1.0)


def test_the_deadline_alone_never_moves_a_sync_call_to_another_thread(threaded):
    threads = []
    call = threaded(retry("fetch"), lambda: threads.append(threading.current_thread()))
    with deadline(5):
        call()
    assert threads == [threading.current_thread()]


def test_the_deadline_is_checked_between_sync_attempts(threaded):
    fetch = Flaky(ConnectionError, takes=2)
    call = threaded(retry("fetch", backoff=0), fetch)
    with deadline(3), pytest.raises(ConnectionError):
        call()
    assert (fetch.calls, threaded.clock.monotonic()) == (2, 4.0)


def test_a_deadline_that_has_passed_lets_no_attempt_begin(retried, heard):
    fetch = Flaky("answer")
    call = retried(retry("fetch"), fetch)
    with deadline(0), pytest.raises(TimeoutExceededError):
        call()
    assert fetch.calls == 0
    assert heard.of(events.RetryGaveUp)[0].attempts == 0


def test_the_earlier_of_deadline_and_max_duration_counts(guarded):
    call = guarded(retry("fetch", max_duration=5), Flaky("late", takes=9))
    with deadline(1), pytest.raises(TimeoutExceededError, match=r"^deadline 'fetch'"):
        call()
    assert guarded.clock.monotonic() == pytest.approx(1.0)


def test_an_operation_under_a_limit_sees_it_as_its_deadline(guarded):
    left = []
    guarded(retry("fetch", max_duration=2), lambda: left.append(current_deadline().remaining()))()
    assert left == [pytest.approx(2.0)]
    assert current_deadline() is None


def test_an_operation_with_an_attempt_timeout_sees_it_as_its_deadline(guarded):
    left = []
    guarded(retry("fetch", max_duration=9, attempt_timeout=2), lambda: left.append(current_deadline().remaining()))()
    assert left == [pytest.approx(2.0)]


# ------------------------------------------------------------------ the end of one attempt


def test_an_attempt_that_takes_too_long_is_tried_again(guarded):
    policy = retry("fetch", attempts=2, backoff=0, attempt_timeout=0.5)
    with pytest.raises(TimeoutExceededError, match=r"^attempt of retry 'fetch': no answer within 0.5 s"):
        guarded(policy, fetch := Flaky("late", takes=2))()
    assert (fetch.calls, guarded.clock.monotonic()) == (2, pytest.approx(1.0))
    assert policy.snapshot()["attempt_expired"] == 2


def test_an_attempt_of_an_async_block_that_takes_too_long_is_tried_again(clock):
    begun = []

    async def main() -> None:
        async for attempt in retry("fetch", attempts=2, backoff=0, attempt_timeout=0.5).attempts():
            async with attempt:
                begun.append(attempt.number)
                await asyncio.sleep(2)

    with pytest.raises(TimeoutExceededError, match=r"^attempt of retry 'fetch'"):
        clock.run(main)
    assert (begun, clock.monotonic()) == ([1, 2], pytest.approx(1.0))


def test_the_expiry_of_an_attempt_is_retried_whatever_on_says(guarded):
    fetch = Flaky("late", takes=2)
    with pytest.raises(TimeoutExceededError):
        guarded(retry("fetch", on=KeyError, backoff=0, attempt_timeout=0.5), fetch)()
    assert fetch.calls == 3


def test_the_expiry_of_an_attempt_is_not_retried_when_ignore_names_it(guarded):
    fetch = Flaky("late", takes=2)
    with pytest.raises(TimeoutExceededError):
        guarded(retry("fetch", ignore=TimeoutError, backoff=0, attempt_timeout=0.5), fetch)()
    assert fetch.calls == 1


def test_the_expiry_of_an_inner_retrys_attempt_is_an_error_like_any_other(guarded):
    inner, outer = retry(attempts=1, attempt_timeout=0.5), retry(on=KeyError, backoff=0)
    fetch = Flaky("late", takes=2)
    with pytest.raises(TimeoutExceededError):
        guarded(outer, lambda: inner.acall(fetch.async_()) if guarded.awaited else inner.call(fetch))()
    assert fetch.calls == 1


def test_the_whole_limit_cuts_an_attempt_before_its_own(guarded):
    with pytest.raises(TimeoutExceededError, match=r"^retry 'fetch': no answer within 0.7 s$"):
        guarded(retry("fetch", backoff=0, attempt_timeout=0.5, max_duration=0.7), Flaky("late", takes=2))()
    assert guarded.clock.monotonic() == pytest.approx(0.7)


def test_a_timed_sync_attempt_runs_in_a_worker_with_its_context(threaded):
    seen = []
    policy = retry("fetch", backoff=0, attempt_timeout=5)

    def fetch() -> None:
        seen.append((threading.current_thread() is threading.main_thread(), current_attempt()))
        if len(seen) == 1:
            raise ConnectionError

    threaded(policy, fetch)()
    assert [main for main, _ in seen] == [False, False]
    assert seen[1][1].number == 2


def test_a_timed_sync_attempt_inline_stays_in_its_thread_and_must_cooperate(threaded):
    threads = []

    def fetch() -> None:
        threads.append(threading.current_thread())
        sleep(9)

    policy = retry("fetch", attempts=2, backoff=0, attempt_timeout=0.5, runs="inline")
    with pytest.raises(TimeoutExceededError):
        threaded(policy, fetch)()
    assert threads == [threading.current_thread()] * 2
    assert threaded.clock.monotonic() == pytest.approx(1.0)


def test_a_sync_block_cannot_have_an_attempt_timeout_in_a_worker(clock):
    with pytest.raises(TypeError, match=r"^retry 'fetch': a sync block runs where it stands and cannot have"):
        next(iter(retry("fetch", attempt_timeout=1).attempts()))


def test_too_many_abandoned_attempts_refuse_another_one(clock):
    gate = threading.Event()
    policy = retry("fetch", attempts=1, attempt_timeout=0.01, max_abandoned=2)
    for _ in range(2):
        with pytest.raises(TimeoutExceededError):
            policy.call(gate.wait)
    with pytest.raises(WorkersExhaustedError):
        policy.call(gate.wait)
    assert policy.snapshot()["abandoned"] == 2
    gate.set()


def test_a_real_clock_cuts_a_real_attempt_short():
    policy, gate = retry(max_duration=0.02), threading.Event()
    with pytest.raises(TimeoutExceededError):
        policy.call(gate.wait, 30)
    gate.set()

    async def main() -> None:
        await retry(max_duration=0.02).acall(asyncio.sleep, 30)

    with pytest.raises(TimeoutExceededError):
        asyncio.run(main())


def test_a_real_clock_really_waits_between_attempts():
    fetch = Flaky(ConnectionError, "answer")
    assert retry(backoff=0.01, jitter=None).call(fetch) == "answer"
    assert fetch.times[1] - fetch.times[0] >= 0.01
