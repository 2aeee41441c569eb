"""The decisions of idempotency: told the record and the time, they answer what it becomes. No clock, no I/O.

Stores in a database say the same in SQL; the contract suite holds them to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from everkeel.errors import ConfigError
from everkeel.idempotency.records import Begin, Duplicate, Fresh, InProgress, Mismatch, Record, State, Token
from everkeel.runtime.settings import Duration, Seconds

LEASE = 60.0
"""Long enough that a pause of the process is not taken for its death; a heartbeat extends it while the work runs."""
RETAIN = 8 * 86_400.0
"""A day longer than dead letters are kept: what is replayed on their last day still meets its record."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question: may I do the work of this key?"""

    scope: str
    key: str
    fingerprint: bytes | None
    lease: float
    retain: float
    epoch: int
    nonce: str


def request(
    scope: str, key: str, *, fingerprint: bytes | None, lease: Seconds, retain: Seconds, epoch: int, nonce: str
) -> Request:
    """A checked request; every store makes its requests by this."""
    for name, text in (("scope", scope), ("key", key)):
        if not isinstance(text, str) or not text or "\0" in text:
            raise ConfigError("idempotency", name, "must be a non-empty string without NULs", repr(text)[:200])
    if fingerprint is not None and not isinstance(fingerprint, bytes):
        raise ConfigError("idempotency", "fingerprint", "must be bytes, or None", repr(fingerprint)[:200])
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
        raise ConfigError("idempotency", "epoch", "must be a whole number of at least 0", repr(epoch))
    return Request(scope, key, fingerprint, length("lease", lease), length("retain", retain), epoch, nonce)


def length(name: str, value: Seconds) -> float:
    """A length of time, more than nothing."""
    try:
        return Duration().check(value)
    except ValueError as error:
        raise ConfigError("idempotency", name, str(error), repr(value)) from None


def begin(record: Record | None, wanted: Request, now: float) -> tuple[Begin, Record | None]:
    """The answer, and the record as it is from now on.

    A record that is over its time counts as none. A later epoch (a replay by an operator) may bring another
    payload, since it may have been edited; but what is completed stays completed, whatever the epoch.
    """
    if record is None or now >= record.forgotten_at:
        claimed = Record(
            scope=wanted.scope,
            key=wanted.key,
            state=State.IN_PROGRESS,
            nonce=wanted.nonce,
            fence=1 if record is None else record.fence + 1,
            attempts=1,
            epoch=wanted.epoch,
            fingerprint=wanted.fingerprint,
            result=None,
            until=now + wanted.lease,
            retain=wanted.retain,
        )
        return Fresh(claimed.token, 1), claimed
    later = wanted.epoch > record.epoch
    if wanted.epoch < record.epoch and differs(record.fingerprint, wanted.fingerprint):
        return Duplicate(record.result), record  # a late copy of what was corrected since: the correction counts
    if differs(record.fingerprint, wanted.fingerprint) and (record.state is State.COMPLETED or not later):
        return Mismatch(), record
    if record.state is State.COMPLETED:
        return Duplicate(record.result), record
    if record.state is State.IN_PROGRESS and now < record.until:
        return InProgress(record.until - now), record
    claimed = replace(
        record,
        state=State.IN_PROGRESS,
        nonce=wanted.nonce,
        fence=record.fence + 1,
        attempts=1 if later else record.attempts + 1,
        epoch=max(record.epoch, wanted.epoch),
        fingerprint=record.fingerprint if wanted.fingerprint is None and not later else wanted.fingerprint,
        until=now + wanted.lease,
        retain=wanted.retain,
    )
    return Fresh(claimed.token, claimed.attempts), claimed


def differs(kept: bytes | None, given: bytes | None) -> bool:
    """Are these the fingerprints of two different things? One that is not known differs from none."""
    return kept is not None and given is not None and kept != given


def holds(record: Record | None, token: Token) -> bool:
    """Is this the claim that holds the key now? A lease that is over still holds until somebody takes the key."""
    return record is not None and record.state is State.IN_PROGRESS and record.nonce == token.nonce


def complete(record: Record | None, token: Token, result: bytes | None, now: float) -> Record | None:
    """The record after its work is done; None where the claim was lost."""
    if record is None or not holds(record, token):
        return None
    return replace(record, state=State.COMPLETED, result=result, until=now + record.retain)


def fail(record: Record | None, token: Token, now: float, *, refund: bool = False) -> Record | None:
    """The record after its work failed; None where the claim was lost. `refund`: the try is not charged."""
    if record is None or not holds(record, token):
        return None
    attempts = record.attempts - 1 if refund else record.attempts
    return replace(record, state=State.FAILED, attempts=attempts, until=now + record.retain)


def extend(record: Record | None, token: Token, lease: float, now: float) -> Record | None:
    """The record with its lease renewed; None where the claim was lost."""
    if record is None or not holds(record, token):
        return None
    return replace(record, until=now + lease)
