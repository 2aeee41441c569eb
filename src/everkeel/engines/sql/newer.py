"""What came behind a dead letter in its key, in SQL: a look at a few thousand rows, however long the tables are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from everkeel.engines.letters import LOOKED_AT, OUTBOX, UNRESOLVED, Newer, Status
from everkeel.engines.rows import DeadLetterRow, inbox_key
from everkeel.engines.sql.dialect import Dialect
from everkeel.engines.sql.inbox import SQLEngine
from everkeel.engines.sql.statement import Operation, Statement

_KEYS_AT_ONCE = 200

_LETTERS = """
SELECT source, event_id, status FROM everkeel_dead_letters
WHERE consumer = :consumer AND topic = :topic AND key = :key AND position > :position"""

# The window is cut before rows of the key are looked for: no index has the delivered rows of a key.
_WINDOW = "SELECT {} FROM everkeel_outbox WHERE seq > :seq ORDER BY seq LIMIT :limit"


def newer(engine: SQLEngine, dialect: Dialect, row: DeadLetterRow) -> Operation[Newer]:
    """The letters behind it, then the rows of the outbox behind it, then which of those its consumer has handled."""
    if row.key is None:
        return Newer(exact=True)
    own = (row.source, row.event_id)
    lane = {"topic": row.topic, "key": row.key}
    behind = yield Statement(_LETTERS, {**lane, "consumer": row.consumer, "position": row.position})
    waiting = {(source, id) for source, id, status in behind if status in UNRESOLVED} - {own}
    handled = {(source, id) for source, id, status in behind if status == Status.RESOLVED} - {own}

    seconds = dialect.seconds.format
    clock: dict[str, Any] = {"now": engine.clock.time()} if ":now" in dialect.now else {}
    places = yield Statement(
        f"SELECT seq, {seconds(dialect.now)} - {seconds('created_at')} FROM everkeel_outbox "
        "WHERE source = :source AND id = :id AND aggregatetype = :topic",
        {"source": row.source, "id": row.event_id, "topic": row.topic, **clock},
    )
    window = {"seq": places[0][0] if places else 0, "limit": LOOKED_AT}
    looked_at = yield Statement(f"SELECT count(*) FROM ({_WINDOW.format('1')}) AS w", window)
    columns = f"source, id, aggregatetype, aggregateid, state, {seconds('created_at')} AS written_at"
    rows = yield Statement(
        f"SELECT source, id, state, written_at FROM ({_WINDOW.format(columns)}) AS w "
        "WHERE aggregatetype = :topic AND aggregateid = :key",
        {**window, **lane},
    )
    # Where its own row is gone, only what was written after it had failed is newer for certain.
    later = [(source, id, state) for source, id, state, at in rows if places or at > row.first_failed_at]
    sent = {(source, id) for source, id, state in later if state == 1} - {own}
    kept = float(getattr(engine, "keep_delivered", 0.0))
    exact = bool(places) and float(places[0][1]) < kept and looked_at[0][0] < LOOKED_AT
    if row.consumer == OUTBOX:
        waiting |= {(source, id) for source, id, state in later if state in (0, 3)} - {own}
        handled |= sent
    else:
        here = yield Statement("SELECT 1 FROM everkeel_inbox WHERE scope = :scope LIMIT 1", {"scope": row.consumer})
        exact = exact and bool(here)
        handled |= yield from _completed(row.consumer, sent)
    return Newer(waiting=len(waiting - handled), handled=len(handled), exact=exact)


def _completed(consumer: str, events: Collection[tuple[str, str]]) -> Operation[set[tuple[str, str]]]:
    by_key = {inbox_key(source, id): (source, id) for source, id in events}
    keys = list(by_key)
    found: set[tuple[str, str]] = set()
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        named = {f"key_{place}": key for place, key in enumerate(keys[start : start + _KEYS_AT_ONCE])}
        rows = yield Statement(
            "SELECT key FROM everkeel_inbox WHERE scope = :scope AND state = 'completed' "
            f"AND key IN ({', '.join(f':{name}' for name in named)})",
            {**named, "scope": consumer},
        )
        found |= {by_key[key] for (key,) in rows}
    return found
