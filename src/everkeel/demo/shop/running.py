"""What every service of the shop has: an engine, an outbox with its relay, consumers, metrics, and a web server."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from importlib.resources import as_file, files
from typing import Any, ClassVar

from everkeel import config
from everkeel.control import ControlPlane, Token, dead_letters_section, inbox_section, outbox_section
from everkeel.demo.shop.books import Books
from everkeel.demo.shop.choreography import CHOREOGRAPHY
from everkeel.demo.shop.world import TOPIC, World
from everkeel.messaging import Consumer, DeadLetters, Event, Inbox, Outbox, Relay
from everkeel.telemetry import PolicyCollector, StoreMetrics, metrics_app
from everkeel.testing import crash_as_told

ATTEMPTS = 3
"""How often an event is tried before it becomes a dead letter. A kill in the middle is a try, too."""


class Running:
    """A service that runs. Subclasses say what it answers (`app`) and what it reacts to (`consumers`)."""

    service: ClassVar[str]

    def __init__(self, world: World) -> None:
        self.world = world
        self.engine: Any = world.engine_of(self.service)
        self.transport: Any = world.transport_of(self.service)
        self.books = Books(self.engine, self.service)
        self.outbox = Outbox(self.engine, transport=self.transport, name=self.service, topic=TOPIC)
        self.relay: Relay = self.outbox.relay(poll=0.2, lease=3.0, maintenance=min(60.0, world.retain / 2))
        self._server: Any = None
        self.letters = DeadLetters(self.engine, retain=world.retain)

    def app(self) -> Any:
        """What it answers over HTTP."""
        raise TypeError(f"{type(self).__name__} does not say what it answers")

    def consumers(self) -> list[Consumer]:
        """What it does about events."""
        return []

    def consumer(self, name: str, **settings: Any) -> Consumer:
        """A consumer of the shop's events: short leases, because here services are killed for show."""
        inbox = Inbox(name, self.engine, lease=3.0, retain=self.world.retain)
        return Consumer(
            name, self.transport, topics=TOPIC, engine=self.engine, inbox=inbox, dead_letters=self.letters, lease=3.0,
            attempts=ATTEMPTS, backoff=0.2, max_pause=1.0, concurrency=6, **settings,
        )  # fmt: skip

    def answer(self, type: str, event: Event, *, reason: str | None = None, id: str | None = None) -> Event:
        """What this service says because of an event of a choreographed saga, marked with the saga and step."""
        data = event.data if reason is None else {**event.data, "reason": reason}
        more = {} if id is None else {"id": id}
        return CHOREOGRAPHY.mark(event.caused(type, data, source=f"/{self.service}", **more), cause=event)

    async def prepare(self, stack: AsyncExitStack) -> None:
        """More to start, and to end with the service."""

    async def run(self, *, alone: bool = True) -> None:
        """Serve until told to stop. `alone`: the process is the service's, and so are its signals."""
        import uvicorn

        with as_file(files("everkeel.demo.shop").joinpath("everkeel.yaml")) as path:
            config.load(path, env={})
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.engine)
            await self.books.open()
            await self.prepare(stack)
            await stack.enter_async_context(self.relay)
            consumers = self.consumers()
            for consumer in consumers:
                await stack.enter_async_context(consumer)
            measured = StoreMetrics(
                self.engine, name=self.service, every=1, consumers=consumers, relays=[self.relay]
            )  # fmt: skip
            await stack.enter_async_context(measured)
            app = self.plane().beside(_at("/metrics", self.metrics(stack), self.app()))
            settings = uvicorn.Config(
                app, host="127.0.0.1", port=self.world.ports[self.service],
                log_level="error", log_config=None, ws="none", timeout_graceful_shutdown=1,
            )  # fmt: skip
            self._server = uvicorn.Server(settings) if alone else _guest()(settings)
            await self._server.serve()

    def leave(self) -> None:
        """Be asked to end, where there is no signal to do so."""
        if self._server is not None:
            self._server.should_exit = True

    def metrics(self, stack: AsyncExitStack) -> Any:
        """The numbers of its policies, its events and its sagas, for Prometheus."""
        from prometheus_client import CollectorRegistry

        collector, registry = PolicyCollector(histograms=True), CollectorRegistry()
        registry.register(collector)
        stack.callback(collector.close)
        return metrics_app(registry)

    def plane(self) -> ControlPlane:
        """The control plane of the service, with its dead letters, its outbox and its inbox."""
        plane = ControlPlane(tokens=[Token("operator", "admin", self.world.token)], requests_per_second=500)
        plane.add_section(dead_letters_section(self.letters))
        plane.add_section(outbox_section(self.outbox, self.relay))
        plane.add_section(inbox_section(self.engine.inbox))
        return plane


def _at(path: str, this: Any, elsewhere: Any) -> Any:
    """One ASGI application at a path, another one everywhere else."""

    async def either(scope: Any, receive: Any, send: Any) -> None:
        await (this if scope["type"] == "http" and scope["path"] == path else elsewhere)(scope, receive, send)

    return either


def _guest() -> Any:
    """A server that leaves the signals of the process alone."""
    import uvicorn

    class Guest(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Guest


def main(arguments: list[str]) -> None:
    """`python -m everkeel.demo.shop SERVICE WORLD.json`: one service, in a process of its own."""
    from everkeel.demo.shop.services import SERVICE_CLASSES

    name, path = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the director ends its services itself
    crash_as_told()  # nothing, unless a test of crashes says so
    world = World.read(path)
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_outlive_nobody, args=(world,), daemon=True).start()
    asyncio.run(SERVICE_CLASSES[name](world).run())


def _outlive_nobody(world: World) -> None:
    """Our input ends when the director does, however it does: then nobody needs us, our servers and files any more."""
    while os.read(0, 4096):
        pass
    time.sleep(0.5)  # one that ends as it should has told us so by now, and cleans up itself
    for pid in world.servers.values():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGINT)  # both kinds end at once, and in order
    time.sleep(1.0 if world.servers else 0.0)
    for folder in (world.folder, *world.servers):
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
