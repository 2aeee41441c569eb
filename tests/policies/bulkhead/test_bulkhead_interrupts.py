"""Ctrl-C at any instruction loses no place, of decorated functions and of `.call()`.

CPython delivers a signal after a call into C, at the start of a Python function, when a generator or coroutine goes on,
and when a loop jumps back. Here a KeyboardInterrupt is raised at each of these points in turn, by a trace function,
until the call gets through undisturbed. (A block has the window that Python's own have: between its `__enter__` and its
body, and between its body and its `__exit__`. So has nothing else.)
"""

from __future__ import annotations

import asyncio
import dis
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import everkeel
from everkeel import bulkhead, circuit_breaker, pipeline, retry

# A coroutine that was made in the moment of the interrupt is never awaited, and Python says so.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore:Exception ignored in")

OURS = everkeel.__file__.rsplit("/", 1)[0]
JUMPS = {dis.opmap[name] for name in dis.opmap if name.startswith("CALL") or name == "JUMP_BACKWARD"}
RESUME = dis.opmap["RESUME"]


class Interrupter:
    """Raises KeyboardInterrupt at the n-th point at which a signal could arrive in Everkeel's own code."""

    def __init__(self, number: int) -> None:
        self._left, self.hit, self.armed = number, False, True
        self._last: dict[FrameType, int | None] = {}  # where each frame was; None: nothing comes before its next

    def __enter__(self) -> Interrupter:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)
        self._last.clear()  # a frame that is kept keeps the coroutine that it awaits

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_back in self._last:
            self._last[frame.f_back] = None  # it has called a Python function: nothing is delivered when that returns
        file = frame.f_code.co_filename
        if not file.startswith((OURS, "<everkeel ")) or file.startswith(f"{OURS}/testing"):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        self._last[frame] = -1
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "exception":
            self._last[frame] = None  # a call that raised: nothing is delivered on the way to the handler
        elif event == "opcode" and self.armed:
            last, self._last[frame] = self._last.get(frame, -1), frame.f_lasti
            if last is not None and delivers(frame.f_code.co_code, last, frame.f_lasti):
                self._left -= 1
                if self._left == 0:
                    self.hit = True
                    raise KeyboardInterrupt
        return self._step


def delivers(code: bytes, last: int, now: int) -> bool:
    """May a signal arrive between these two instructions of a frame? (-1: it has just been entered, or goes on.)"""
    if last >= 0:
        return code[last] in JUMPS or resumes(code, last)
    return resumes(code, now) or resumes(code, now - 2)


def resumes(code: bytes, at: int) -> bool:
    return at >= 0 and code[at] == RESUME and code[at + 1] & 3 < 2  # 2 and 3: in the middle of an await


def at_every_point(act: Callable[[Interrupter], None], check: Callable[[], None]) -> int:
    """`act` again and again, interrupted at its first, second, third ... point; answers how many there are."""
    act(Interrupter(sys.maxsize))  # undisturbed: Python 3.12 tells nothing the first time that a process traces opcodes
    check()
    for number in itertools.count(1):
        interrupter = Interrupter(number)
        try:
            act(interrupter)
        except KeyboardInterrupt:
            pass
        try:
            check()
        except AssertionError as error:
            error.add_note(f"interrupted at point {number}")
            raise
        if not interrupter.hit:
            return number - 1
    raise AssertionError


# Blocks are not promised; the unrolled protocol is what policies without a fragment of their own get.
@pytest.fixture(params=["plain", "woven", "seam"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The forms that keep the promise."""
    if request.param == "seam":
        monkeypatch.setattr(everkeel.policies.bulkhead.state.Places, "fragment", lambda self, kind: None)

    def guarded(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        if request.param != "plain":
            return policy(fn)
        driver = policy.acall if asyncio.iscoroutinefunction(fn) else policy.call
        return lambda *args: driver(fn, *args)

    return guarded


@pytest.fixture
def all_are_back(capacity: Callable[[Any], int]) -> Callable[[Any], Callable[[], None]]:
    """`all_are_back(policy)` makes a check: every place is free, there is none too many, and nobody waits."""

    def make(policy: Any, queue: int = 0) -> Callable[[], None]:
        def check() -> None:
            assert policy.snapshot()["waiting"] == 0
            assert capacity(policy) == policy.config.limit
            assert policy.state.attention is False
            policy.reconfigure(queue=queue)

        return check

    return make


def work() -> str:
    return "".join(["an", "swer"])


async def awork() -> str:
    return work()


def test_a_call_that_finds_a_place(kept, clock, all_are_back):
    policy = bulkhead(2)
    call = kept(policy, work)

    def act(interrupter: Interrupter) -> None:
        with interrupter:
            call()

    call()
    assert at_every_point(act, all_are_back(policy)) > 0


def test_a_call_into_c(kept, clock, all_are_back):
    policy = bulkhead(2)
    call = kept(policy, len)

    def act(interrupter: Interrupter) -> None:
        with interrupter:
            call("four")

    call("four")
    assert at_every_point(act, all_are_back(policy)) > 0


def test_a_call_that_fails(kept, clock, all_are_back):
    policy = bulkhead(2)

    def fail() -> None:
        raise ValueError

    call = kept(policy, fail)

    def act(interrupter: Interrupter) -> None:
        with interrupter, pytest.raises(ValueError):
            call()

    with pytest.raises(ValueError):
        call()
    at_every_point(act, all_are_back(policy))


def test_the_first_call_which_weaves(clock, all_are_back):
    # thousands of points, nearly all of them in the weaver: every 50th will do
    policy = bulkhead(2)
    check = all_are_back(policy)
    for number in range(1, 4000, 50):
        call = policy(work)
        interrupter = Interrupter(number)
        try:
            with interrupter:
                call()
        except KeyboardInterrupt:
            pass
        assert call() == "answer", "an interrupted weaving is done again"
        check()
        if not interrupter.hit:
            break


def test_a_coroutine_that_finds_a_place(kept, clock, all_are_back):
    policy = bulkhead(2)
    call = kept(policy, awork)

    def act(interrupter: Interrupter) -> None:
        coroutine = call()
        with interrupter, pytest.raises(StopIteration):
            coroutine.send(None)

    clock.run(call())
    assert at_every_point(act, all_are_back(policy)) > 0


def test_a_coroutine_that_was_suspended(kept, clock, all_are_back):
    policy = bulkhead(2)
    call = kept(policy, asyncio.sleep)

    def act(interrupter: Interrupter) -> None:
        coroutine = call(0)
        coroutine.send(None)
        with interrupter, pytest.raises(StopIteration):
            coroutine.send(None)

    clock.run(call(0))
    at_every_point(act, all_are_back(policy))


def test_a_call_that_must_wait(kept, clock, all_are_back):
    # Its own thread frees the place, at the moment in which it would fall asleep.
    policy = bulkhead(1, queue=1)
    call, release = kept(policy, work), []

    class Freed(everkeel.Clock):
        def wait(self, event: threading.Event, seconds: float | None) -> bool:
            trace = sys.gettrace()
            sys.settrace(None)  # a block ends, which is somebody else's and not promised
            release.pop()()
            sys.settrace(trace)
            return event.wait(seconds)

    policy.clock = Freed()

    def act(interrupter: Interrupter) -> None:
        held = policy.entry()
        held.__enter__()
        release[:] = [lambda: held.__exit__(None, None, None)]
        try:
            with interrupter:
                call()
        finally:
            for one in release:
                one()

    assert at_every_point(act, all_are_back(policy, queue=1)) > 0


def test_a_call_that_waits_in_vain(kept, clock, all_are_back):
    policy = bulkhead(1, queue=1, max_wait=1)
    call = kept(policy, work)

    def act(interrupter: Interrupter) -> None:
        with policy.entry():
            with interrupter, pytest.raises(everkeel.BulkheadFullError):
                call()

    assert at_every_point(act, all_are_back(policy, queue=1)) > 0


def test_a_call_that_hands_its_place_on(kept, clock, all_are_back):
    # Another thread waits. Whatever happens to us, it gets our place: at once, or when the next call ends.
    policy = bulkhead(1, queue=1)
    call, answers = kept(policy, work), []

    def act(interrupter: Interrupter) -> None:
        other = threading.Thread(target=lambda: answers.append(call()))

        def body() -> None:
            other.start()
            while not policy.snapshot()["waiting"]:
                threading.Event().wait(0.0005)
            interrupter.armed = True

        interrupter.armed = False
        first = kept(policy, body)
        try:
            with interrupter:
                first()
        finally:
            other.join(0.05)
            while other.is_alive():  # interrupted before it could look who waits: the next one to end does
                policy.reconfigure(queue=2)
                policy.call(int)
                other.join(0.05)

    numbers = at_every_point(act, all_are_back(policy, queue=1))
    assert numbers > 0
    assert answers == ["answer"] * (numbers + 2)  # and undisturbed, at the beginning and at the end


def test_a_coroutine_that_must_wait(kept, clock, all_are_back):
    policy = bulkhead(1, queue=1)
    call = kept(policy, awork)
    check = all_are_back(policy, queue=1)

    async def main(interrupter: Interrupter) -> None:
        held = policy.entry()
        held.__enter__()
        coroutine = call()
        try:
            with interrupter:
                coroutine.send(None)
        finally:
            held.__exit__(None, None, None)
        await asyncio.sleep(0)
        with interrupter, pytest.raises(StopIteration):
            coroutine.send(None)

    def act(interrupter: Interrupter) -> None:
        clock.run(caught(main(interrupter)))

    assert at_every_point(act, check) > 0


async def caught(coroutine: Any) -> None:
    try:
        await coroutine
    except KeyboardInterrupt:
        pass


def test_a_generator(clock, all_are_back):
    policy = bulkhead(2)

    @policy
    def rows():
        yield 1
        yield 2

    def act(interrupter: Interrupter) -> None:
        items = rows()
        with interrupter:
            list(items)

    assert at_every_point(act, all_are_back(policy)) > 0


def test_an_async_generator(clock, all_are_back):
    policy = bulkhead(2)

    @policy
    async def rows():
        yield 1
        yield 2

    async def consume(interrupter: Interrupter) -> None:
        items = rows()
        with interrupter:
            async for _ in items:
                pass

    def act(interrupter: Interrupter) -> None:
        coroutine = consume(interrupter)
        with pytest.raises(StopIteration):
            coroutine.send(None)

    clock.run(caught(consume(Interrupter(10**9))))
    at_every_point(act, all_are_back(policy))


def test_a_keyed_call(kept, clock, capacity):
    policy = bulkhead(2, key=lambda name: name)
    call = kept(policy, str.upper)

    def act(interrupter: Interrupter) -> None:
        with interrupter:
            call("tea")

    def check() -> None:
        assert capacity(policy, key="tea") == 2

    call("tea")
    at_every_point(act, check)


def test_a_whole_stack(clock, all_are_back):
    policy = bulkhead(2)
    call = pipeline(retry(backoff=0), circuit_breaker(), policy)(work)

    def act(interrupter: Interrupter) -> None:
        with interrupter:
            call()

    call()
    at_every_point(act, all_are_back(policy))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
def test_real_signals(kept, capacity):
    """A few thousand real interrupts at random moments."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals arrive in the main thread")
    policy, armed, chance, interrupts = bulkhead(2), [False], random.Random(0), 0
    call = kept(policy, work)

    def interrupt(*_: object) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            try:
                armed[0] = True
                signal.setitimer(signal.ITIMER_VIRTUAL, chance.uniform(1e-6, 2e-3))
                for _ in range(10**6):
                    call()
                armed[0] = False
            except KeyboardInterrupt:
                interrupts += 1
            assert capacity(policy) == 2
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert interrupts > 50
