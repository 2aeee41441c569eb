"""A process that runs one saga and may be killed while it does: `python saga_process.py DIRECTORY SAGA start|carry on`.

Participants keep their effects in a database of their own, by idempotency key, and log every call.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from everkeel import NotRetryable
from everkeel.engines import SQLiteEngine
from everkeel.messaging import Event
from everkeel.sagas import Context, Orchestrator, Saga, Step
from everkeel.testing import crash_as_told


class Refused(NotRetryable):
    """No."""


def participants(directory: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(directory / "participants.db", timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS effects (key TEXT PRIMARY KEY)")
    connection.execute("CREATE TABLE IF NOT EXISTS calls (saga TEXT, what TEXT)")
    return connection


def order(directory: Path) -> Saga[Any, Any, Any]:
    def step(name: str) -> Step:
        async def action(context: Context[Any, Any]) -> str:
            with closing(participants(directory)) as they:
                they.execute("INSERT INTO calls VALUES (?, ?)", (context.saga_id, name))
                if name == "ship" and context.input["refused"]:
                    raise Refused("no such address")
                they.execute("INSERT OR IGNORE INTO effects VALUES (?)", (context.key,))
            context.emit(Event(f"{name}.done", source="/test"))
            return name

        async def undo(context: Context[Any, Any]) -> None:
            with closing(participants(directory)) as they:
                they.execute("INSERT INTO calls VALUES (?, ?)", (context.saga_id, f"-{name}"))
                they.execute("DELETE FROM effects WHERE key = ?", (context.action_key,))

        return Step(name, action, undo, backoff=0.01)

    return Saga("order", step("reserve"), step("charge"), step("ship"), deadline=None)


async def main(directory: Path, id: str, what: str) -> None:
    saga = order(directory)
    async with SQLiteEngine(directory / "sagas.db", busy_timeout=30) as engine:
        async with Orchestrator(engine, saga, lease=0.5, poll=0.1) as orchestrator:
            crash_as_told()
            if what == "start":
                handle = await orchestrator.start(saga, {"refused": id.startswith("back")}, id=id)
                await handle.result()
            else:
                await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
