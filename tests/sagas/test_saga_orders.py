"""What somebody wants of a saga that another process has in its hands: heard soon, and only of what was seen."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.errors import ConfigError, SagaCompensatedError, SagaConflictError, SagaStateError
from everkeel.runtime.events import everywhere, subscribe
from everkeel.sagas import Orchestrator, Saga, Sagas, SagaState, Step


async def hang(context: Any) -> None:
    await asyncio.sleep(1e6)


async def accept(context: Any) -> None:
    pass


SAGA: Saga[Any, Any, Any] = Saga("order", Step("charge", hang, accept), deadline=None)
LONG = {"poll": 600.0, "lease": 3600.0}


async def cancelled_by(engine: Any, other: Any, **options: Any) -> None:
    """A step under way is interrupted when another process cancels its saga."""
    async with Orchestrator(engine, SAGA, **options) as orchestrator:
        handle = await orchestrator.start(SAGA, id="o")
        assert (await Sagas(other).cancel("o", reason="they changed their mind")).state is SagaState.COMPENSATING
        with pytest.raises(SagaCompensatedError, match="they changed their mind"):
            await handle.result()
        assert (await orchestrator.sagas.get("o")).timeline[-1].what == "compensated"


async def test_a_step_under_way_hears_of_a_cancel_at_once(virtual_time):
    async with MemoryEngine() as engine:
        before = engine.clock.time()
        await cancelled_by(engine, engine, **LONG)
        assert engine.clock.time() - before < 1.0


def test_a_step_under_way_hears_of_a_cancel_in_another_process_when_it_looks(tmp_path):
    async def test() -> None:
        path = tmp_path / "sagas.db"
        async with SQLiteEngine(path) as engine, SQLiteEngine(path) as other:
            await asyncio.wait_for(cancelled_by(engine, other, poll=0.05, lease=3600.0), 30)

    asyncio.run(test())


@pytest.mark.require_server("postgres")
def test_a_step_under_way_hears_of_a_cancel_over_listen_and_notify(postgres_dsn):
    async def test() -> None:
        async with PostgresEngine(postgres_dsn) as engine, PostgresEngine(postgres_dsn) as other:
            await asyncio.wait_for(cancelled_by(engine, other, **LONG), 60)  # and not after ten minutes

    asyncio.run(test())


async def test_an_order_is_for_the_revision_that_was_seen(virtual_time):
    async with MemoryEngine() as engine, Orchestrator(engine, SAGA, **LONG) as orchestrator:
        await orchestrator.start(SAGA, id="o")
        for sagas in (Sagas(engine), orchestrator.sagas):
            with pytest.raises(SagaConflictError, match="it is at revision 1 now, and was seen at 7"):
                await sagas.cancel("o", revision=7)
        assert (await orchestrator.sagas.cancel("o", revision=1)).state is SagaState.COMPENSATING
        assert (await orchestrator.wait("o")).state is SagaState.COMPENSATED


async def test_what_is_ordered_elsewhere_is_announced_and_told(virtual_time):
    async def held_back(context: Any) -> None:
        raise ConnectionError("the bank is closed")

    saga: Saga[Any, Any, Any] = Saga(
        "order", Step("pay", accept, held_back, undo_attempts=1), Step("fly", hang, accept), deadline=None
    )
    async with MemoryEngine() as engine:
        orchestrator = Orchestrator(engine, saga, announce="told")
        async with orchestrator:
            await orchestrator.start(saga, id="o")
        heard: list[Any] = []
        listening = subscribe(heard.append)
        try:
            await Sagas(engine).cancel("o", reason="no")  # it is in nobody's hands
        finally:
            listening.cancel()
        assert [type(event).__name__ for event in heard] == ["Compensating"]
        assert not everywhere
        async with orchestrator:
            await orchestrator.wait("o")
        await orchestrator.sagas.fail("o", actor="ada", reason="over")
        told = [claimed.row.type for claimed in await engine.outbox.claim("me", 100, 60.0)]
        assert "saga.failed" in told


async def test_a_saga_that_cannot_be_read_here_is_not_written_over(virtual_time):
    async with MemoryEngine() as engine:
        await Orchestrator(engine, SAGA).start(SAGA, {"item": "tea"}, id="o")
        row = await engine.sagas.load("o")
        engine.sagas._rows["o"] = type(row)(**{**_fields(row), "document": "coded:nobody knows"})
        with pytest.raises(SagaStateError, match=r"saga 'order' 'o' is pending: cannot cancel .*is encoded"):
            await Sagas(engine).cancel("o")
        async with Orchestrator(engine, SAGA) as orchestrator:
            assert (await orchestrator.sagas.get("o")).input is None
            await asyncio.sleep(60)
            assert (await engine.sagas.load("o")).state is SagaState.PARKED
        with pytest.raises(SagaStateError, match="cannot resume"):
            await Sagas(engine).resume("o", actor="ada")
        assert (await Sagas(engine).fail("o", actor="ada", reason="lost")).state is SagaState.FAILED
        assert (await engine.sagas.load("o")).document == "coded:nobody knows"


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}


@pytest.mark.parametrize(
    "wrong",
    [{"step": None, "reason": "r"}, {"step": "pay", "reason": None}, {"step": "pay", "reason": "r", "actor": 7}],
)
async def test_an_order_that_is_no_text_is_refused_before_anything_is_read(virtual_time, wrong):
    with pytest.raises(ConfigError, match=r"sagas\.skip: \w+ must be a text"):
        await Sagas(MemoryEngine()).skip("o", **{"actor": "ada", **wrong})


async def test_a_kind_that_there_is_not_is_refused(virtual_time):
    with pytest.raises(ConfigError, match="sagas: kind must be 'orchestrated' or 'choreographed'"):
        await Sagas(MemoryEngine()).list(kind="danced")


async def test_what_is_counted_is_what_is_listed(virtual_time):
    async with MemoryEngine() as engine:
        await Orchestrator(engine, SAGA).start(SAGA, id="o")
        await asyncio.sleep(90)
        wanted: dict[str, Any] = {"older_than": timedelta(minutes=1), "state": "pending", "type": "order"}
        assert await Sagas(engine).count(**wanted) == len((await Sagas(engine).list(**wanted)).sagas) == 1
