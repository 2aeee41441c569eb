"""Whether a database still has what its migrations made: somebody may have dropped an index, or restored half a backup.

What should be there is read from the migrations themselves, so that there is no second list to keep up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from everkeel.engines.sql.migrations import Migration
from everkeel.errors import ConfigError

_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)\s*\(", re.IGNORECASE)
_SEQUENCE = re.compile(r"CREATE SEQUENCE (?:IF NOT EXISTS )?(\w+)", re.IGNORECASE)
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?(\w+)\s+ON (\w+)", re.IGNORECASE)
_ADDED = re.compile(r"ALTER TABLE (\w+)\s+ADD (?:COLUMN )?(?:IF NOT EXISTS )?(\w+)", re.IGNORECASE)
_DROPPED = re.compile(r"ALTER TABLE (\w+)\s+DROP (?:COLUMN )?(?:IF EXISTS )?(\w+)", re.IGNORECASE)
_INDEX_DROPPED = re.compile(r"DROP INDEX (?:IF EXISTS )?(\w+)", re.IGNORECASE)
_UNIQUE = re.compile(r"(?:UNIQUE|PRIMARY KEY)\s*\(([^)]*)\)", re.IGNORECASE)
_UNIQUE_COLUMN = re.compile(r"(\w+) .*\b(?:UNIQUE|PRIMARY KEY)\b", re.IGNORECASE | re.DOTALL)
_NO_COLUMN = {"PRIMARY", "UNIQUE", "CHECK", "CONSTRAINT", "FOREIGN", "EXCLUDE"}


@dataclass(slots=True)
class Shape:
    """What a table has; a sequence has nothing."""

    columns: set[str] = field(default_factory=set)
    indexes: set[str] = field(default_factory=set)
    """Those with a name of ours."""
    unique: set[tuple[str, ...]] = field(default_factory=set)
    """Columns of which no two rows may have the same: inserts rely on it."""


def shapes(migrations: Sequence[Migration]) -> dict[str, Shape]:
    """What a database has after all of these, by name.

    >>> steps = [Migration(1, "", ("CREATE TABLE t (id text PRIMARY KEY, n integer CHECK (n IN (1, 2)))",))]
    >>> sorted(shapes(steps)["t"].columns), shapes(steps)["t"].unique
    (['id', 'n'], {('id',)})
    """
    found: dict[str, Shape] = {}
    for statement in (text.strip() for migration in migrations for text in migration.statements):
        if match := _TABLE.match(statement):
            found[match[1]] = _table(statement[match.end() :])
        elif match := _SEQUENCE.match(statement):
            found[match[1]] = Shape()
        elif match := _INDEX.match(statement):
            found[match[2]].indexes.add(match[1])
        elif match := _ADDED.match(statement):
            found[match[1]].columns.add(match[2])
        elif match := _DROPPED.match(statement):
            found[match[1]].columns.discard(match[2])
        elif match := _INDEX_DROPPED.match(statement):
            for shape in found.values():
                shape.indexes.discard(match[1])
    return found


def _table(body: str) -> Shape:
    shape = Shape()
    for part in _parts(body):
        name = part.split(maxsplit=1)[0]
        if match := _UNIQUE.match(part):
            shape.unique.add(tuple(column.strip() for column in match[1].split(",")))
        elif name.upper() not in _NO_COLUMN:
            shape.columns.add(name)
            if match := _UNIQUE_COLUMN.match(part):
                shape.unique.add((name,))
    return shape


def _parts(body: str) -> Iterator[str]:
    """What stands between the commas, up to the bracket that ends it all; commas within brackets do not count."""
    depth, part = 0, ""
    for character in body:
        if character == ")" and depth == 0:
            break
        if character == "," and depth == 0:
            yield part.strip()
            part = ""
            continue
        depth += {"(": 1, ")": -1}.get(character, 0)
        part += character
    yield part.strip()


def lacking(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> list[str]:
    """What is not there, in words. What is there beside it is somebody's own business."""
    words: list[str] = []
    for name, shape in expected.items():
        there = found.get(name)
        if there is None:
            words.append(name)
            continue
        words += [f"the column {name}.{column}" for column in sorted(shape.columns - there.columns)]
        words += [f"the index {index}" for index in sorted(shape.indexes - there.indexes)]
        words += [f"a unique index on {name} ({', '.join(key)})" for key in sorted(shape.unique - there.unique)]
    return words


def check_version(owner: str, where: str, migrations: Sequence[Migration], version: int) -> None:
    """A `ConfigError` where the tables are newer than the code: it would not know what else must be written."""
    newest = migrations[-1].version
    if version > newest:
        problem = (
            f"has tables of version {version}, and this code knows {newest}: run the newer code, or pass "
            "validate=False if you know that this one can use them"
        )
        raise ConfigError(owner, where, problem, None)


def check_shapes(
    owner: str, where: str, dialect: str, migrations: Sequence[Migration], found: Mapping[str, Shape]
) -> None:
    """A `ConfigError` that names what is missing."""
    missing = lacking(shapes(migrations), found)
    if missing:
        problem = (
            f"lacks {', '.join(missing)}: the output of `everkeel schema sql {dialect}` has it, and makes tables and "
            "indexes that are missing (validate=False: start all the same)"
        )
        raise ConfigError(owner, where, problem, None)
