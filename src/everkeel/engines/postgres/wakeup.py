"""The wake-up signal over LISTEN and NOTIFY: a hint, sent outside of business transactions and never one per event.

NOTIFY takes a lock at commit that all committing transactions of the server queue for, so it is sent by itself, on one
of the engine's own connections, and what is signalled within a few milliseconds is sent once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from everkeel.engines.postgres.sockets import hang_up
from everkeel.engines.sql.runners import arun_on, begun, begun_sync, in_transaction, run_on
from everkeel.engines.sql.statement import Statement, one
from everkeel.engines.wakeup import LocalWakeup
from everkeel.runtime.clock import Clock
from everkeel.runtime.trouble import warn

CHANNEL = "everkeel"
ANYTHING = "*"
"""In place of a topic: whatever anybody waits for."""
GATHER = 0.01
"""Seconds for which signals to other processes are gathered into one."""
KEEPALIVE = 10.0
"""Seconds between two looks at whether the listening connection is alive: a dead one can look healthy for hours."""
ANSWER = 5.0
"""Seconds within which it must answer such a look."""
CONNECT = 5
"""Seconds within which a new one must be there."""
MOST_DELAY = 30.0
"""Seconds between two tries to connect again, at most."""


def notification(topic: str) -> Statement:
    """The statement that tells other processes."""
    return Statement(f"SELECT pg_notify('{CHANNEL}', CAST(:topic AS text))", {"topic": topic})


class PostgresWakeup:
    """Wakes who waits, in this process at once and in others a moment later."""

    def __init__(self, clock: Clock, send: Callable[[str], Awaitable[object]], listen: Listener | None) -> None:
        self._local = LocalWakeup(clock)
        self._clock = clock
        self._send = send
        self._listener = listen
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gathered: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Signals to other processes are sent from this loop."""
        self._loop = loop
        if self._listener is not None:
            self._listening = loop.create_task(self._listener.run(self._heard), name="everkeel-listen")

    def notify(self, topic: str) -> None:
        self._local.notify(topic)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: who polls will see
                self._loop.call_soon_threadsafe(self._gather, topic)

    def notify_through(self, topic: str, connect: Callable[[], AbstractContextManager[Any]]) -> None:
        """The same in a process without an event loop, which has only a connection of the caller's, in no transaction;
        it is asked for only where it is needed."""
        self.notify(topic)
        if self._loop is None:
            with connect() as connection, begun_sync(connection):
                run_on(connection, one(notification(topic)))

    async def anotify_through(self, topic: str, connection: Any) -> None:
        """The same where the engine was never started, because all its process does is write."""
        self.notify(topic)
        if self._loop is None and not in_transaction(connection):
            async with begun(connection):
                await arun_on(connection, one(notification(topic)))

    def _heard(self, topic: str) -> None:
        if topic == ANYTHING:
            self._local.notify_all()
        else:
            self._local.notify(topic)

    def _gather(self, topic: str) -> None:
        self._gathered.add(topic)
        if self._sending is None and self._loop is not None:
            self._sending = self._loop.create_task(self._send_gathered(), name="everkeel-notify")

    async def _send_gathered(self) -> None:
        try:
            await self._clock.asleep(GATHER)
            while self._gathered:
                await self._send(self._gathered.pop())
        except Exception as error:
            warn("cannot tell other processes that there are events (they will find them when they poll): %s", error)
        finally:
            self._sending = None

    async def wait(self, topic: str, timeout: float) -> bool:
        return await self._local.wait(topic, timeout)

    async def close(self) -> None:
        """Send and listen no more."""
        self._loop = None
        for task in (self._sending, self._listening):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


class Listener:
    """Holds one direct connection that listens, and opens another when it dies."""

    def __init__(self, dsn: str, driver: str, clock: Clock) -> None:
        self._dsn, self._clock = dsn, clock
        self._listen = self._with_asyncpg if driver == "asyncpg" else self._with_psycopg
        self.connected = asyncio.Event()
        """Set while it listens."""

    async def run(self, heard: Callable[[str], object]) -> None:
        """Listen until cancelled. While it cannot, those who wait poll."""
        delay = 0.5
        while True:
            try:
                await self._listen(heard)
            except Exception as error:
                delay = 1.0 if self.connected.is_set() else min(2 * delay, MOST_DELAY)
                self.connected.clear()
                warn("the connection that listens for events is gone, polling meanwhile (next try in %.3g s): %s",
                     delay, str(error) or type(error).__name__)  # fmt: skip
                await self._clock.asleep(delay)

    def _begun(self, heard: Callable[[str], object]) -> None:
        self.connected.set()
        heard(ANYTHING)  # was signalled while nobody listened

    async def _with_asyncpg(self, heard: Callable[[str], object]) -> None:
        import asyncpg  # type: ignore[import-untyped]  # it ships no types

        connecting = asyncio.ensure_future(asyncpg.connect(self._dsn, timeout=CONNECT, statement_cache_size=0))
        try:
            connection: Any = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            # Cancelled halfway, asyncpg would leave the connection open behind us.
            with suppress(Exception):
                (await connecting).terminate()
            raise
        try:
            await connection.add_listener(CHANNEL, lambda connection, pid, channel, topic: heard(topic))
            cut = asyncio.Event()
            connection.add_termination_listener(lambda connection: cut.set())
            self._begun(heard)
            while not cut.is_set():
                # Not `wait_for`, which in Python 3.11 swallows a cancellation that comes together with its result: a
                # server that goes away both cuts us and makes its users close the engine.
                with suppress(TimeoutError):
                    async with asyncio.timeout(KEEPALIVE):
                        await cut.wait()
                await connection.fetchval("SELECT 1", timeout=ANSWER)  # also raises when it was cut
        finally:
            connection.terminate()

    async def _with_psycopg(self, heard: Callable[[str], object]) -> None:
        import psycopg

        connection = await psycopg.AsyncConnection.connect(
            self._dsn, autocommit=True, prepare_threshold=None, connect_timeout=CONNECT
        )
        try:
            await connection.execute(f"LISTEN {CHANNEL}")
            self._begun(heard)
            while True:
                async for notify in connection.notifies(timeout=KEEPALIVE):
                    heard(notify.payload)
                await _answers(connection)
        finally:
            await connection.close()


async def _answers(connection: Any) -> None:
    """Ask a connection of psycopg's whether it is alive. A timeout that cancels would do nothing here: psycopg then
    asks the server to cancel, and waits for the end of the statement all the same."""
    looking = asyncio.ensure_future(connection.execute("SELECT 1"))
    looking.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await asyncio.wait({looking}, timeout=ANSWER)
    finally:
        if silent := not looking.done():
            hang_up(connection.fileno())
    if silent:
        raise TimeoutError(f"no answer within {ANSWER:g} s")
    await looking
