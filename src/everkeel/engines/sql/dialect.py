"""What PostgreSQL and SQLite say differently: moments in time, and locks on rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How one database writes what all need. A moment is a `timestamptz` in PostgreSQL, seconds of 1970 in SQLite."""

    now: str
    """This moment, by the store's clock. SQLite is told it as the parameter `:now`."""
    seconds: str
    """A column with a moment as seconds of 1970; `{}` is the column."""
    moment: str
    """Seconds of 1970 as a moment; `{}` is the expression."""
    later: str
    """So many seconds from now; `{}` is the expression."""
    for_update: str
    """Appended to a query whose rows nobody else may change until the transaction ends."""
    last_word: str
    """The part of the column `error_type` after its last dot."""
    next_position: str
    """The next number of the column `position` of dead letters."""


POSTGRES = Dialect(
    now="statement_timestamp()",  # not now(): a transaction may be old; not clock_timestamp(): no index would help
    seconds="extract(epoch FROM {})::float8",
    moment="to_timestamp({})",
    later="statement_timestamp() + make_interval(secs => CAST({} AS double precision))",
    for_update=" FOR UPDATE",
    last_word="regexp_replace(error_type, '^.*\\.', '')",
    next_position="nextval('everkeel_dead_letter_positions')",
)

SQLITE = Dialect(
    now=":now",
    seconds="{}",
    moment="{}",
    later=":now + {}",
    for_update="",  # whoever writes has the whole database
    last_word="replace(error_type, rtrim(error_type, replace(error_type, '.', '')), '')",
    next_position="(SELECT coalesce(max(position), 0) + 1 FROM everkeel_dead_letters)",
)
