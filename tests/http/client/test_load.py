"""Mixed load with faults through every client: every request is accounted for, and nothing leaks or blocks."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from blockbuster import BlockingError, blockbuster_ctx

from everkeel import Clock, EverkeelError
from everkeel.http.httpx import ResilientTransport

SHARE = {"ok": 70, "busy": 8, "limited": 5, "broken": 5, "slow": 5, "hang up": 5, "never": 2}


class NeverBlocking(Clock):
    """Real time, for coroutines alone. (blockbuster does not see a clock's sleep, which is bound before it looks.)"""

    def __init__(self) -> None:
        self.sleep = self.wait = self._refuse

    def _refuse(self, *args: object) -> None:
        raise AssertionError("a coroutine blocked its event loop")


class Chaos:
    """An ASGI application of a server that has a bad day; which kind a request gets is drawn by its own seed."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.served: set[str] = set()
        self.running = 0

    async def __call__(self, scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        headers = dict(scope["headers"])
        which = headers[b"x-load-id"].decode()
        # An attempt on a connection that we have just closed does not get here, so some numbers are missing.
        self.attempts[which] = max(self.attempts[which], int(headers[b"x-request-attempt"]))
        chance = random.Random(f"{which}/{self.attempts[which]}")
        kind = chance.choices(list(SHARE), list(SHARE.values()))[0]
        self.running += 1
        try:
            await self.answer(kind, which, send)
        finally:
            self.running -= 1

    async def answer(self, kind, which, send):
        if kind == "slow":
            await asyncio.sleep(0.01)
        elif kind == "never":
            await asyncio.sleep(1.5)
        status = {"busy": 503, "limited": 429, "broken": 500}.get(kind, 200)
        headers = [(b"x-load-id", which.encode()), (b"content-length", b"1000")]
        if kind == "limited":
            headers.append((b"x-ratelimit-retry-after-ms", b"2"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if kind == "hang up":
            raise ConnectionError("as if the process had died")
        if status == 200:
            self.served.add(which)
        await send({"type": "http.response.body", "body": b"x" * 1000})


SETTINGS = {
    "backoff": 0.001,
    "attempt_timeout": 1.0,
    "max_duration": 20,
    "budget": None,
    "buffer": True,
    "circuit_breaker": {"failure_rate": 0.95},
    "idempotency_keys": True,
}


def _method(number: int) -> str:
    return ("GET", "GET", "GET", "PUT", "POST", "DELETE")[number % 6]


async def _drive(client, url, name, requests, at_once):
    places = asyncio.Semaphore(at_once)

    async def one(number):
        async with places:
            ident = f"{name}-{number}"
            try:
                answer = await client.arequest(_method(number), url, headers={"X-Load-Id": ident})
            except (EverkeelError, *ERRORS) as error:
                return ident, type(error).__name__
            assert answer.headers["x-load-id"] == ident
            assert len(answer.body) == 1000
            return ident, answer.status

    return await asyncio.gather(*(one(number) for number in range(requests)))


ERRORS: tuple[type[Exception], ...] = ()


def _drive_threads(client, url, name, requests, at_once):
    def one(number):
        ident = f"{name}-{number}"
        try:
            answer = client.request(_method(number), url, headers={"X-Load-Id": ident})
        except (EverkeelError, *ERRORS) as error:
            return ident, type(error).__name__
        assert answer.headers["x-load-id"] == ident
        assert len(answer.body) == 1000
        return ident, answer.status

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, range(requests)))


def _load(agent, chaos, url, name, total, at_once=16):
    """So many requests through one client; what became of each."""
    settings = dict(SETTINGS)
    if name.endswith("async") or name == "aiohttp":
        settings["clock"] = NeverBlocking()
    if name == "httpx-async":
        # httpx 0.28 itself loses a connection now and then when a request is cancelled (httpx2 does not), which is how
        # our limit ends one. Its own timeouts, which cancel nothing, take the place of ours.
        del settings["attempt_timeout"], settings["max_duration"]
    client = agent(**settings)
    if name == "httpx-async":
        client.client.timeout = httpx.Timeout(1.0, pool=20)
    if hasattr(client, "arequest"):
        # What blocks the event loop of these clients raises. The server's loop is another one, and not watched.
        with blockbuster_ctx("everkeel"):
            outcomes = client.run(_drive(client, url, name, total, at_once))
    else:
        outcomes = _drive_threads(client, url, name, total, at_once)
    until = time.monotonic() + 5
    while client.connections() and time.monotonic() < until:
        client.run(asyncio.sleep(0.02)) if hasattr(client, "run") else time.sleep(0.02)
    assert client.connections() == 0
    return outcomes


def _account(chaos, outcomes, total):
    assert len(outcomes) == len({ident for ident, _ in outcomes}) == total
    results = Counter(str(result) for _, result in outcomes)
    for ident, result in outcomes:
        assert 1 <= chaos.attempts[ident] <= 3, (ident, result)
        if result == 200:
            assert ident in chaos.served
        elif isinstance(result, int) and chaos.attempts[ident] < 3:
            raise AssertionError(f"{ident} gave up after {chaos.attempts[ident]} attempts: {result}")
    assert results["200"] > total * 0.8, results
    return results


@pytest.fixture
def chaos(uvicorn_at):
    chaos = Chaos()
    chaos.url = uvicorn_at(chaos) + "/load"
    return chaos


@pytest.fixture(autouse=True)
def _errors(library_errors):
    global ERRORS
    ERRORS = library_errors


def test_every_request_is_accounted_for(agent, chaos, request):
    name = request.node.callspec.id
    outcomes = _load(agent, chaos, chaos.url, name, 100)
    _account(chaos, outcomes, 100)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_five_thousand_requests_are_accounted_for(agent, chaos, request):
    """A sixth of them for each client."""
    name = request.node.callspec.id
    threads = threading.active_count()
    outcomes = _load(agent, chaos, chaos.url, name, 834, at_once=32)
    _account(chaos, outcomes, 834)
    gc.collect()
    assert threading.active_count() < threads + 200
    until = time.monotonic() + 5
    while chaos.running and time.monotonic() < until:
        time.sleep(0.02)
    assert chaos.running == 0


def test_the_event_loop_goes_on_while_a_client_waits_and_retries(async_agent, service, reply):
    """A ticker beside the requests misses no beat, whatever the server does."""
    client = async_agent(attempt_timeout=9, clock=NeverBlocking())
    service.will("/x", 503, reply(429, {"X-RateLimit-Retry-After-Ms": "100"}), reply(delay=0.1))

    async def main():
        async def beat():
            longest, last = 0.0, time.monotonic()
            while True:
                await asyncio.sleep(0.005)
                now = time.monotonic()
                longest, last = max(longest, now - last), now
                beats.append(longest)

        beats = []
        ticker = asyncio.create_task(beat())
        answer = await client.arequest("GET", service.url + "/x")
        ticker.cancel()
        return answer.status, len(beats)

    with blockbuster_ctx("everkeel"):
        status, beats = client.run(main())
    assert status == 200
    assert beats > 5


def test_what_blocks_would_be_noticed():
    """The same watch, on a client that does block: a sync one in a coroutine."""

    def slow(request: httpx.Request) -> httpx.Response:
        time.sleep(0.001)
        return httpx.Response(200)

    async def main():
        with httpx.Client(transport=ResilientTransport(httpx.MockTransport(slow))) as client:
            client.get("http://a.test")  # noqa: ASYNC212 - that it blocks is the point

    with blockbuster_ctx("everkeel"), pytest.raises(BlockingError):
        asyncio.run(main())
