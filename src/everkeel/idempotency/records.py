"""What is kept about one key, and the four answers to "may I do this?"."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias


class State(Enum):
    """How far the work of a key has come.

    Only `COMPLETED` suppresses. `FAILED` lets the next one run, and so does `IN_PROGRESS` once its lease is over.
    """

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Token:
    """The right to end a claim. Whoever lost the claim meanwhile has a token that no longer fits, and changes nothing.

    `fence` grows by one with each claim of the key, as long as its record is kept: hand it to a system that can refuse
    the smaller of two.
    """

    scope: str
    key: str
    nonce: str
    fence: int


@dataclass(frozen=True, slots=True)
class Record:
    """What a store keeps about one key. Times are in the store's own clock; every change makes a new record."""

    scope: str
    key: str
    state: State
    nonce: str
    """Of the claim that holds it, or held it last."""
    fence: int
    """How many claims there were."""
    attempts: int
    """How many of them were charged since `epoch` began. The claim is counted when it is made: a crash is charged."""
    epoch: int
    """How often it was replayed by an operator."""
    fingerprint: bytes | None
    result: bytes | None
    until: float
    """When the lease ends (`IN_PROGRESS`), or when the record is forgotten."""
    retain: float

    @property
    def forgotten_at(self) -> float:
        """From when on the record counts as never written. A crashed claim is kept as long as a failed one."""
        return self.until + self.retain if self.state is State.IN_PROGRESS else self.until

    @property
    def token(self) -> Token:
        """The token of the claim that holds it, or held it last."""
        return Token(self.scope, self.key, self.nonce, self.fence)


# ------------------------------------------------------------------ the four answers


@dataclass(frozen=True, slots=True)
class Fresh:
    """Go on: the work is yours until the lease ends. End it by `complete(token, ...)` or `fail(token)`."""

    fresh: ClassVar[bool] = True
    token: Token
    attempt: int
    """Which try this is, from 1; crashed tries count, and a replay by an operator begins at 1 again."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """It was done before: do nothing, and answer with what was kept."""

    fresh: ClassVar[bool] = False
    result: bytes | None


@dataclass(frozen=True, slots=True)
class InProgress:
    """Somebody is doing it now. Their lease ends in `retry_after` seconds, unless they extend it."""

    fresh: ClassVar[bool] = False
    retry_after: float


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used before for something else: a mistake of the caller's, never a duplicate."""

    fresh: ClassVar[bool] = False


Begin: TypeAlias = Fresh | Duplicate | InProgress | Mismatch


@dataclass(frozen=True, slots=True)
class StoreStats:
    """How many records there are of each state."""

    in_progress: int
    completed: int
    failed: int
