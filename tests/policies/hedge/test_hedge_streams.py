"""Generators are hedged up to their first item; the winner gives the rest, and the loser is closed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everkeel import HedgeTimeoutError, hedge, sleep
from everkeel.testing import assert_state


class Streams:
    """Generator functions whose first item takes as long as it is told, and that remember who was closed."""

    def __init__(self, *takes: float, fails: tuple[int, ...] = ()) -> None:
        self.takes, self.fails, self.began = takes, fails, 0
        self.closed: list[int] = []

    def _begin(self) -> tuple[int, float]:
        self.began += 1
        return self.began, self.takes[min(self.began, len(self.takes)) - 1]

    async def items(self):
        number, seconds = self._begin()
        try:
            await asyncio.sleep(seconds)
            if number in self.fails:
                raise OSError(number)
            for item in "abc":
                yield f"{item}{number}"
        finally:
            self.closed.append(number)

    def sync_items(self):
        number, seconds = self._begin()
        try:
            sleep(seconds)
            if number in self.fails:
                raise OSError(number)
            for item in "abc":
                yield f"{item}{number}"
        finally:
            self.closed.append(number)
        return "end"


@pytest.fixture(params=["sync", "async"])
def consumed(request, clock):
    def consume(policy, streams):
        if request.param == "sync":
            return list(policy(streams.sync_items)())

        async def collect():
            return [item async for item in policy(streams.items)()]

        return clock.run(collect)

    return consume


def until(condition, what: str) -> None:
    for _ in range(10_000):
        if condition():
            return
        threading.Event().wait(0.001)
    pytest.fail(what)


def test_a_stream_whose_first_item_is_quick_is_begun_once(consumed, clock):
    streams = Streams(0.5)
    policy = hedge("feed", delay=1)
    assert consumed(policy, streams) == ["a1", "b1", "c1"]
    assert (streams.began, streams.closed) == (1, [1])
    assert_state(policy, success=1)


def test_a_stream_whose_first_item_is_slow_gets_a_rival_that_gives_the_rest(consumed, clock):
    streams = Streams(60, 0.5)
    policy = hedge("feed", delay=1)
    assert consumed(policy, streams) == ["a2", "b2", "c2"]
    until(lambda: sorted(streams.closed) == [1, 2], "the loser was not closed")
    assert_state(policy, won={2: 1})


def test_a_stream_that_fails_before_its_first_item_is_replaced(consumed, clock):
    assert consumed(hedge("feed", delay=9), Streams(0, fails=(1,))) == ["a2", "b2", "c2"]


def test_a_stream_without_items_is_an_answer(clock):
    def nothing():
        return "end"
        yield

    def outer():
        got.append((yield from hedge("feed", delay=1)(nothing)()))

    got = []
    assert list(outer()) == []
    assert got == ["end"]


def test_an_async_stream_without_items_is_an_answer(clock):
    async def nothing():
        return
        yield

    async def collect():
        return [item async for item in hedge("feed", delay=1)(nothing)()]

    assert clock.run(collect) == []


def test_what_is_sent_into_a_sync_stream_reaches_the_winner(clock):
    def echo():
        got = yield "ready"
        while True:
            got = yield got

    items = hedge("feed", delay=1)(echo)()
    assert [next(items), items.send("x"), items.send("y")] == ["ready", "x", "y"]
    items.close()


def test_a_stream_that_is_closed_early_closes_the_winner(clock):
    streams = Streams(0)

    async def main():
        items = hedge("feed", delay=1)(streams.items)()
        await anext(items)
        await items.aclose()

    clock.run(main)
    assert streams.closed == [1]


def test_a_sync_loser_that_had_its_first_item_already_is_closed(clock):
    release, streams = threading.Event(), []

    def items():
        number = len(streams) + 1
        streams.append("open")
        try:
            if number == 1:
                release.wait()
            yield number
        finally:
            streams[number - 1] = "closed"

    policy = hedge("feed", delay=0.01)
    stream = policy(items)()
    assert next(stream) == 2
    release.set()
    until(lambda: streams[0] == "closed", "the loser was not closed")
    stream.close()
    assert streams == ["closed", "closed"]


def test_an_async_loser_that_had_its_first_item_already_is_closed(clock):
    closed = []

    async def items():
        me = asyncio.current_task()
        try:
            await asyncio.sleep(2 if me is caller[0] else 1)  # both have their first item in the same moment
            yield "item"
        finally:
            closed.append("first" if me is caller[0] else "rival")

    caller = []

    async def main():
        caller.append(asyncio.current_task())
        got = [item async for item in hedge("feed", delay=1)(items)()]
        return got, asyncio.all_tasks() - set(caller)

    assert clock.run(main) == (["item"], set())
    assert sorted(closed) == ["first", "rival"]


def test_max_duration_bounds_the_wait_for_the_first_item(consumed, clock):
    with pytest.raises(HedgeTimeoutError):
        consumed(hedge("feed", delay=1, max_duration=3), Streams(60))


def test_a_shadow_measures_up_to_the_first_item(clock):
    async def items():
        yield 1
        await asyncio.sleep(60)
        yield 2

    async def collect():
        return [item async for item in policy(items)()]

    policy = hedge("feed", delay=1, mode="shadow")
    assert clock.run(collect) == [1, 2]
    assert_state(policy, would={}, success=1)


def test_a_sync_shadow_measures_up_to_the_first_item(clock):
    def items():
        yield 1
        sleep(60)
        yield 2

    policy = hedge("feed", delay=1, mode="shadow")
    assert list(policy(items)()) == [1, 2]
    assert_state(policy, would={}, success=1)


def test_a_cancelled_stream_leaves_no_rival(clock):
    streams = Streams(60)

    async def main():
        async def consume():
            async for _ in hedge("feed", delay=1)(streams.items)():
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(2)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled(), asyncio.all_tasks() - {asyncio.current_task()}

    assert clock.run(main) == (True, set())
    assert sorted(streams.closed) == [1, 2]
