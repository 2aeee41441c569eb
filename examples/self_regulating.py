"""A server that says how it is, and clients that listen: what a spike of load does to them, and to clients that do not.

A small shop can serve 40 orders per second. Its twenty clients want half of that, then three times of it, then
half again. The server sheds what is too much and tells the others how hard-pressed it is; polite clients wait as long
as it asks for, rude ones try again at once.

python examples/self_regulating.py                      ten seconds: a table for each kind of client
python examples/self_regulating.py --record run.json    three quarters of a minute, and the numbers into a file

The server is a process of its own: `python examples/self_regulating.py --serve PORT`.
"""

import argparse
import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from everkeel import RateLimitedError, RetryExhaustedError, concurrency_limit
from everkeel.http import ConcurrencyLimitMiddleware
from everkeel.http.adaptive import AsyncAdaptiveClient

TILLS, SERVICE_TIME = 2, 0.05  # so many orders at a time, each taking so many seconds: 40 per second
CLIENTS = 20
CALM, SPIKE = 1.0, 6.0  # orders per second that each client wants


# ------------------------------------------------------------------ the server


def shop() -> ConcurrencyLimitMiddleware:
    """An application with two tills, behind a limit that finds out by itself how many orders it can take."""
    tills = asyncio.Semaphore(TILLS)

    async def order(scope: Any, receive: Any, send: Any) -> None:
        async with tills:
            await asyncio.sleep(SERVICE_TIME)
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    limit = concurrency_limit("shop", initial=4, ceiling=6, floor=2)
    return ConcurrencyLimitMiddleware(order, limit, retry_after=0.3, retry_penalty=4.0)


@asynccontextmanager
async def open_shop() -> AsyncIterator[str]:
    """The shop in a process of its own; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--serve", str(port))
    try:
        for _ in range(300):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


# ------------------------------------------------------------------ what is measured


@dataclass
class Moment:
    """What happened in a quarter of a second."""

    at: float
    wanted: float  # orders per second that the clients would like to place
    requests: int = 0
    orders: int = 0
    refused: int = 0
    backpressure: float = 0.0
    retry_after: float = 0.0  # the mean of what those were told who were refused


class Log:
    """All responses, by the quarter of a second they came in."""

    WIDTH = 0.25

    def __init__(self, length: float) -> None:
        self.began = time.monotonic()
        self.moments = [
            Moment(number * self.WIDTH, CLIENTS * demand(number * self.WIDTH, length))
            for number in range(round(length / self.WIDTH))
        ]

    def now(self) -> float:
        return time.monotonic() - self.began

    async def heard(self, response: httpx2.Response) -> None:
        number = int(self.now() / self.WIDTH)
        if number >= len(self.moments):
            return
        moment = self.moments[number]
        moment.requests += 1
        moment.backpressure += float(response.headers["x-backpressure"])
        if response.status_code == 201:
            moment.orders += 1
        else:
            moment.refused += 1
            moment.retry_after += float(response.headers["x-ratelimit-retry-after-ms"]) / 1000

    def means(self) -> list[Moment]:
        for moment in self.moments:
            moment.backpressure /= max(1, moment.requests)
            moment.retry_after /= max(1, moment.refused)
        return self.moments


def demand(at: float, length: float) -> float:
    """Calm, a spike in the middle, calm again."""
    return SPIKE if 0.25 <= at / length < 0.65 else CALM


# ------------------------------------------------------------------ the clients

Place = Callable[[], Awaitable[object]]


def polite(client: httpx2.AsyncClient, address: str) -> Place:
    """Waits as long as the server asks for, and slows down when it says that it is hard-pressed."""
    adaptive = AsyncAdaptiveClient(address, client=client, attempts=6, backpressure_threshold=0.5)
    return lambda: adaptive.send_request("POST", "/orders")


def rude(client: httpx2.AsyncClient, address: str) -> Place:
    """Tries again at once, or nearly so, as often as it takes."""

    async def place() -> None:
        while (await client.post(f"{address}/orders")).status_code != 201:  # noqa: ASYNC110 - that is what is rude
            await asyncio.sleep(0.02)

    return place


async def shopping(place: Place, log: Log, length: float, offset: float) -> None:
    """One client: it would like to place its next order when the last one is placed, and its time has come."""
    due = offset
    while (now := log.now()) < length:
        if now < due:
            await asyncio.sleep(due - now)
            continue
        try:
            async with asyncio.timeout(max(0.01, length - now)):
                await place()
        except (RateLimitedError, RetryExhaustedError, TimeoutError):
            pass
        due = max(due, log.now() - 0.5) + 1 / demand(log.now(), length)  # what is half a second late is not made up for


async def a_day(kind: Callable[[httpx2.AsyncClient, str], Place], length: float) -> list[Moment]:
    """A spike, and the clients of one kind."""
    log = Log(length)
    async with open_shop() as address, AsyncExitStack() as open_clients:
        clients = [
            await open_clients.enter_async_context(
                httpx2.AsyncClient(event_hooks={"response": [log.heard]}, timeout=10.0)
            )
            for _ in range(CLIENTS)
        ]
        log.began = time.monotonic()
        async with asyncio.TaskGroup() as day:
            for number, client in enumerate(clients):
                day.create_task(shopping(kind(client, address), log, length, number / CLIENTS / CALM))
    return log.means()


# ------------------------------------------------------------------ telling


def in_spike(moments: list[Moment], length: float) -> list[Moment]:
    """The second half of the spike: by then everybody knows."""
    return [moment for moment in moments if 0.45 <= moment.at / length < 0.65]


def summary(moments: list[Moment], length: float) -> dict[str, float]:
    """What became of the spike, late in it; and how hard-pressed the server is in the end."""
    there = in_spike(moments, length)
    seconds = len(there) * Log.WIDTH
    requests = sum(moment.requests for moment in there)
    return {
        "requests per second": requests / seconds,
        "orders per second": sum(moment.orders for moment in there) / seconds,
        "share refused": sum(moment.refused for moment in there) / max(1, requests),
        "backpressure": sum(moment.backpressure for moment in there) / len(there),
        "backpressure at the end": moments[-2].backpressure,
    }


def show(title: str, moments: list[Moment], length: float) -> None:
    """A line for each second."""
    heads = ("wanted", "requests", "orders", "refused", "pressure", "retry after")
    print(f"\n{title}\n{'':>6}" + "".join(f"{head:>12}" for head in heads))
    per = round(1 / Log.WIDTH)
    for first in range(0, len(moments), per):
        part = moments[first : first + per]
        refused = sum(one.refused for one in part)
        told = sum(one.retry_after * one.refused for one in part) / max(1, refused)
        counts = (part[0].wanted, sum(one.requests for one in part), sum(one.orders for one in part), refused)
        pressure = sum(one.backpressure for one in part) / len(part)
        print(
            f"{part[0].at:>5.0f}s" + "".join(f"{count:>12.0f}" for count in counts) + f"{pressure:>12.2f}{told:>11.2f}s"
        )
    for name, value in summary(moments, length).items():
        print(f"  {name}: {value:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", type=int, metavar="PORT")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--seconds", type=float)
    chosen = parser.parse_args()
    if chosen.serve:
        uvicorn.run(shop, factory=True, port=chosen.serve, lifespan="off", log_level="error")
        return
    length = chosen.seconds or (20.0 if chosen.record else 4.0)
    runs = {"polite": asyncio.run(a_day(polite, length)), "rude": asyncio.run(a_day(rude, length))}
    for title, moments in runs.items():
        show(f"{title} clients", moments, length)
    if chosen.record:
        numbers = {title: [asdict(moment) for moment in moments] for title, moments in runs.items()}
        chosen.record.write_text(json.dumps({"seconds": length, "runs": numbers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
