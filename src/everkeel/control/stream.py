"""Server-sent events to readers of every speed: nobody waits for a slow one, and a slow one costs bounded memory.

Every reader has a short queue. One that falls behind by more is told so (`event: dropped`) as soon as it reads again,
and its connection ends; one that does not read at all is given up after a while. The others notice nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_log = logging.getLogger("everkeel.control")

MOST_MESSAGES = 256
"""That wait for one reader; each holds all that happened in a quarter of a second, so this is a minute."""
MOST_BYTES = 4 * 1024 * 1024
HEARTBEAT = 15.0
LONGEST = 3600.0
"""Seconds after which a stream ends, so that whoever reads it shows anew that they may."""
STALL = 30.0
"""Seconds that one write may take before the reader is given up."""


def message(event: str, data: Any, number: int | None = None) -> bytes:
    """One server-sent event.

    >>> message("changes", {"version": 3}, 7)
    b'id: 7\\nevent: changes\\ndata: {"version":3}\\n\\n'
    """
    head = "" if number is None else f"id: {number}\n"
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))  # one line: newlines are escaped
    return f"{head}event: {event}\ndata: {text}\n\n".encode()


class Reader:
    """The queue of one reader, on one event loop."""

    def __init__(self, who: str, until: float, wants: Callable[[dict[str, Any]], bool] | None = None) -> None:
        """Of whom, until when (by the monotonic clock), and which happenings; all of them by default."""
        self.who, self.until, self.wants = who, until, wants
        self.version: int | None = None  # of the numbers it has; None: it has not got its first snapshot yet
        self.dropped = 0
        """How many rounds it did not get because it was too slow."""
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._over = False
        self._news = asyncio.Event()

    def offer(self, one: bytes) -> None:
        """Put a message into its queue; where that is full, it is told that it was dropped, and nothing after that."""
        if self._over:
            self.dropped += 1 if self.dropped else 0
            return
        if len(self._queue) >= MOST_MESSAGES or self._bytes + len(one) > MOST_BYTES:
            self.dropped = len(self._queue) + 1
            self.end("dropped", f"you read too slowly: {self.dropped} rounds were not sent; connect again")
            return
        self._queue.append(one)
        self._bytes += len(one)
        self._news.set()

    def end(self, event: str, reason: str, *, again: bool = False) -> None:
        """Let the stream end after what a reader that keeps up has in its queue; a dropped one gets only the notice.

        `again`: nothing is wrong, it may connect again at once.
        """
        if self._over:
            return
        if event == "dropped":
            self._queue.clear()
            self._bytes = 0
        self._over = True
        self._queue.append(message(event, {"reason": reason, "again": again}))
        self._news.set()

    async def messages(self) -> AsyncIterator[bytes]:
        """What is in the queue, as it comes; a comment from time to time, which keeps proxies from hanging up."""
        while True:
            while self._queue:
                one = self._queue.popleft()
                self._bytes = max(0, self._bytes - len(one))
                yield one
            if self._over:
                return
            self._news.clear()
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await self._news.wait()
            except TimeoutError:
                yield b": still here\n\n"


class EventStream:
    """An ASGI response that writes what a reader gets, until it leaves, is dropped, or does not read."""

    def __init__(
        self,
        reader: Reader,
        first: AsyncIterator[bytes],
        headers: dict[str, str],
        leave: Callable[[Reader], None],
        stall: float = STALL,
    ) -> None:
        self._reader, self._first, self._leave, self._stall = reader, first, leave, stall
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {**self._headers, "content-type": "text/event-stream", "x-accel-buffering": "no"}
        start = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        writing = asyncio.ensure_future(self._write(start, send))
        leaving = asyncio.ensure_future(self._left(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leave(self._reader)
            for task in (writing, leaving):
                task.cancel()
            results = await asyncio.gather(writing, leaving, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError):  # OSError: it went away
                raise result

    async def _write(self, start: dict[str, Any], send: Send) -> None:
        try:
            await self._put(send, start)
            await self._put(send, _chunk(b"retry: 2000\n\n"))
            async for one in self._first:
                await self._put(send, _chunk(one))
            async for one in self._reader.messages():
                await self._put(send, _chunk(one))
            await self._put(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            _log.warning("a reader of a live stream did not read for %g s; its connection is closed", self._stall)

    async def _put(self, send: Send, one: dict[str, Any]) -> None:
        async with asyncio.timeout(self._stall):
            await send(one)

    async def _left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def _chunk(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}


def server_is_stopping() -> bool:
    """Has the server been asked to stop? A graceful stop waits for responses to end, and live streams never do.

    uvicorn has no way to tell applications; but its server is the owner of the signal handler.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
