"""Waiting in line: in turn, for no longer than one may, without a lock, and without a trace when one gives up."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from everkeel import ConfigError, RateLimitedError, deadline, rate_limit, timeout
from everkeel.events import CallQueued, CallRejected, Granted
from everkeel.testing import (
    CancelledRun,
    EventRecorder,
    VirtualClock,
    cancel_at_every_await,
    virtual_time,
    wait_until_idle,
)

ALGORITHMS = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter")


def echo(x: Any = None) -> Any:
    return x


async def gathered(calls: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def timing(clock: VirtualClock) -> tuple[list[tuple[Any, float]], Callable[[Any], None]]:
    """A list of who got in when, and the function that writes into it."""
    seen: list[tuple[Any, float]] = []
    return seen, lambda who: seen.append((who, round(clock.monotonic(), 6)))


# ------------------------------------------------------------------ in turn


def test_a_call_over_the_limit_waits_for_exactly_as_long_as_it_must(timed: Any, clock: VirtualClock) -> None:
    seen, note = timing(clock)
    call = timed(rate_limit(2, queue=5), note)
    for who in range(5):
        call(who)
    assert seen == [(0, 0.0), (1, 0.0), (2, 0.5), (3, 1.0), (4, 1.5)]


def test_tasks_get_in_in_the_order_they_came(awaited: Any, clock: VirtualClock) -> None:
    seen, note = timing(clock)
    call = awaited.guarded(rate_limit(1, queue=5), note)
    clock.run(gathered([call(who) for who in range(5)]))
    assert seen == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


def test_with_newest_first_the_last_to_come_is_the_first_to_get_in(awaited: Any, clock: VirtualClock) -> None:
    seen, note = timing(clock)
    call = awaited.guarded(rate_limit(1, queue=5, order="newest"), note)
    clock.run(gathered([call(who) for who in range(5)]))
    assert seen == [(0, 0.0), (4, 1.0), (3, 2.0), (2, 3.0), (1, 4.0)]


def test_a_leaky_bucket_with_a_queue_spreads_a_burst_out(awaited: Any, clock: VirtualClock) -> None:
    seen, note = timing(clock)
    call = awaited.guarded(rate_limit(10, algorithm="leaky_bucket", queue=100), note)
    clock.run(gathered([call(who) for who in range(5)]))
    assert seen == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_everybody_gets_in_whatever_the_algorithm(awaited: Any, clock: VirtualClock, algorithm: str) -> None:
    seen, note = timing(clock)
    call = awaited.guarded(rate_limit(3, algorithm=algorithm, queue=10), note)
    clock.run(gathered([call(who) for who in range(9)]))
    assert [who for who, _ in seen] == list(range(9))
    assert [at for _, at in seen] == sorted(at for _, at in seen)
    assert clock.monotonic() < 5


def test_a_large_cost_is_not_starved_by_small_ones(awaited: Any, clock: VirtualClock) -> None:
    seen, note = timing(clock)
    limiter = rate_limit(10, cost=lambda who, cost: cost, queue=100)
    call = awaited.guarded(limiter, lambda who, cost: note(who))

    async def small_ones_keep_coming() -> None:
        for n in range(40):
            await asyncio.sleep(0.05)
            tasks.append(asyncio.create_task(call(f"small {n}", 1)))

    async def main() -> None:
        await call("first", 10)
        tasks.append(asyncio.create_task(call("large", 10)))
        tasks.append(asyncio.create_task(small_ones_keep_coming()))
        while not all(task.done() for task in tasks):
            await asyncio.gather(*tasks)

    tasks: list[asyncio.Task[Any]] = []
    clock.run(main)
    assert seen[1] == ("large", 1.0)
    assert [who for who, _ in seen[2:]] == [f"small {n}" for n in range(40)]


def test_nobody_overtakes_those_who_wait(awaited: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(10, queue=1)
    call = awaited.guarded(limiter, echo)

    async def main() -> None:
        await limiter.aacquire(cost=10)
        large = asyncio.create_task(limiter.aacquire(cost=10))
        await asyncio.sleep(0.5)
        assert limiter.remaining() == 5
        with pytest.raises(RateLimitedError):  # five are there, but somebody waits for ten
            await call()
        assert not limiter.try_acquire()
        await large

    clock.run(main)
    assert clock.monotonic() == 1.0


def test_keys_wait_in_lines_of_their_own(awaited: Any, clock: VirtualClock) -> None:
    seen, note = timing(clock)
    call = awaited.guarded(rate_limit(1, key=echo, queue=10), note)
    clock.run(gathered([call(who) for who in ["ann", "ann", "ann", "bob", "bob"]]))
    assert seen == [("ann", 0.0), ("bob", 0.0), ("ann", 1.0), ("bob", 1.0), ("ann", 2.0)]


def test_while_somebody_waits_for_one_key_others_pass_at_once(awaited: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(1, key=echo, queue=10)
    call = awaited.guarded(limiter, echo)

    async def main() -> None:
        await call("ann")
        waiting = asyncio.create_task(call("ann"))
        await wait_until_idle()
        for who in ("bob", "cem"):
            await call(who)
        assert clock.monotonic() == 0
        limiter.reconfigure(queue=0)
        with pytest.raises(RateLimitedError):
            await call("ann")
        await waiting

    clock.run(main)
    assert clock.monotonic() == 1


# ------------------------------------------------------------------ no longer than one may


def test_a_full_queue_turns_away_and_says_when_the_line_will_be_gone(awaited: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(1, "door", queue=2)
    call = awaited.guarded(limiter, echo)
    answers = clock.run(gathered([call(who) for who in range(5)]))
    assert answers[:3] == [0, 1, 2]
    assert [type(answer) for answer in answers[3:]] == [RateLimitedError] * 2
    assert [answer.retry_after for answer in answers[3:]] == [3.0, 3.0]  # after the two that wait


def test_a_wait_that_cannot_fit_is_not_begun(timed: Any, clock: VirtualClock, heard: EventRecorder) -> None:
    limiter = rate_limit(1, "door", queue=5, max_wait=0.5)
    call = timed(limiter, echo)
    call()
    with pytest.raises(RateLimitedError) as caught:
        call()
    assert clock.monotonic() == 0
    assert caught.value.retry_after == 1.0
    assert limiter.snapshot()["queued"] == 0
    assert heard.of(CallQueued) == []
    assert len(heard.of(CallRejected)) == 1


def test_a_wait_behind_others_that_cannot_fit_is_not_begun_either(awaited: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(1, "door", queue=9, max_wait=2)
    call = awaited.guarded(limiter, echo)

    async def main() -> list[Any]:
        answers = asyncio.gather(*(call(who) for who in range(5)), return_exceptions=True)
        await wait_until_idle()
        assert limiter.snapshot()["waiting"] == 2
        return await answers

    answers = clock.run(main)
    assert answers[:3] == [0, 1, 2]
    assert [type(answer) for answer in answers[3:]] == [RateLimitedError] * 2


def test_a_wait_that_just_fits_is_begun(timed: Any, clock: VirtualClock) -> None:
    call = timed(rate_limit(1, queue=5, max_wait=1.0), echo)
    call()
    call()
    assert clock.monotonic() == 1.0


def test_a_deadline_bounds_the_wait(timed: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(1, queue=5)
    call = timed(limiter, echo)
    call()
    with deadline(0.5), pytest.raises(RateLimitedError):
        call()
    assert clock.monotonic() == 0
    with deadline(1.5):
        call()
    assert clock.monotonic() == 1


def test_one_who_has_waited_too_long_for_those_before_gives_up(awaited: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(1, queue=5)
    call = awaited.guarded(limiter, echo)

    async def main() -> None:
        await call()
        first = asyncio.create_task(call())
        await wait_until_idle()
        limiter.drain(10)  # a pause that nobody behind could foresee when they began to wait
        with deadline(3):
            with pytest.raises(RateLimitedError):
                await call()
        assert limiter.snapshot()["waiting"] == 1
        await first
        assert limiter.snapshot()["waiting"] == 0

    clock.run(main)


def test_a_wait_longer_than_max_wait_because_of_a_pause_ends(clock: VirtualClock) -> None:
    limiter = rate_limit(1, queue=5, max_wait=2)

    async def main() -> None:
        await limiter.aacquire()
        waiting = asyncio.create_task(limiter.aacquire())
        await wait_until_idle()
        limiter.drain(10)
        with pytest.raises(RateLimitedError) as caught:
            await waiting
        assert caught.value.retry_after is not None
        assert clock.monotonic() + caught.value.retry_after == pytest.approx(10)

    clock.run(main)
    assert limiter.snapshot()["waiting"] == 0


# ------------------------------------------------------------------ giving up leaves no trace


def no_trace(limiter: Any) -> None:
    """As if nobody had ever waited: nobody in line, nothing charged but what was granted, the quick way open."""
    door = limiter.limiter.door
    assert door.waiting == 0
    assert door._lines == {}
    assert limiter.snapshot()["waiting"] == 0


@pytest.mark.parametrize("keyed", [False, True], ids=["one", "keyed"])
@pytest.mark.parametrize("style", ["plain", "woven", "block", "acquire"])
def test_a_task_cancelled_at_any_await_leaves_no_trace(style: str, keyed: bool) -> None:
    made: list[Any] = []

    async def run() -> None:
        limiter = rate_limit(1, key=echo if keyed else None, queue=5)
        made[:] = [limiter]
        whose = {"key": "ann"} if keyed else {}

        async def one() -> None:
            if style == "plain":
                await limiter.acall(work, "ann")
            elif style == "woven":
                await guarded("ann")
            elif style == "block":
                async with limiter.entry(**whose):
                    pass
            else:
                await limiter.aacquire(**whose)

        async def work(who: str) -> None:
            pass

        guarded = limiter(work)
        for _ in range(3):
            await one()

    async def check(outcome: CancelledRun) -> None:
        (limiter,) = made
        no_trace(limiter)
        if outcome.number is None:
            assert outcome.error is None
            return
        assert outcome.cancelled
        # Whoever comes next waits no longer than if nobody had been cancelled.
        loop = asyncio.get_running_loop()
        began = loop.time()
        await limiter.aacquire(**({"key": "ann"} if keyed else {}))
        assert loop.time() - began <= 1.0

    assert cancel_at_every_await(run, check) == 2


def test_when_the_first_in_line_is_cancelled_the_next_takes_its_turn(awaited: Any, clock: VirtualClock) -> None:
    seen, note = timing(clock)
    limiter = rate_limit(1, queue=5)
    call = awaited.guarded(limiter, note)

    async def main() -> None:
        tasks = [asyncio.create_task(call(who)) for who in range(4)]
        await asyncio.sleep(0.5)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    clock.run(main)
    assert seen == [(0, 0.0), (2, 1.0), (3, 2.0)]
    no_trace(limiter)


def test_a_timeout_around_a_wait_ends_it(clock: VirtualClock) -> None:
    limiter = rate_limit(1, queue=5)

    @timeout(0.25)
    @limiter
    async def call() -> None:
        pass

    async def main() -> None:
        await call()
        with pytest.raises((TimeoutError, RateLimitedError)):
            await call()

    clock.run(main)
    assert clock.monotonic() <= 0.25
    no_trace(limiter)


def test_a_thread_interrupted_while_it_waits_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, threaded: Any) -> None:
    from everkeel.ratelimit.line import ThreadWaiter

    limiter = rate_limit(1, per=3600, queue=5)
    call = threaded(limiter, echo)
    call()

    def interrupt(self: Any, clock: Any, seconds: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadWaiter, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        call()
    no_trace(limiter)
    assert limiter.remaining() == 0


def test_a_coroutine_that_is_closed_while_it_waits_leaves_no_trace() -> None:
    limiter = rate_limit(1, per=3600, queue=5)

    async def main() -> None:
        await limiter.aacquire()
        waiting = limiter.aacquire()
        waiting.send(None)
        assert limiter.snapshot()["waiting"] == 1
        waiting.close()
        no_trace(limiter)

    asyncio.run(main())


def test_a_task_whose_loop_was_closed_does_not_hold_up_the_line() -> None:
    limiter = rate_limit(1, per=3600, queue=5)
    limiter.acquire()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(limiter.aacquire())
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert limiter.snapshot()["waiting"] == 1
    loop.close()  # its task was neither finished nor cancelled
    limiter.reconfigure(per=0.01)  # only now, so that its turn cannot come before
    limiter.acquire()
    assert limiter.snapshot()["waiting"] == 0
    waiting.get_coro().close()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    del waiting, loop
    gc.collect()


# ------------------------------------------------------------------ threads, tasks, loops


def test_threads_tasks_and_several_loops_wait_in_one_line(together: Any) -> None:
    limiter = rate_limit(1, per=0.002, burst=1, queue=100)
    order: list[int] = []

    def one(number: int) -> None:
        if number % 2:
            limiter.acquire()
            order.append(number)
        else:

            async def main() -> None:
                await asyncio.gather(*(limiter.aacquire() for _ in range(3)))
                order.append(number)

            asyncio.run(main())

    assert together(8, one) == [None] * 8
    assert sorted(order) == list(range(8))
    assert limiter.snapshot()["success"] == 16
    no_trace(limiter)


def test_threads_get_in_in_the_order_they_came(clock: VirtualClock) -> None:
    limiter = rate_limit(1, queue=5, clock=clock)
    limiter.acquire()
    seen, note = timing(clock)

    def wait(who: int) -> None:
        limiter.acquire()
        note(who)

    threads = []
    for who in range(3):
        threads.append(threading.Thread(target=wait, args=(who,)))
        threads[-1].start()
        while limiter.limiter.door.waiting + len(seen) <= who:  # until it stands in line
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join()
    assert [who for who, _ in seen] == [0, 1, 2]
    no_trace(limiter)


def test_no_lock_is_held_while_waiting(threaded: Any) -> None:
    limiter = rate_limit(1, per=3600, queue=5, key=echo)
    call = threaded(limiter, echo)
    call("ann")
    thread = threading.Thread(target=call, args=("ann",))
    thread.start()
    while not limiter.limiter.door.waiting:
        threading.Event().wait(0.001)
    assert limiter.lock.acquire(timeout=5)
    limiter.lock.release()
    call("bob")  # others are not held up, and everything can be looked at
    assert limiter.snapshot()["waiting"] == 1
    limiter.adjust(-1, key="ann")
    thread.join()
    no_trace(limiter)


# ------------------------------------------------------------------ what changes while they wait


def test_permits_given_back_let_the_first_in_line_in(clock: VirtualClock) -> None:
    limiter = rate_limit(2, per=3600, queue=5)

    async def main() -> None:
        await limiter.aacquire(cost=2)
        waiting = asyncio.create_task(limiter.aacquire())
        await wait_until_idle()
        limiter.adjust(-1)
        await waiting

    clock.run(main)
    assert clock.monotonic() == 0


def test_a_higher_rate_lets_those_in_line_in_at_once(awaited: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(1, per=3600, queue=5)
    call = awaited.guarded(limiter, echo)

    async def main() -> None:
        await call()
        waiting = asyncio.create_task(call())
        await wait_until_idle()
        limiter.reconfigure(permits=2)
        await waiting

    clock.run(main)
    assert clock.monotonic() == 0


def test_one_who_waits_for_more_than_can_be_granted_any_more_is_told(clock: VirtualClock) -> None:
    limiter = rate_limit(10, "tokens", queue=5)

    async def main() -> None:
        await limiter.aacquire(cost=10)
        waiting = asyncio.create_task(limiter.aacquire(cost=8))
        await wait_until_idle()
        limiter.reconfigure(permits=5)
        with pytest.raises(ConfigError, match=r"cost must be a whole number from 0 to 5: more can never be granted"):
            await waiting

    clock.run(main)
    no_trace(limiter)


def test_the_order_can_change_while_they_wait(clock: VirtualClock) -> None:
    seen, note = timing(clock)
    limiter = rate_limit(1, queue=5)

    async def one(who: int) -> None:
        await limiter.aacquire()
        note(who)

    async def main() -> None:
        tasks = [asyncio.create_task(one(who)) for who in range(4)]
        await wait_until_idle()
        limiter.reconfigure(order="newest")
        await asyncio.gather(*tasks)

    clock.run(main)
    assert [who for who, _ in seen] == [0, 3, 2, 1]


# ------------------------------------------------------------------ being watched


def test_a_wait_is_told_and_counted(timed: Any, clock: VirtualClock, heard: EventRecorder) -> None:
    limiter = rate_limit(1, "door", key=echo, queue=1)
    call = timed(limiter, echo)
    call("ann")
    call("ann")
    told = [(type(event).__name__, event.key) for event in heard.of(Granted, CallQueued)]
    assert told == [("Granted", "ann"), ("CallQueued", "ann"), ("Granted", "ann")]
    assert heard.of(CallQueued)[0].waiting == 1
    snapshot = limiter.snapshot()
    assert (snapshot["success"], snapshot["queued"], snapshot["waiting"], snapshot["rejected"]) == (2, 1, 0, 0)


def test_a_virtual_clock_far_from_its_start_does_not_stand_still() -> None:
    with virtual_time(start=1e8) as clock:
        limiter = rate_limit(3, queue=5)
        for _ in range(6):
            limiter.acquire()
        assert clock.monotonic() - 1e8 == pytest.approx(1.0, abs=1e-3)
