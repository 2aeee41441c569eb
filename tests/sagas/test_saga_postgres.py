"""Orchestrators on PostgreSQL: two processes' worth of them, real time, real connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from everkeel import NotRetryable
from everkeel.engines import PostgresEngine
from everkeel.errors import SagaCompensatedError
from everkeel.messaging import Event
from everkeel.sagas import Context, Orchestrator, Parallel, Saga, SagaState, Step

pytestmark = pytest.mark.require_server("postgres")


class Refused(NotRetryable):
    """No."""


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_sagas_run_on_postgresql_and_are_shared_between_orchestrators(postgres_dsn, driver):
    runs: Counter[str] = Counter()

    def step(name: str) -> Step:
        async def action(context: Context[Any, Any]) -> str:
            runs[context.key] += 1
            if name == "ship" and context.input["refused"]:
                raise Refused("no")
            context.emit(Event(f"{name}.done", source="/test"))
            return name

        async def undo(context: Context[Any, Any]) -> None:
            runs[context.key] += 1

        return Step(name, action, undo)

    saga: Saga[Any, Any, Any] = Saga("order", step("reserve"), Parallel(step("charge"), step("check")), step("ship"))

    async def main() -> None:
        async with (
            PostgresEngine(postgres_dsn, driver=driver) as here,
            PostgresEngine(postgres_dsn, driver=driver) as there,
        ):
            async with Orchestrator(here, saga, poll=0.1) as one, Orchestrator(there, saga, poll=0.1) as two:
                waiting = Orchestrator(here, saga)
                handles = [await waiting.start(saga, {"refused": n % 4 == 0}, id=f"o-{n}") for n in range(24)]
                handles += [await two.start(saga, {"refused": False}, id=f"o-{n}") for n in range(24, 30)]
                for number, handle in enumerate(handles):
                    if number < 24 and number % 4 == 0:
                        with pytest.raises(SagaCompensatedError):
                            await handle.result(timeout=30)
                    else:
                        assert await handle.result(timeout=30) == "ship"
                async with here.transaction() as tx:
                    inside = await one.start(saga, {"refused": False}, id="inside", tx=tx)
                assert await inside.result(timeout=30) == "ship"
                stats = (await one.sagas.stats())["order"]
                assert stats.by_state == {SagaState.COMPLETED: 25, SagaState.COMPENSATED: 6}
                assert (await here.outbox.stats()).depth == 25 * 4 + 6 * 3
                page = await one.sagas.list(state="compensated", limit=4)
                rest = await one.sagas.list(state="compensated", limit=4, cursor=page.next)
                assert len({saga.id for saga in (*page.sagas, *rest.sagas)}) == 6

    asyncio.run(main())
    assert set(runs.values()) == {1}
    assert len(runs) == 31 * 4 + 6 * 3
