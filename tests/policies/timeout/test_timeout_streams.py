"""Generators under a timeout: so long for the first item, so long between two; what the consumer takes is free."""

from __future__ import annotations

import asyncio
import threading

import pytest

import everkeel
from everkeel import TimeoutExceededError, bulkhead, deadline, events, timeout


@pytest.fixture(params=["worker", "inline", "async"])
def streaming(request, clock):
    """`streaming(policy settings, gaps)`: a decorated generator of as many items, each after its gap, and consumed.

    Answers the items that came, the error if one did, and the policy.
    """

    def consume(seconds, gaps, *, gap=None, mode="enforce", consumer=0.0, error=None):
        runs = "inline" if request.param == "inline" else "worker"
        policy = timeout(seconds, "feed", gap=gap, runs=runs, mode=mode)
        items: list[int] = []

        def feed():
            for number, pause in enumerate(gaps):
                everkeel.sleep(pause) if mode == "enforce" else clock.sleep(pause)
                yield number
            if error is not None:
                raise error

        async def afeed():
            for number, pause in enumerate(gaps):
                await asyncio.sleep(pause)
                yield number
            if error is not None:
                raise error

        async def acollect():
            async for item in policy(afeed)():
                items.append(item)
                await asyncio.sleep(consumer)

        raised = None
        try:
            if request.param == "async":
                clock.run(acollect)
            else:
                for item in policy(feed)():
                    items.append(item)
                    clock.sleep(consumer)
        except Exception as problem:
            raised = problem
        return items, raised, policy

    return consume


def test_a_stream_in_time_gives_all_its_items(streaming):
    items, error, policy = streaming(2, [1, 1, 1])
    assert (items, error) == ([0, 1, 2], None)
    snapshot = policy.snapshot()
    assert (snapshot["success"], snapshot["ignored"], snapshot["failure"]) == (1, 0, 0)


def test_the_first_item_must_come_in_time(streaming, clock):
    items, error, policy = streaming(2, [3])
    assert (items, type(error)) == ([], TimeoutExceededError)
    assert clock.monotonic() == 2.0
    assert policy.snapshot()["expired"] == 1


def test_each_gap_must_be_short_enough(streaming, clock):
    items, error, policy = streaming(2, [1, 1, 3])
    assert (items, type(error)) == ([0, 1], TimeoutExceededError)
    assert clock.monotonic() == 4.0
    snapshot = policy.snapshot()
    assert (snapshot["expired"], snapshot["failure"], snapshot["success"]) == (1, 1, 0)


def test_gap_is_for_what_comes_after_the_first_item(streaming):
    items, error, _ = streaming(5, [4, 0.5, 4], gap=1)
    assert items == [0, 1]
    assert error.seconds == 1.0


def test_the_first_item_has_its_own_time_however_short_the_gap(streaming):
    items, error, _ = streaming(5, [4, 0.5], gap=1)
    assert (items, error) == ([0, 1], None)


def test_the_time_the_consumer_takes_does_not_count(streaming):
    items, error, _ = streaming(2, [1, 1, 1], consumer=60)
    assert (items, error) == ([0, 1, 2], None)


def test_an_error_of_the_stream_passes(streaming):
    items, error, policy = streaming(2, [1], error=ValueError("broken off"))
    assert (items, str(error)) == ([0], "broken off")
    snapshot = policy.snapshot()
    assert (snapshot["ignored"], snapshot["success"]) == (1, 0)


def test_a_stream_without_items_is_a_success(streaming):
    items, error, policy = streaming(2, [])
    assert (items, error) == ([], None)
    assert policy.snapshot()["success"] == 1


def test_the_events_tell_of_one_stream(streaming, heard):
    streaming(2, [1, 1])
    assert heard.names() == ["PolicyAdded", "Succeeded"]


def test_an_expired_stream_is_told_once(streaming, heard):
    streaming(2, [1, 3])
    assert [name for name in heard.names() if name != "LateCompletion"] == ["PolicyAdded", "TimedOut", "Failed"]


def test_a_shadow_lets_it_flow_and_counts_once(streaming):
    items, error, policy = streaming(2, [1, 3, 1, 3], mode="shadow")
    assert (items, error) == ([0, 1, 2, 3], None)
    assert policy.snapshot()["would"] == {"expire": 1}


def test_a_shadow_does_not_count_a_long_stream_of_short_gaps(streaming):
    _, _, policy = streaming(2, [1, 1, 1, 1], mode="shadow", consumer=60)
    assert policy.snapshot()["would"] == {}
    assert policy.snapshot()["success"] == 1


def test_a_shadow_looks_at_the_first_item_and_the_gaps_apart(streaming):
    _, _, policy = streaming(5, [4, 2], gap=1, mode="shadow")
    assert policy.snapshot()["would"] == {"expire": 1}


# ------------------------------------------------------------------ generators in full


@pytest.fixture(params=["worker", "inline"])
def policy(request, clock):
    return timeout(2, "feed", runs=request.param)


def test_what_is_sent_arrives_and_what_is_returned_comes_back(policy):
    @policy
    def echo():
        received = []
        while len(received) < 2:
            received.append((yield len(received)))
        return received

    items = echo()
    assert (next(items), items.send("a")) == (0, 1)
    with pytest.raises(StopIteration) as end:
        items.send("b")
    assert end.value.value == ["a", "b"]


def test_what_is_thrown_in_arrives(policy):
    @policy
    def resilient():
        try:
            yield "before"
        except KeyError as error:
            yield f"caught {error.args[0]}"

    items = resilient()
    next(items)
    assert items.throw(KeyError("tea")) == "caught tea"


def test_closing_it_closes_what_is_inside(policy):
    closed = []

    @policy
    def feed():
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    items = feed()
    next(items)
    items.close()
    assert closed == [True]


def test_a_stream_that_is_not_begun_begins_nothing(policy):
    begun = []

    @policy
    def feed():
        begun.append(True)
        yield 1

    feed().close()
    assert begun == []


def test_an_inline_stream_that_timed_out_is_closed(clock):
    closed = []

    @timeout(2, "feed", runs="inline")
    def feed():
        try:
            clock.sleep(3)
            yield "late"
        finally:
            closed.append(True)

    with pytest.raises(TimeoutExceededError) as raised:
        next(feed())
    assert closed == [True]
    assert raised.value.policy == "feed"


def test_a_hung_stream_is_closed_in_its_worker_when_its_step_has_ended(clock):
    release, closed = threading.Event(), threading.Event()

    @timeout(2, "feed")
    def feed():
        try:
            release.wait(30)
            yield "late"
        finally:
            closed.set()

    items = feed()
    with pytest.raises(TimeoutExceededError) as kept:
        next(items)
    assert not closed.is_set()
    release.set()
    assert closed.wait(30), "somebody kept the error, and so the generator"
    assert kept.value.policy == "feed"


def test_a_hung_stream_keeps_its_place_until_its_step_has_ended(clock):
    release, places = threading.Event(), bulkhead(1, "places")

    @timeout(2, "feed")
    @places
    def feed():
        release.wait(30)
        yield "late"

    with pytest.raises(TimeoutExceededError) as kept:
        next(feed())
    assert places.snapshot()["running"] == 1
    release.set()
    for _ in range(3000):
        if not places.snapshot()["running"]:
            break
        threading.Event().wait(0.001)
    assert places.snapshot()["running"] == 0
    assert kept.value.policy == "feed"


def test_a_late_item_is_told(clock):
    release, told = threading.Event(), threading.Event()
    policy = timeout(2, "feed")
    policy.subscribe(lambda event: told.set(), events.LateCompletion)

    @policy
    def feed():
        release.wait(30)
        yield "late"

    with pytest.raises(TimeoutExceededError):
        next(feed())
    release.set()
    assert told.wait(30)


def test_a_deadline_bounds_every_step(policy, clock):
    @policy
    def feed():
        everkeel.sleep(1)
        yield 1
        everkeel.sleep(1)
        yield 2

    with deadline(1.5):
        items = feed()
        assert next(items) == 1
        with pytest.raises(TimeoutExceededError):
            next(items)
    assert clock.monotonic() == 1.5


# ------------------------------------------------------------------ async generators


def test_an_expired_async_stream_is_cancelled_and_closed(clock):
    ended = []

    @timeout(2, "feed")
    async def feed():
        try:
            yield 1
            await asyncio.sleep(60)
            yield 2
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            ended.append("closed")

    async def main() -> int:
        items = feed()
        await anext(items)
        with pytest.raises(TimeoutExceededError) as raised:
            await anext(items)
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)
        return asyncio.current_task().cancelling()

    assert clock.run(main) == 0
    assert ended == ["cancelled", "closed"]


def test_closing_an_async_stream_closes_what_is_inside(clock):
    closed = []

    @timeout(2, "feed")
    async def feed():
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def main() -> None:
        items = feed()
        await anext(items)
        await items.aclose()

    clock.run(main)
    assert closed == [True]


def test_the_callers_cancellation_of_an_async_stream_passes(clock):
    @timeout(2, "feed")
    async def feed():
        await asyncio.sleep(60)
        yield 1

    async def main() -> bool:
        task = asyncio.create_task(anext(feed()))  # type: ignore[arg-type]
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert clock.run(main)


def test_a_deadline_bounds_an_async_stream(clock):
    @timeout(2, "feed")
    async def feed():
        while True:
            await asyncio.sleep(1)
            yield 1

    async def consume(came: list[int]) -> None:
        with deadline(3.5):
            async for item in feed():
                came.append(item)  # noqa: PERF401 - one by one: what came before an error counts

    came: list[int] = []
    with pytest.raises(TimeoutExceededError):
        clock.run(consume(came))
    assert came == [1, 1, 1]
