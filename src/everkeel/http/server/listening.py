"""Noticing that a caller has hung up while its request waits in line, so that nobody works for someone who is gone."""

from __future__ import annotations

import asyncio
from collections import deque

from everkeel.http.server.asgi import Message, Receive
from everkeel.runtime.expiry import expired_by_us

_GONE = ("http.disconnect", "websocket.disconnect")


class HungUp(Exception):  # noqa: N818 - not an error: nobody is there any more to be told of one
    """The caller has hung up before its turn came."""


class Listening:
    """A block in which the current task is cancelled, and `HungUp` raised, when the caller hangs up.

    To hear that, messages have to be read: at most one part of the body, which the application gets from `receive` as
    if nothing had happened. A longer body stays with the server, and a caller who is still sending it is not listened
    to any further. `stop` ends the listening when the turn has come.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read: deque[Message] = deque()
        self._hung_up = False
        self._ear: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Listening:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("listening needs a running task")
        self._task, self._cancelling = task, task.cancelling()
        self._ear = asyncio.create_task(self._listen())
        return self

    async def _listen(self) -> None:
        while True:
            message = await self._receive()
            self._read.append(message)
            if message["type"] in _GONE:
                self._hung_up = True
                self._task.cancel()
                return
            if message["type"] != "http.request" or message.get("more_body"):
                return

    async def stop(self) -> None:
        """The turn has come: from now on the application reads for itself."""
        ear, self._ear = self._ear, None
        if ear is None:
            return
        ear.cancel()
        try:
            await ear
        except asyncio.CancelledError:
            if not ear.cancelled():
                raise  # it was this task that was cancelled
        except Exception:  # the server could not be read from: the application will hear so itself
            return

    async def receive(self) -> Message:
        """The next message: those that were read first."""
        return self._read.popleft() if self._read else await self._receive()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.cancel()
        if self._hung_up and expired_by_us(self._task, self._cancelling, error):
            raise HungUp from None
