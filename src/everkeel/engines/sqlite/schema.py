"""The tables in SQLite. Times are seconds since 1970: there is one machine, so its clock is the store's."""

from __future__ import annotations

from everkeel.engines.sql import dead_letters, inbox, letter_tables, saga_tables, sequences
from everkeel.engines.sql.migrations import VERSION_TABLE, Migration, script

CREATE_VERSIONS = f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version INTEGER PRIMARY KEY)"

_OUTBOX = (
    """
CREATE TABLE IF NOT EXISTS everkeel_outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    source TEXT NOT NULL,
    aggregatetype TEXT NOT NULL,
    aggregateid TEXT,
    type TEXT NOT NULL,
    payload TEXT,
    encoding TEXT,
    attributes TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    state INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
    created_at REAL NOT NULL,
    available_at REAL NOT NULL,
    delivered_at REAL,
    lease_token TEXT,
    lease_until REAL,
    leased_by TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    UNIQUE (source, id, aggregatetype)
)""",
    "CREATE INDEX IF NOT EXISTS everkeel_outbox_due ON everkeel_outbox (available_at, seq) WHERE state = 0",
    """
CREATE INDEX IF NOT EXISTS everkeel_outbox_keys ON everkeel_outbox (aggregatetype, aggregateid, seq)
    WHERE state <> 1 AND aggregateid IS NOT NULL""",
    "CREATE INDEX IF NOT EXISTS everkeel_outbox_done ON everkeel_outbox (delivered_at) WHERE state = 1",
)

_MESSAGES = (
    """
CREATE TABLE IF NOT EXISTS everkeel_messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    key TEXT,
    body BLOB NOT NULL,
    published_at REAL NOT NULL
)""",
    "CREATE INDEX IF NOT EXISTS everkeel_messages_topics ON everkeel_messages (topic, seq)",
    "CREATE INDEX IF NOT EXISTS everkeel_messages_age ON everkeel_messages (published_at)",
    """
CREATE TABLE IF NOT EXISTS everkeel_groups (
    topic TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (topic, name)
) WITHOUT ROWID""",
    """
CREATE TABLE IF NOT EXISTS everkeel_deliveries (
    topic TEXT NOT NULL,
    consumer_group TEXT NOT NULL,
    seq INTEGER NOT NULL,
    key TEXT,
    available_at REAL NOT NULL,
    lease_token TEXT,
    lease_until REAL,
    attempts INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (topic, consumer_group, seq)
) WITHOUT ROWID""",
    """
CREATE INDEX IF NOT EXISTS everkeel_deliveries_due ON everkeel_deliveries (consumer_group, topic, available_at, seq)""",
    """
CREATE INDEX IF NOT EXISTS everkeel_deliveries_keys ON everkeel_deliveries (topic, consumer_group, key, seq)
    WHERE key IS NOT NULL""",
)

MIGRATIONS = (
    Migration(1, "the outbox", _OUTBOX),
    Migration(2, "dead letters", dead_letters.SQLITE_TABLES),
    Migration(3, "the inbox", inbox.SQLITE_TABLES),
    Migration(4, "messages between the processes of a machine", _MESSAGES),
    Migration(5, "sagas", saga_tables.SQLITE_TABLES),
    Migration(6, "sagas that wait for an operator", saga_tables.ATTENTION_INDEX),
    Migration(7, "dead letters by consumer and key", letter_tables.LANES),
    Migration(8, "how far consumers have come in numbered events", sequences.SQLITE_TABLES),
)


def sql() -> str:
    """The schema as a script."""
    return script(MIGRATIONS, CREATE_VERSIONS, begin="BEGIN IMMEDIATE")
