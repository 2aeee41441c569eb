"""`kill -9` at every named point: another process carries the saga on, and its effects are all there or all undone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from everkeel.engines import MemoryEngine, SQLiteEngine
from everkeel.sagas import NOTHING, Orchestrator, Saga, SagaState, Step, StepStatus
from everkeel.testing.crashing import VARIABLE, crash_at

SCRIPT = Path(__file__).with_name("saga_process.py")

FORWARD = ["saga.after_create", "saga.before_action:2", "saga.after_action:2", "saga.before_save:2",
           "saga.after_save:2", "saga.after_save:3"]  # fmt: skip
BACK = ["saga.before_undo:1", "saga.after_undo:1", "saga.before_save:4", "saga.after_save:4"]
CASES = {f"{way}-{point}": point for way, points in (("forward", FORWARD), ("back", BACK)) for point in points}


def load_process():
    spec = spec_from_file_location("saga_process", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def killed(directory: Path, saga: str, what: str, point: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(directory), saga, what],
        env={**os.environ, VARIABLE: point}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, f"{saga} was not killed at {point}: {done.stderr[-2000:]}"


def test_whatever_kills_a_process_another_one_carries_its_sagas_on(tmp_path):
    process = load_process()
    folders = {id: tmp_path / str(number) for number, id in enumerate([*CASES, "claimed", "never"])}
    for folder in folders.values():
        folder.mkdir()
        process.participants(folder).close()

    async def write_down_one_that_nobody_has_begun() -> None:
        async with SQLiteEngine(folders["claimed"] / "sagas.db") as engine:
            saga = process.order(folders["claimed"])
            await Orchestrator(engine, saga).start(saga, {"refused": False}, id="claimed")

    asyncio.run(write_down_one_that_nobody_has_begun())
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(killed, folders[id], id, "start", point) for id, point in CASES.items()]
        jobs.append(pool.submit(killed, folders["claimed"], "claimed", "carry on", "saga.after_claim"))
        jobs.append(pool.submit(killed, folders["never"], "never", "start", "saga.before_create"))
        for job in jobs:
            job.result()

    async def carry_on(id: str) -> tuple[SagaState | None, int]:
        saga = process.order(folders[id])
        async with SQLiteEngine(folders[id] / "sagas.db") as engine:
            async with Orchestrator(engine, saga, lease=5.0, poll=0.02) as orchestrator:
                known = await engine.sagas.load(id) is not None
                state = (await orchestrator.wait(id, timeout=60)).state if known else None
                return state, (await engine.outbox.stats()).depth

    for id, folder in folders.items():
        state, events = asyncio.run(carry_on(id))
        with closing(process.participants(folder)) as they:
            effects = {key for (key,) in they.execute("SELECT key FROM effects")}
            calls = Counter(what for (what,) in they.execute("SELECT what FROM calls"))
        if id == "never":
            assert (state, effects, events) == (None, set(), 0)
        elif id.startswith("back"):
            assert (state, effects) == (SagaState.COMPENSATED, set()), id
            assert events == 2, "the event of a step is sent if and only if the step counts"
        else:
            assert (state, effects) == (SagaState.COMPLETED, {f"{id}:{step}" for step in ("reserve", "charge", "ship")})
            assert events == 3
        repeated = {what: number for what, number in calls.items() if number > 1}
        assert sum(repeated.values()) <= 2, f"{id}: what was under way runs again, and nothing else: {calls}"


@pytest.mark.parametrize("point", ["saga.before_save", "saga.after_save"])
async def test_a_store_that_fails_for_a_moment_is_asked_again(virtual_time, point):
    """The answer of the save is lost, before or after it was written: the saga goes on, and nothing is done twice."""
    runs: list[str] = []

    async def act(context) -> str:
        runs.append(context.step)
        return context.step

    def away() -> None:
        raise ConnectionError("the database went away")

    saga = Saga("order", *(Step(name, act, NOTHING) for name in "abc"))
    async with MemoryEngine() as engine, Orchestrator(engine, saga) as orchestrator:
        with crash_at(point, act=away, times=2, skip=1):
            assert await orchestrator.run(saga, id="o") == "c"
        assert (await orchestrator.sagas.get("o")).state is SagaState.COMPLETED
    assert runs == ["a", "b", "c"]


async def test_a_process_that_lost_its_lease_can_write_no_more_and_what_it_did_is_not_forgotten(virtual_time):
    runs: list[str] = []
    stalled = asyncio.Event()

    async def act(context) -> str:
        runs.append(f"{context.step} {context.attempt}")
        if runs == ["a 1"]:
            await stalled.wait()
        return f"{context.step} {context.attempt}"

    saga = Saga("order", Step("a", act, NOTHING), Step("b", act, NOTHING), deadline=None)
    async with MemoryEngine() as engine, Orchestrator(engine, saga, lease=10, name="first") as first:
        await first.start(saga, id="o")
        await asyncio.sleep(1)
        # As if the first process had not been able to hold on: another one takes it.
        row = await engine.sagas.load("o")
        engine.sagas._rows["o"] = row.__class__(
            **{name: getattr(row, name) for name in row.__slots__} | {"due_at": row.now}
        )
        async with Orchestrator(engine, saga, lease=10, poll=0.1, name="second") as second:
            assert (await second.wait("o")).state is SagaState.COMPLETED
            stalled.set()
            await asyncio.sleep(5)
            view = await second.sagas.get("o")
            assert runs == ["a 1", "a 2", "b 1"], "it runs twice because its process lost the lease, and only that"
            assert view.state is SagaState.COMPLETED
            assert view.steps["a"].result == "a 2"
            assert first.driver_of("o") is None


async def test_a_success_that_could_not_be_saved_because_the_lease_was_lost_is_noted_and_undone(virtual_time):
    """A process sleeps through its lease; another one has undone everything when its action has its effect."""
    effects: list[str] = []
    stalled = asyncio.Event()

    async def act(context) -> None:
        await stalled.wait()
        effects.append(context.key)

    async def undo(context) -> None:
        effects.clear()

    saga = Saga("order", Step("a", act, undo, backoff=0.01, jitter=None), deadline=None)
    async with MemoryEngine() as engine, Orchestrator(engine, saga, name="asleep") as asleep:
        await asleep.start(saga, id="o")
        await asyncio.sleep(0.1)
        row = await engine.sagas.load("o")
        engine.sagas._rows["o"] = replace(row, due_at=row.now)
        async with Orchestrator(engine, saga, poll=0.01, name="second") as second:
            await asyncio.sleep(0.1)
            await second.sagas.cancel("o")
            assert (await second.wait("o")).state is SagaState.COMPENSATED
            assert asleep.driver_of("o") is not None, "it has not noticed anything"
            stalled.set()
            await asyncio.sleep(5)
            view = await second.sagas.get("o")
    assert (view.state, view.steps["a"].status) == (SagaState.COMPENSATED, StepStatus.UNDONE)
    assert "late_done" in [entry.what for entry in view.timeline]
    assert effects == []


async def test_two_orchestrators_share_the_work_and_no_step_runs_twice(virtual_time):
    runs: Counter[str] = Counter()

    async def act(context) -> None:
        runs[context.key] += 1
        await asyncio.sleep(0.5)

    saga = Saga("order", *(Step(name, act, NOTHING) for name in "abc"))
    async with MemoryEngine() as engine:
        options: dict[str, Any] = {"poll": 0.1, "concurrency": 10}
        async with Orchestrator(engine, saga, **options) as one, Orchestrator(engine, saga, **options) as two:
            waiting = Orchestrator(engine, saga)
            handles = [await waiting.start(saga, id=f"o-{number}") for number in range(40)]
            for handle in handles:
                await handle.result()
            assert one.counts["order", "completed"] + two.counts["order", "completed"] == 40
            assert min(one.counts["order", "completed"], two.counts["order", "completed"]) > 0
    assert set(runs.values()) == {1}
    assert len(runs) == 120


async def test_what_ends_while_its_process_stops_is_begun_by_nobody_else(virtual_time):
    runs: list[str] = []

    async def act(context) -> None:
        runs.append(context.key)
        await asyncio.sleep(6)

    saga = Saga("order", Step("a", act, NOTHING), deadline=None)
    async with MemoryEngine() as engine, Orchestrator(engine, saga, poll=0.1, name="second") as second:
        async with Orchestrator(engine, saga, lease=2, name="stopping") as stopping:
            await stopping.start(saga, id="o")
            await asyncio.sleep(0.1)
            await stopping.stop(grace=10)
        assert (await second.wait("o")).state is SagaState.COMPLETED
    assert runs == ["o:a"]
