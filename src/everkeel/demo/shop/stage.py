"""The stage: starts the services (in processes of their own, or all in this one), kills them, and cleans up."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from everkeel.demo.shop.books import Books
from everkeel.demo.shop.world import SERVICES, World
from everkeel.runtime.clock import DEFAULT
from everkeel.testing import servers
from everkeel.testing.crashing import VARIABLE

READY_WITHIN = 30.0


class Stage:
    """The shop, running. `async with Stage("sqlite", "sqlite") as stage:`"""

    def __init__(self, engine: str, transport: str, *, retain: float = 900.0) -> None:
        self._engine, self._transport, self._retain = engine, transport, retain
        self._stack = AsyncExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._guests: dict[str, Any] = {}
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
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            await asyncio.gather(*(self.stop(name) for name in SERVICES))
        finally:
            for process in self._processes.values():  # interrupted once more: no time for goodbyes
                process.kill()
            await self._stack.aclose()

    async def _build(self) -> None:
        folder = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="everkeel-shop-", ignore_cleanup_errors=True)
        )
        databases, redis, started = {}, "", []
        if self._engine == "postgres":
            server = self._stack.enter_context(servers.postgres())
            started.append(server)
            databases = {name: await asyncio.to_thread(_database, server.address, name) for name in SERVICES}
        if self._transport == "redis":
            server = self._stack.enter_context(servers.redis(durable=True))
            started.append(server)
            redis = server.address
        ports = {name: servers.free_port() for name in SERVICES}
        pids = {str(server.folder): server.pid for server in started if server.pid is not None}
        self.world = World(
            folder, self._engine, self._transport, ports, databases, redis, servers=pids, retain=self._retain
        )
        self._path = self.world.save()
        if self.in_one_process:
            self._stack.enter_context(_logging_to(self._log_of("shop")))
        await asyncio.gather(*(self.start(name) for name in SERVICES))
        for name in SERVICES:
            engine = self.world.engine_of(name)
            await self._stack.enter_async_context(engine)
            self.books[name] = Books(engine, name)

    # ------------------------------------------------------------------ services

    async def start(self, name: str, *, crash_at: str = "") -> None:
        """Start a service, and wait until it answers; `crash_at` names a point at which it will kill itself."""
        if self.in_one_process:
            from everkeel.demo.shop.services import SERVICE_CLASSES

            service = self._guests[name] = SERVICE_CLASSES[name](self.world)
            self._tasks[name] = asyncio.ensure_future(service.run(alone=False))
        else:
            self._processes[name] = self._process(name, crash_at)
        give_up = DEFAULT.monotonic() + READY_WITHIN
        while not await self.answers(name):
            if not self.lives(name):
                if crash_at:
                    return  # it was there before anybody could ask
                raise RuntimeError(f"the {name} service ended:\n{self.log(name)}")
            if DEFAULT.monotonic() > give_up:
                raise RuntimeError(f"the {name} service did not start:\n{self.log(name)}")
            await DEFAULT.asleep(0.05)

    def _process(self, name: str, crash_at: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "everkeel.demo.shop", name, str(self._path)]
        with self._log_of(name).open("ab") as log:
            # A session of its own, so that Ctrl+C is for the director alone; and a pipe that ends when it does.
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.PIPE, start_new_session=True,
                env={**os.environ, VARIABLE: crash_at},
            )  # fmt: skip

    def lives(self, name: str) -> bool:
        """Is the service there? One that runs in this process and has failed raises what it failed with."""
        process, task = self._processes.get(name), self._tasks.get(name)
        if task is not None and task.done():
            task.result()
        return task is not None or (process is not None and process.poll() is None)

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

    def pid(self, name: str) -> int:
        """The process of a service."""
        return self._processes[name].pid

    async def kill(self, name: str) -> None:
        """`kill -9`: no goodbye, no cleaning up."""
        process = self._processes[name]
        process.kill()
        await asyncio.to_thread(process.wait)
        _close(process)

    async def stop(self, name: str) -> None:
        """Let a service end by itself; help it if it does not."""
        task = self._tasks.pop(name, None)
        if task is not None:
            self._guests.pop(name).leave()
            await asyncio.wait([task], timeout=8)
            task.cancel()
            await asyncio.wait([task])
        process = self._processes.get(name)
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, 8)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        del self._processes[name]
        _close(process)

    def _log_of(self, name: str) -> Path:
        return Path(self.world.folder) / f"{name}.log"

    def log(self, name: str) -> str:
        """The last of what a service said."""
        path = self._log_of(name)
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def logs(self) -> dict[str, str]:
        """What the services said that said something: they are silent while all is well."""
        return {name: text for name in (*SERVICES, "shop") if (text := self.log(name).strip())}


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """In one process the services' logs would be in the middle of the play."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


def _database(address: str, name: str) -> str:
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "shop_{name}"'.encode())
    return f"{address.rsplit('/', 1)[0]}/shop_{name}"
