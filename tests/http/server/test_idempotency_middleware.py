"""The same request twice is done once: on a real server, with real clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel import ConfigError
from everkeel.http import IdempotencyMiddleware
from everkeel.http.server.responses import KeptResponse
from everkeel.idempotency import MemoryIdempotencyStore


class Till:
    """An application that takes money, and knows how often."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.status = 201
        self.parts = 1

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await self.gate.wait()
        self.taken.append(body)
        if scope["path"] == "/crash":
            raise RuntimeError("in the middle of it")
        headers = [(b"content-type", b"text/plain"), (b"location", b"/receipts/%d" % len(self.taken))]
        cookies = [(b"set-cookie", b"session=secret")]
        await send({"type": "http.response.start", "status": self.status, "headers": [*headers, *cookies]})
        receipt = b"receipt %d " % len(self.taken)
        for left in reversed(range(self.parts)):
            await send({"type": "http.response.body", "body": receipt, "more_body": left > 0})


ONE = {"Idempotency-Key": '"order-7"'}


def test_the_same_request_again_gets_the_same_answer_and_is_not_done_again(serve: Any) -> None:
    async def main() -> None:
        till = Till()
        till.parts = 3
        async with serve(IdempotencyMiddleware(till), lifespan="off") as service:
            first = await service.post("/pay?in=eur", content=b"5", headers=ONE)
            again = await service.post("/pay?in=eur", content=b"5", headers=ONE)
            bare = await service.post("/pay?in=eur", content=b"5", headers={"Idempotency-Key": "order-7"})
            other = await service.post("/pay?in=eur", content=b"5", headers={"Idempotency-Key": '"order-8"'})
        assert till.taken == [b"5", b"5"]
        assert first.content == again.content == bare.content == b"receipt 1 receipt 1 receipt 1 "
        assert (again.status_code, again.headers["location"]) == (201, "/receipts/1")
        assert again.headers["idempotency-replayed"] == "true"
        assert "idempotency-replayed" not in first.headers
        assert "set-cookie" in first.headers
        assert "set-cookie" not in again.headers
        assert other.content == b"receipt 2 " * 3

    asyncio.run(main())


def test_while_it_is_done_others_are_told_to_come_back(serve: Any, until: Any) -> None:
    async def main() -> None:
        till, store = Till(), MemoryIdempotencyStore()
        till.gate.clear()
        async with serve(IdempotencyMiddleware(till, store), lifespan="off") as service:
            first = asyncio.create_task(service.post("/pay", content=b"5", headers=ONE))
            await until(lambda: len(store) == 1)
            others = await asyncio.gather(*(service.post("/pay", content=b"5", headers=ONE) for _ in range(10)))
            till.gate.set()
            assert (await first).status_code == 201
        assert {one.status_code for one in others} == {409}
        assert others[0].json()["error"] == "idempotency_in_progress"
        assert others[0].headers["retry-after"] == "1"
        assert len(till.taken) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "another",
    [
        {"content": b"500"},
        {"url": "/refund"},
        {"url": "/pay?in=usd"},
        {"headers": {**ONE, "Content-Type": "application/xml"}},
        {"method": "PATCH"},
    ],
    ids=["body", "path", "query", "content type", "method"],
)
def test_the_same_key_for_something_else_is_a_mistake(serve: Any, another: dict[str, Any]) -> None:
    async def main() -> None:
        till = Till()
        async with serve(IdempotencyMiddleware(till), lifespan="off") as service:
            same = {"method": "POST", "url": "/pay", "content": b"5", "headers": ONE}
            await service.client.request(**same)
            other = await service.client.request(**{**same, **another})
        assert (other.status_code, other.json()["error"]) == (422, "idempotency_key_reused")
        assert len(till.taken) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "key", ['""', '"' + "x" * 256 + '"', '"half', "two words", '"a", "b"', "käse".encode().decode("latin-1")]
)
def test_a_key_that_is_none_is_refused_rather_than_ignored(serve: Any, key: str) -> None:
    async def main() -> None:
        till = Till()
        async with serve(IdempotencyMiddleware(till), lifespan="off") as service:
            refused = await service.post("/pay", headers={"Idempotency-Key": key.encode("latin-1")})
        assert (refused.status_code, refused.json()["error"]) == (400, "idempotency_key_malformed")
        assert not till.taken

    asyncio.run(main())


def test_a_missing_key_is_refused_only_where_one_is_required(serve: Any) -> None:
    async def main() -> None:
        till = Till()
        app = IdempotencyMiddleware(till, required=["POST /pay"], exclude=["/free"])
        async with serve(app, lifespan="off") as service:
            refused = await service.post("/pay")
            answers = [
                await service.post("/elsewhere"),
                await service.get("/pay"),
                await service.post("/free", headers=ONE),
                await service.post("/free", headers=ONE),
            ]
        assert (refused.status_code, refused.json()["error"]) == (400, "idempotency_key_missing")
        assert [one.status_code for one in answers] == [201, 201, 201, 201]
        assert len(till.taken) == 4

    asyncio.run(main())


def test_nobody_gets_the_answer_to_somebody_elses_request(serve: Any) -> None:
    async def main() -> None:
        till = Till()
        async with serve(IdempotencyMiddleware(till), lifespan="off") as service:
            for who in ("Bearer ann", "Bearer bob"):
                await service.post("/pay", content=b"5", headers={**ONE, "Authorization": who})
            await service.post("/pay", content=b"5", headers={**ONE, "X-API-Key": "ann"})
            await service.post("/pay", content=b"5", headers=ONE)
        assert len(till.taken) == 4

    asyncio.run(main())


def test_what_failed_may_be_tried_again(serve: Any) -> None:
    async def main() -> None:
        till = Till()
        async with serve(IdempotencyMiddleware(till), lifespan="off") as service:
            for status in (500, 503, 429, 408):
                till.status = status
                assert (await service.post("/pay", content=b"5", headers=ONE)).status_code == status
            till.status = 402  # a decision, and final
            assert (await service.post("/pay", content=b"5", headers=ONE)).status_code == 402
            till.status = 201
            assert (await service.post("/pay", content=b"5", headers=ONE)).status_code == 402
            assert len(till.taken) == 5
            for _ in range(2):
                assert (await service.post("/crash", headers={"Idempotency-Key": '"c"'})).status_code == 500
            assert len(till.taken) == 7

    asyncio.run(main())


def test_a_caller_who_hangs_up_finds_the_answer_when_it_comes_back(serve: Any, until: Any) -> None:
    async def main() -> None:
        till, store = Till(), MemoryIdempotencyStore()
        till.gate.clear()
        async with serve(IdempotencyMiddleware(till, store), lifespan="off") as service:
            _, writer = await service.connection()
            head = b"POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: order-7\r\nContent-Length: 1\r\n\r\n5"
            writer.write(head)
            await until(lambda: len(store) == 1)
            writer.transport.abort()
            till.gate.set()
            await until(lambda: till.taken)
            await asyncio.sleep(0)
            answer = await service.post("/pay", content=b"5", headers=ONE)
        assert (answer.status_code, answer.content) == (201, b"receipt 1 ")
        assert len(till.taken) == 1

    asyncio.run(main())


def test_a_cancelled_request_releases_its_key() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def main() -> None:
        store = MemoryIdempotencyStore()
        middleware = IdempotencyMiddleware(app, store)
        headers = [(b"idempotency-key", b'"k"')]
        scope: Any = {"type": "http", "method": "POST", "path": "/", "headers": headers, "client": ("192.0.2.7", 1)}
        task = asyncio.ensure_future(middleware(scope, receive, None))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        assert (await store.stats()).in_progress == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await store.stats()).in_progress == 0
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_bodies_are_bounded_whether_they_say_how_long_they_are_or_not(serve: Any) -> None:
    async def pieces() -> Any:
        for _ in range(100):
            yield b"x" * 100

    async def main() -> None:
        till = Till()
        async with serve(IdempotencyMiddleware(till, max_body=1000), lifespan="off") as service:
            sized = await service.post("/pay", content=b"x" * 1001, headers=ONE)
            chunked = await service.post("/pay", content=pieces(), headers=ONE)
            fits = await service.post("/pay", content=b"x" * 1000, headers=ONE)
        assert [sized.status_code, chunked.status_code, fits.status_code] == [413, 413, 201]
        assert till.taken == [b"x" * 1000]

    asyncio.run(main())


def test_a_response_too_long_to_be_kept_passes_and_is_not_done_again(serve: Any) -> None:
    async def main() -> None:
        till = Till()
        till.parts = 100
        async with serve(IdempotencyMiddleware(till, max_response=500), lifespan="off") as service:
            first = await service.post("/pay", headers=ONE)
            again = await service.post("/pay", headers=ONE)
        assert first.content == b"receipt 1 " * 100
        assert (again.status_code, again.json()["error"]) == (409, "idempotency_response_not_kept")
        assert len(till.taken) == 1

    asyncio.run(main())


def test_without_its_store_it_refuses_rather_than_to_do_things_twice(serve: Any) -> None:
    class Away(MemoryIdempotencyStore):
        async def begin(self, *args: Any, **kwargs: Any) -> Any:
            raise ConnectionError("no route to the store")

    async def main() -> None:
        till = Till()
        full = MemoryIdempotencyStore(max_records=1)
        async with serve(IdempotencyMiddleware(till, Away()), lifespan="off") as service:
            away = await service.post("/pay", headers=ONE)
        async with serve(IdempotencyMiddleware(till, full), lifespan="off") as service:
            await service.post("/pay", headers=ONE)
            no_room = await service.post("/pay", headers={"Idempotency-Key": '"order-8"'})
        for refused in (away, no_room):
            assert (refused.status_code, refused.json()["error"]) == (503, "idempotency_unavailable")
            assert int(refused.headers["retry-after"]) >= 1
        assert "route to the store" not in away.text
        assert len(till.taken) == 1

    asyncio.run(main())


async def test_a_claim_is_held_while_slow_work_is_done(virtual_time: Any) -> None:
    store, ended = MemoryIdempotencyStore(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(600.0)  # ten leases
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        ended.append(message.get("status"))

    middleware = IdempotencyMiddleware(app, store, lease=60.0)
    scope: Any = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(b"idempotency-key", b"k")],
        "client": ("192.0.2.7", 1),
    }
    first = asyncio.ensure_future(middleware(scope, receive, send))
    await asyncio.sleep(500.0)
    await middleware(scope, receive, send)
    assert ended == [409, None]
    await first
    await middleware(scope, receive, send)
    assert ended[2::2] == [200, 200]


async def test_a_store_that_is_away_for_a_while_is_told_later_and_a_lost_claim_is_reported(
    virtual_time: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Shaky(MemoryIdempotencyStore):
        beats = 0

        async def extend(self, token: Any, lease: Any = 60.0) -> bool:
            self.beats += 1
            if self.beats == 1:
                raise ConnectionError("away")
            return self.beats < 3

        async def complete(self, token: Any, result: bytes | None = None, *, tx: Any = None) -> bool:
            raise ConnectionError("away again")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(300.0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    sent: list[str] = []
    store = Shaky()
    headers = [(b"idempotency-key", b"k")]
    scope: Any = {"type": "http", "method": "POST", "path": "/", "headers": headers, "client": ("192.0.2.7", 1)}
    await IdempotencyMiddleware(app, store, lease=60.0)(scope, receive, send)
    assert store.beats == 3  # it went on after the first, and stopped when the claim was lost
    assert sent == ["http.response.start", "http.response.body"]  # the caller has its answer all the same
    assert "a claim was lost while its request was running" in caplog.text
    assert caplog.text.count("the store cannot be told") == 2


@given(
    status=st.integers(200, 499),
    headers=st.lists(st.tuples(st.binary(max_size=20).map(lambda name: b"x-h-" + name), st.binary(max_size=20))),
    body=st.binary() | st.none(),
)
def test_what_is_kept_is_what_was_sent(status: int, headers: list[tuple[bytes, bytes]], body: bytes | None) -> None:
    kept = KeptResponse(status, headers, body)
    assert KeptResponse.read(kept.written()) == kept


@given(
    st.binary()
    | st.none()
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_what_was_not_written_here_is_nothing(kept: bytes | None) -> None:
    assert KeptResponse.read(kept) is None


def test_settings_that_are_wrong_fail_when_they_are_written(hello: Any) -> None:
    with pytest.raises(ConfigError, match="must be more than 0 seconds"):
        IdempotencyMiddleware(hello, lease=0)
