"""What stores keep and hand out: plain values, without a word about databases or transports."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MOST_ERROR_TEXT = 8192
"""Characters of an error's text that are kept: a message of megabytes must not fill the store."""


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """A text as every database can keep it: PostgreSQL has no NUL, and half a character cannot be written as UTF-8.

    Errors have both, from broken input and from names of files. Without this, what failed because of them could not
    even be given up on.

    >>> storable("caf\\udce9")
    'caf\ufffd'
    """
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text) if _UNSTORABLE.search(text) else text


def inbox_key(source: str, id: str) -> str:
    """Under which key an inbox remembers an event: its source and its id, which only together identify it.

    >>> inbox_key("/orders", "e-1")
    '["/orders","e-1"]'
    """
    return json.dumps([source, id], ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What an engine can promise."""

    transactional: bool
    """It takes part in the caller's own transaction, so that an effect and its event are one."""
    durable: Literal["fsync", "replicated", "memory"]
    """What survives once a write has returned."""
    shared: Literal["process", "machine", "network"]
    """Who may work on it together."""
    notify: bool
    """Its wake-up signal reaches other processes. Where it does not, they poll."""
    linearizable: bool = True
    """A compare-and-set that answered yes cannot be undone by a failover."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One event on its way to one topic, as the outbox keeps it. The columns are those Debezium's router reads."""

    id: str
    source: str
    type: str
    topic: str
    """Where it is published: the column `aggregatetype`."""
    key: str | None
    """Events of one topic and key keep their order; None: no order. The column `aggregateid`."""
    attributes: str
    """The other context attributes and the extensions, as a JSON object."""
    payload: str | None
    """The event's data as text; None: it has none."""
    encoding: Literal["base64"] | None = None
    """How the payload became text, where it is not text by itself."""
    epoch: int = 0
    """How often the event was replayed. A higher epoch of a known event is delivered again."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A claim on one row for a time: whoever holds a newer token for the row is the holder now."""

    seq: int
    token: str
    attempt: int
    """How often the row was claimed, this time included."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A row together with the lease under which it may be handled."""

    row: OutboxRow
    lease: Lease
    failures: int
    """How many attempts failed so far for reasons that lie in the row."""
    age: float
    """Seconds since it was written, by the store's clock."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as it is stored: its class and its text, never the object."""

    type: str
    text: str

    @classmethod
    def of(cls, error: BaseException | str | None) -> ErrorInfo:
        """What is kept of an exception.

        >>> ErrorInfo.of(ValueError("no such account"))
        ErrorInfo(type='ValueError', text='no such account')
        """
        if error is None or isinstance(error, str):
            return cls("", storable((error or "")[:MOST_ERROR_TEXT]))
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        try:
            text = str(error)
        except Exception:  # an error whose text cannot be made must not hide that it happened
            text = "(its text cannot be read)"
        return cls(storable(name), storable(text[:MOST_ERROR_TEXT]))

    def __str__(self) -> str:
        return f"{self.type}: {self.text}" if self.type else self.text


@dataclass(frozen=True, slots=True)
class Retry:
    """One row to be tried again: after `delay` seconds, counted against its attempts or not."""

    lease: Lease
    delay: float
    error: ErrorInfo
    counted: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterRow:
    """The whole event that was given up on, why, where and how often: the columns of `everkeel_dead_letters`.

    Moments are seconds since 1970 by the store's clock.
    """

    id: str
    consumer: str
    """Who gave up: a consumer's name, or `outbox` for the relay."""
    status: str
    topic: str
    key: str | None
    source: str
    event_id: str
    event_type: str
    epoch: int
    attributes: str
    payload: str | None
    encoding: Literal["base64"] | None
    reason: str
    """`attempts`, `fatal`, ..."""
    error_type: str
    error: str
    attempts: int
    replays: int = 0
    saga_id: str | None = None
    behind: str | None = None
    """The dead letter of the same key that this one waits for."""
    created_at: float
    """When the letter was written."""
    failed_at: float
    """When the event failed last."""
    updated_at: float
    version: int = 1
    """Grows with every change."""
    traceback: str = ""
    correlation_id: str | None = None
    position: int = 0
    """Its place among the letters of its key. A letter that follows an earlier one of its event takes its place."""
    first_failed_at: float = 0.0
    """When the event failed first, as far as its letters are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxStats:
    """What is in the outbox, counted by the store itself."""

    depth: int
    """Waiting to be delivered, those under lease included."""
    leased: int
    """Being delivered right now."""
    delayed: int
    """Waiting for their time."""
    parked: int
    """Waiting behind a dead letter of their key."""
    oldest_age: float
    """Seconds since the oldest waiting event was written; 0 when none waits."""
    by_topic: Mapping[str, int] = field(default_factory=dict)
    """The depth of each topic."""
