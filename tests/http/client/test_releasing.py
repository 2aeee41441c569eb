"""In virtual time: waits, and cancellation at every await, after which no response stays open."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from everkeel.http.httpx2 import AsyncResilientTransport
from everkeel.testing import cancel_at_every_await, run


class Tracked(httpx2.AsyncByteStream):
    """A body that knows whether it was closed; it takes a moment to read, and one to close."""

    def __init__(self, open_ones: set[Tracked]) -> None:
        self.open = open_ones
        self.open.add(self)

    async def __aiter__(self):
        await asyncio.sleep(0.01)
        yield b"0123456789"

    async def aclose(self) -> None:
        self.open.discard(self)  # once begun it is done: the libraries shield it
        await asyncio.sleep(0)


class Server(httpx2.AsyncBaseTransport):
    """Answers with these statuses, each after so many seconds."""

    def __init__(self, *answers: tuple[int, float]) -> None:
        self.open: set[Tracked] = set()
        self.left = list(answers)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        status, seconds = self.left.pop(0)
        await asyncio.sleep(seconds)
        return httpx2.Response(status, headers={"Content-Length": "10"}, stream=Tracked(self.open))


SETTINGS = {
    "a retry": {},
    "a buffered one": {"buffer": True},
    "an end of each attempt": {"attempt_timeout": 5.0, "max_duration": 60.0},
    "a race": {"hedge": {"delay": 0.05, "budget": None}},
    "an error": {"on_status": "raise", "attempts": 2},
}


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_no_response_stays_open_wherever_a_request_is_cancelled(kind):
    servers: list[Server] = []

    async def make() -> int:
        server = Server((503, 0.1), (503, 0.1), (503, 0.1), (200, 0.1), (200, 0.1), (200, 0.1))
        servers.append(server)
        transport = AsyncResilientTransport(server, **{"attempts": 4, "backoff": 1.0, **SETTINGS[kind]})
        async with httpx2.AsyncClient(transport=transport) as client:
            return (await client.get("https://a.test")).status_code

    async def check(outcome) -> None:
        await asyncio.sleep(5)  # losers of a race may take a moment
        assert not servers[-1].open

    assert cancel_at_every_await(make, check) > 5


def test_an_attempt_that_times_out_leaves_nothing_open():
    server = Server((200, 9.0), (503, 0.1), (200, 0.1))

    async def main() -> None:
        transport = AsyncResilientTransport(server, attempt_timeout=1.0, backoff=1.0)
        async with httpx2.AsyncClient(transport=transport) as client:
            assert (await client.get("https://a.test")).status_code == 200

    run(main())
    assert not server.open


def _answers(*responses: httpx2.Response):
    asked: list[float] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        return responses[min(len(asked), len(responses)) - 1]

    return httpx2.MockTransport(answer), asked


def test_a_hedge_does_not_begin_while_the_client_waits_because_it_was_asked_to():
    server, asked = _answers(httpx2.Response(503, headers={"Retry-After": "10"}), httpx2.Response(200))

    async def main() -> None:
        transport = AsyncResilientTransport(server, hedge={"delay": 1.0, "budget": None})
        async with httpx2.AsyncClient(transport=transport) as client:
            assert (await client.get("https://a.test")).status_code == 200

    run(main())
    assert asked == pytest.approx([0.0, 10.01])


def test_requests_wait_in_line_for_a_reset():
    server, asked = _answers(httpx2.Response(200, headers={"RateLimit": '"a";r=0;t=30'}), httpx2.Response(200))
    transport = AsyncResilientTransport(server)

    async def main() -> None:
        async with httpx2.AsyncClient(transport=transport) as client:
            await client.get("https://a.test")
            both = await asyncio.gather(client.get("https://a.test"), client.get("https://a.test"))
            assert {one.status_code for one in both} == {200}

    run(main())
    assert asked == pytest.approx([0.0, 30.01, 30.01], abs=0.001)
    assert transport.rate_limit.snapshot()["queued"] == 2
