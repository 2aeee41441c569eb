"""One breaker for many threads, event loops and processes."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading

import pytest

from everkeel import CircuitOpenError, Clock, circuit_breaker
from everkeel.testing import VirtualClock, assert_state, cancel_at_every_await, wait_until_idle


def test_a_protected_call_holds_no_lock(threaded, clock, together):
    breaker = circuit_breaker("payments", clock=clock)
    inside = threading.Barrier(10)

    def backend():
        inside.wait(30)  # only when ten are inside at once does anybody leave
        return breaker.lock.locked()

    guarded = threaded(breaker, backend)
    assert None not in together(*[guarded] * 10)
    assert_state(breaker, "closed", success=10)


def test_probes_hold_no_lock_either(threaded, clock, together):
    breaker = circuit_breaker("payments", clock=clock, probes=10)
    breaker.half_open()
    inside = threading.Barrier(10)
    guarded = threaded(breaker, lambda: inside.wait(30) >= 0)
    assert together(*[guarded] * 10) == [True] * 10


@pytest.mark.parametrize("settings", [{}, {"window_duration": 60}, {"slow_duration": 60}, {"minimum_calls": 100}])
def test_no_success_is_lost_among_threads(threaded, clock, together, settings):
    breaker = circuit_breaker("payments", clock=clock, **settings)
    guarded = threaded(breaker, lambda: "ok")

    def worker():
        for _ in range(500):
            guarded()

    assert together(*[worker] * 8) == [None] * 8
    assert_state(breaker, "closed", success=4000)


def test_no_failure_is_lost_among_threads(threaded, clock, together):
    breaker = circuit_breaker("payments", clock=clock)
    breaker.force_closed()

    def backend(number):
        if number % 2:
            raise ConnectionError

    guarded = threaded(breaker, backend)

    def worker():
        for number in range(500):
            try:
                guarded(number)
            except ConnectionError:
                pass

    assert together(*[worker] * 8) == [None] * 8
    assert_state(breaker, "closed", success=2000, failure=2000, window_calls=100)


def test_failures_of_many_threads_open_it_once(threaded, clock, together):
    breaker = circuit_breaker("payments", clock=clock, consecutive=5, failure_rate=None)
    ready = threading.Barrier(20)

    def backend():
        ready.wait(30)  # all twenty are in flight before the first one fails
        raise ConnectionError

    answers = together(*[threaded(breaker, backend)] * 20)
    assert all(isinstance(answer, ConnectionError) for answer in answers)
    assert_state(breaker, "open", failure=20, transitions={"closed_to_open": 1})


def test_rejections_are_counted_among_threads(threaded, clock, together):
    breaker = circuit_breaker("payments", clock=clock)
    breaker.force_open()
    guarded = threaded(breaker, lambda: "ok")

    def worker():
        for _ in range(500):
            with pytest.raises(CircuitOpenError):
                guarded()

    assert together(*[worker] * 8) == [None] * 8
    assert_state(breaker, "open", rejected=4000)


def test_several_event_loops_share_one_breaker(awaited, clock, together):
    breaker = circuit_breaker("payments", clock=clock, minimum_calls=5)

    async def backend():
        await asyncio.sleep(0)
        return "ok"

    guarded = awaited(breaker, backend)

    async def main():
        return await asyncio.gather(*[guarded() for _ in range(50)])

    assert together(*[lambda: asyncio.run(main())] * 6) == [["ok"] * 50] * 6
    assert_state(breaker, "closed", success=300)


# ------------------------------------------------------------------ waiting for it to close


def test_wait_closed_returns_at_once_when_it_is_closed(clock):
    clock.run(circuit_breaker("payments").wait_closed())


def test_wait_closed_waits_until_probes_have_closed_it(calls, clock):
    breaker = circuit_breaker("payments", consecutive=1, probes=1)
    payments = calls(breaker)
    payments.feed("f")

    async def main():
        waiters = [asyncio.create_task(breaker.wait_closed()) for _ in range(3)]
        await asyncio.sleep(30)
        assert not any(waiter.done() for waiter in waiters)
        payments.feed("s")
        await asyncio.gather(*waiters)

    clock.run(main)
    assert clock.monotonic() == 30


def test_wait_closed_waits_on_when_it_opens_again_first(clock):
    breaker = circuit_breaker("payments")
    breaker.force_open()

    async def main():
        waiter = asyncio.create_task(breaker.wait_closed())
        await wait_until_idle()
        breaker.reset()
        breaker.force_open()  # before the waiter has had its turn
        await wait_until_idle()
        assert not waiter.done()
        breaker.force_closed()
        await waiter

    clock.run(main)


class Arriving(Clock):
    """Real time; says when somebody has begun to wait."""

    def __init__(self):
        self.arrived = threading.Semaphore(0)

    def future(self, loop):
        self.arrived.release()
        return super().future(loop)


def test_several_loops_in_threads_wait_for_one_breaker(clock, together):
    arriving = Arriving()
    breaker = circuit_breaker("payments", clock=arriving)
    breaker.force_open()

    async def two_tasks():
        await asyncio.gather(breaker.wait_closed(), breaker.wait_closed())
        return "closed"

    def operator():
        assert all(arriving.arrived.acquire(timeout=30) for _ in range(8))
        breaker.reset()

    assert together(*[lambda: asyncio.run(two_tasks())] * 4, operator) == ["closed"] * 4 + [None]
    assert breaker._waiters == []


def test_a_waiter_whose_loop_is_closed_harms_nobody(calls, clock):
    breaker = circuit_breaker("payments", consecutive=1, probes=1, open_for=0)
    payments = calls(breaker)
    payments.feed("f")
    loop = asyncio.new_event_loop()
    breaker._waiters.append(loop.create_future())  # as if its thread had died with it
    loop.close()
    assert payments.feed("s") == "s"
    assert_state(breaker, "closed")


def test_a_cancelled_waiter_leaves_nothing_behind(clock):
    breaker = circuit_breaker("payments")

    def make():
        breaker.force_open()
        return waiting()

    async def waiting():
        asyncio.get_running_loop().call_later(1, breaker.reset)
        await breaker.wait_closed()

    def check(run):
        assert breaker._waiters == []

    assert cancel_at_every_await(make, check) == 1


def test_a_cancelled_waiter_does_not_wake_the_others(clock):
    breaker = circuit_breaker("payments")
    breaker.force_open()

    async def main():
        cancelled, other = (asyncio.create_task(breaker.wait_closed()) for _ in range(2))
        await wait_until_idle()
        cancelled.cancel()
        await wait_until_idle()
        assert cancelled.cancelled()
        assert not other.done()
        breaker.reset()
        await other

    clock.run(main)


# ------------------------------------------------------------------ fork


def in_a_new_process(program):
    """Run a program that forks, in a process that has nothing else to lose; answers what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork on this system")
def test_in_a_forked_child_the_probes_are_free():
    said = in_a_new_process("""
        import os
        from everkeel import CircuitOpenError, circuit_breaker

        breaker = circuit_breaker("payments", probes=1)
        breaker.half_open()

        def state():
            try:
                with breaker:
                    return "passed"
            except CircuitOpenError:
                return "rejected"

        with breaker.entry():           # the parent's probe is under way
            child = os.fork()
            if child == 0:
                print(state(), breaker.snapshot()["state"], flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            print(state(), breaker.snapshot()["state"], flush=True)
    """)
    assert said == ["passed", "closed", "rejected", "half_open"]


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork on this system")
def test_a_lock_that_was_held_while_forking_is_free_in_the_child():
    said = in_a_new_process("""
        import os
        from everkeel import circuit_breaker

        one = circuit_breaker("one", consecutive=1)
        keyed = circuit_breaker("keyed", key=lambda host: host)

        def fail():
            raise ConnectionError

        with one.lock, keyed.lock, keyed.state._making:    # as if other threads were in the middle of something
            child = os.fork()
            if child == 0:
                try:
                    one.call(fail)
                except ConnectionError:
                    print(one.snapshot()["state"], keyed.call(lambda host: host, "a"), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
    """)
    assert said == ["open", "a"]


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork on this system")
def test_a_forked_child_keeps_an_open_circuit_open_and_wakes_nobody_elses_waiters():
    said = in_a_new_process("""
        import asyncio, os
        from everkeel import circuit_breaker

        breaker = circuit_breaker("payments")
        breaker.force_open()

        async def main():
            waiter = asyncio.create_task(breaker.wait_closed())
            await asyncio.sleep(0)
            child = os.fork()
            if child == 0:
                print(breaker.snapshot()["state"], len(breaker._waiters), flush=True)
                breaker.reset()
                os._exit(0)
            os.waitpid(child, 0)
            print(breaker.snapshot()["state"], waiter.done(), flush=True)
            breaker.reset()
            await waiter

        asyncio.run(main())
    """)
    assert said == ["open", "0", "open", "False"]


# ------------------------------------------------------------------ memory


def blocks_left_by(act, times):
    """How many more blocks of memory are in use after `times` rounds, with nobody collecting garbage."""
    act(1000)
    gc.collect()
    gc.disable()
    try:
        act(1000)
        before = sys.getallocatedblocks()
        act(times)
        return sys.getallocatedblocks() - before
    finally:
        gc.enable()


def rejections_of(call):
    def act(times):
        for _ in range(times):
            try:
                call()
            except CircuitOpenError:
                pass

    return act


def rejecting(half_open):
    breaker = circuit_breaker("payments", clock=VirtualClock(), probes=1, probe_lease=1e9)
    breaker.force_open()
    if half_open:
        breaker.half_open()
        breaker.entry().__enter__()  # a probe that never ends
    return breaker


@pytest.mark.parametrize("half_open", [False, True], ids=["open", "half open"])
@pytest.mark.parametrize("style", ["plain", "woven"])
def test_rejections_keep_memory_flat(style, half_open):
    breaker = rejecting(half_open)
    call = breaker(lambda: "ok") if style == "woven" else lambda: breaker.call(lambda: "ok")
    assert blocks_left_by(rejections_of(call), 50_000 if half_open else 200_000) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("half_open", [False, True], ids=["open", "half open"])
def test_a_million_rejections_keep_memory_flat(half_open):
    assert blocks_left_by(rejections_of(rejecting(half_open)(lambda: "ok")), 1_000_000) < 1000


@pytest.mark.parametrize(
    ("settings", "by_hand"),
    [({"failure_rate": None, "consecutive": 3}, "reset"), ({}, "force_closed"), ({"slow_duration": 1}, "force_closed")],
)
def test_failures_that_do_not_open_it_keep_memory_flat(settings, by_hand):
    clock = VirtualClock()
    breaker = circuit_breaker("payments", clock=clock, **settings)
    getattr(breaker, by_hand)()

    def live(times):
        circuit, error = breaker.state, ConnectionError()
        for _ in range(times):
            permits = [circuit.enter(), circuit.enter()]
            clock.advance(1)
            circuit.failed(permits[0], error)
            circuit.done(permits[1], "ok")

    assert blocks_left_by(live, 10_000) < 1000


def test_lost_probes_keep_memory_flat(clock):
    breaker = circuit_breaker("payments", clock=clock, probes=1, probe_lease=1)
    breaker.half_open()
    for _ in range(100):
        breaker.entry().__enter__()  # nobody ever reports
        clock.advance(1)
    assert len(breaker.state.phase.leases) == 1
