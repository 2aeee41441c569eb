"""Writes that came too late are counted, alike in every engine, and so are the sagas that detectors take."""

from __future__ import annotations

import asyncio

import pytest

from everkeel.engines import MemoryEngine, OutboxRow, PostgresEngine, SQLiteEngine
from everkeel.engines.letters import Change, NewLetter, Status
from everkeel.engines.rows import ErrorInfo, Lease, Retry
from everkeel.engines.sagas import NewSaga, SagaChange, SagaState
from everkeel.idempotency import Token
from everkeel.telemetry import StoreMetrics
from everkeel.telemetry.measuring import measure_all

GONE = Lease(1, "somebody else's", 1)
ANN = Change(actor="ann", reason="a test")


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.require_server("postgres"))])
def engine(request, tmp_path):
    if request.param == "memory":
        return MemoryEngine()
    if request.param == "sqlite":
        return SQLiteEngine(tmp_path / "db")
    return PostgresEngine(request.getfixturevalue("postgres_dsn"))


def shown(name):
    return {tuple(one.attributes.values())[2:]: one.value for one in measure_all() if one.name == name}


def test_writes_that_came_too_late_are_counted_by_what_they_were_about(engine):
    async def main():
        async with engine, StoreMetrics(engine, name="orders"):
            assert set(shown("everkeel.store.conflicts").values()) == {0}  # there from the start, so that rates work
            await engine.outbox.append([OutboxRow("1", "/tests", "tested", "events", None, "{}", "{}")])
            (held,) = await engine.outbox.claim("me", 1, 60)
            await engine.outbox.extend([held.lease, GONE], 60)
            await engine.outbox.retry([Retry(GONE, 1.0, ErrorInfo.of(None))])
            await engine.outbox.release([GONE])
            await engine.outbox.bury(GONE, ErrorInfo.of(None), reason="attempts")
            await engine.outbox.ack([GONE, held.lease])

            lost = Token("billing", "e-1", "somebody else's", 1)
            assert not await engine.inbox.complete(lost, None)
            assert not await engine.inbox.fail(lost)
            fresh = await engine.inbox.begin("billing", "e-1")
            assert await engine.inbox.complete(fresh.token, None)

            letter = await engine.dead_letters.put(NewLetter(
                id="l-1", consumer="billing", topic="events", key=None, source="/tests", event_id="e-1",
                event_type="tested", epoch=0, attributes="{}", payload=None, encoding=None, reason="attempts",
                error_type="", error="", traceback="", attempts=1,
            ))  # fmt: skip
            for _ in range(2):
                await engine.dead_letters.transition(letter.id, Status.PENDING, Status.DISCARDED, ANN)

            saga = NewSaga(id="s", type="order", version=1, kind="orchestrated", state=SagaState.RUNNING, document="{}")
            row, _ = await engine.sagas.create(saga)
            change = SagaChange(id="s", expect=row.revision, state=SagaState.RUNNING, document="{}", keep=True)
            for _ in range(2):
                await engine.sagas.save(change)
            await engine.sagas.write([], [change, change])

            return shown("everkeel.store.conflicts")

    assert asyncio.run(main()) == {
        ("orders", "outbox"): 5,
        ("orders", "inbox"): 2,
        ("orders", "dead_letter"): 1,
        ("orders", "saga"): 3,
    }


def test_what_the_inbox_answers_is_counted_by_scope_and_result(engine):
    async def main():
        async with engine, StoreMetrics(engine, name="orders"):
            inbox = engine.inbox
            done = await inbox.begin("billing", "e-1", fingerprint=b"1")
            await inbox.complete(done.token)
            for _ in range(2):
                await inbox.begin("billing", "e-1", fingerprint=b"1")
            await inbox.begin("billing", "e-1", fingerprint=b"2")
            for _ in range(2):
                await inbox.begin("billing", "e-2")
            await inbox.begin("shipping", "e-1")
            return {
                (one.attributes["everkeel.policy.name"], one.attributes["result"]): one.value
                for one in measure_all()
                if one.name == "everkeel.inbox.begin"
            }

    assert asyncio.run(main()) == {
        ("billing", "fresh"): 2, ("billing", "duplicate"): 2, ("billing", "in_progress"): 1, ("billing", "mismatch"): 1,
        ("shipping", "fresh"): 1, ("shipping", "duplicate"): 0, ("shipping", "in_progress"): 0,
        ("shipping", "mismatch"): 0,
    }  # fmt: skip


def test_scopes_without_end_are_counted_as_one(monkeypatch):
    monkeypatch.setattr("everkeel.engines.counts.MOST_SCOPES", 2)
    engine = MemoryEngine()
    for scope in ("a", "http:ann", "http:bob", "c", "d", "a"):
        engine.inbox.sync.begin(scope, "k")
    assert {scope: sum(results.values()) for scope, results in engine.counts.begun.items()} == {
        "a": 2, "http": 2, "(others)": 2,
    }  # fmt: skip


def test_sagas_that_were_due_are_counted_by_type_when_they_are_taken(engine):
    async def main():
        async with engine, StoreMetrics(engine, name="orders"):
            for id, type, due in (
                ("1", "order", 0.0),
                ("2", "order", 0.0),
                ("3", "refund", 0.0),
                ("4", "refund", 600.0),
            ):
                await engine.sagas.create(NewSaga(
                    id=id, type=type, version=1, kind="orchestrated", state=SagaState.RUNNING, document="{}", due=due
                ))  # fmt: skip
            for _ in range(2):
                await engine.sagas.claim_due("me", 10, 600)
            taken = {one.attributes["everkeel.policy.name"]: one.value for one in measure_all()
                     if one.name == "everkeel.saga.claimed"}  # fmt: skip
            return taken

    assert asyncio.run(main()) == {"order": 2, "refund": 1}


def test_code_without_an_event_loop_is_counted_too(tmp_path):
    for engine in (MemoryEngine(), SQLiteEngine(tmp_path / "db")):
        assert not engine.inbox.sync.extend(Token("billing", "e-1", "somebody else's", 1))
        assert engine.counts.conflicts["inbox"] == 1
        asyncio.run(engine.close())


def test_an_engine_that_counts_nothing_will_do():
    class Plain(MemoryEngine):
        counts = property(lambda self: None, lambda self, counts: None)

    async def main():
        async with Plain() as plain, StoreMetrics(plain):
            assert shown("everkeel.store.conflicts") == {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everkeel.engines.memory.engine.counted", lambda store, kind, counts: store)
        asyncio.run(main())
