"""Orders: taken over HTTP, fulfilled as a saga; half of them orchestrated, half by services that react to events.

The orchestrated saga is `fulfilment` below: accept, reserve, charge, confirm, and what undoes each. In the other style
nobody is in charge: `OrderPlaced` makes the inventory reserve, `StockReserved` makes the payments charge,
`PaymentTaken` confirms. An order that is not settled in time is withdrawn, and everybody undoes their part.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from everkeel import circuit_breaker, guard, rate_limit, timeout
from everkeel.demo.shop import books
from everkeel.demo.shop.running import Running
from everkeel.demo.shop.withdrawing import Withdrawing
from everkeel.errors import NotRetryable
from everkeel.http import RateLimitMiddleware
from everkeel.messaging import Consumer, Event
from everkeel.sagas import Context, Orchestrator, Saga, Step

DEADLINE = 8.0
"""Seconds an order may take before it is given up."""


class RefusedError(NotRetryable):
    """A neighbour said no, for a business reason."""


class Orders(Running):
    """Takes orders, and sees that each is confirmed or cancelled."""

    service = "orders"

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Open what it works with."""
        self._http = await stack.enter_async_context(httpx2.AsyncClient(timeout=5.0))
        self.saga = self.fulfilment()
        self.orchestrator = Orchestrator(self.engine, self.saga, lease=3.0, poll=0.5)
        await stack.enter_async_context(self.orchestrator)
        await stack.enter_async_context(Withdrawing(self.books, self.outbox, DEADLINE))

    # ------------------------------------------------------------------ orchestrated

    def fulfilment(self) -> Saga[dict[str, Any], dict[str, Any], str]:
        """The whole business transaction in one place."""
        reserving = guard(timeout=timeout(1, name="shop.reserve"), circuit_breaker=circuit_breaker("shop.reserve"))
        charging = guard(timeout=timeout(1, name="shop.charge"), circuit_breaker=circuit_breaker("shop.charge"))
        return Saga(
            "fulfilment",
            Step("accept", self._accept, self._cancel),
            Step("reserve", self._reserve, self._release, policies=reserving, attempts=4),
            Step("charge", self._charge, self._refund, policies=charging, attempts=4),
            Step("confirm", self._confirm, pivot=True),
            deadline=DEADLINE,
        )

    async def _accept(self, context: Context[Any, Any]) -> str:
        return "accepted"  # it is in the books already; from here on it will be cancelled if it cannot be fulfilled

    async def _cancel(self, context: Context[Any, Any]) -> None:
        await self.books.enter(books.settle(context.input["id"], "cancelled"))

    async def _reserve(self, context: Context[Any, Any]) -> str:
        return await self._ask("POST", "inventory", "reservations", context)

    async def _release(self, context: Context[Any, Any]) -> None:
        await self._ask("DELETE", "inventory", "reservations", context)

    async def _charge(self, context: Context[Any, Any]) -> str:
        return await self._ask("POST", "payments", "charges", context)

    async def _refund(self, context: Context[Any, Any]) -> None:
        await self._ask("DELETE", "payments", "charges", context)

    async def _confirm(self, context: Context[Any, Any]) -> str:
        await self.books.enter(books.settle(context.input["id"], "confirmed"))
        return "confirmed"

    async def _ask(self, method: str, service: str, what: str, context: Context[Any, Any]) -> str:
        """Ask a neighbour. 409 is a business no; everything else that is no yes is trouble, and may pass."""
        url = f"{self.world.url(service)}/{what}/{context.input['id']}"
        headers = {"Idempotency-Key": f'"{context.key}"'}
        try:
            answer = await self._http.request(method, url, json=context.input, headers=headers)
        except httpx2.TransportError as error:
            raise ConnectionError(f"{service}: {error!r}") from error
        if answer.status_code == 409:
            raise RefusedError(answer.json()["message"])
        if answer.status_code != 200:
            raise ConnectionError(f"{service} answered {answer.status_code}")
        return str(answer.json()["done"])

    # ------------------------------------------------------------------ choreographed

    def consumers(self) -> list[Consumer]:
        """What happens to orders that nobody orchestrates."""
        consumer = self.consumer("orders")

        @consumer.on("PaymentTaken")
        async def confirm(event: Event, tx: Any) -> None:
            if not await self.books.enter(books.settle(event.data["id"], "confirmed"), tx):
                # Too late: it was withdrawn. The money goes back as it does for every withdrawn order.
                await self.outbox.write(event.caused("OrderWithdrawn", event.data, source="/orders"), tx=tx)

        @consumer.on("StockRefused", "PaymentRefused")
        async def cancel(event: Event, tx: Any) -> None:
            await self.books.enter(books.settle(event.data["id"], "cancelled"), tx)

        return [consumer]

    # ------------------------------------------------------------------ HTTP

    def app(self) -> Any:
        """What it answers over HTTP, behind a limit of its own."""
        app = Starlette(routes=[Route("/orders", self._place, methods=["POST"]), Route("/orders/{id}", self._show)])
        return RateLimitMiddleware(app, rate_limit(120, name="shop.front"))

    async def _place(self, request: Request) -> Response:
        order = await request.json()
        entry = books.place(order["id"], order["item"], order["count"], order["amount"], order["style"])
        # The order and what makes somebody deal with it: both, or neither. Asking twice changes nothing.
        async with self.engine.transaction() as tx:
            if await self.books.enter(entry, tx):
                if order["style"] == "orchestrated":
                    await self.orchestrator.start(self.saga, order, id=order["id"], tx=tx)
                else:
                    placed = Event("OrderPlaced", order, source="/orders", id=order["id"], key=order["id"])
                    await self.outbox.write(placed, tx=tx)
        self.outbox.wake()
        return JSONResponse({"id": order["id"]}, 202)

    async def _show(self, request: Request) -> Response:
        rows = await self.books.rows(
            "SELECT id, status, style FROM orders WHERE id = :id", id=request.path_params["id"]
        )
        if not rows:
            return JSONResponse({"error": "no such order"}, 404)
        return JSONResponse(dict(zip(("id", "status", "style"), rows[0], strict=True)))
