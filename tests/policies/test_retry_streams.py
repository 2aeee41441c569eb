"""Generator functions: retried until their first item is there, and not a moment longer."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from everkeel import RetryExhaustedError, TimeoutExceededError, current_attempt, deadline, retry


class Feed:
    """A generator function that fails as it is told to: `script` has, for each call, what it yields or raises."""

    def __init__(self, *script: list[object]) -> None:
        self.script, self.calls, self.closed = script, 0, 0

    def __call__(self, *args: object):
        steps = self.script[min(self.calls, len(self.script) - 1)]
        self.calls += 1
        return self._run(steps)

    def _run(self, steps: list[object]):
        try:
            for step in steps:
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.closed += 1

    def function(self):
        def feed(*args: object):
            yield from self(*args)

        return feed


def test_a_stream_that_fails_before_its_first_item_is_tried_again(streamed):
    feed = Feed([ConnectionError("refused")], [1, 2, 3])
    assert streamed(retry("feed"), feed.function())() == [1, 2, 3]
    assert feed.calls == 2


def test_a_stream_is_not_restarted_in_the_middle(streamed):
    # stamina yields [1, 1, 2]; most others do not retry streams at all.
    feed, got = Feed([1, ConnectionError("reset")], [1, 2]), []
    with pytest.raises(ConnectionError, match="reset"):
        streamed(retry("feed"), feed.function())(into=got)
    assert got == [1]
    assert feed.calls == 1


def test_a_stream_that_never_begins_gives_up_with_its_error(streamed):
    feed = Feed([ConnectionError("refused")])
    with pytest.raises(ConnectionError, match="refused"):
        streamed(retry("feed", backoff=0), feed.function())()
    assert feed.calls == 3


def test_an_empty_stream_is_a_success(streamed):
    policy, feed = retry("feed"), Feed([])
    assert streamed(policy, feed.function())() == []
    assert (feed.calls, policy.snapshot()["success"]) == (1, 1)


def test_a_stream_gets_its_arguments_at_every_attempt(streamed):
    seen = []

    def feed(*args: object):
        seen.append(args)
        if len(seen) == 1:
            raise ConnectionError
        yield from args

    assert streamed(retry("feed"), feed)(1, 2) == [1, 2]
    assert seen == [(1, 2), (1, 2)]


def test_on_result_does_not_judge_the_items_of_a_stream(streamed):
    assert streamed(retry("feed", on_result=lambda item: True), Feed([1, 2]).function())() == [1, 2]


def test_the_answer_of_a_mapper_gives_the_items(streamed):
    policy = retry("feed", attempts=2, backoff=0, exhausted=lambda outcome: ["cached", outcome.attempts])
    assert streamed(policy, Feed([ConnectionError()]).function())() == ["cached", 2]


def test_the_attempt_is_forgotten_once_items_flow(streamed):
    seen = []

    def feed():
        seen.append(current_attempt() is None)
        if len(seen) == 1:
            raise ConnectionError
        yield 1
        seen.append(current_attempt() is None)

    streamed(retry("feed", backoff=0), feed)()
    assert seen == [True, False, True]


def test_a_waiting_stream_waits_in_virtual_time(streamed, clock):
    streamed(retry("feed", backoff=[1, 2], jitter=None), Feed([OSError()], [OSError()], [1]).function())()
    assert clock.sleeps == [1.0, 2.0]


def test_a_time_limit_bounds_the_wait_for_the_first_item_only(clock):
    @retry("feed", max_duration=1)
    async def feed():
        yield 1
        await asyncio.sleep(5)
        yield 2

    async def main() -> list[int]:
        return [item async for item in feed()]

    assert clock.run(main) == [1, 2]


def test_a_first_item_that_takes_too_long_is_cut_short(clock):
    @retry("feed", max_duration=1)
    async def feed():
        await asyncio.sleep(5)
        yield 1

    async def main() -> list[int]:
        return [item async for item in feed()]

    with pytest.raises(TimeoutExceededError):
        clock.run(main)
    assert clock.monotonic() == pytest.approx(1.0)


def test_a_deadline_that_has_passed_lets_no_stream_begin(streamed):
    feed = Feed([1])
    with deadline(0), pytest.raises(TimeoutExceededError):
        streamed(retry("feed"), feed.function())()
    assert feed.calls == 0


def test_a_decorated_generator_function_is_still_one(clock):
    @retry("feed")
    def feed():
        yield 1

    @retry("afeed")
    async def afeed():
        yield 1

    assert inspect.isgeneratorfunction(feed)
    assert inspect.isasyncgenfunction(afeed)


def test_what_is_sent_thrown_and_returned_goes_through(clock):
    @retry("feed", backoff=0)
    def feed():
        got = yield "first"
        try:
            yield got
        except KeyError:
            yield "caught"
        return "returned"

    items = feed()
    assert next(items) == "first"
    assert items.send("sent") == "sent"
    assert items.throw(KeyError()) == "caught"
    with pytest.raises(StopIteration) as ended:
        next(items)
    assert ended.value.value == "returned"


def test_what_an_empty_generator_returns_goes_through(clock):
    @retry("feed")
    def feed():
        return "returned"
        yield

    with pytest.raises(StopIteration) as ended:
        next(feed())
    assert ended.value.value == "returned"


def test_closing_a_stream_early_closes_what_is_inside(clock):
    feed = Feed([1, 2, 3])
    items = retry("feed")(feed.function())()
    next(items)
    items.close()
    assert feed.closed == 1


def test_closing_an_async_stream_early_closes_what_is_inside(clock):
    closed = []

    @retry("feed")
    async def feed():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def main() -> None:
        items = feed()
        await anext(items)
        await items.aclose()
        assert closed == [True]

    clock.run(main)


def test_an_async_attempt_that_failed_is_closed_before_the_next_begins(clock):
    trace = []

    @retry("feed", backoff=0)
    async def feed():
        trace.append("open")
        try:
            if len(trace) == 1:
                raise ConnectionError
            yield 1
        finally:
            trace.append("close")

    async def main() -> list[int]:
        return [item async for item in feed()]

    assert clock.run(main) == [1]
    assert trace == ["open", "close", "open", "close"]


def test_nothing_runs_before_the_stream_is_consumed(clock):
    feed = Feed([1])
    retry("feed")(feed.function())()
    assert feed.calls == 0


def test_a_stream_ignores_exhausted_results_of_its_own_kind(streamed):
    feed = Feed([RetryExhaustedError("other", 1, "x")], [1])
    assert streamed(retry("feed", backoff=0), feed.function())() == [1]
