"""A bulkhead with threads of its own: work is handed over, and a future comes back."""

from __future__ import annotations

import asyncio
import threading
import traceback
from concurrent.futures import CancelledError
from contextvars import ContextVar, copy_context

import pytest

import everkeel
from everkeel import (
    BulkheadFullError,
    ConfigError,
    TimeoutExceededError,
    bulkhead_pool,
    deadline,
    events,
    pipeline,
    retry,
)
from everkeel.testing import Flaky


class Gated:
    """Work that begins when a thread has it, and ends when it is told to."""

    def __init__(self) -> None:
        self.gates: dict[object, threading.Event] = {}
        self.begun: list[object] = []
        self._changed = threading.Condition()

    def __call__(self, name: object) -> object:
        gate = self.gates.setdefault(name, threading.Event())
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
        assert gate.wait(30)
        return name

    def wait_for(self, *names: object) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(names) <= set(self.begun), 30), self.begun

    def finish(self, *names: object) -> None:
        for name in names:
            self.gates.setdefault(name, threading.Event()).set()


@pytest.fixture
def work(quiet):
    gated = Gated()
    yield gated
    for _ in range(3):  # what waits begins when what runs has ended
        gated.finish(*gated.gates, *"abcdefgh")
    quiet()


def test_work_is_done_in_another_thread_and_its_result_comes_back(clock):
    future = bulkhead_pool(1, "reports").submit(threading.get_ident)
    assert future.result(30) != threading.get_ident()


def test_arguments_are_passed_on(clock):
    fetch = Flaky("answer")
    assert bulkhead_pool(1, "reports").submit(fetch, "arg", key="word").result(30) == "answer"
    assert fetch.arguments == [(("arg",), {"key": "word"})]


def test_an_exception_comes_back_as_the_very_object_with_its_traceback(clock):
    error = ValueError("no such report")

    def deep() -> None:
        raise error

    with pytest.raises(ValueError) as raised:
        bulkhead_pool(1, "reports").submit(deep).result(30)
    assert raised.value is error
    assert "deep" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_no_more_run_at_once_than_there_are_threads(clock, work):
    pool = bulkhead_pool(2, "reports", queue=2)
    futures = [pool.submit(work, name) for name in "abcd"]
    work.wait_for("a", "b")
    assert sorted(work.begun) == ["a", "b"]
    work.finish("a")
    work.wait_for("c")
    assert sorted(work.begun) == ["a", "b", "c"]
    work.finish("b", "c", "d")
    assert [future.result(30) for future in futures] == ["a", "b", "c", "d"]


def test_the_limit_holds_under_pressure(clock, quiet):
    pool, lock, now, peak = bulkhead_pool(3, "reports", queue=1000), threading.Lock(), [0], [0]

    def job() -> None:
        with lock:
            now[0] += 1
            peak[0] = max(peak[0], now[0])
        threading.Event().wait(0.0005)
        with lock:
            now[0] -= 1

    futures = []

    def submit() -> None:
        futures.extend(pool.submit(job) for _ in range(40))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for future in futures:
        future.result(30)
    quiet()
    assert peak[0] <= 3
    assert pool.snapshot()["success"] == 160
    assert (pool.snapshot()["running"], pool.snapshot()["waiting"]) == (0, 0)


def test_a_full_pool_refuses(clock, heard, work):
    pool = bulkhead_pool(1, "reports", queue=1)
    pool.submit(work, "a")
    pool.submit(work, "b")
    with pytest.raises(BulkheadFullError) as raised:
        pool.submit(work, "c")
    assert (raised.value.policy, raised.value.running, raised.value.waiting) == ("reports", 1, 1)
    assert heard.of(events.CallQueued, events.CallRejected) == [
        events.CallQueued(policy="reports", policy_type="bulkhead", waiting=1, key=None),
        events.CallRejected(policy="reports", policy_type="bulkhead", error=raised.value, key=None),
    ]


@pytest.mark.parametrize(("order", "expected"), [("oldest", list("abcd")), ("newest", list("adcb"))])
def test_the_order_of_what_waits(clock, work, order, expected):
    pool = bulkhead_pool(1, "reports", queue=3, order=order)
    for name in "abcd":
        pool.submit(work, name)
    for name in expected:
        work.wait_for(name)
        work.finish(name)
    assert work.begun == expected


def test_a_queued_future_that_is_cancelled_is_never_begun(clock, work):
    pool = bulkhead_pool(1, "reports", queue=2)
    pool.submit(work, "a")
    cancelled, last = pool.submit(work, "b"), pool.submit(work, "c")
    assert cancelled.cancel()
    work.finish("a", "b", "c")
    assert last.result(30) == "c"
    with pytest.raises(CancelledError):
        cancelled.result(30)
    assert work.begun == ["a", "c"]


def test_a_queued_future_that_is_cancelled_leaves_its_place_in_the_queue(clock, work):
    pool = bulkhead_pool(1, "reports", queue=1)
    pool.submit(work, "a")
    pool.submit(work, "b").cancel()
    assert pool.snapshot()["waiting"] == 0
    last = pool.submit(work, "c")
    work.finish("a", "c")
    assert last.result(30) == "c"


def test_running_work_cannot_be_cancelled(clock, work):
    future = bulkhead_pool(1, "reports").submit(work, "a")
    work.wait_for("a")
    assert not future.cancel()
    work.finish("a")
    assert future.result(30) == "a"


def test_work_that_has_waited_too_long_is_not_begun(clock, work):
    pool = bulkhead_pool(1, "reports", queue=1, max_wait=2)
    pool.submit(work, "a")
    work.wait_for("a")
    late = pool.submit(work, "b")
    clock.advance(3)
    work.finish("a", "b")
    with pytest.raises(BulkheadFullError):
        late.result(30)
    assert work.begun == ["a"]
    assert pool.snapshot()["rejected"] == 1


def test_work_that_has_waited_not_too_long_is_begun_and_its_wait_is_counted(clock, work, quiet):
    pool = bulkhead_pool(1, "reports", queue=1, max_wait=2)
    pool.submit(work, "a")
    work.wait_for("a")
    second = pool.submit(work, "b")
    clock.advance(1.5)
    work.finish("a", "b")
    assert second.result(30) == "b"
    quiet()
    assert pool.snapshot()["waited"] == 1.5


def test_work_whose_deadline_has_passed_is_not_begun(clock, work):
    pool = bulkhead_pool(1, "reports", queue=1)
    pool.submit(work, "a")
    work.wait_for("a")
    with deadline(2):
        late = pool.submit(work, "b")
    clock.advance(3)
    work.finish("a", "b")
    with pytest.raises(TimeoutExceededError) as raised:
        late.result(30)
    assert str(raised.value) == "deadline: no answer within 2 s"
    assert work.begun == ["a"]


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("form", ["submit", "call", "decorated", "run"])
def test_work_runs_in_the_context_of_whoever_handed_it_over_also_when_it_had_to_wait(clock, work, form):
    pool, seen = bulkhead_pool(1, "reports", queue=2), {}
    decorated = pool(lambda: TENANT.get())

    def hand_over(tenant: str) -> None:
        TENANT.set(tenant)
        if form == "submit":
            seen[tenant] = pool.submit(TENANT.get).result(30)
        elif form == "call":
            seen[tenant] = pool.call(TENANT.get)
        elif form == "decorated":
            seen[tenant] = decorated()
        else:
            seen[tenant] = asyncio.run(pool.run(TENANT.get))

    pool.submit(work, "a")
    work.wait_for("a")
    threads = [threading.Thread(target=copy_context().run, args=(hand_over, name)) for name in ("acme", "umbrella")]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while pool.snapshot()["waiting"] < number:
            threading.Event().wait(0.001)
    work.finish("a")
    for thread in threads:
        thread.join(30)
    assert seen == {"acme": "acme", "umbrella": "umbrella"}
    assert TENANT.get() == "nobody"


# ------------------------------------------------------------------ as a policy


def test_a_decorated_function_waits_for_its_result(clock, quiet):
    pool = bulkhead_pool(1, "reports")

    @pool
    def ident() -> int:
        return threading.get_ident()

    assert ident() != threading.get_ident()
    assert pool.call(threading.get_ident) != threading.get_ident()
    quiet()
    assert pool.snapshot()["success"] == 2


def test_a_call_that_fails_raises_the_very_error(clock):
    error = ValueError("no")
    with pytest.raises(ValueError) as raised:
        bulkhead_pool(1, "reports").call(Flaky(error))
    assert raised.value is error


def test_a_caller_who_is_interrupted_takes_his_waiting_work_back(clock, work, monkeypatch):
    from concurrent.futures import Future

    pool = bulkhead_pool(1, "reports", queue=1)
    pool.submit(work, "a")

    def interrupted(future: object, timeout: object = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.call(work, "b")
    assert pool.snapshot()["waiting"] == 0


def test_it_works_in_a_pipeline(clock):
    call = pipeline(retry("again", backoff=0), bulkhead_pool(1, "reports"))(Flaky(ConnectionError, "answer"))
    assert call() == "answer"


def test_run_awaits_the_result_from_a_coroutine(clock):
    async def main() -> int:
        return await bulkhead_pool(1, "reports").run(threading.get_ident)

    assert asyncio.run(main()) != threading.get_ident()


def test_run_that_is_cancelled_while_it_waits_takes_its_work_back(work):
    pool = bulkhead_pool(1, queue=1)

    async def main() -> None:
        pool.submit(work, "a")
        task = asyncio.create_task(pool.run(work, "b"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert pool.snapshot()["waiting"] == 0
    assert "b" not in work.begun


def test_run_passes_a_rejection_on(work):
    pool = bulkhead_pool(1)

    async def main() -> None:
        with pytest.raises(BulkheadFullError):
            await pool.run(work, "b")

    pool.submit(work, "a")
    asyncio.run(main())


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator"])
def test_only_sync_functions_can_be_decorated(clock, kind):
    async def coroutine() -> None: ...

    def generator():
        yield

    async def async_generator():
        yield

    fn = {"coroutine": coroutine, "generator": generator, "async generator": async_generator}[kind]
    with pytest.raises(ConfigError) as raised:
        bulkhead_pool(1, "reports")(fn)
    assert str(raised.value) == "bulkhead 'reports': runs sync functions in threads; guard others with bulkhead()"


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_an_async_def_is_not_silently_unprotected(clock, mode):
    pool = bulkhead_pool(1, "reports", mode=mode)
    with pytest.raises(TypeError) as raised:
        clock.run(pool.acall(asyncio.sleep, 1))
    assert str(raised.value) == (
        "bulkhead 'reports' runs sync functions in threads: await run(), or guard coroutines with bulkhead()"
    )


def test_a_coroutine_function_cannot_be_submitted(clock):
    with pytest.raises(TypeError) as raised:
        bulkhead_pool(1, "reports").submit(asyncio.sleep, 1)
    assert str(raised.value) == (
        "bulkhead 'reports': submit() got a coroutine function; a thread cannot run it, bulkhead() can"
    )


def test_it_cannot_be_a_block(clock):
    with pytest.raises(TypeError) as raised:
        with bulkhead_pool(1, "reports"):
            pass  # pragma: no cover - never entered
    assert str(raised.value) == (
        "bulkhead 'reports' cannot be a block: a block cannot move to another thread; use submit()"
    )


# ------------------------------------------------------------------ live changes


def test_more_threads_begin_with_what_waits_at_once(clock, heard, work):
    pool = bulkhead_pool(1, "reports", queue=3)
    for name in "abcd":
        pool.submit(work, name)
    pool.reconfigure(limit=3)
    work.wait_for("a", "b", "c")
    assert sorted(work.begun) == ["a", "b", "c"]
    assert heard.of(events.LimitChanged) == [
        events.LimitChanged(policy="reports", policy_type="bulkhead", before=1, limit=3, key=None)
    ]


def test_fewer_threads_go_as_their_work_ends(clock, work):
    pool = bulkhead_pool(2, "reports", queue=3)
    for name in "abc":
        pool.submit(work, name)
    work.wait_for("a", "b")
    pool.reconfigure(limit=1)
    work.finish("a")
    while pool.snapshot()["running"] > 1:
        threading.Event().wait(0.001)
    assert sorted(work.begun) == ["a", "b"]
    work.finish("b", "c")
    work.wait_for("c")


def test_a_shadow_refuses_nothing_and_counts(clock, work):
    pool = bulkhead_pool(1, "reports", queue=1, mode="shadow")
    futures = [pool.submit(work, name) for name in "abc"]
    work.wait_for("a", "b", "c")
    assert pool.snapshot()["would"] == {"queue": 1, "reject": 1}
    work.finish("a", "b", "c")
    assert [future.result(30) for future in futures] == ["a", "b", "c"]


def test_a_call_in_a_shadow_runs_where_its_caller_stands_and_is_counted(clock, work):
    pool = bulkhead_pool(1, "reports", queue=1, mode="shadow")
    pool.submit(work, "a")
    assert pool.call(threading.get_ident) == threading.get_ident()
    with pytest.raises(ValueError):
        pool.call(Flaky(ValueError))
    assert pool.snapshot()["would"] == {"queue": 2}
    assert pool.snapshot()["running"] == 1


def test_what_was_queued_while_a_call_ran_aside_is_begun_when_it_ends(clock):
    pool = bulkhead_pool(1, "reports", queue=1, mode="shadow")

    def aside():
        pool.mode = "enforce"
        return pool.submit(int)

    assert pool.call(aside).result(30) == 0


def test_off_and_disabled_refuse_nothing(clock, work):
    pool = bulkhead_pool(1, "reports", mode="off")
    pool.submit(work, "a")
    pool.submit(work, "b")
    pool.mode = "enforce"
    everkeel.disable()
    pool.submit(work, "c")
    everkeel.enable()
    work.wait_for("a", "b", "c")
    with pytest.raises(BulkheadFullError):
        pool.submit(work, "d")
    assert pool.snapshot()["would"] == {}
