"""Services that react to each other's events, followed by the same machine and store."""

from __future__ import annotations

import asyncio
from itertools import pairwise, permutations
from typing import Any

import pytest

from everkeel.engines import MemoryEngine
from everkeel.errors import ConfigError, TooEarlyError
from everkeel.messaging import Consumer, Event, MemoryTransport, Outbox
from everkeel.messaging.rows import event_of
from everkeel.sagas import Choreography, Orchestrator, Reaction, Saga, SagaState, Step, StepStatus

ORDER = Choreography(
    "order",
    Reaction("reserve", done="StockReserved", rejected="StockUnavailable", compensation="ReleaseStock",
             undone="StockReleased", by="inventory", confirm_within=5, undo_attempts=2),
    Reaction("pay", done="PaymentTaken", rejected="PaymentFailed", compensation="RefundPayment",
             undone="PaymentRefunded", by="payments", confirm_within=5, undo_attempts=2),
    Reaction("ship", done="OrderShipped", compensation="RecallParcel", undone="ParcelRecalled", by="shipping",
             confirm_within=5, undo_attempts=2),
    starts="OrderPlaced",
    deadline=20,
)  # fmt: skip


def said(type: str, cause: Event | None = None, data: Any = None) -> Event:
    return ORDER.mark(Event(type, data, source="/test"), "o-1", cause=cause)


async def statuses(orchestrator: Orchestrator) -> dict[str, StepStatus]:
    return {name: step.status for name, step in (await orchestrator.sagas.get("o-1")).steps.items()}


async def commands(engine: MemoryEngine) -> list[Event]:
    claimed = await engine.outbox.claim("test", 100, 60)
    await engine.outbox.ack([one.lease for one in claimed])
    return [event_of(one.row) for one in claimed]


FORWARD = ("OrderPlaced", "StockReserved", "PaymentTaken", "OrderShipped")


@pytest.mark.parametrize("arrivals", list(permutations(FORWARD)), ids=" ".join)
async def test_a_saga_is_complete_in_whatever_order_its_events_arrive_each_twice(virtual_time, arrivals):
    async with MemoryEngine() as engine:
        orchestrator = Orchestrator(engine, ORDER)
        for type in arrivals:
            event = said(type, data={"type": type})
            assert await orchestrator.observe(event)
            assert await orchestrator.observe(event)
        view = await orchestrator.sagas.get("o-1")
        assert view.state is SagaState.COMPLETED
        assert view.summary.kind == "choreographed"
        assert view.input == {"type": "OrderPlaced"}
        assert orchestrator.counts["order", "completed"] == orchestrator.counts["order", "started"] == 1


async def test_a_rejection_asks_for_what_was_done_to_be_undone_and_waits_for_the_confirmation(virtual_time):
    async with MemoryEngine() as engine:
        orchestrator = Orchestrator(engine, ORDER)
        for event in (said("OrderPlaced"), said("StockReserved", data={"n": 2}), said("PaymentFailed")):
            await orchestrator.observe(event)
        (request,) = await commands(engine)
        assert (request.type, request.data["result"], request.saga_id) == ("ReleaseStock", {"n": 2}, "o-1")
        assert (request.saga_step, request.attributes["sagastepnumber"]) == ("reserve", 1)
        assert request.attributes["sagacompensating"] is True
        assert (await orchestrator.sagas.get("o-1")).state is SagaState.COMPENSATING
        confirmation = said("StockReleased", request)
        assert confirmation.attributes["sagacompensating"] is True
        for _ in range(2):
            await orchestrator.observe(confirmation)
        assert (await orchestrator.sagas.get("o-1")).state is SagaState.COMPENSATED
        assert await statuses(orchestrator) == {"reserve": "undone", "pay": "rejected", "ship": "ready"}


async def test_a_saga_whose_time_is_over_is_turned_back_by_one_of_many_detectors(virtual_time):
    async with MemoryEngine() as engine:
        several = [Orchestrator(engine, ORDER, name=f"d{number}", poll=1) for number in range(4)]
        async with several[0], several[1], several[2], several[3]:
            for type in ("OrderPlaced", "StockReserved"):
                await several[0].observe(said(type))
            await asyncio.sleep(23)
            assert sum(one.counts["order", "timed_out"] for one in several) == 1
            requests = await commands(engine)
            assert [one.type for one in requests] == ["RefundPayment"], "the payment may have been taken: it is asked"
            await several[1].observe(said("PaymentRefunded", requests[0]))
            (request,) = await commands(engine)
            await several[2].observe(said("StockReleased", request))
            view = await several[3].sagas.get("o-1")
            assert (view.state, view.summary.cause, view.summary.timed_out) == ("compensated", "timed_out", True)


async def test_what_was_done_too_late_is_undone_once_more_and_the_saga_stays_compensated(virtual_time):
    async with MemoryEngine() as engine, Orchestrator(engine, ORDER, poll=1) as orchestrator:
        await orchestrator.observe(said("OrderPlaced"))
        await asyncio.sleep(22)
        (request,) = await commands(engine)
        await orchestrator.observe(said("StockReleased", request))
        assert (await orchestrator.sagas.get("o-1")).state is SagaState.COMPENSATED
        await orchestrator.observe(said("StockReserved"))
        (again,) = await commands(engine)
        assert (again.type, again.id != request.id) == ("ReleaseStock", True)
        await orchestrator.observe(said("StockReleased", request))  # the old one again: it confirms nothing
        assert (await statuses(orchestrator))["reserve"] is StepStatus.UNDOING
        await orchestrator.observe(said("StockReleased", again))
        assert (await statuses(orchestrator))["reserve"] is StepStatus.UNDONE
        assert (await orchestrator.sagas.get("o-1")).state is SagaState.COMPENSATED


async def test_without_a_confirmation_it_is_asked_again_and_then_an_operator_is_needed(virtual_time):
    async with MemoryEngine() as engine, Orchestrator(engine, ORDER, poll=1) as orchestrator:
        for event in (said("OrderPlaced"), said("StockReserved"), said("PaymentFailed")):
            await orchestrator.observe(event)
        await asyncio.sleep(20)
        requests = await commands(engine)
        assert [one.type for one in requests] == ["ReleaseStock", "ReleaseStock"]
        assert (await orchestrator.sagas.get("o-1")).state is SagaState.COMPENSATION_BLOCKED
        await orchestrator.sagas.retry("o-1", "reserve", actor="ada")
        await asyncio.sleep(2)
        (third,) = await commands(engine)
        await orchestrator.observe(said("StockReleased", third))
        assert (await orchestrator.sagas.get("o-1")).state is SagaState.COMPENSATED


async def test_who_does_not_confirm_is_asked_less_and_less_often(virtual_time):
    """Else those who are late because there is much to do get more of it with every look."""
    reaction = Reaction("reserve", done="R", compensation="Undo", undone="Undone", confirm_within=10, undo_attempts=8)
    order = Choreography("slow", reaction, Reaction("ship", done="S", rejected="No", pivot=True), starts="Begin")
    async with MemoryEngine() as engine, Orchestrator(engine, order, poll=1) as orchestrator:
        for type in ("Begin", "R", "No"):
            await orchestrator.observe(order.mark(Event(type, source="/tests"), "s-1"))
        asked = []
        for second in range(800):
            asked += [second] * len(await commands(engine))
            await asyncio.sleep(1)
        gaps = [later - earlier for earlier, later in pairwise(asked)]
        assert [round(gap, -1) for gap in gaps] == [10, 20, 40, 80, 160, 160, 160]


async def test_participants_may_undo_by_themselves(virtual_time):
    async with MemoryEngine() as engine:
        orchestrator = Orchestrator(engine, ORDER)
        for type in ("OrderPlaced", "StockReserved", "StockReleased", "PaymentFailed"):
            await orchestrator.observe(said(type))
        assert (await orchestrator.sagas.get("o-1")).state in (SagaState.COMPENSATING, SagaState.COMPENSATED)
        assert (await statuses(orchestrator))["reserve"] is StepStatus.UNDONE


async def test_what_belongs_to_no_saga_is_left_alone(virtual_time):
    async with MemoryEngine() as engine:
        orchestrator = Orchestrator(engine, ORDER)
        assert not await orchestrator.observe(Event("Weather", source="/sky"))
        assert not await orchestrator.observe(Event("StockReserved", source="/x"))
        assert not await orchestrator.observe(said("StockReserved").changed(sagatype="trip"))
        with pytest.raises(ConfigError, match="saga_id is needed"):
            ORDER.mark(Event("StockReserved", source="/x"))


async def test_services_over_a_transport_are_followed_end_to_end(virtual_time):
    """Placed, reserved, refused, released: three consumers, one outbox, one tracker, at-least-once delivery."""
    transport = MemoryTransport()
    async with MemoryEngine() as engine:
        outbox = Outbox(engine, transport=transport, topic="shop")
        chor = Choreography(*("order", *ORDER.steps), starts="OrderPlaced", topic="shop")
        orchestrator = Orchestrator(engine, chor, poll=1)
        stock: list[str] = []
        inventory = Consumer("inventory", transport, topics="shop", engine=engine)
        payments = Consumer("payments", transport, topics="shop", engine=engine)
        tracker = Consumer("tracker", transport, topics="shop", engine=engine)
        orchestrator.follow(tracker)

        @inventory.on("OrderPlaced")
        async def reserve(event: Event, tx: Any) -> None:
            stock.append(str(event.saga_id))
            await outbox.write(chor.mark(Event("StockReserved", {"n": 1}, source="/stock"), cause=event), tx=tx)

        @inventory.on("ReleaseStock")
        async def release(event: Event, tx: Any) -> None:
            stock.remove(str(event.saga_id))
            await outbox.write(chor.mark(Event("StockReleased", source="/stock"), cause=event), tx=tx)

        @payments.on("StockReserved")
        async def charge(event: Event, tx: Any) -> None:
            if event.saga_id is None:
                raise TooEarlyError("payments", 1.0, "which saga?")
            failed = Event("PaymentFailed", {"reason": "no funds"}, source="/bank")
            await outbox.write(chor.mark(failed, cause=event), tx=tx)

        async with inventory, payments, tracker, outbox.relay(poll=0.1), orchestrator:
            await outbox.write(chor.mark(Event("OrderPlaced", {"order": 7}, source="/shop", id="o-7")))
            for _ in range(100):
                await asyncio.sleep(0.5)
                view = (await orchestrator.sagas.list()).sagas
                if view and view[0].ended:
                    break
            saga = await orchestrator.sagas.get("o-7")
            assert (saga.state, saga.error) == (SagaState.COMPENSATED, "PaymentFailed: no funds")
            assert stock == []


async def test_an_event_that_names_a_saga_of_another_kind_moves_nothing(virtual_time):
    async def hang(context: Any) -> None:
        await asyncio.sleep(1e6)

    async def nothing(context: Any) -> None:
        pass

    saga: Saga[Any, Any, Any] = Saga("orchestrated", Step("pay", hang, nothing), deadline=None)
    async with MemoryEngine() as engine, Orchestrator(engine, ORDER, saga) as orchestrator:
        await orchestrator.start(saga, id="o-1")
        assert not await orchestrator.observe(Event("PaymentTaken", source="/test", correlation_id="o-1"))
        assert await statuses(orchestrator) == {"pay": StepStatus.RUNNING}


NEWER = Choreography(
    "order",
    Reaction("pay", done="PaymentTaken", compensation="RefundPayment", undone="PaymentRefunded"),
    starts="OrderPlaced",
    version=2,
)


async def test_what_somebody_heard_who_has_not_its_version_is_carried_on_by_who_has(virtual_time):
    async with MemoryEngine() as engine:
        old, new = Orchestrator(engine, ORDER), Orchestrator(engine, NEWER)
        for event in (said("OrderPlaced"), said("StockReserved"), said("OrderShipped")):
            await old.observe(event)
        await new.observe(said("PaymentTaken"))  # the last one, and nobody here knows that
        async with old:
            await asyncio.sleep(6)
            assert (await old.sagas.get("o-1")).state is SagaState.COMPLETED


async def test_a_choreography_whose_steps_changed_in_its_version_parks_what_began_before(virtual_time):
    changed = Choreography("order", *ORDER.steps[:2], starts="OrderPlaced")
    async with MemoryEngine() as engine:
        await Orchestrator(engine, ORDER).observe(said("OrderPlaced"))
        orchestrator = Orchestrator(engine, changed)
        await orchestrator.observe(said("StockReserved"))
        view = await orchestrator.sagas.get("o-1")
        assert (view.state, view.summary.cause) == (SagaState.PARKED, "changed_definition")
        assert view.error == "the steps of order@1 have changed (ship removed): raise its version instead"
        assert view.steps["reserve"].status is StepStatus.DONE, "what was said is not forgotten"
