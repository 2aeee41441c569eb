"""Where everything is: which engine and transport, in which files or on which servers, at which addresses."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from everkeel.messaging import MemoryTransport, Transport

__all__ = ["SERVICES", "World"]

SERVICES = ("inventory", "payments", "orders")
TOPIC = "shop"


@dataclass(frozen=True)
class World:
    """What every process of the shop is told."""

    folder: str
    engine: str = "sqlite"
    transport: str = "sqlite"
    ports: dict[str, int] = field(default_factory=dict)
    databases: dict[str, str] = field(default_factory=dict)
    """With PostgreSQL: where each service's database is."""
    redis: str = ""
    servers: dict[str, int] = field(default_factory=dict)
    """The servers that were started for this shop: their folders and processes."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    retain: float = 900.0
    """Seconds for which what is over is kept: delivered events, what was handled, ended sagas, letters dealt with."""

    def save(self) -> Path:
        """Write it where the services read it. It holds a token, so only its owner may read it."""
        path = Path(self.folder) / "world.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: str | Path) -> World:
        """What `save` wrote."""
        return cls(**json.loads(Path(path).read_text()))

    def url(self, service: str) -> str:
        """Where a service answers."""
        return f"http://127.0.0.1:{self.ports[service]}"

    def engine_of(self, service: str) -> Any:
        """The engine of a service: a database of its own."""
        if self.engine == "postgres":
            from everkeel.engines import PostgresEngine

            return PostgresEngine(self.databases[service], connections=12, keep_delivered=self.retain)
        from everkeel.engines import SQLiteEngine

        return SQLiteEngine(Path(self.folder) / f"{service}.db", busy_timeout=10.0, keep_delivered=self.retain)

    def transport_of(self, service: str) -> Transport:
        """The transport that all services share."""
        if self.transport == "redis":
            from everkeel.messaging import RedisTransport

            return RedisTransport(self.redis, retain=self.retain)
        if self.transport == "memory":
            return _in_memory(self.folder)
        from everkeel.messaging import SQLiteTransport

        return SQLiteTransport(Path(self.folder) / "transport.db", poll=0.05, retain=self.retain)


@lru_cache(maxsize=4)
def _in_memory(folder: str) -> MemoryTransport:
    """What all services of one shop share, where they are in one process."""
    return MemoryTransport()
