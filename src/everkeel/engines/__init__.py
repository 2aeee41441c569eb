"""Where events, their delivery and what was already done are kept: in memory, in SQLite, in PostgreSQL.

An engine is an async context manager with one store per concern (`outbox`, `inbox`, `dead_letters`, `sagas`), a
`wakeup` signal and `capabilities` that say honestly what it can promise.

    async with SQLiteEngine("events.db") as engine:
        outbox = Outbox(engine)
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from everkeel.engines.memory.engine import MemoryEngine
    from everkeel.engines.postgres.engine import PostgresEngine
    from everkeel.engines.protocols import Engine, OutboxStore, Wakeup
    from everkeel.engines.rows import Capabilities, Claimed, ErrorInfo, Lease, OutboxRow, OutboxStats
    from everkeel.engines.sqlite.engine import SQLiteEngine

__all__ = [
    "Capabilities", "Claimed", "Engine", "ErrorInfo", "Lease", "MemoryEngine", "OutboxRow", "OutboxStats",
    "OutboxStore", "PostgresEngine", "SQLiteEngine", "Wakeup",
]  # fmt: skip

_HOMES = {
    "memory.engine": ("MemoryEngine",),
    "postgres.engine": ("PostgresEngine",),
    "protocols": ("Engine", "OutboxStore", "Wakeup"),
    "rows": ("Capabilities", "Claimed", "ErrorInfo", "Lease", "OutboxRow", "OutboxStats"),
    "sqlite.engine": ("SQLiteEngine",),
}


def __getattr__(name: str) -> object:
    """Imported when first used: an engine needs its driver, and a service has one engine."""
    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(_import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
