"""Adaptive concurrency in front of a real server: who is shed, who is told what, and every place is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st

from everkeel import ConfigError, RejectedError, bulkhead, concurrency_limit
from everkeel.http import ConcurrencyLimitMiddleware
from everkeel.http.server.strain import Strain
from everkeel.policies.concurrency.priorities import CURRENT


class Slow:
    """An application that answers when it is told to, and knows how many are inside."""

    def __init__(self) -> None:
        self.inside = 0
        self.seen: list[str | None] = []
        self.gate = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside += 1
        self.seen.append(CURRENT.get())
        try:
            if scope["type"] == "websocket":
                await receive()
                await self.gate.wait()
                await send({"type": "websocket.accept"})
                await receive()
                return
            if scope["path"] == "/stream":
                await self._stream(receive, send)
                return
            await self.gate.wait()
            status = int(scope["path"].strip("/") or 200)
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})
        finally:
            self.inside -= 1

    async def _stream(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.create_task(self._until_gone(receive))
        while not gone.done() and not self.gate.is_set():
            await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
            await asyncio.sleep(0.005)
        gone.cancel()
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    async def _until_gone(receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def test_what_is_too_much_is_shed_with_a_reason_before_it_begins(serve: Any, until: Any) -> None:
    heard: list[tuple[str, str]] = []

    def rejected(scope: Any, error: RejectedError) -> None:
        heard.append((scope["path"], type(error).__name__))

    async def main() -> None:
        slow = Slow()
        limit = concurrency_limit("orders", initial=1, ceiling=1)
        app = ConcurrencyLimitMiddleware(slow, limit, on_rejected=rejected)
        async with serve(app, lifespan="off") as service:
            first = asyncio.create_task(service.get())
            await until(lambda: slow.inside == 1)
            shed = await service.get("/200")
            slow.gate.set()
            assert (await first).status_code == 200
        problem = shed.json()
        assert (shed.status_code, problem["error"], problem["reason"]) == (503, "shed", "concurrency")
        assert problem["violated-policies"] == ["orders"]
        assert 800 <= problem["retry_after_ms"] <= 4000  # a second and a little, more or less a fifth
        assert shed.headers["retry-after"] == str(-(-problem["retry_after_ms"] // 1000))
        assert float(shed.headers["x-backpressure"]) > 0.5
        assert float((await first).headers["x-backpressure"]) > 0.5
        assert heard == [("/200", "ShedError")]
        assert limit.snapshot()["running"] == 0

    asyncio.run(main())


def test_the_least_important_are_shed_first_and_the_priority_travels_with_the_request(serve: Any, until: Any) -> None:
    async def main() -> None:
        slow = Slow()
        limit = concurrency_limit(initial=4, ceiling=4, priorities={"high": 0.5, "low": 0.0})
        async with serve(ConcurrencyLimitMiddleware(slow, limit), lifespan="off") as service:

            def ask(name: str) -> Any:
                return asyncio.create_task(service.get(headers={"X-Request-Priority": name}))

            low = [ask("low") for _ in range(4)]
            await until(lambda: sum(one.done() for one in low) == 2)
            high = [ask("high") for _ in range(2)]
            await until(lambda: slow.inside == 4)
            slow.gate.set()
            answers = [await one for one in (*low, *high)]
        assert sorted(one.status_code for one in answers[:4]) == [200, 200, 503, 503]
        assert [one.status_code for one in answers[4:]] == [200, 200]
        refused = next(one for one in answers if one.status_code == 503)
        assert refused.json()["reason"] == "priority low"
        assert sorted(map(str, slow.seen)) == ["high", "high", "low", "low"]

    asyncio.run(main())


def test_a_priority_is_believed_only_of_those_who_are_trusted_with_it(serve: Any) -> None:
    async def main() -> None:
        slow = Slow()
        slow.gate.set()
        limit = concurrency_limit(priorities={"high": 0.5, "low": 0.0}, priority="low")
        app = ConcurrencyLimitMiddleware(slow, limit, trust_priority=lambda scope: scope["path"] == "/200")
        async with serve(app, lifespan="off") as service:
            for path in ("/200", "/201"):
                await service.get(path, headers={"X-Request-Priority": "high"})
            await service.get("/200", headers={"X-Request-Priority": 'high"; drop table'})
        assert slow.seen == ["high", None, None]

    asyncio.run(main())


def _asking(path: str, *, body: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n".encode()
    return head + body


@pytest.mark.parametrize("queue", [0, 3])
@pytest.mark.parametrize("point", ["while its body is read", "while it is worked on", "while it is answered"])
def test_a_caller_who_hangs_up_gives_its_place_back(serve: Any, until: Any, point: str, queue: int) -> None:
    async def reading(scope: Any, receive: Any, send: Any) -> None:
        nonlocal inside
        inside += 1
        try:
            while (message := await receive())["type"] != "http.disconnect":
                if not message.get("more_body"):
                    break
            else:
                return
            await slow(scope, receive, send)
        finally:
            inside -= 1

    inside = 0
    slow: Any = None

    async def main() -> None:
        nonlocal slow
        slow = Slow()
        limit = concurrency_limit(initial=2, ceiling=2, queue=queue)
        async with serve(ConcurrencyLimitMiddleware(reading, limit), lifespan="off") as service:
            _, writer = await service.connection()
            path = "/stream" if point == "while it is answered" else "/"
            writer.write(_asking(path, body=b"1234" if point == "while its body is read" else b"1234567890"))
            await until(lambda: inside == 1 and (point == "while its body is read" or slow.inside == 1))
            assert limit.snapshot()["running"] == 1
            writer.transport.abort()
            if point == "while it is worked on":
                slow.gate.set()  # nobody interrupts work that does not look whether its caller is there
            await until(lambda: inside == 0)
            await until(lambda: limit.snapshot()["running"] == 0)

    asyncio.run(main())


def test_a_caller_who_hangs_up_in_line_leaves_it_and_is_never_worked_for(serve: Any, until: Any) -> None:
    async def main() -> None:
        slow = Slow()
        limit = concurrency_limit(initial=1, ceiling=1, queue=3)
        async with serve(ConcurrencyLimitMiddleware(slow, limit), lifespan="off") as service:
            first = asyncio.create_task(service.get())
            await until(lambda: slow.inside == 1)
            _, writer = await service.connection()
            writer.write(_asking("/", body=b"1234567890"))
            await until(lambda: limit.snapshot()["waiting"] == 1)
            last = asyncio.create_task(service.get())
            await until(lambda: limit.snapshot()["waiting"] == 2)
            writer.transport.abort()
            await until(lambda: limit.snapshot()["waiting"] == 1)
            slow.gate.set()
            assert [(await first).status_code, (await last).status_code] == [200, 200]
            assert len(slow.seen) == 2
            assert limit.snapshot()["running"] == 0

    asyncio.run(main())


def test_a_request_that_is_cancelled_gives_its_place_back_at_every_point() -> None:
    """Cancelled after every number of steps that it can take."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive() -> Any:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    async def main(queue: int) -> None:
        limit = concurrency_limit(initial=1, ceiling=1, queue=queue)
        middleware = ConcurrencyLimitMiddleware(app, limit)
        scope: Any = {"type": "http", "method": "GET", "path": "/", "headers": []}
        for steps in range(14):
            task = asyncio.ensure_future(middleware(scope, receive, send))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert limit.snapshot()["running"] == 0
            assert limit.snapshot()["waiting"] == 0

    for queue in (0, 2):
        asyncio.run(main(queue))


def test_a_stream_has_a_place_until_it_ends_and_teaches_nothing(serve: Any, until: Any) -> None:
    async def main() -> None:
        slow = Slow()
        limit = concurrency_limit(initial=4, ceiling=4)
        async with serve(ConcurrencyLimitMiddleware(slow, limit), lifespan="off") as service:
            async with service.client.stream("GET", "/stream") as response:
                lines = response.aiter_lines()
                assert await anext(lines) == "tick"
                assert limit.snapshot()["running"] == 1
                slow.gate.set()
                assert {line async for line in lines} <= {"tick"}
            await until(lambda: limit.snapshot()["running"] == 0)
            assert limit.snapshot()["success"] == 0
            await service.get()
            assert limit.snapshot()["success"] == 1

    asyncio.run(main())


def test_answers_that_say_too_much_lower_the_limit(serve: Any) -> None:
    async def main() -> None:
        slow = Slow()
        slow.gate.set()
        limit = concurrency_limit(initial=20)
        async with serve(ConcurrencyLimitMiddleware(slow, limit), lifespan="off") as service:
            assert (await service.get("/500")).status_code == 500
            assert limit.snapshot()["limit"] == 20
            assert (await service.get("/503")).status_code == 503
            assert limit.snapshot()["limit"] == 18

    asyncio.run(main())


def test_an_error_of_a_policy_inside_is_the_applications_own(serve: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RejectedError("inside", 1.0)

    limit = concurrency_limit()
    with pytest.raises(RejectedError, match="inside"):
        asyncio.run(ConcurrencyLimitMiddleware(app, limit)({"type": "http", "path": "/", "headers": []}, None, None))  # type: ignore[arg-type]
    assert limit.snapshot()["running"] == 0


@pytest.mark.parametrize("queue", [0, 2])
def test_a_websocket_has_its_place_during_the_handshake_only(serve: Any, until: Any, queue: int) -> None:
    async def main() -> None:
        slow = Slow()
        limit = concurrency_limit(initial=1, ceiling=1, queue=queue)
        async with serve(ConcurrencyLimitMiddleware(slow, limit), lifespan="off") as service:
            address = f"ws://127.0.0.1:{service.port}/"
            first = asyncio.create_task(websockets.connect(address).__aenter__())
            await until(lambda: slow.inside == 1)
            assert limit.snapshot()["running"] == 1
            if not queue:
                with pytest.raises(websockets.InvalidStatus) as denied:
                    await websockets.connect(address)
                assert denied.value.response.status_code == 503
            slow.gate.set()
            socket = await first
            await until(lambda: limit.snapshot()["running"] == 0)
            assert slow.inside == 1
            await socket.close()

    asyncio.run(main())


def test_a_websocket_that_finds_the_line_full_is_denied(serve: Any, until: Any) -> None:
    async def main() -> None:
        slow = Slow()
        limit = concurrency_limit(initial=1, ceiling=1, queue=1)
        async with serve(ConcurrencyLimitMiddleware(slow, limit), lifespan="off") as service:
            first = asyncio.create_task(service.get())
            await until(lambda: slow.inside == 1)
            second = asyncio.create_task(service.get())
            await until(lambda: limit.snapshot()["waiting"] == 1)
            with pytest.raises(websockets.InvalidStatus) as denied:
                await websockets.connect(f"ws://127.0.0.1:{service.port}/")
            assert denied.value.response.status_code == 503
            slow.gate.set()
            assert [(await first).status_code, (await second).status_code] == [200, 200]

    asyncio.run(main())


def test_a_bulkhead_does_as_well_and_health_checks_need_no_place(serve: Any, until: Any) -> None:
    async def main() -> None:
        slow = Slow()
        app = ConcurrencyLimitMiddleware(slow, bulkhead(1, "fixed"), exclude=["/202"])
        async with serve(app, lifespan="off") as service:
            first = asyncio.create_task(service.get())
            await until(lambda: slow.inside == 1)
            full = await service.get()
            free = asyncio.create_task(service.get("/202"))
            await until(lambda: slow.inside == 2)
            slow.gate.set()
            assert [(await first).status_code, (await free).status_code] == [200, 202]
        assert (full.status_code, full.json()["error"]) == (503, "bulkhead_full")

    asyncio.run(main())


def test_settings_that_are_wrong_fail_when_they_are_written(hello: Any) -> None:
    keyed = concurrency_limit(key=lambda scope: scope["path"])
    with pytest.raises(ConfigError, match="must be a concurrency_limit"):
        ConcurrencyLimitMiddleware(hello, keyed)
    with pytest.raises(ConfigError, match="retry_after must not be negative"):
        ConcurrencyLimitMiddleware(hello, retry_after=-1)


# ------------------------------------------------------------------ how hard-pressed it is


@given(
    events=st.lists(st.tuples(st.booleans(), st.floats(0, 10))), running=st.integers(0, 100), limit=st.integers(1, 100)
)
def test_strain_is_a_share_and_more_of_anything_never_lowers_it(
    events: list[tuple[bool, float]], running: int, limit: int
) -> None:
    strain, now = Strain(), 100.0
    for shed, pause in events:
        now += pause
        (strain.shed if shed else strain.passed)(now)
    score = strain.score(running, limit, now)
    assert 0 <= score <= 1
    assert strain.score(running + 1, limit, now) >= score
    strain.shed(now)
    assert strain.score(running, limit, now) >= score
    assert strain.score(running, limit, now + 60) <= strain.score(running, limit, now)


def test_the_more_is_shed_the_longer_callers_are_asked_to_wait() -> None:
    chance: Callable[[], float] = lambda: 0.5  # noqa: E731
    strain, waits = Strain(), []
    for second in range(20):
        waits.append(strain.retry_after(strain.score(10, 10, float(second)), 1.0, 15.0, chance))
        for hundredth in range(100):
            strain.shed(second + hundredth / 100)
    assert waits[0] == 1.0
    assert waits == sorted(waits)
    assert 14 < waits[-1] < 16


def test_the_calm_after_a_storm_is_soon_seen_however_great_the_storm_was() -> None:
    strain = Strain()
    for number in range(10_000):
        strain.shed(number / 1000)
    assert strain.score(0, 10, 10.0) > 0.49
    for number in range(100):  # ten in a second
        strain.passed(10 + number / 10)
    assert strain.score(0, 10, 20.0) < 0.1


def test_one_rejection_after_a_long_silence_does_not_decide_by_itself() -> None:
    strain = Strain()
    strain.shed(1000.0)
    assert strain.score(0, 10, 1000.0) < 0.05
