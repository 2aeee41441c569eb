"""The connection that listens for wake-ups, where two things happen at once."""

from __future__ import annotations

import asyncio

import pytest

from everkeel.engines.postgres.wakeup import Listener
from everkeel.runtime.clock import DEFAULT


class Connection:
    """As much of asyncpg's as the listener uses."""

    def __init__(self):
        self.terminated = asyncio.Event()

    async def add_listener(self, channel, heard):
        pass

    def add_termination_listener(self, told):
        self.cut = lambda: told(self)

    async def fetchval(self, query, timeout):
        raise ConnectionError("connection is closed")

    def terminate(self):
        self.terminated.set()


@pytest.mark.parametrize("turns", range(4))
def test_who_is_cancelled_in_the_moment_the_server_goes_away_ends(monkeypatch, turns):
    async def main():
        import asyncpg

        connection = Connection()

        async def connect(*args, **kwargs):
            return connection

        monkeypatch.setattr(asyncpg, "connect", connect)
        listener = Listener("postgresql://nowhere", "asyncpg", DEFAULT)
        listening = asyncio.ensure_future(listener.run(lambda topic: None))
        await listener.connected.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        connection.cut()
        for _ in range(turns):
            await asyncio.sleep(0)
        listening.cancel()
        done, _ = await asyncio.wait({listening}, timeout=5)
        assert done
        assert listening.cancelled()
        assert connection.terminated.is_set()

    asyncio.run(main())
