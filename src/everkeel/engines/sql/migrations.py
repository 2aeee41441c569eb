"""The schema as a list of steps forward. A database knows how far it is; the rest is applied in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

VERSION_TABLE = "everkeel_schema"

_CREATE = re.compile(r"^CREATE (UNIQUE )?(TABLE|INDEX|SEQUENCE) (?!IF NOT EXISTS)")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: applied once, never changed after a release."""

    version: int
    what: str
    statements: tuple[str, ...]


def script(migrations: Sequence[Migration], create_versions: str, *, begin: str = "BEGIN") -> str:
    """The whole schema as SQL for people who run their migrations themselves."""
    parts = [f"{begin};", create_versions.strip() + ";"]
    for migration in migrations:
        parts.append(f"-- {migration.version}: {migration.what}")
        # Run a second time, it changes nothing.
        parts.extend(_CREATE.sub(r"\g<0>IF NOT EXISTS ", statement.strip()) + ";" for statement in migration.statements)
        parts.append(f"INSERT INTO {VERSION_TABLE} (version) VALUES ({migration.version}) ON CONFLICT DO NOTHING;")
    parts.append("COMMIT;")
    return "\n\n".join(parts) + "\n"


def missing(migrations: Sequence[Migration], version: int) -> list[Migration]:
    """The steps a database at `version` still needs."""
    return [migration for migration in migrations if migration.version > version]
