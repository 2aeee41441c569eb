"""What is served after its time, what is fetched before it, and what is kept of a failure."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from everkeel import (
    BulkheadFullError,
    NotRetryable,
    cache,
    circuit_breaker,
    current_deadline,
    deadline,
    events,
    pipeline,
)
from everkeel.policies.cache.flight import LEADING
from everkeel.testing import Flaky


class Live:
    """A guarded call that lives on one event loop, or in one thread, so that a refresh has time to end."""

    def __init__(self, form: Any, policy: Any, load: Flaky) -> None:
        self.policy, self.clock = policy, form.clock
        self._loop = asyncio.Runner(loop_factory=_loop_of(form.clock)) if form.awaited else None
        self._call = form.guarded(policy, load.async_() if form.awaited else load)

    def __call__(self, *args: Any) -> Any:
        return self._call(*args) if self._loop is None else self._loop.run(self._call(*args))

    def settle(self) -> None:
        """Until no load is under way."""
        if self._loop is not None:
            self._loop.run(self._ended())
        while self.policy.snapshot()["loading"]:
            time.sleep(0.001)

    async def _ended(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


def _loop_of(clock: Any) -> Any:
    from everkeel.testing import VirtualLoop

    return lambda: VirtualLoop(clock)


@pytest.fixture
def live(guarded):
    """`live(policy, flaky)`: guarded in every form."""
    made = []

    def make(policy: Any, load: Flaky) -> Live:
        made.append(Live(guarded, policy, load))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ------------------------------------------------------------------ stale while it is refreshed


def test_a_stale_answer_is_served_while_one_load_refreshes_it(live, clock):
    policy, load = cache(60, "c", stale_for=30), Flaky("old", "new")
    call = live(policy, load)
    call(1)
    clock.advance(60)
    assert call(1) == "old"
    call.settle()
    assert call(1) == "new"
    assert load.calls == 2
    shown = policy.snapshot()
    assert (shown["stale"], shown["refreshed"], shown["hits"], shown["misses"]) == (1, 1, 1, 1)
    assert shown["success"] == 3, "a refresh is nobody's call"


def test_nothing_is_served_beyond_its_staleness(live, clock):
    load = Flaky("old", "new")
    call = live(cache(60, "c", stale_for=30), load)
    call(1)
    clock.advance(90)
    assert call(1) == "new"


def test_a_refresh_that_fails_leaves_the_stale_answer_and_is_tried_again_after_a_pause(live, clock):
    policy, load = cache(60, "c", stale_for=30), Flaky("old", ConnectionError, "new")
    call = live(policy, load)
    call(1)
    clock.advance(60)
    assert call(1) == "old"
    call.settle()
    assert [call(1), call(1)] == ["old", "old"]
    assert load.calls == 2, "no second refresh so soon"
    clock.advance(1)
    assert call(1) == "old"
    call.settle()
    assert call(1) == "new"
    assert policy.snapshot()["refresh_failed"] == 1


def test_the_pause_after_a_failed_refresh_is_short_where_ttl_is(live, clock):
    load = Flaky("old", ConnectionError, "new")
    call = live(cache(1, "c", stale_for=30), load)
    call(1)
    clock.advance(1)
    call(1)
    call.settle()
    clock.advance(0.1)
    call(1)
    call.settle()
    assert call(1) == "new"


def test_many_who_find_it_stale_start_one_refresh(awaited, clock):
    policy, load = cache(60, "c", stale_for=30), Flaky("old", "new", takes=1)
    call = awaited.guarded(policy, load.async_())

    async def main() -> None:
        await call(1)
        await asyncio.sleep(60)
        assert await asyncio.gather(*(call(1) for _ in range(50))) == ["old"] * 50
        assert len(asyncio.all_tasks()) == 2
        await asyncio.sleep(1)
        assert await call(1) == "new"
        assert len(asyncio.all_tasks()) == 1

    clock.run(main)
    assert load.calls == 2


def test_a_refresh_is_nobodys_call(live, clock):
    seen: list[Any] = []

    class Look(Flaky):
        def _next(self, *given: Any) -> object:
            seen.append((current_deadline(), len(LEADING.get())))
            return super()._next(*given)

    call = live(cache(60, "c", stale_for=30), Look("old", "new"))
    call(1)
    clock.advance(60)
    with deadline(5):
        call(1)
    call.settle()
    assert seen == [(None, 1), (None, 1)], "the caller's deadline is not the refresh's"


def test_a_refresh_that_outlives_its_loop_is_forgotten(clock):
    policy, load = cache(60, "c", stale_for=1000), Flaky("old", "new", takes=10)
    call = policy(load.async_())
    clock.run(call(1))
    clock.advance(60)
    assert clock.run(call(1)) == "old"
    assert policy.snapshot()["loading"] == 0, "cancelled when its loop was closed"
    clock.advance(1)
    assert clock.run(call(1)) == "old"


def test_so_many_threads_refresh_at_the_same_time_and_no_more(threaded, clock):
    policy, go = cache(60, "c", stale_for=30), threading.Event()
    seen: set[int] = set()

    def load(x: int) -> int:
        if x in seen:
            go.wait(10)
        seen.add(x)
        return x

    call = threaded.guarded(policy, load)
    for x in range(20):
        call(x)
    clock.advance(60)
    assert [call(x) for x in range(20)] == list(range(20))
    assert policy.snapshot()["loading"] == 8
    go.set()
    while policy.snapshot()["loading"]:
        time.sleep(0.001)


def test_while_a_thread_refreshes_the_others_are_served_and_start_no_other(threaded, clock):
    policy, go, loads = cache(60, "c", stale_for=30), threading.Event(), []

    def load() -> int:
        loads.append(1)
        if len(loads) > 1:
            go.wait(10)
        return len(loads)

    call = threaded.guarded(policy, load)
    call()
    clock.advance(60)
    assert [call(), call(), call()] == [1, 1, 1]
    go.set()
    while policy.snapshot()["loading"]:
        time.sleep(0.001)
    assert call() == 2
    assert policy.snapshot()["refreshed"] == 1


def test_where_no_thread_is_to_be_had_the_stale_answer_is_served_all_the_same(threaded, clock, monkeypatch):
    def no_thread(job: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("everkeel.policies.cache.state.start", no_thread)
    policy, load = cache(60, "c", stale_for=30), Flaky("old", "new")
    call = threaded(policy, load)
    call(1)
    clock.advance(60)
    assert [call(1), call(1)] == ["old", "old"]
    assert (policy.snapshot()["refresh_failed"], policy.snapshot()["loading"]) == (1, 0)


# ------------------------------------------------------------------ stale where the load fails


def test_a_stale_answer_is_served_where_the_load_fails(live, clock, heard):
    policy, load = cache(60, "c", stale_if_error=300), Flaky("old", ConnectionError("refused"), "new")
    call = live(policy, load)
    call(1)
    clock.advance(60)
    assert call(1) == "old"
    (told,) = heard.of(events.CacheStale)
    assert (told.age, str(told.error)) == (60, "refused")
    clock.advance(1)
    assert call(1) == "new"
    assert (policy.snapshot()["stale"], policy.snapshot()["failure"], policy.snapshot()["misses"]) == (1, 1, 3)


def test_a_stale_answer_is_served_without_single_flight_too(live, clock):
    load = Flaky("old", ConnectionError)
    call = live(cache(60, "c", stale_if_error=300, single_flight=False), load)
    call(1)
    clock.advance(60)
    assert call(1) == "old"


def test_a_failure_is_told_as_one(live, heard):
    call = live(cache(60, "c", ignore=KeyError), Flaky(ConnectionError, KeyError))
    heard.clear()
    with pytest.raises(ConnectionError):
        call(1)
    with pytest.raises(KeyError):
        call(1)
    assert heard.names() == ["CacheMissed", "Failed", "CacheMissed", "Ignored"]


def test_after_a_failed_load_no_other_is_made_for_a_moment(live, clock):
    load = Flaky("old", ConnectionError, "new")
    call = live(cache(60, "c", stale_if_error=300), load)
    call(1)
    clock.advance(60)
    assert [call(1), call(1), call(1)] == ["old"] * 3
    assert load.calls == 2


def test_the_error_leaves_where_the_answer_is_too_old(live, clock):
    load = Flaky("old", ConnectionError("refused"))
    call = live(cache(60, "c", stale_if_error=300), load)
    call(1)
    clock.advance(359.9)
    assert call(1) == "old"
    clock.advance(0.1)
    with pytest.raises(ConnectionError, match="refused"):
        call(1)


def test_an_error_that_is_no_failure_leaves(live, clock):
    policy = cache(60, "c", stale_if_error=300, on=OSError)
    call = live(policy, Flaky("old", KeyError("gone")))
    call(1)
    clock.advance(60)
    with pytest.raises(KeyError):
        call(1)
    assert (policy.snapshot()["failure"], policy.snapshot()["ignored"]) == (0, 1)


def test_an_open_circuit_inside_is_a_failure_like_any_other(live, clock):
    breaker = circuit_breaker("b")
    call = live(cache(60, "c", stale_if_error=300), Flaky("old"))
    call.policy = policy = pipeline(call.policy, breaker)
    again = policy.call
    assert again(load := Flaky("old"), 1) == "old"
    clock.advance(60)
    breaker.force_open()
    assert again(load, 1) == "old"
    call.policy = policy.policies[0]


def test_a_result_that_is_a_failure_does_not_replace_a_good_one(live, clock):
    load = Flaky("good", "503", "better")
    call = live(cache(60, "c", stale_if_error=300, on_result=lambda answer: answer == "503"), load)
    call(1)
    clock.advance(60)
    assert call(1) == "good"
    clock.advance(1)
    assert call(1) == "better"


def test_all_who_wait_for_a_load_that_fails_get_the_stale_answer(awaited, clock):
    policy, load = cache(60, "c", stale_if_error=300), Flaky("old", ConnectionError, takes=1)
    call = awaited.guarded(policy, load.async_())

    async def main() -> None:
        await call(1)
        await asyncio.sleep(60)
        assert await asyncio.gather(*(call(1) for _ in range(5))) == ["old"] * 5

    clock.run(main)
    assert load.calls == 2


# ------------------------------------------------------------------ refreshed before its time


def test_a_hit_in_the_last_part_of_its_time_refreshes_an_answer_ahead(live, clock):
    policy, load = cache(100, "c", refresh_ahead=0.8), Flaky("old", "new")
    call = live(policy, load)
    call(1)
    clock.advance(79.9)
    assert call(1) == "old"
    call.settle()
    assert load.calls == 1
    clock.advance(0.1)
    assert call(1) == "old"
    call.settle()
    clock.advance(79.9)
    assert call(1) == "new"
    assert (policy.snapshot()["hits"], policy.snapshot()["misses"], policy.snapshot()["refreshed"]) == (3, 1, 1)


def test_a_refresh_ahead_that_fails_is_tried_again_after_a_pause(live, clock):
    load = Flaky("old", ConnectionError, "new")
    call = live(cache(100, "c", refresh_ahead=0.5), load)
    call(1)
    clock.advance(50)
    call(1)
    call.settle()
    assert call(1) == "old"
    assert load.calls == 2
    clock.advance(1)
    assert call(1) == "old"
    call.settle()
    assert call(1) == "new"


def test_an_answer_that_nobody_asks_for_is_not_refreshed(live, clock):
    load = Flaky("old", "new")
    call = live(cache(100, "c", refresh_ahead=0.5), load)
    call(1)
    clock.advance(100)
    assert call(1) == "new"
    assert call.policy.snapshot()["refreshed"] == 0


# ------------------------------------------------------------------ not all at the same time


def test_jitter_spreads_when_answers_expire_and_never_beyond_ttl(live, clock):
    policy = cache(100, "c", jitter=20, key=lambda x: x)
    call = live(policy, Flaky("answer"))
    for number in range(50):
        call(number)
    ends = sorted(entry.fresh_until for entry in policy.shelf._memory.entries.values())
    assert 80 <= ends[0] < 85
    assert 95 < ends[-1] <= 100
    assert len(set(ends)) == 50


# ------------------------------------------------------------------ failures that are kept


def test_a_failure_is_kept_for_as_long_as_negative_ttl_says(live, clock):
    policy, load = cache(60, "c", negative_ttl=5), Flaky(ConnectionError("refused"), "answer")
    call = live(policy, load)
    for _ in range(3):
        with pytest.raises(ConnectionError, match="refused"):
            call(1)
    assert load.calls == 1
    clock.advance(5)
    assert call(1) == "answer"
    assert policy.snapshot()["hits"] == 2


def test_a_failure_that_is_kept_is_raised_as_a_new_exception_each_time(live):
    class RefusedError(ConnectionError):
        def __init__(self, host: str, port: int) -> None:
            super().__init__(host, port)
            self.port = port

    load = Flaky(RefusedError("db", 5432))
    call = live(cache(60, "c", negative_ttl=5), load)
    errors = []
    for _ in range(4):
        with pytest.raises(RefusedError) as caught:
            call(1)
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 4
    assert {(error.port, error.args) for error in errors} == {(5432, ("db", 5432))}

    def depth(error: BaseException) -> int:
        frames, trace = 0, error.__traceback__
        while trace is not None:
            frames, trace = frames + 1, trace.tb_next
        return frames

    assert depth(errors[1]) == depth(errors[3]), "a traceback does not grow with every raise"


def test_an_error_that_cannot_be_copied_is_not_kept(live):
    class OddError(Exception):
        def __init__(self, *, code: int) -> None:
            super().__init__("odd", code)

    class ChangedError(Exception):
        def __reduce__(self) -> Any:
            return ValueError, ("another",)

    for error in (OddError(code=1), ChangedError("x")):
        load = Flaky(error)
        call = live(cache(60, "c", negative_ttl=5, replace=True), load)
        for _ in range(2):
            with pytest.raises(type(error)):
                call(1)
        assert load.calls == 2


def test_errors_that_are_no_failures_and_rejections_are_not_kept(live):
    class OutOfStock(NotRetryable): ...

    for error in (KeyError("x"), BulkheadFullError("b", None, 1, 0)):
        load = Flaky(error)
        call = live(cache(60, "c", negative_ttl=5, ignore=KeyError, replace=True), load)
        for _ in range(2):
            with pytest.raises(type(error)):
                call(1)
        assert load.calls == 2
    load = Flaky(OutOfStock())
    call = live(cache(60, "c", negative_ttl=5, replace=True), load)
    for _ in range(2):
        with pytest.raises(OutOfStock):
            call(1)
    assert load.calls == 1, "a business error is a failure to a cache, as it is to a fallback"


def test_a_result_that_is_a_failure_is_kept_for_negative_ttl(live, clock):
    load = Flaky(None, "answer")
    call = live(cache(60, "c", negative_ttl=5, on_result=lambda answer: answer is None), load)
    assert [call(1), call(1)] == [None, None]
    clock.advance(5)
    assert call(1) == "answer"
    clock.advance(5)
    assert call(1) == "answer"
    assert load.calls == 2


def test_a_result_that_is_a_failure_is_not_kept_by_default(live):
    load = Flaky(None, "answer")
    call = live(cache(60, "c", on_result=lambda answer: answer is None), load)
    assert [call(1), call(1), call(1)] == [None, "answer", "answer"]


def test_a_failure_is_never_served_stale(live, clock):
    load = Flaky(None, ConnectionError, "answer")
    call = live(
        cache(60, "c", negative_ttl=5, stale_for=100, stale_if_error=100, on_result=lambda answer: answer is None), load
    )
    assert call(1) is None
    clock.advance(5)
    with pytest.raises(ConnectionError):
        call(1)
    clock.advance(5)
    assert call(1) == "answer"


def test_a_failure_that_is_kept_spares_those_who_wait_their_own_try(awaited, clock):
    policy, load = cache(60, "c", negative_ttl=5), Flaky(ConnectionError, takes=1)
    call = awaited.guarded(policy, load.async_())

    async def main() -> None:
        outcomes = await asyncio.gather(*(call(1) for _ in range(5)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionError] * 5
        assert len({id(outcome) for outcome in outcomes}) == 5

    clock.run(main)
    assert load.calls == 1
