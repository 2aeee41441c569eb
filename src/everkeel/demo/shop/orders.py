"""Orders: taken over HTTP, fulfilled as a saga; half of them orchestrated, half by services that react to events.

The orchestrated saga is `fulfilment` below: accept, reserve, charge, confirm, and what undoes each. In the other style
nobody is in charge: `choreography` says which event follows which. The same store knows how far each saga is, of either
style, and the same deadline turns it back.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from everkeel import cache, chaos, circuit_breaker, enable_chaos, guard, rate_limit, timeout
from everkeel.control import ControlPlane, sagas_section
from everkeel.demo.shop import books
from everkeel.demo.shop.choreography import CHOREOGRAPHY, DEADLINE, OFTEN
from everkeel.demo.shop.customers import STYLES
from everkeel.demo.shop.requests import NUMBER, TEXT, body_of, one_of
from everkeel.demo.shop.running import Running
from everkeel.engines.sagas import SagaState
from everkeel.errors import NotRetryable
from everkeel.http import RateLimitMiddleware
from everkeel.messaging import Consumer, Event
from everkeel.sagas import Context, Orchestrator, Saga, Step

MOST_OPEN = 150
"""Orders that are under way at once. Who takes more than can be done in time will have to give all of them up."""


class RefusedError(NotRetryable):
    """A neighbour said no, for a business reason."""


class Orders(Running):
    """Takes orders, and sees that each is confirmed or cancelled."""

    service = "orders"

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Open what it works with."""
        self._http = await stack.enter_async_context(httpx2.AsyncClient(timeout=5.0))
        self.saga = self.fulfilment()
        self.orchestrator = Orchestrator(
            self.engine, self.saga, CHOREOGRAPHY, lease=3.0, poll=0.5, retain=self.world.retain
        )
        await stack.enter_async_context(self.orchestrator)

    def plane(self) -> ControlPlane:
        """Here also with the sagas, of both styles."""
        plane = super().plane()
        plane.add_section(sagas_section(self.orchestrator, dead_letters=self.letters))
        return plane

    # ------------------------------------------------------------------ orchestrated

    def fulfilment(self) -> Saga[dict[str, Any], dict[str, Any], str]:
        """The whole business transaction in one place."""
        reserving = guard(timeout=timeout(1, name="shop.reserve"), circuit_breaker=circuit_breaker("shop.reserve"))
        enable_chaos()  # it is idle: a rate of 0, until somebody gives it another one in the control plane
        charging = guard(
            timeout=timeout(1, name="shop.charge"), circuit_breaker=circuit_breaker("shop.charge"),
            chaos=chaos("shop.charge", rate=0.0, error=ConnectionError),
        )  # fmt: skip
        return Saga(
            "fulfilment",
            Step("accept", self._accept, self._cancel, undo_attempts=OFTEN),
            Step("reserve", self._reserve, self._release, policies=reserving, attempts=4, undo_attempts=OFTEN),
            Step("charge", self._charge, self._refund, policies=charging, attempts=4, undo_attempts=OFTEN),
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
            await self.orchestrator.observe(event, tx=tx)
            saga = await self.orchestrator.store.load(event.data["id"], tx=tx)
            # Where the saga has turned back it is too late, and the money is on its way back. Both are looked at in
            # this transaction, so an order is never confirmed and given up.
            if saga is not None and saga.state is SagaState.RUNNING:
                await self.books.enter(books.settle(event.data["id"], "confirmed"), tx)
                await self._tell(self.answer("OrderConfirmed", event), tx)

        @consumer.on("CancelOrder")
        async def cancel(event: Event, tx: Any) -> None:
            await self.books.enter(books.settle(event.data["saga"], "cancelled"), tx)
            await self._tell(self.answer("OrderCancelled", event), tx)

        @consumer.on("StockReserved", "StockRefused", "StockReleased", "PaymentRefused", "PaymentReturned")
        async def note(event: Event, tx: Any) -> None:
            await self.orchestrator.observe(event, tx=tx)

        return [consumer]

    async def _tell(self, event: Event, tx: Any) -> None:
        """Send what we did ourselves, and take note of it at once: the saga and the books change together."""
        await self.outbox.write(event, tx=tx)
        await self.orchestrator.observe(event, tx=tx)

    # ------------------------------------------------------------------ HTTP

    def app(self) -> Any:
        """What it answers over HTTP, behind a limit of its own."""
        app = Starlette(routes=[Route("/orders", self._place, methods=["POST"]), Route("/orders/{id}", self._show)])
        return RateLimitMiddleware(app, rate_limit(120, name="shop.front"))

    async def _place(self, request: Request) -> Response:
        order = await body_of(request, id=TEXT, item=TEXT, count=NUMBER, amount=NUMBER, style=one_of(*STYLES))
        entry = books.place(order["id"], order["item"], order["count"], order["amount"], order["style"])
        if await self._open_orders() >= MOST_OPEN:
            return JSONResponse({"error": "too many orders are open"}, 503, {"Retry-After": "1"})
        # The order and what makes somebody deal with it: both, or neither. Asking twice changes nothing.
        async with self.outbox.transaction() as tx:
            if await self.books.enter(entry, tx):
                if order["style"] == "orchestrated":
                    await self.orchestrator.start(self.saga, order, id=order["id"], tx=tx)
                else:
                    placed = CHOREOGRAPHY.mark(Event("OrderPlaced", order, source="/orders", id=order["id"]))
                    await self._tell(placed, tx)
                    await self._tell(self.answer("OrderTaken", placed), tx)
        return JSONResponse({"id": order["id"]}, 202)

    @cache(0.2, "shop.open_orders")
    async def _open_orders(self) -> int:
        """How many orders are open, asked for a few times a second and not by everybody: to say no must be cheap."""
        return await self.books.number("SELECT count(*) FROM orders WHERE status = 'placed'")

    async def _show(self, request: Request) -> Response:
        rows = await self.books.rows(
            "SELECT id, status, style FROM orders WHERE id = :id", id=request.path_params["id"]
        )
        if not rows:
            return JSONResponse({"error": "no such order"}, 404)
        return JSONResponse(dict(zip(("id", "status", "style"), rows[0], strict=True)))
