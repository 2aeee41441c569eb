"""A step that is done after its saga was compensated, and cannot be undone: found, retried, skipped, marked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from everkeel import NotRetryable, events
from everkeel.engines import MemoryEngine
from everkeel.errors import SagaCompensatedError, SagaStateError
from everkeel.sagas import Orchestrator, Saga, Sagas, SagaState, Step, StepStatus
from everkeel.sagas.happenings import Done
from everkeel.sagas.performing import Report


@dataclass
class Bank:
    """Cannot give money back while it is closed."""

    closed: bool = True

    async def refund(self, context: Any) -> None:
        if self.closed:
            raise ConnectionError("the bank is closed")


async def accept(context: Any) -> None:
    pass


async def refuse(context: Any) -> None:
    raise NotRetryable("no")


@asynccontextmanager
async def late(bank: Bank) -> AsyncIterator[Orchestrator]:
    """A saga that was compensated when its payment came to light, which cannot be undone."""
    saga: Saga[Any, Any, Any] = Saga(
        "order", Step("reserve", refuse, accept), Step("charge", accept, bank.refund, undo_attempts=2, backoff=0.1)
    )
    async with MemoryEngine() as engine, Orchestrator(engine, saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga, id="o")
        orchestrator.report_late("o", Report(Done("charge")))
        await asyncio.sleep(60)
        yield orchestrator


async def test_a_late_undo_that_fails_is_found_and_the_state_stays(virtual_time):
    async with late(Bank()) as orchestrator:
        sagas = Sagas(orchestrator.engine)
        [found] = (await sagas.list(attention=True)).sagas
        assert (found.id, found.state, found.step, found.attention) == ("o", SagaState.COMPENSATED, "charge", True)
        assert await sagas.count(attention=True) == 1
        assert await sagas.count(attention=False) == 0
        assert (await sagas.stats())["order"].unsettled == 1


async def test_a_late_undo_that_failed_is_not_purged_before_somebody_has_decided(virtual_time):
    async with late(Bank()) as orchestrator:
        assert await orchestrator.sagas.purge(0.0) == 0
        assert await orchestrator.sagas.count(attention=True) == 1
        await orchestrator.sagas.skip("o", "charge", actor="ada", reason="agreed")
        assert await orchestrator.sagas.purge(0.0) == 1


ACTS: dict[str, tuple[Callable[[Sagas], Awaitable[Any]], StepStatus]] = {
    "retry": (lambda sagas: sagas.retry("o", "charge", actor="ada"), StepStatus.UNDONE),
    "skip": (lambda sagas: sagas.skip("o", "charge", actor="ada", reason="agreed"), StepStatus.UNDO_SKIPPED),
    "mark": (lambda sagas: sagas.mark_done("o", "charge", actor="ada", reason="by hand"), StepStatus.UNDONE),
}


@pytest.mark.parametrize("word", ACTS)
async def test_an_operator_deals_with_a_late_undo_that_failed(virtual_time, word):
    bank = Bank()
    act, status = ACTS[word]
    async with late(bank) as orchestrator:
        bank.closed = False
        await act(Sagas(orchestrator.engine))
        await asyncio.sleep(60)
        view = await orchestrator.sagas.get("o")
        assert (view.state, view.steps["charge"].status) == (SagaState.COMPENSATED, status)
        assert not view.summary.attention
        assert (await orchestrator.sagas.stats())["order"].unsettled == 0
        with pytest.raises(SagaStateError, match="only a compensation that has failed"):
            await act(orchestrator.sagas)


async def test_a_late_undo_that_fails_again_is_found_again(virtual_time):
    async with late(Bank()) as orchestrator:
        heard: list[events.Event] = []
        orchestrator.subscribe(heard.append, events.CompensationBlocked)
        await orchestrator.sagas.retry("o", "charge", actor="ada")
        assert await orchestrator.sagas.count(attention=True) == 0, "it is being undone"
        await asyncio.sleep(60)
        assert await orchestrator.sagas.count(attention=True) == 1
        assert len(heard) == 1


async def test_what_an_operator_gave_up_waits_for_nobody(virtual_time):
    bank = Bank()
    saga: Saga[Any, Any, Any] = Saga(
        "order", Step("charge", accept, bank.refund, undo_attempts=1), Step("ship", refuse, accept)
    )
    async with MemoryEngine() as engine, Orchestrator(engine, saga) as orchestrator:
        await orchestrator.start(saga, id="o")
        await orchestrator.wait("o")
        assert await orchestrator.sagas.count(attention=True) == 1
        await orchestrator.sagas.fail("o", actor="ada", reason="settled with the customer")
        assert await orchestrator.sagas.count(attention=True) == 0


async def test_a_late_success_is_not_forgotten_while_the_store_is_away(virtual_time, monkeypatch, caplog):
    bank = Bank(closed=False)
    saga: Saga[Any, Any, Any] = Saga("order", Step("reserve", refuse, accept), Step("charge", accept, bank.refund))
    async with MemoryEngine() as engine, Orchestrator(engine, saga) as orchestrator:
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(saga, id="o")

        async def away(*args: Any, **options: Any) -> Any:
            raise ConnectionError("the database is away")

        with monkeypatch.context() as patch:
            patch.setattr(engine.sagas, "save", away)
            orchestrator.report_late("o", Report(Done("charge")))
            await asyncio.sleep(60)
        await asyncio.sleep(60)
        view = await orchestrator.sagas.get("o")
    assert view.steps["charge"].status is StepStatus.UNDONE
    assert "a late success of saga 'o' could not be noted; it will be tried again" in caplog.text
