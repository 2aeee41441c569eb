"""Calls that come within a few milliseconds become one, and each gets what is its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest

import everkeel
from everkeel import (
    Clock,
    CollapseError,
    ConfigError,
    TimeoutExceededError,
    cache,
    collapse,
    deadline,
    disable,
    enable,
    events,
    pipeline,
    policies_of,
    retry,
    timeout,
)
from everkeel.testing import cancel_at_every_await


class Asked:
    """Gathers items, as tasks on one loop or as threads: each form answers outcomes in the order of the items."""

    def __init__(self, form: Any, policy: Any, fn: Callable[[list[Any]], Any], takes: float = 0.0) -> None:
        self.batches: list[list[Any]] = []
        self.form, self.policy = form, policy

        def batch(items: list[Any]) -> Any:
            self.batches.append(items)
            if takes:
                form.clock.sleep(takes)
            return fn(items)

        async def abatch(items: list[Any]) -> Any:
            self.batches.append(items)
            await asyncio.sleep(takes)
            return fn(items)

        self.call = form.guarded(policy, abatch if form.awaited else batch)

    def __call__(self, *items: Any) -> list[Any]:
        return self.form.clock.run(self._tasks(items)) if self.form.awaited else self._threads(items)

    async def _tasks(self, items: tuple[Any, ...]) -> list[Any]:
        return await asyncio.gather(*(self.call(item) for item in items), return_exceptions=True)

    def _threads(self, items: tuple[Any, ...]) -> list[Any]:
        # Threads are not all there after so many milliseconds: the last one sends the batch, not the time.
        self.policy.clock = Clock()
        if self.policy.config.max_size == 100:
            self.policy.reconfigure(window=60, max_size=len(items))
        outcomes: list[Any] = [None] * len(items)

        def ask(at: int, item: Any) -> None:
            try:
                outcomes[at] = self.call(item)
            except BaseException as error:
                outcomes[at] = error

        threads, before = [], self._seats()
        for at, item in enumerate(items):
            thread = threading.Thread(target=copy_context().run, args=(ask, at, item))
            threads.append(thread)
            thread.start()
            while thread.is_alive() and self._seats() < before + at + 1:
                pass  # in the order of the items, so that batches can be told
        for thread in threads:
            thread.join()
        return outcomes

    def _seats(self) -> int:
        with self.policy.lock:
            return sum(len(batch.seats) for batch in self.policy.state.open.values()) + self.policy.state._calls


@pytest.fixture
def asked(guarded):
    """`asked(policy, fn)(1, 2, 3)`: three calls at the same time, in every form."""

    def make(policy: Any, fn: Callable[[list[Any]], Any], **more: Any) -> Asked:
        return Asked(guarded, policy, fn, **more)

    return make


def doubled(items: list[int]) -> list[int]:
    return [item * 2 for item in items]


# ------------------------------------------------------------------ collecting, and whose result is whose


def test_calls_that_come_together_are_one_call(asked):
    policy = collapse(name="c")
    ask = asked(policy, doubled)
    assert ask(1, 2, 3) == [2, 4, 6]
    assert ask.batches == [[1, 2, 3]]
    shown = policy.snapshot()
    assert (shown["batches"], shown["calls"], shown["largest"], shown["success"]) == (1, 3, 3, 3)
    assert (shown["waiting"], shown["running"], shown["failure"]) == (0, 0, 0)


def test_results_may_come_in_a_mapping(asked):
    ask = asked(collapse(name="c"), lambda items: {item: str(item) for item in reversed(items)})
    assert ask(1, 2, 1) == ["1", "2", "1"]


def test_a_tuple_will_do_too(asked):
    assert asked(collapse(name="c"), tuple)("a", "b") == ["a", "b"]


def test_a_batch_that_is_full_is_sent_at_once(asked):
    policy = collapse(3600, "c", max_size=2)
    ask = asked(policy, doubled)
    assert ask(1, 2, 3, 4) == [2, 4, 6, 8]
    assert ask.batches == [[1, 2], [3, 4]]
    assert ask.form.clock.monotonic() == 0


def test_a_batch_is_sent_when_its_window_is_over(awaited, clock):
    policy = collapse(0.01, "c")
    ask = Asked(awaited, policy, doubled)

    async def main() -> None:
        first = asyncio.create_task(ask.call(1))
        await asyncio.sleep(0.009)
        second = asyncio.create_task(ask.call(2))
        assert await first == 2
        assert clock.monotonic() == 0.01
        assert await second == 4
        assert await ask.call(3) == 6
        assert clock.monotonic() == 0.02

    clock.run(main)
    assert ask.batches == [[1, 2], [3]]


def test_a_thread_is_answered_when_the_window_is_over(threaded, clock):
    ask = Asked(threaded, collapse(0.5, "c"), doubled)
    assert ask.call(1) == 2
    assert clock.monotonic() == 0.5


def test_without_a_window_what_comes_in_the_same_turn_goes_together(awaited, clock):
    ask = Asked(awaited, collapse(0, "c"), doubled)
    assert ask(1, 2, 3) == [2, 4, 6]
    assert (ask.batches, clock.monotonic()) == ([[1, 2, 3]], 0)


def test_an_exception_in_the_list_is_its_own_callers(asked):
    policy = collapse(name="c")
    ask = asked(policy, lambda items: [KeyError(item) if item == 2 else item for item in items])
    one, two, three = ask(1, 2, 3)
    assert (one, three) == (1, 3)
    assert isinstance(two, KeyError)
    assert two.args == (2,)
    assert (policy.snapshot()["success"], policy.snapshot()["failure"]) == (2, 1)


def test_an_exception_in_the_mapping_is_its_own_callers(asked):
    one, two = asked(collapse(name="c"), lambda items: {1: 1, 2: KeyError(2)})(1, 2)
    assert one == 1
    assert isinstance(two, KeyError)


def test_what_a_mapping_leaves_out_is_an_error_of_its_own_caller(asked):
    one, two = asked(collapse(name="c"), lambda items: {1: "one"})(1, 2)
    assert one == "one"
    assert isinstance(two, CollapseError)
    assert str(two) == "collapse 'c': the batch answered nothing for 2"


def test_an_item_that_no_mapping_can_have_is_an_error_of_its_own_caller(asked):
    one, two = asked(collapse(name="c"), lambda items: {1: "one"})(1, [2])
    assert one == "one"
    assert isinstance(two, TypeError)


def test_an_error_of_the_batch_is_an_error_of_everybody_in_it(asked):
    def down(items: list[int]) -> list[int]:
        raise ConnectionError("down")

    policy = collapse(name="c")
    errors = asked(policy, down)(1, 2, 3)
    assert [(type(error), str(error)) for error in errors] == [(ConnectionError, "down")] * 3
    assert len({id(error) for error in errors}) == 3, "one that is raised in many places is of use in none"
    assert policy.snapshot()["failure"] == 3


def test_an_error_that_cannot_be_copied_is_shared(asked):
    class OddError(Exception):
        def __init__(self, *, code: int) -> None:
            super().__init__("odd", code)

    def down(items: list[int]) -> list[int]:
        raise OddError(code=7)

    assert [type(error) for error in asked(collapse(name="c"), down)(1, 2)] == [OddError] * 2


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([1], "2 went into the batch, and 1 results came back"),
        ([1, 2, 3], "2 went into the batch, and 3 results came back"),
        ("ab", "a batch must answer with a list or a mapping, not str"),
        (None, "a batch must answer with a list or a mapping, not NoneType"),
        ({1, 2}, "a batch must answer with a list or a mapping, not set"),
    ],
)
def test_an_answer_that_fits_nobody_is_an_error_of_everybody(asked, answer, text):
    errors = asked(collapse(name="c"), lambda items: answer)(1, 2)
    assert [str(error) for error in errors] == [f"collapse 'c': {text}"] * 2
    assert all(isinstance(error, CollapseError) for error in errors)


# ------------------------------------------------------------------ what calls of a batch have in common


def test_calls_with_other_arguments_in_common_are_other_batches(clock):
    batches = []

    @collapse(name="c")
    async def price(region: str, items: list[str], currency: str = "EUR", *, full: bool = False) -> list[str]:
        batches.append((region, items, currency, full))
        return [f"{region} {item}" for item in items]

    async def main() -> list[Any]:
        return await asyncio.gather(
            price("eu", "tea"),
            price("us", "tea"),
            price("eu", "milk"),
            price("eu", "tea", "USD"),
            price("eu", "tea", full=True),
        )

    assert clock.run(main) == ["eu tea", "us tea", "eu milk", "eu tea", "eu tea"]
    assert sorted(batches) == [
        ("eu", ["tea"], "EUR", True),
        ("eu", ["tea"], "USD", False),
        ("eu", ["tea", "milk"], "EUR", False),
        ("us", ["tea"], "EUR", False),
    ]


def test_a_method_has_batches_for_each_instance(clock):
    class Users:
        def __init__(self) -> None:
            self.batches: list[list[int]] = []

        @collapse(name="c")
        async def load(self, numbers: list[int]) -> list[int]:
            self.batches.append(numbers)
            return numbers

    one, other = Users(), Users()

    async def main() -> list[int]:
        return await asyncio.gather(one.load(1), other.load(2), one.load(3))

    assert clock.run(main) == [1, 2, 3]
    assert (one.batches, other.batches) == ([[1, 3]], [[2]])


def test_two_functions_do_not_share_a_batch(clock):
    policy = collapse(name="c")
    assert clock.run(asyncio_gather(lambda: policy.acall(upper, "a"), lambda: policy.acall(lower, "A"))) == ["A", "a"]
    assert policy.snapshot()["batches"] == 2


async def upper(items: list[str]) -> list[str]:
    return [item.upper() for item in items]


async def lower(items: list[str]) -> list[str]:
    return [item.lower() for item in items]


def asyncio_gather(*calls: Callable[[], Any]) -> Callable[[], Any]:
    async def main() -> list[Any]:
        return await asyncio.gather(*(call() for call in calls))

    return main


def test_what_calls_have_in_common_must_be_hashable(clock):
    policy = collapse(name="c")

    async def load(tags: list[str], items: list[str]) -> list[str]:
        return items

    with pytest.raises(TypeError, match=r"collapse 'c': what calls of one batch have in common .* must be hashable"):
        clock.run(policy.acall(load, ["x"], "a"))  # type: ignore[call-overload]


def test_the_collected_argument_must_be_given_by_position(clock):
    with pytest.raises(TypeError, match="collapse 'c': the argument that is collected must be given by position"):
        clock.run(collapse(name="c").acall(upper, items="a"))  # type: ignore[call-overload]


# ------------------------------------------------------------------ callers that go away


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("when", [0.001, 0.5])
def test_one_cancelled_caller_harms_no_other(awaited, clock, which, when):
    policy = collapse(0.005, "c")
    ask = Asked(awaited, policy, doubled, takes=1)

    async def main() -> None:
        tasks = [asyncio.create_task(ask.call(item)) for item in (1, 2, 3)]
        await asyncio.sleep(when)
        tasks[which].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(outcomes.pop(which), asyncio.CancelledError)
        left = [1, 2, 3]
        left.pop(which)
        assert outcomes == doubled(left)
        assert ask.batches == [left if when < 0.005 else [1, 2, 3]], "who is gone before it is sent is not in it"

    clock.run(main)
    assert (policy.snapshot()["waiting"], policy.snapshot()["running"]) == (0, 0)


def test_a_batch_that_nobody_waits_for_is_not_sent(awaited, clock):
    policy = collapse(1, "c")
    ask = Asked(awaited, policy, doubled)

    async def main() -> None:
        tasks = [asyncio.create_task(ask.call(item)) for item in (1, 2)]
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(5)
        assert await ask.call(3) == 6

    clock.run(main)
    assert ask.batches == [[3]]


def test_a_batch_under_way_that_nobody_waits_for_is_cancelled_and_waited_for(awaited, clock):
    policy, ended = collapse(0.005, "c"), []

    async def batch(items: list[int]) -> list[int]:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1)
            ended.append(items)
        return items

    call = awaited.guarded(policy, batch)

    async def main() -> None:
        tasks = [asyncio.create_task(call(item)) for item in (1, 2)]
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert ended == [[1, 2]]
        assert len(asyncio.all_tasks()) == 1

    clock.run(main)
    assert policy.snapshot()["running"] == 0


def test_a_batch_that_cancels_itself_cancels_its_callers(awaited, clock):
    async def batch(items: list[int]) -> list[int]:
        raise asyncio.CancelledError

    call = awaited.guarded(collapse(name="c"), batch)

    async def main() -> None:
        outcomes = await asyncio.gather(*(asyncio.create_task(call(item)) for item in (1, 2)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 2

    clock.run(main)


@pytest.mark.parametrize(("others", "max_size"), [(0, 100), (2, 100), (0, 1)])
def test_no_task_or_seat_is_left_wherever_a_call_is_cancelled(awaited, others, max_size):
    made = []

    async def make() -> object:
        policy = collapse(0.005, "c", replace=True, max_size=max_size)
        ask = Asked(awaited, policy, doubled, takes=1)
        made.append((policy, [asyncio.create_task(ask.call(item)) for item in range(others)]))
        await asyncio.sleep(0)
        return await ask.call(7)

    async def check(outcome) -> None:
        policy, tasks = made[-1]
        assert outcome.cancelled or outcome.value == 14
        assert await asyncio.gather(*tasks) == doubled(list(range(others)))
        assert (policy.snapshot()["waiting"], policy.snapshot()["running"]) == (0, 0)
        assert policy.state.open == {}
        assert len(asyncio.all_tasks()) == 1

    assert cancel_at_every_await(make, check) == 2


# ------------------------------------------------------------------ deadlines


def test_a_callers_deadline_ends_its_wait_and_not_the_batch(awaited, clock):
    ask = Asked(awaited, collapse(0.005, "c"), doubled, takes=1)

    async def main() -> None:
        other = asyncio.create_task(ask.call(2))
        await asyncio.sleep(0)
        async with deadline(0.5):
            with pytest.raises(TimeoutExceededError, match=r"deadline: no answer within 0.5 s"):
                await ask.call(1)
        assert clock.monotonic() == 0.5
        assert await other == 4

    clock.run(main)


def test_a_threads_deadline_ends_its_wait(threaded, clock):
    policy, go, ended = collapse(0.005, "c"), threading.Event(), threading.Event()

    def batch(items: list[int]) -> list[int]:
        go.wait(10)
        ended.set()
        return items

    call = threaded.guarded(policy, batch)
    with deadline(0.5), pytest.raises(TimeoutExceededError, match=r"deadline: no answer within 0.5 s"):
        call(1)
    go.set()
    ended.wait(10)


def test_a_batch_has_the_latest_deadline_of_its_callers(awaited, clock):
    seen = []

    async def batch(items: list[int]) -> list[int]:
        limit = everkeel.current_deadline()
        seen.append(None if limit is None else limit.at)
        return items

    call = awaited.guarded(collapse(0.005, "c"), batch)

    async def within(seconds: float | None) -> None:
        if seconds is None:
            await call(1)
        else:
            async with deadline(seconds):
                await call(1)

    async def main() -> None:
        await asyncio.gather(within(1), within(3), within(2))
        await asyncio.gather(within(1), within(None))

    clock.run(main)
    assert seen == [3, None]


def test_a_call_whose_deadline_is_near_is_not_kept_waiting(awaited, clock):
    ask = Asked(awaited, collapse(10, "c"), doubled)

    async def main() -> None:
        first = asyncio.create_task(ask.call(1))
        await asyncio.sleep(1)
        async with deadline(5):
            assert await ask.call(2) == 4
        assert await first == 2
        assert clock.monotonic() == 1

    clock.run(main)
    assert ask.batches == [[1, 2]]


# ------------------------------------------------------------------ loops and threads


def test_every_event_loop_has_batches_of_its_own(clock):
    policy, batches = collapse(0.005, "c"), []

    @policy
    async def load(items: list[int]) -> list[int]:
        batches.append((asyncio.get_running_loop(), sorted(items)))
        return items

    async def main(items: list[int]) -> list[int]:
        return await asyncio.gather(*(load(item) for item in items))

    answers: dict[int, list[int]] = {}

    def run(base: int) -> None:
        answers[base] = asyncio.run(main([base, base + 1]))

    threads = [threading.Thread(target=run, args=(base,)) for base in (10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {base: [base, base + 1] for base in (10, 20, 30)}
    assert sorted(items for _, items in batches) == [[10, 11], [20, 21], [30, 31]]


def test_a_hundred_threads_get_their_own_results(threaded):
    policy = collapse(0.02, "c", max_size=10)
    ask = Asked(threaded, policy, doubled)
    with_threads = [
        threading.Thread(target=lambda item=item: results.update({item: ask.call(item)})) for item in range(100)
    ]
    results: dict[int, int] = {}
    for thread in with_threads:
        thread.start()
    for thread in with_threads:
        thread.join()
    assert results == {item: item * 2 for item in range(100)}
    assert all(len(batch) <= 10 for batch in ask.batches)
    assert policy.snapshot()["waiting"] == 0


def test_where_no_thread_is_to_be_had_the_caller_sends_the_batch_itself(threaded, monkeypatch):
    def no_thread(job: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("everkeel.policies.collapse.state.start", no_thread)
    ask = Asked(threaded, collapse(0.005, "c"), doubled)
    assert ask.call(1) == 2


# ------------------------------------------------------------------ composing, modes, being watched


def test_what_is_outside_sees_calls_and_what_is_inside_sees_batches(guarded):
    outside, inside = retry("outside", backoff=0), retry("inside", backoff=0)
    policy = collapse(name="c")
    tries = []

    def flaky(items: list[int]) -> list[int]:
        tries.append(items)
        if len(tries) == 1:
            raise ConnectionError
        return items

    form = Asked(guarded, policy, flaky)
    form.call = guarded.guarded(pipeline(outside, policy, inside), _of_kind(guarded, flaky))
    assert form(1, 2) == [1, 2]
    assert tries == [[1, 2], [1, 2]]
    assert (outside.snapshot()["success"], inside.snapshot()["success"]) == (2, 1)


def _of_kind(form: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def afn(items: list[Any]) -> Any:
        return fn(items)

    return afn if form.awaited else fn


def test_a_cache_outside_asks_for_each_item_once(clock):
    batches = []

    @cache(60, "k")
    @collapse(name="c")
    async def user(numbers: list[int]) -> list[str]:
        batches.append(numbers)
        return [f"user {number}" for number in numbers]

    async def main() -> list[str]:
        return await asyncio.gather(*(user(number) for number in (1, 2, 1, 2, 3)))

    assert clock.run(main) == ["user 1", "user 2", "user 1", "user 2", "user 3"]
    assert clock.run(main)[0] == "user 1"
    assert batches == [[1, 2, 3]]
    assert [policy.type for policy in policies_of(user)] == ["cache", "collapse"]


def test_a_timeout_outside_ends_a_callers_wait_alone(clock):
    @collapse(0.005, "c")
    async def slow(items: list[int]) -> list[int]:
        await asyncio.sleep(5)
        return items

    async def main() -> None:
        other = asyncio.create_task(slow(2))
        with pytest.raises(TimeoutExceededError):
            await timeout(1).acall(slow, 1)
        assert await other == 2

    clock.run(main)


def test_off_every_call_is_a_batch_of_one(asked):
    policy = collapse(3600, "c", mode="off")
    ask = asked(policy, lambda items: [KeyError(3) if item == 3 else item for item in items])
    one, two, three = ask(1, 2, 3)
    assert (one, two, type(three)) == (1, 2, KeyError)
    assert sorted(ask.batches) == [[1], [2], [3]]
    policy.reconfigure(mode="enforce", window=0)
    disable()
    assert ask(4) == [4]
    enable()
    assert ask(5) == [5]
    assert policy.snapshot()["batches"] == 1


def test_a_shadow_sends_batches_of_one_and_counts_what_would_have_gone_together(awaited, clock):
    policy = collapse(0.01, "c", mode="shadow", max_size=2)
    ask = Asked(awaited, policy, lambda items: [ConnectionError() if item == 3 else item for item in items])

    async def main() -> None:
        assert [await ask.call(1), await ask.call(2)] == [1, 2]
        with pytest.raises(ConnectionError):
            await ask.call(3)
        await asyncio.sleep(0.01)
        assert await ask.call(4) == 4

    clock.run(main)
    assert ask.batches == [[1], [2], [3], [4]]
    shown = policy.snapshot()
    assert (shown["would"], shown["success"], shown["failure"]) == ({"collapse": 1}, 3, 1)


def test_a_shadow_leaves_threads_alone_too(threaded):
    policy = collapse(60, "c", mode="shadow")
    ask = Asked(threaded, policy, lambda items: [ConnectionError() if item == 2 else item for item in items])
    assert ask.call(1) == 1
    with pytest.raises(ConnectionError):
        ask.call(2)
    assert ask.batches == [[1], [2]]
    assert policy.snapshot()["would"] == {"collapse": 1}


def test_a_shadow_refuses_nothing(clock):
    policy = collapse(60, "c", mode="shadow")

    async def load(tags: list[str], items: list[str]) -> list[str]:
        return items

    assert clock.run(policy.acall(load, ["x"], "a")) == "a"  # type: ignore[call-overload]
    assert policy.snapshot()["would"] == {"refuse": 1}


def test_changes_apply_to_the_next_batch(awaited, clock):
    policy = collapse(3600, "c")
    ask = Asked(awaited, policy, doubled)

    async def main() -> None:
        first = asyncio.create_task(ask.call(1))
        await asyncio.sleep(0)
        policy.reconfigure(max_size=2)
        assert await ask.call(2) == 4
        assert await first == 2

    clock.run(main)
    assert ask.batches == [[1, 2]]


def test_batches_are_told(awaited, heard, clock):
    ask = Asked(awaited, collapse(0.01, "c"), doubled)
    ask(1, 2, 3)
    (sent,) = heard.of(events.BatchSent)
    assert (sent.size, sent.waited, sent.policy) == (3, 0.01, "c")


def test_a_coroutine_function_is_refused_by_call(clock):
    with pytest.raises(TypeError, match=r"collapse 'c': call\(\) got a coroutine function; use acall\(\)"):
        collapse(0, "c").call(upper, "a")  # type: ignore[arg-type]


def test_a_collapse_is_not_a_block(clock):
    with pytest.raises(TypeError, match="collapse 'c' cannot be a block: a block has no argument to collect"):
        with collapse(name="c"):
            pass


def test_a_generator_function_is_refused_when_it_is_decorated(clock):
    def items(numbers: list[int]):
        yield from numbers

    with pytest.raises(ConfigError) as caught:
        collapse(name="c")(items)  # type: ignore[arg-type]
    assert str(caught.value) == "collapse 'c': needs a function that returns a list; a generator function does not"


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": -1}, "window must not be negative (got -1)"),
        ({"window": "5ms"}, "window must be seconds as a number, or a timedelta (got '5ms')"),
        ({"max_size": 0}, "max_size must be at least 1 (got 0)"),
        ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(given, message):
    with pytest.raises(ConfigError) as caught:
        collapse(**{"name": "c", **given})
    assert str(caught.value) == f"collapse 'c': {message}"
