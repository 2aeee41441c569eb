"""One policy object, many threads, tasks and event loops: no call sees anything of another."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import everkeel
from everkeel import RetryBudget, current_attempt, events, fallback, pipeline, retry
from everkeel.testing import Flaky

THREADS = 8


@pytest.fixture
def eager_switching():
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(act, count: int = THREADS) -> list[object]:
    """`act(n)` in so many threads at once; what each answered."""
    with ThreadPoolExecutor(count) as pool:
        return [future.result(30) for future in [pool.submit(act, n) for n in range(count)]]


class Lockstep:
    """An operation that fails twice, in every caller at the same time: nobody begins an attempt before all have."""

    def __init__(self, parties: int) -> None:
        self.barrier = threading.Barrier(parties)
        self.seen: dict[int, list[int | None]] = {n: [] for n in range(parties)}

    def __call__(self, caller: int) -> int:
        attempt = current_attempt()
        self.seen[caller].append(None if attempt is None else attempt.number)
        self.barrier.wait(30)
        if len(self.seen[caller]) < 3:
            raise ConnectionError(caller)
        return caller


def test_threads_sharing_a_policy_never_mix_up_their_attempts(threaded):
    work, policy = Lockstep(THREADS), retry("fetch", backoff=0)
    assert in_threads(threaded.guarded(policy, work)) == list(range(THREADS))
    assert set(map(tuple, work.seen.values())) == {(None, 2, 3)}
    snapshot = policy.snapshot()
    assert (snapshot["success"], snapshot["retries"], snapshot["recovered"]) == (8, 16, 8)


def test_threads_that_give_up_each_get_their_own_error(threaded):
    barrier = threading.Barrier(THREADS)

    def fetch(caller: int) -> None:
        barrier.wait(30)
        raise ConnectionError(caller)

    call = threaded.guarded(retry("fetch", backoff=0), fetch)

    def act(caller: int) -> object:
        with pytest.raises(ConnectionError) as raised:
            call(caller)
        return raised.value.args[0]

    assert in_threads(act) == list(range(THREADS))


def test_a_policy_shared_by_six_tasks_never_mixes_up_their_attempts(awaited):
    # tenacity's AsyncRetrying gives tasks one or two attempts instead of three, and errors of other tasks.
    policy = retry("fetch", backoff=1, jitter=None)
    seen: dict[int, list[int]] = {n: [] for n in range(6)}

    async def fetch(caller: int) -> None:
        attempt = current_attempt()
        seen[caller].append(1 if attempt is None else attempt.number)
        await asyncio.sleep(0.1 * caller)
        raise ConnectionError(caller)

    call = awaited.guarded(policy, fetch)

    async def main() -> list[object]:
        return await asyncio.gather(*(call(n) for n in range(6)), return_exceptions=True)

    errors = awaited.clock.run(main)
    assert [error.args[0] for error in errors] == list(range(6))
    assert set(map(tuple, seen.values())) == {(1, 2, 3)}


def test_event_loops_in_several_threads_share_a_policy(awaited):
    policy, barrier = retry("fetch", backoff=0), threading.Barrier(4)

    async def fetch(caller: int, failures: list[int]) -> int:
        await asyncio.sleep(0)
        if len(failures) < 2:
            failures.append(caller)
            raise ConnectionError(caller)
        return caller

    call = awaited.guarded(policy, fetch)

    def loop(n: int) -> list[int]:
        async def main() -> list[int]:
            barrier.wait(30)
            return await asyncio.gather(*(call(10 * n + m, []) for m in range(5)))

        return asyncio.run(main())

    assert in_threads(loop, 4) == [[10 * n + m for m in range(5)] for n in range(4)]
    assert policy.snapshot()["recovered"] == 20


def test_sync_and_async_functions_share_a_policy(clock):
    policy = retry("fetch", backoff=0)

    @policy
    def one() -> str:
        return "sync"

    @policy
    async def two() -> str:
        return "async"

    assert (one(), clock.run(two())) == ("sync", "async")
    assert policy.snapshot()["success"] == 2


def test_no_count_is_lost_under_threads(threaded, eager_switching):
    policy = retry("fetch", backoff=0)
    call = threaded.guarded(policy, lambda: None)

    def act(_: int) -> None:
        for _ in range(500):
            call()

    in_threads(act)
    assert policy.snapshot()["success"] == 500 * THREADS


def test_a_shared_budget_never_allows_more_than_it_has_under_threads(clock, eager_switching):
    budget = RetryBudget(ratio=0, floor=1)
    barrier = threading.Barrier(THREADS)

    def act(_: int) -> int:
        barrier.wait(30)
        return sum(budget.may_retry(0.0) for _ in range(20))

    assert sum(in_threads(act)) == 10
    assert budget.snapshot()["refused"] == 20 * THREADS - 10


# ------------------------------------------------------------------ changes under load


def test_every_call_gets_a_right_answer_while_the_policy_changes(threaded, eager_switching):
    outer, inner = fallback("other", name="other", on=KeyError), retry("fetch", backoff=0, attempts=2)
    stop, calls = threading.Event(), [0] * THREADS

    def fetch(number: int, failed: list[int]) -> int:
        if not failed:
            failed.append(number)
            raise ConnectionError(number)
        return number

    call = threaded.guarded(pipeline(outer, inner), fetch)

    def load(thread: int) -> None:
        number = thread
        while not stop.is_set() or not calls[thread]:
            number += THREADS
            try:
                answer = call(number, [])
            except ConnectionError as error:  # it was off, or a shadow: the first outcome passes
                (answer,) = error.args
            assert answer == number
            calls[thread] += 1

    def change(_: int) -> None:
        try:
            for n in range(60):
                inner.reconfigure(attempts=2 + n % 3)
                inner.mode = ("enforce", "shadow", "off")[n % 3]
                with inner.subscribe(lambda event: None), outer.subscribe(lambda event: None, events.FellBack):
                    outer.mode = "off"
                    outer.reconfigure(mode="enforce", on=(KeyError, LookupError))
                outer.reconfigure(on=KeyError)
            inner.reconfigure(mode="enforce", attempts=2)
        finally:
            stop.set()

    with ThreadPoolExecutor(THREADS + 1) as pool:
        jobs = [pool.submit(load, n) for n in range(THREADS)] + [pool.submit(change, 0)]
        for job in jobs:
            job.result(50)
    assert call(-1, []) == -1


def test_changes_from_many_threads_are_all_in_force_in_the_end(threaded, eager_switching):
    policy = retry("fetch", backoff=0)
    names = ["attempts", "max_retry_after", "max_abandoned", "jitter"]
    barrier = threading.Barrier(len(names))

    def change(n: int) -> None:
        for value in range(2, 40):
            barrier.wait(30)
            policy.reconfigure(**{names[n]: value})

    in_threads(change, len(names))
    assert [getattr(policy.config, name) for name in names] == [39, 39.0, 39, 39.0]


def test_subscriptions_from_many_threads_are_all_heard(threaded, eager_switching):
    policy, told, barrier = retry("fetch", backoff=0), [], threading.Barrier(THREADS)

    def subscribe(n: int) -> None:
        for m in range(20):
            barrier.wait(30)
            policy.subscribe(lambda event, number=(n, m): told.append(number), events.Retrying)

    in_threads(subscribe)
    threaded.guarded(policy, Flaky(ConnectionError, "answer"))()
    assert len(set(told)) == 20 * THREADS


def test_policies_may_be_made_and_decorated_while_others_listen_everywhere(clock, eager_switching):
    barrier = threading.Barrier(THREADS)

    def act(n: int) -> list[object]:
        barrier.wait(30)
        answers: list[object] = []
        for m in range(20):
            if n % 2:
                with everkeel.subscribe(lambda event: None):
                    pass
            else:
                answers.append(retry(f"made-{n}-{m}")(lambda m=m: m)())
        return answers

    for answers in in_threads(act):
        assert answers in ([], list(range(20)))


# ------------------------------------------------------------------ what is kept alive


class Local:
    """Something large that an attempt holds."""


def watch_attempts(refs: list[weakref.ref[Local]], alive: list[bool], cause: bool):
    def fetch() -> None:
        alive.extend(ref() is not None for ref in refs)
        local = Local()
        refs.append(weakref.ref(local))
        if not cause:
            raise ConnectionError("refused")
        try:
            raise KeyError("inside")
        except KeyError as inside:
            raise ConnectionError("refused") from inside

    return fetch


@pytest.mark.parametrize("cause", [False, True], ids=["alone", "with a cause"])
@pytest.mark.parametrize("settings", [{}, {"max_duration": 60, "runs": "inline"}], ids=["free", "bounded"])
def test_frames_of_earlier_attempts_are_not_kept_alive(retried, settings, cause):
    refs, alive = [], []
    gc.disable()
    try:
        with pytest.raises(ConnectionError):
            retried(retry("fetch", backoff=1, **settings), watch_attempts(refs, alive, cause))()
    finally:
        gc.enable()
    assert alive == [False] * 3


def test_frames_of_attempts_in_a_worker_are_not_kept_alive(threaded):
    refs, alive = [], []
    gc.disable()
    try:
        with pytest.raises(ConnectionError):
            threaded(retry("fetch", backoff=1, attempt_timeout=60), watch_attempts(refs, alive, False))()
    finally:
        gc.enable()
    assert alive == [False] * 3


def test_a_result_that_counts_as_a_failure_is_not_kept_alive(retried):
    refs, alive = [], []

    def fetch() -> Local:
        alive.extend(ref() is not None for ref in refs)
        local = Local()
        refs.append(weakref.ref(local))
        return local

    policy = retry("fetch", backoff=0, on_result=lambda result: len(refs) < 3)
    retried(policy, fetch)()
    assert alive[:2] == [False, False] if retried.style != "block" else True  # the block's own variable holds it


def test_a_policy_nobody_holds_is_forgotten(clock):
    policy = retry("fetch")
    policy(lambda: None)()
    gone = weakref.ref(policy)
    del policy
    gc.collect()
    assert gone() is None
