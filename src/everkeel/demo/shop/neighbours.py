"""Inventory and payments: each answers over HTTP for the orchestrated orders, and reacts to events for the others."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from everkeel import circuit_breaker, pipeline, retry
from everkeel.demo.shop import books
from everkeel.demo.shop.provider import MODES, Provider
from everkeel.demo.shop.requests import NUMBER, TEXT, YES_OR_NO, body_of, one_of
from everkeel.demo.shop.running import Running
from everkeel.engines.sql.statement import Operation
from everkeel.errors import NotRetryable
from everkeel.messaging import Consumer, Event


class Inventory(Running):
    """Sets goods aside, and puts them back."""

    service = "inventory"

    def app(self) -> Starlette:
        """What it answers over HTTP."""
        return Starlette(
            routes=[
                Route("/reservations/{order}", self._reserve, methods=["POST"]),
                Route("/reservations/{order}", self._release, methods=["DELETE"]),
                Route("/stock", self._restock, methods=["POST"]),
            ]
        )

    async def _reserve(self, request: Request) -> Response:
        body = await body_of(request, item=TEXT, count=NUMBER)
        return await _entered(self, books.reserve(request.path_params["order"], body["item"], body["count"]))

    async def _release(self, request: Request) -> Response:
        return await _entered(self, books.release(request.path_params["order"]))

    async def _restock(self, request: Request) -> Response:
        body = await body_of(request, item=TEXT, count=NUMBER)
        return await _entered(self, books.restock(body["item"], body["count"]))

    def consumers(self) -> list[Consumer]:
        """What it does about events."""
        consumer = self.consumer("inventory", on_rejected=self._out_of_stock)

        @consumer.on("OrderPlaced")
        async def set_aside(event: Event, tx: Any) -> None:
            order = event.data
            await self.books.enter(books.reserve(order["id"], order["item"], order["count"]), tx)
            await self.outbox.write(self.answer("StockReserved", event), tx=tx)

        @consumer.on("ReleaseStock")
        async def put_back(event: Event, tx: Any) -> None:
            await self.books.enter(books.release(event.data["saga"]), tx)
            await self.outbox.write(self.answer("StockReleased", event), tx=tx)

        return [consumer]

    async def _out_of_stock(self, event: Event, error: Exception) -> bool:
        """A business answer: the order is told, and nobody else has to know."""
        if isinstance(error, books.OutOfStockError):
            await self.outbox.write(self.answer("StockRefused", event, reason=str(error), id=f"{event.id}:refused"))
        return isinstance(error, books.OutOfStockError | books.WithdrawnError)


class Payments(Running):
    """Takes money, by way of a provider that has good days and bad ones, and gives it back."""

    service = "payments"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.provider = Provider()
        self.broken = False
        """A bug that was shipped this morning: events are not understood until it is fixed."""

    def app(self) -> Starlette:
        """What it answers over HTTP."""
        return Starlette(
            routes=[
                Route("/charges/{order}", self._charge, methods=["POST"]),
                Route("/charges/{order}", self._refund, methods=["DELETE"]),
                Route("/provider", self._set_provider, methods=["POST"]),
            ]
        )

    async def _charge(self, request: Request) -> Response:
        body = await body_of(request, amount=NUMBER)
        try:
            await self.provider.transfer()
        except ConnectionError as error:
            return JSONResponse({"error": str(error)}, 503)
        return await _entered(self, books.charge(request.path_params["order"], body["amount"]))

    async def _refund(self, request: Request) -> Response:
        return await _entered(self, books.refund(request.path_params["order"]))

    async def _set_provider(self, request: Request) -> Response:
        body = await body_of(request, optional=True, mode=one_of(*MODES), broken=YES_OR_NO)
        self.provider.mode = body.get("mode", self.provider.mode)
        self.broken = body.get("broken", self.broken)
        return JSONResponse({"mode": self.provider.mode, "broken": self.broken})

    def consumers(self) -> list[Consumer]:
        """What it does about events."""
        # An outage of the provider opens the circuit, which pauses the handler: no event is buried for it. A bug of
        # our own is no outage, and must not look like one.
        circuit = circuit_breaker("shop.provider", on=ConnectionError)
        around = pipeline(retry("shop.provider", attempts=2, on=ConnectionError), circuit)
        consumer = self.consumer("payments", policies=around, on_rejected=self._refused)

        @consumer.on("StockReserved")
        async def take_money(event: Event, tx: Any) -> None:
            if self.broken:
                raise LookupError("no such field: 'ammount'")
            order = event.data
            await self.provider.transfer()
            await self.books.enter(books.charge(order["id"], order["amount"]), tx)
            await self.outbox.write(self.answer("PaymentTaken", event), tx=tx)

        # Of its own: while the one above pauses for the provider, money that was taken must still find its way back.
        refunds = self.consumer("payments.refunds")

        @refunds.on("RefundPayment")
        async def give_back(event: Event, tx: Any) -> None:
            await self.books.enter(books.refund(event.data["saga"]), tx)
            await self.outbox.write(self.answer("PaymentReturned", event), tx=tx)

        return [consumer, refunds]

    async def _refused(self, event: Event, error: Exception) -> bool:
        if isinstance(error, books.CardRefusedError):
            await self.outbox.write(self.answer("PaymentRefused", event, reason=str(error), id=f"{event.id}:refused"))
        return isinstance(error, books.CardRefusedError | books.WithdrawnError)


async def _entered(service: Running, entry: Operation[Any]) -> Response:
    """An entry in the books as an HTTP answer: a business no is a 409, and nobody tries that again."""
    try:
        return JSONResponse({"done": await service.books.enter(entry)})
    except NotRetryable as error:
        return JSONResponse({"error": type(error).__name__, "message": str(error)}, 409)
