"""A service of your own: bookings of boats over HTTP, with a saga, events, metrics and a dashboard, in one file.

    python service.py                       # what it needs: pip install everkeel[starlette,uvicorn,yaml,prometheus]
    curl -d '{"id": "ada", "deposit": 20000}' http://127.0.0.1:8000/bookings
    curl http://127.0.0.1:8000/bookings/ada

A booking sets a boat aside, charges a deposit and is confirmed; or what was done of that is undone. Who has booked is
written to, by somebody who hears of it through an event. Kill it at any time (`kill -9`) and start it again: it carries
on. It is the shop of `everkeel demo` (`running.py`, `orders.py`) without its second and third service.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from everkeel import circuit_breaker, config, guard, timeout
from everkeel.control import ControlPlane, Token, dead_letters_section, outbox_section, sagas_section
from everkeel.demo.shop import books
from everkeel.demo.shop.books import Books
from everkeel.engines import SQLiteEngine
from everkeel.messaging import Consumer, DeadLetters, Event, Outbox, SQLiteTransport
from everkeel.sagas import Context, Orchestrator, Saga, Step
from everkeel.telemetry import StoreMetrics, metrics_app

HERE = Path(__file__).parent
Booking = dict[str, Any]


class Bookings:
    """The service. `folder`: where its data are. `bank_takes`: seconds, so that there is time to kill it."""

    def __init__(self, folder: Path, *, bank_takes: float = 0.1) -> None:
        self.engine = SQLiteEngine(folder / "bookings.db")
        self.transport = SQLiteTransport(folder / "events.db")
        self.outbox = Outbox(self.engine, transport=self.transport, name="bookings", topic="bookings")
        self.boats, self.deposits = Books(self.engine, "inventory"), Books(self.engine, "payments")
        self.letters = DeadLetters(self.engine)
        self._bank_takes = bank_takes
        # Whatever leaves this process gets a time limit and a circuit, with settings in everkeel.yaml.
        bank = guard(timeout=timeout(2, name="bank"), circuit_breaker=circuit_breaker("bank"))
        self.saga: Saga[Booking, dict[str, Any], str] = Saga(
            "booking",
            Step("reserve", self.reserve, self.release),
            Step("charge", self.charge, self.refund, policies=bank),
            Step("confirm", self.confirm, pivot=True),
            deadline=60,
        )

    # Every step may run twice, when a process dies in it: the books recognise the second time by the booking's id.

    async def reserve(self, context: Context[Booking, Any]) -> None:
        await self.boats.enter(books.reserve(context.saga_id, "boat", 1))

    async def release(self, context: Context[Booking, Any]) -> None:
        await self.boats.enter(books.release(context.saga_id))

    async def charge(self, context: Context[Booking, Any]) -> None:
        await asyncio.sleep(self._bank_takes)  # put the request to your bank here, with `context.key` for idempotency
        await self.deposits.enter(books.charge(context.saga_id, context.input["deposit"]))

    async def refund(self, context: Context[Booking, Any]) -> None:
        await self.deposits.enter(books.refund(context.saga_id))

    async def confirm(self, context: Context[Booking, Any]) -> str:
        # The id makes the event the same one if this runs twice: consumers handle it once.
        done = Event(
            "BookingConfirmed", {"who": context.saga_id}, source="/bookings", id=f"{context.saga_id}:confirmed"
        )
        async with self.outbox.transaction() as tx:  # put what confirming changes in your tables here, too
            await self.outbox.write(done, tx=tx)
        return "booked"

    def consumer(self) -> Consumer:
        consumer = Consumer(
            "postman", self.transport, topics="bookings", engine=self.engine, dead_letters=self.letters, attempts=3
        )

        @consumer.on("BookingConfirmed")
        async def write_to(event: Event, tx: Any) -> None:
            print(f"Dear {event.data['who']}, your boat is booked.", flush=True)

        return consumer

    async def book(self, request: Request) -> Response:
        try:
            booking = await request.json()
            id, deposit = booking["id"], booking["deposit"]
            if not (isinstance(id, str) and id and type(deposit) is int and deposit > 0):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            return JSONResponse({"error": 'a booking is {"id": text, "deposit": cents, more than 0}'}, 400)
        await self.orchestrator.start(self.saga, {"deposit": deposit}, id=id)  # asking twice changes nothing
        return JSONResponse({"id": id}, 202)

    async def show(self, request: Request) -> Response:
        saga = await self.orchestrator.store.load(request.path_params["id"])
        if saga is None:
            return JSONResponse({"error": "no such booking"}, 404)
        return JSONResponse({"id": saga.id, "state": saga.state.value})

    async def run(self, port: int, token: str) -> None:
        config.load(HERE / "everkeel.yaml")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.engine)
            await self.boats.open()
            await self.deposits.open()
            if not await self.boats.number("SELECT count(*) FROM stock"):
                await self.boats.enter(books.restock("boat", 3))
            self.orchestrator = await stack.enter_async_context(Orchestrator(self.engine, self.saga, lease=3))
            relay = await stack.enter_async_context(self.outbox.relay())
            consumer = await stack.enter_async_context(self.consumer())
            await stack.enter_async_context(StoreMetrics(self.engine, consumers=[consumer], relays=[relay]))
            plane = ControlPlane(tokens=[Token("operator", "admin", token)])
            plane.add_section(sagas_section(self.orchestrator, dead_letters=self.letters))
            plane.add_section(dead_letters_section(self.letters))
            plane.add_section(outbox_section(self.outbox, relay))
            app = Starlette(
                routes=[
                    Route("/bookings", self.book, methods=["POST"]),
                    Route("/bookings/{id}", self.show),
                    Mount("/metrics", metrics_app()),
                ]
            )
            settings = uvicorn.Config(plane.beside(app), host="127.0.0.1", port=port, log_level="warning", ws="none")
            await uvicorn.Server(settings).serve()


def main() -> None:
    port, token = int(os.environ.get("PORT", "8000")), os.environ.get("TOKEN") or secrets.token_urlsafe(24)
    print(f"bookings   http://127.0.0.1:{port}/bookings\ndashboard  http://127.0.0.1:{port}/everkeel/")
    print(f"token      {token}", flush=True)
    service = Bookings(Path.cwd(), bank_takes=float(os.environ.get("BANK_TAKES", "0.1")))
    asyncio.run(service.run(port, token))


if __name__ == "__main__":
    main()
