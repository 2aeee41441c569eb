"""Whose cancellation it is, and that nothing is left: no task, no timer, no thread, no result that nobody took."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref

import pytest

from everkeel import ShedError, circuit_breaker, hedge, retry, timeout
from everkeel.testing import Flaky, assert_state, cancel_at_every_await, record_events, wait_until_idle

REQUEST = contextvars.ContextVar("REQUEST", default="none")


def others() -> set[asyncio.Task]:
    return asyncio.all_tasks() - {asyncio.current_task()}


def test_losers_have_ended_when_the_answer_is_there(hedged, service, clock):
    backend = service(60, 1)
    policy = hedge("lookup", delay=1, attempts=2)

    async def main() -> tuple:
        answer = await hedged(policy, backend.acall)()
        return answer, backend.cancelled[:], others(), asyncio.current_task().cancelling()

    assert clock.run(main) == (2, [1], set(), 0)


def test_rivals_have_ended_when_the_first_answers(hedged, service, clock):
    backend = service(3, 60, 60)

    async def main() -> tuple:
        answer = await hedged(hedge("lookup", delay=1, attempts=3), backend.acall)()
        return answer, backend.cancelled[:], others()

    assert clock.run(main) == (1, [2, 3], set())


def test_a_loser_that_takes_its_time_to_end_is_awaited(hedged, clock):
    ended = []

    async def slow_to_leave() -> str:
        if asyncio.current_task() is not caller[0]:
            await asyncio.sleep(1)
            return "rival"
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(5)
            ended.append(clock.monotonic())

    caller = []

    async def main() -> str:
        caller.append(asyncio.current_task())
        return await hedged(hedge("lookup", delay=1), slow_to_leave)()

    assert clock.run(main) == "rival"
    assert ended == [7.0] == [clock.monotonic()]


def test_a_first_attempt_that_does_not_mind_being_cancelled_is_disposed_of(hedged, clock):
    disposed = []

    async def stubborn() -> str:
        if asyncio.current_task() is not caller[0]:
            return "rival"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "stubborn"

    caller = []

    async def main() -> tuple:
        caller.append(asyncio.current_task())
        answer = await hedged(hedge("lookup", delay=1, dispose=disposed.append), stubborn)()
        return answer, asyncio.current_task().cancelling()

    assert clock.run(main) == ("rival", 0)
    assert disposed == ["stubborn"]


def test_a_first_attempt_that_makes_an_error_of_its_cancellation_is_a_loser_all_the_same(hedged, clock):
    async def translating() -> str:
        if asyncio.current_task() is not caller[0]:
            return "rival"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise KeyError("interrupted") from None

    caller = []

    async def main() -> tuple:
        caller.append(asyncio.current_task())
        answer = await hedged(hedge("lookup", delay=1, on=OSError), translating)()
        return answer, asyncio.current_task().cancelling()

    assert clock.run(main) == ("rival", 0)


def test_the_callers_own_cancellation_wins_over_ours_in_the_same_tick(hedged, service, clock):
    disposed = []
    policy = hedge("lookup", delay=1, dispose=disposed.append)

    async def main() -> tuple:
        task = asyncio.create_task(hedged(policy, service(60, 1).acall)())
        await asyncio.sleep(2)  # the rival's answer is due in this very moment
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled(), others()

    assert clock.run(main) == (True, set())
    assert disposed in ([], [2])
    assert_state(policy, success=0, won={})


def test_a_caller_who_gives_up_right_after_a_rival_has_won_is_heard(hedged, clock):
    disposed, tasks = [], []

    async def body() -> str:
        if asyncio.current_task() is tasks[0]:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                tasks[0].cancel()  # the caller gives up while the first attempt is being cancelled by us
                raise
        return "rival"

    async def main() -> bool:
        tasks.append(asyncio.create_task(hedged(hedge("lookup", delay=1, dispose=disposed.append), body)()))
        await asyncio.wait(tasks)
        await wait_until_idle()
        return tasks[0].cancelled()

    assert clock.run(main)
    assert disposed == ["rival"]


def test_a_call_that_is_being_cancelled_gets_no_rival(hedged, clock):
    began = []

    async def slow_to_leave() -> None:
        began.append(clock.monotonic())
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(5)

    async def main() -> bool:
        task = asyncio.create_task(hedged(hedge("lookup", delay=1), slow_to_leave)())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert clock.run(main)
    assert began == [0.0]


@pytest.mark.parametrize("takes", [(60, 1), (2.5, 60), (1, 2), (60, 60, 1)])
@pytest.mark.parametrize("fails", [False, True])
def test_cancelled_at_every_await_nothing_is_left(hedged, service, takes, fails):
    class Held:
        count = 0

    async def body() -> object:
        Held.count += 1
        try:
            return await backends[-1].acall()
        finally:
            try:
                await asyncio.sleep(0.25)
            finally:
                Held.count -= 1

    backends, policies = [], []

    async def main() -> object:
        backends.append(service(*takes, outcomes={1: OSError(), 2: OSError(), 3: OSError()} if fails else {}))
        policies.append(hedge(delay=1, attempts=3, budget=None))
        try:
            return await hedged(policies[-1], body)()
        finally:
            left.append(asyncio.current_task().cancelling())

    async def check(outcome) -> None:
        await asyncio.sleep(1)  # a second cancellation may leave losers to end on their own
        assert Held.count == 0
        assert not others()
        assert policies[-1].state.due.live == {}
        if not outcome.cancelled:
            assert left[-1] == 0

    left: list[int] = []
    assert cancel_at_every_await(main, check) > 0


def test_cancelled_twice_the_losers_still_end(hedged, clock):
    ended = []

    async def slow_to_leave() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(5)
            ended.append(clock.monotonic())

    async def main() -> set:
        task = asyncio.create_task(hedged(hedge("lookup", delay=1), slow_to_leave)())
        await asyncio.sleep(2)
        task.cancel()
        await asyncio.sleep(6)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(10)
        return others()

    assert clock.run(main) == set()
    assert len(ended) == 2


def test_a_coroutine_that_is_closed_while_it_is_suspended_leaves_no_rival(hedged, service, clock):
    policy, backend = hedge("lookup", delay=1), service(60)

    async def main() -> tuple:
        coroutine = hedged(policy, backend.acall)()
        task = asyncio.current_task()
        coroutine.send(None)
        await asyncio.sleep(2)  # the rival has started
        coroutine.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return backend.began, others(), policy.state.due.live, task.cancelling()

    assert clock.run(main) == (2, set(), {}, 0)


def test_a_coroutine_that_is_closed_while_it_waits_for_a_rival_leaves_none(hedged, service, clock):
    policy, backend = hedge("lookup", delay=1), service(0, 60, outcomes={1: OSError()})

    async def main() -> tuple:
        coroutine = hedged(policy, backend.acall)()
        coroutine.send(None)  # suspended in sleep(0)
        coroutine.send(None)  # failed; waits for the rival
        await asyncio.sleep(0.5)
        coroutine.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return backend.began, others()

    assert clock.run(main) == (2, set())


def test_a_rival_that_cancels_itself_is_no_answer(hedged, clock):
    calls = []

    async def body() -> str:
        calls.append(clock.monotonic())
        if len(calls) == 1:
            raise OSError("first")
        raise asyncio.CancelledError

    with pytest.raises(OSError, match="first"):
        clock.run(hedged(hedge("lookup", delay=1), body)())


def test_a_loser_with_an_answer_is_disposed_of_and_counted(hedged, clock):
    disposed = []

    async def shielded() -> str:
        me = asyncio.current_task()
        try:
            await asyncio.sleep(2 if me is caller[0] else 60)
        except asyncio.CancelledError:
            return "rival, too late"
        return "first"

    caller = []
    policy = hedge("lookup", delay=1, dispose=disposed.append)

    async def main() -> str:
        caller.append(asyncio.current_task())
        return await hedged(policy, shielded)()

    assert clock.run(main) == "first"
    assert disposed == ["rival, too late"]
    assert_state(policy, disposed=1)


def test_the_disposal_hook_may_be_a_coroutine_function(hedged, clock):
    disposed = []

    async def give_back(result: str) -> None:
        await asyncio.sleep(1)
        disposed.append(result)

    async def shielded() -> str:
        try:
            await asyncio.sleep(2 if asyncio.current_task() is caller[0] else 60)
        except asyncio.CancelledError:
            return "too late"
        return "first"

    caller = []

    async def main() -> str:
        caller.append(asyncio.current_task())
        return await hedged(hedge("lookup", delay=1, dispose=give_back), shielded)()

    assert clock.run(main) == "first"
    assert (disposed, clock.monotonic()) == (["too late"], 3.0)


def test_a_disposal_hook_that_raises_is_reported_and_harms_nobody(hedged, clock, caplog):
    def broken(result: object) -> None:
        raise ValueError("cannot close")

    async def shielded() -> str:
        try:
            await asyncio.sleep(2 if asyncio.current_task() is caller[0] else 60)
        except asyncio.CancelledError:
            return "too late"
        return "first"

    caller = []

    async def main() -> str:
        caller.append(asyncio.current_task())
        return await hedged(hedge("lookup", delay=1, dispose=broken), shielded)()

    assert clock.run(main) == "first"
    assert "hedge 'lookup': dispose raised" in caplog.text


# ------------------------------------------------------------------ contexts


def test_a_rival_runs_in_the_context_of_its_own_call(hedged, clock):
    seen = []

    async def body() -> None:
        seen.append(REQUEST.get())
        await asyncio.sleep(3)

    call = hedged(hedge("lookup", delay=1, budget=None), body)

    async def request(name: str) -> None:
        REQUEST.set(name)
        await call()

    async def main() -> None:
        await asyncio.gather(request("a"), request("b"), request("c"))

    clock.run(main)
    assert sorted(seen) == ["a", "a", "b", "b", "c", "c"]


def test_a_rival_does_not_see_what_the_first_attempt_set(hedged, clock):
    seen = []

    async def body() -> None:
        seen.append(REQUEST.get())
        REQUEST.set("dirty")
        await asyncio.sleep(3)

    clock.run(hedged(hedge("lookup", delay=1), body)())
    assert seen == ["none", "none"]


# ------------------------------------------------------------------ with other policies


def test_inside_a_retry_each_try_has_its_own_race(clock, service):
    backend = service(0, 0, 0, outcomes={1: OSError(), 2: OSError()})
    guarded = retry("r", backoff=0, on=ExceptionGroup)(hedge("h", delay=1)(backend.acall))
    assert clock.run(guarded()) == 3


def test_around_a_retry_every_attempt_is_retried(clock):
    flaky = Flaky(OSError, OSError, "answer")
    guarded = hedge("h", delay=10)(retry("r", attempts=3, backoff=1, jitter=None)(flaky.async_()))
    assert clock.run(guarded()) == "answer"
    assert flaky.calls == 3


def test_a_timeout_around_ends_all_attempts(hedged, clock, service):
    backend = service(60)

    async def main() -> set:
        with pytest.raises(TimeoutError):
            await timeout(3)(hedged(hedge("h", delay=1), backend.acall))()
        return others()

    assert clock.run(main) == set()
    assert backend.cancelled == [1, 2] or backend.cancelled == [2, 1]


def test_a_timeout_inside_ends_each_attempt_and_the_next_takes_over(clock, service):
    backend = service(60, 0.5)
    guarded = hedge("h", delay=10)(timeout(2)(backend.acall))
    assert clock.run(guarded()) == 2
    assert clock.monotonic() == 2.5


def test_an_open_circuit_inside_ends_only_the_rival(clock, service):
    breaker = circuit_breaker("b")
    guarded = hedge("h", delay=1)(breaker(service(5).acall))

    async def main() -> object:
        task = asyncio.create_task(guarded())
        await asyncio.sleep(0.5)
        breaker.force_open()
        return await task

    assert clock.run(main) == 1


def test_it_passes_a_rejection_of_what_is_inside_on(clock, service):
    guarded = hedge("h", delay=1)(service(0, outcomes={1: ShedError("pool", None, 1, None)}).acall)
    with pytest.raises(ShedError):
        clock.run(guarded())


# ------------------------------------------------------------------ one timer, several loops


def count_timers() -> list[float]:
    loop, armed = asyncio.get_running_loop(), []
    original = loop.call_later

    def call_later(delay, *args, **kwargs):
        armed.append(delay)
        return original(delay, *args, **kwargs)

    loop.call_later = call_later  # type: ignore[method-assign]
    return armed


def test_an_idle_hedge_makes_no_task_and_shares_one_timer(hedged, clock):
    async def briefly() -> None:
        await asyncio.sleep(0)
        seen.append(len(asyncio.all_tasks()))

    seen: list[int] = []
    call = hedged(hedge("lookup", delay=1), briefly)

    async def main() -> int:
        armed = count_timers()
        for _ in range(100):
            await call()
        return len(armed)

    assert clock.run(main) == 1
    assert set(seen) == {1}


def test_an_idle_hedge_leaves_no_timer_running_for_ever(hedged, service, clock):
    call = hedged(hedge("lookup", delay=1), service(0.1).acall)

    async def main() -> list[float]:
        await call()
        await asyncio.sleep(5)
        armed = count_timers()
        await asyncio.sleep(60)
        return armed

    assert clock.run(main) == [60]


def test_each_of_many_staggered_calls_gets_its_rival_at_its_own_time(hedged, clock):
    began = []

    async def body(i: int) -> None:
        began.append((i, clock.monotonic()))
        await asyncio.sleep(1.5)

    call = hedged(hedge("lookup", delay=1, budget=None), body)

    async def one(i: int) -> None:
        await asyncio.sleep(i / 64)
        await call(i)

    async def main() -> None:
        await asyncio.gather(*(one(i) for i in range(40)))

    clock.run(main)
    assert sorted(began) == sorted([(i, i / 64) for i in range(40)] + [(i, i / 64 + 1) for i in range(40)])


def test_a_clock_that_refuses_a_timer_does_not_leave_later_calls_without_one(hedged, clock, service):
    policy = hedge(delay=1, clock=clock)
    call = hedged(policy, service(1).acall)

    async def refused() -> None:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="needs an event loop that runs on it"):
                await call()

    asyncio.run(refused())
    assert policy.state.due.live == {}


def test_loops_in_threads_at_once_share_a_hedge(hedged):
    policy, together, came = hedge(delay=0.01, budget=None), threading.Barrier(4), []

    def thread() -> None:
        calls = iter(range(100))

        async def body() -> int:
            number = next(calls)
            await asyncio.sleep(30 if number < 20 else 0)
            return number

        call = hedged(policy, body)

        async def main() -> list[object]:
            together.wait()
            answers = await asyncio.gather(*(call() for _ in range(20)))
            assert not others()
            return answers

        came.append(asyncio.run(main()))

    threads = [threading.Thread(target=thread) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [sorted(answers) for answers in came] == [list(range(20, 40))] * 4
    assert_state(policy, success=80, started=80, won={2: 80})


def test_loops_that_have_ended_are_not_kept_alive(hedged, service):
    call, loops = hedged(hedge(delay=1), service(0).acall), []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await call()

    for _ in range(5):
        asyncio.run(main())
    gc.collect()
    assert [loop() for loop in loops[:-1]] == [None] * 4


def test_a_call_in_flight_keeps_its_plan_when_the_delay_changes(hedged, service, clock):
    policy = hedge("lookup", delay=1)

    async def main() -> tuple:
        task = asyncio.create_task(hedged(policy, service(60, 0.5).acall)())
        await asyncio.sleep(0)
        policy.reconfigure(delay=9)
        await task
        first = clock.monotonic()
        await hedged(policy, service(60, 0.5).acall)()
        return first, clock.monotonic() - first

    assert clock.run(main) == (1.5, 9.5)


def test_everything_is_heard_in_the_context_of_the_call(hedged, service, clock):
    heard = []
    policy = hedge("lookup", delay=1)
    policy.subscribe(lambda event: heard.append((type(event).__name__, REQUEST.get())))
    call = hedged(policy, service(60, 60, 0).acall)

    async def request(name: str) -> None:
        REQUEST.set(name)
        await call()

    async def main() -> None:
        await asyncio.gather(request("a"), request("b"), return_exceptions=True)

    clock.run(main)
    assert {who for what, who in heard if what == "HedgeStarted"} == {"a", "b"}


def test_listeners_are_told_by_record_events_too(hedged, service, clock):
    with record_events() as recorded:
        clock.run(hedged(hedge("lookup", delay=1), service(60, 0).acall)())
    assert recorded.names() == ["PolicyAdded", "HedgeStarted", "HedgeWon", "Succeeded"]
