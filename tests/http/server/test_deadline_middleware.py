"""Deadlines in front of a real server: what is too late is refused, what runs out of time is cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from everkeel import ConfigError, TimeoutExceededError, concurrency_limit, current_deadline, disable, enable
from everkeel import sleep as everkeel_sleep
from everkeel.http import ConcurrencyLimitMiddleware, DeadlineMiddleware
from everkeel.testing import VirtualClock


async def _answer(send: Any, body: bytes = b"ok") -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("late", ["0", "0.0", "000"])
def test_work_whose_time_has_passed_is_refused_before_it_begins(serve: Any, late: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it must not get here")

    async def main() -> None:
        async with serve(DeadlineMiddleware(app), lifespan="off") as service:
            refused = await service.get(headers={"X-Request-Timeout-Ms": late})
        assert (refused.status_code, refused.json()["error"]) == (504, "deadline_exceeded")
        assert refused.json()["reason"] == "deadline passed"

    asyncio.run(main())


def test_what_it_calls_sees_the_deadline(serve: Any) -> None:
    seen: list[float | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        limit = current_deadline()
        seen.append(None if limit is None else limit.length)
        await _answer(send)

    async def main() -> None:
        async with serve(DeadlineMiddleware(app, longest=100.0, exclude=["/health"]), lifespan="off") as service:
            for value in ("30000", "999999999999", "soon", "-5", "1e9", "9" * 5000):
                assert (await service.get(headers={"X-Request-Timeout-Ms": value})).status_code == 200
            twice = [("X-Request-Timeout-Ms", "1"), ("X-Request-Timeout-Ms", "2")]
            assert (await service.get(headers=twice)).status_code == 200
            await service.get("/health", headers={"X-Request-Timeout-Ms": "1000"})
            await service.get()

    asyncio.run(main())
    assert seen == [30.0, 100.0, None, None, None, 100.0, None, None, None]


def test_running_work_is_cancelled_and_its_caller_answered(serve: Any, until: Any) -> None:
    ended: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        async with serve(DeadlineMiddleware(app, default=0.05), lifespan="off") as service:
            late = await service.get()
            assert (late.status_code, late.json()["reason"]) == (504, "deadline expired")
            await until(lambda: ended)

    asyncio.run(main())
    assert ended == ["cancelled"]


def test_a_thread_that_cannot_be_interrupted_does_not_keep_its_caller_waiting(serve: Any, until: Any) -> None:
    """As a sync endpoint of Starlette: its thread is waited for, however long that takes."""
    release, noticed = threading.Event(), []

    def work() -> None:
        try:
            everkeel_sleep(30.0)
        except TimeoutExceededError:
            noticed.append("its time is up")
        release.wait(30.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        thread = asyncio.ensure_future(asyncio.to_thread(work))
        while not thread.done():
            try:
                await asyncio.shield(thread)
            except asyncio.CancelledError:
                continue
        await _answer(send)

    async def main() -> None:
        limit = concurrency_limit()
        timed = DeadlineMiddleware(ConcurrencyLimitMiddleware(app, limit))
        async with serve(timed, lifespan="off") as service:
            late = await service.get(headers={"X-Request-Timeout-Ms": "50"})
            assert late.status_code == 504
            assert limit.snapshot()["running"] == 1  # it still is: the place is not given to anybody else
            await until(lambda: noticed)
            release.set()
            await until(lambda: limit.snapshot()["running"] == 0)

    asyncio.run(main())


def test_a_response_that_has_begun_is_cut_off(serve: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half of it", "more_body": True})
        await asyncio.Event().wait()

    async def main() -> None:
        async with serve(DeadlineMiddleware(app, default=0.05), lifespan="off") as service:
            reader, writer = await service.connection()
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            answer = await reader.read()
            writer.close()
        assert b"half of it" in answer
        assert not answer.endswith(b"0\r\n\r\n")  # not complete, and it does not pretend to be

    asyncio.run(main())


def test_waiting_in_line_counts_and_ends_with_the_deadline(serve: Any, until: Any) -> None:
    inside = 0
    free: Any = None

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal inside
        inside += 1
        await free.wait()
        await _answer(send)

    async def main() -> None:
        nonlocal free
        free = asyncio.Event()
        limit = concurrency_limit(initial=1, ceiling=1, queue=5)
        timed = DeadlineMiddleware(ConcurrencyLimitMiddleware(app, limit))
        async with serve(timed, lifespan="off") as service:
            first = asyncio.create_task(service.get())
            await until(lambda: inside == 1)
            late = await service.get(headers={"X-Request-Timeout-Ms": "50"})
            assert late.status_code in (503, 504)  # whichever of the two notices first
            await until(lambda: limit.snapshot()["waiting"] == 0)
            free.set()
            assert (await first).status_code == 200
        assert inside == 1

    asyncio.run(main())


def test_errors_of_the_application_stay_its_own_and_so_does_a_foreign_cancellation() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("a bug")

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        raise AssertionError("nobody answers")

    async def main() -> None:
        scope: Any = {"type": "http", "path": "/", "headers": [(b"x-request-timeout-ms", b"60000")]}
        with pytest.raises(KeyError, match="a bug"):
            await DeadlineMiddleware(failing)(scope, None, send)  # type: ignore[arg-type]
        task = asyncio.ensure_future(DeadlineMiddleware(waiting)(scope, None, send))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert current_deadline() is None

    asyncio.run(main())


def test_time_comes_from_the_clock() -> None:
    sent: list[Any] = []
    clock = VirtualClock()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await clock.asleep(3600.0)
        await _answer(send)

    async def send(message: Any) -> None:
        sent.append((round(clock.monotonic() - began, 3), message.get("status")))

    scope: Any = {"type": "http", "path": "/", "headers": [(b"x-request-timeout-ms", b"1500")]}
    began, wall = clock.monotonic(), time.monotonic()
    clock.run(DeadlineMiddleware(app, clock=clock)(scope, None, send))  # type: ignore[arg-type]
    assert sent[0] == (1.5, 504)
    assert time.monotonic() - wall < 60


def test_switched_off_it_is_not_there_and_websockets_pass() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current_deadline())

    headers = [(b"x-request-timeout-ms", b"0")]
    disable()
    try:
        asyncio.run(DeadlineMiddleware(app)({"type": "http", "path": "/", "headers": headers}, None, None))  # type: ignore[arg-type]
    finally:
        enable()
    asyncio.run(DeadlineMiddleware(app)({"type": "websocket", "path": "/", "headers": headers}, None, None))  # type: ignore[arg-type]
    assert seen == [None, None]


def test_settings_that_are_wrong_fail_when_they_are_written(hello: Any) -> None:
    with pytest.raises(ConfigError, match="default must be more than 0 seconds"):
        DeadlineMiddleware(hello, default=0)
    with pytest.raises(ConfigError, match="least must be below longest"):
        DeadlineMiddleware(hello, least=10, longest=5)
