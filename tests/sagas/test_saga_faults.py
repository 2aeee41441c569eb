"""Thousands of sagas with a share of every fault at once, two orchestrators: all of them end, and none is wrong."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from contextlib import suppress

import pytest

from everkeel.engines import PostgresEngine, SQLiteEngine
from everkeel.engines.sagas import SagaState
from everkeel.errors import NotRetryable, SagaStateError
from everkeel.sagas import Orchestrator, Saga, Step

SHARE = 0.05
"""Of each kind of fault, at each place where it can happen."""
STEPS = ("accept", "reserve", "charge", "confirm")


class Refused(NotRetryable):
    pass


class World:
    """What the steps change outside, and everything that goes wrong there. Idempotent, as others' services must be."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.effects: dict[tuple[str, str], str] = {}
        self.faults: Counter[str] = Counter()

    def hit(self, fault: str) -> bool:
        happens = self.chance.random() < SHARE
        self.faults[fault] += happens
        return happens

    def action(self, name: str):
        async def act(context):
            key = context.saga_id, name
            if name != "confirm" and self.hit("rejected"):
                raise Refused(name)
            if self.hit("failed before its effect"):
                raise ConnectionError(name)
            if self.effects.get(key) == "undone":
                raise Refused(f"{name} was undone before it was done")
            self.effects[key] = "done"
            if self.hit("failed after its effect"):
                raise ConnectionError(name)
            if self.hit("no answer"):
                await asyncio.sleep(3600)
            return name

        return act

    def undoing(self, name: str):
        async def undo(context):
            if self.hit("compensation failed"):
                raise ConnectionError(name)
            self.effects[context.saga_id, name] = "undone"
            if self.hit("compensation failed after its effect"):
                raise ConnectionError(name)

        return undo

    def saga(self) -> Saga:
        how = {"timeout": 0.25, "backoff": 0.01, "undo_attempts": 20}
        before = [Step(name, self.action(name), self.undoing(name), **how) for name in STEPS[:-1]]
        return Saga("faulty", *before, Step("confirm", self.action("confirm"), pivot=True, **how), deadline=600)

    def wrong(self, id: str, state: SagaState) -> str | None:
        there = {name for name in STEPS if self.effects.get((id, name)) == "done"}
        wanted = set(STEPS) if state is SagaState.COMPLETED else set()
        return None if there == wanted else f"{id} is {state}, and has {sorted(there)}"


class FaultyStore:
    """A saga store that sometimes fails: before it has written, or after."""

    def __init__(self, store, world: World) -> None:
        self._store, self._world = store, world

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    async def write(self, *changes):
        if self._world.hit("store failed before it wrote"):
            raise ConnectionError("the store does not answer")
        written = await self._store.write(*changes)
        if self._world.hit("store failed after it wrote"):
            raise ConnectionError("the store's answer was lost")
        return written


class FaultyEngine:
    """An engine with such a store."""

    def __init__(self, engine, world: World) -> None:
        self._engine = engine
        self.sagas = FaultyStore(engine.sagas, world)

    def __getattr__(self, name: str):
        return getattr(self._engine, name)


async def run_many(engine, count: int, world: World) -> tuple[Counter[str], list[str]]:
    logging.getLogger("everkeel").setLevel(logging.CRITICAL)  # what fails here on purpose need not be read
    saga = world.saga()
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    async with engine:
        faulty = FaultyEngine(engine, world)
        first = Orchestrator(faulty, saga, name="first", lease=5.0, poll=0.5)
        second = Orchestrator(faulty, saga, name="second", lease=5.0, poll=0.5)
        async with first, second:
            turn = asyncio.Semaphore(200)

            async def one(number: int) -> None:
                id = f"saga-{number}"
                async with turn:
                    host = (first, second)[number % 2]
                    while True:
                        try:
                            handle = await host.start(saga, {"n": number}, id=id)
                            break
                        except ConnectionError:
                            continue  # the caller does not know either, and asks again with the same id
                    if world.hit("cancelled"):
                        with suppress(SagaStateError):  # past its pivot: too late
                            await handle.cancel(reason="changed their mind")
                    record = await host.wait(id)
                    ends[record.state.value] += 1
                    if (found := world.wrong(id, record.state)) is not None:
                        wrong.append(found)

            await asyncio.gather(*(one(number) for number in range(count)))
    return ends, wrong


def check(engine, count: int, capsys) -> None:
    world = World(seed=count)
    before = logging.getLogger("everkeel").level
    try:
        ends, wrong = asyncio.run(run_many(engine, count, world))
    finally:
        logging.getLogger("everkeel").setLevel(before)
    with capsys.disabled():
        print(f"\n{count} sagas on {engine.name}: {dict(ends)}; faults {dict(world.faults)}")
    assert wrong == []
    assert set(ends) == {"completed", "compensated"}
    assert ends.total() == count
    assert world.faults.total() >= count / 3
    assert len(world.faults) == 9


@pytest.mark.timeout(240)
def test_hundreds_of_sagas_with_every_fault_all_end_and_none_is_wrong_on_sqlite(tmp_path, capsys) -> None:
    check(SQLiteEngine(tmp_path / "sagas.db"), 300, capsys)


@pytest.mark.timeout(240)
@pytest.mark.require_server("postgres")
def test_hundreds_of_sagas_with_every_fault_all_end_and_none_is_wrong_on_postgresql(postgres_dsn, capsys) -> None:
    check(PostgresEngine(postgres_dsn), 300, capsys)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.require_server("postgres")
def test_ten_thousand_sagas_with_every_fault_all_end_and_none_is_wrong(postgres_dsn, capsys) -> None:
    check(PostgresEngine(postgres_dsn), 10_000, capsys)
