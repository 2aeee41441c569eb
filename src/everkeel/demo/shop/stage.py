"""The stage: starts the services (in processes of their own, or all in this one), kills them, and cleans up."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Self

from everkeel.demo.shop.books import Books
from everkeel.demo.shop.world import SERVICES, World
from everkeel.runtime.clock import DEFAULT
from everkeel.testing import servers

READY_WITHIN = 30.0


class Stage:
    """The shop, running. `async with Stage("sqlite", "sqlite") as stage:`"""

    def __init__(self, engine: str, transport: str) -> None:
        self._engine, self._transport = engine, transport
        self._stack = AsyncExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.world: World
        self.books: dict[str, Books] = {}
        self.stocked = 0

    @property
    def in_one_process(self) -> bool:
        """With the transport in memory there is only one process, and nothing to kill."""
        return self._transport == "memory"

    async def __aenter__(self) -> Self:
        try:
            await self._build()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        for name in SERVICES:
            await self.stop(name)
        await self._stack.aclose()

    async def _build(self) -> None:
        folder = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="everkeel-shop-", ignore_cleanup_errors=True)
        )
        databases, redis = {}, ""
        if self._engine == "postgres":
            server = self._stack.enter_context(servers.postgres())
            databases = {name: await asyncio.to_thread(_database, server.address, name) for name in SERVICES}
        if self._transport == "redis":
            redis = self._stack.enter_context(servers.redis(durable=True)).address
        ports = {name: servers.free_port() for name in SERVICES}
        self.world = World(folder, self._engine, self._transport, ports, databases, redis)
        self._path = self.world.save()
        for name in SERVICES:
            await self.start(name)
        for name in SERVICES:
            engine = self.world.engine_of(name)
            await self._stack.enter_async_context(engine)
            self.books[name] = Books(engine, name)

    # ------------------------------------------------------------------ services

    async def start(self, name: str) -> None:
        """Start a service, and wait until it answers."""
        if self.in_one_process:
            from everkeel.demo.shop.services import SERVICE_CLASSES

            service = SERVICE_CLASSES[name](self.world)
            self._tasks[name] = asyncio.ensure_future(service.run(alone=False))
        else:
            self._processes[name] = self._process(name)
        give_up = DEFAULT.monotonic() + READY_WITHIN
        while not await self.answers(name):
            self._must_live(name)
            if DEFAULT.monotonic() > give_up:
                raise RuntimeError(f"the {name} service did not start:\n{self.log(name)}")
            await DEFAULT.asleep(0.05)

    def _process(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "everkeel.demo.shop", name, str(self._path)]
        with (Path(self.world.folder) / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _must_live(self, name: str) -> None:
        process, task = self._processes.get(name), self._tasks.get(name)
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the {name} service ended:\n{self.log(name)}")
        if task is not None and task.done():
            task.result()

    async def answers(self, name: str) -> bool:
        """Does anybody listen there?"""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.world.ports[name])
        except OSError:
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    async def kill(self, name: str) -> None:
        """`kill -9`: no goodbye, no cleaning up."""
        process = self._processes[name]
        process.kill()
        await asyncio.to_thread(process.wait)

    async def stop(self, name: str) -> None:
        """Let a service end by itself; help it if it does not."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        process = self._processes.pop(name, None)
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, 8)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)

    def log(self, name: str) -> str:
        """The last of what a service said."""
        path = Path(self.world.folder) / f"{name}.log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""


def _database(address: str, name: str) -> str:
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "shop_{name}"'.encode())
    return f"{address.rsplit('/', 1)[0]}/shop_{name}"


__all__ = ["Stage"]
