"""What to do with a batch once the transport has answered; decided purely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from everkeel.engines.rows import Claimed, ErrorInfo, Lease, Retry
from everkeel.messaging.transports.protocol import CONFIRMED, FATAL, UNKNOWN, Published


@dataclass(slots=True)
class Verdict:
    """Where each row of a batch goes."""

    delivered: list[Claimed] = field(default_factory=list)
    retried: list[tuple[Claimed, Retry, BaseException | None]] = field(default_factory=list)
    released: list[Claimed] = field(default_factory=list)
    """Given back unharmed: an earlier event of their key has not arrived."""
    away: list[tuple[Claimed, BaseException | None]] = field(default_factory=list)
    """Those that met a transport that is away. They step aside for a while, uncounted: where it is but one event that
    finds it so every time, the next try must be with another, or it would stand in the way of its topic for ever."""
    buried: list[tuple[Claimed, str, BaseException | None]] = field(default_factory=list)
    outage: BaseException | None = None
    """The transport is away."""
    out: bool = False


def judge(
    batch: Sequence[Claimed], answers: Sequence[Published], attempts: int | None, delay: Callable[[int], float]
) -> Verdict:
    """Confirmed rows are delivered. Of a key, whatever stands behind one that is not is given back, in any case.

    An outage counts against nobody. Anything else counts, and `attempts` failures make a dead letter; what will never
    be taken is one at once.
    """
    verdict = Verdict()
    held: set[tuple[str, str]] = set()  # keys of which an event did not arrive
    for claimed, published in zip(batch, answers, strict=True):
        row = claimed.row
        line = None if row.key is None else (row.topic, row.key)
        if published.result is CONFIRMED:
            verdict.delivered.append(claimed)  # it is there; giving it back would not make it less so
            continue
        if line in held:
            verdict.released.append(claimed)
            continue
        if line is not None:
            held.add(line)
        if published.outage or published.result is UNKNOWN:
            verdict.out, verdict.outage = True, published.error
            verdict.away.append((claimed, published.error))
        elif published.result is FATAL:
            verdict.buried.append((claimed, "fatal", published.error))
        elif attempts is not None and claimed.failures + 1 >= attempts:
            verdict.buried.append((claimed, "attempts", published.error))
        else:
            retry = Retry(claimed.lease, delay(claimed.failures + 1), ErrorInfo.of(published.error))
            verdict.retried.append((claimed, retry, published.error))
    return verdict


SUSPECT = 2
"""Claims without an end after which an event is published alone."""


def deaths(claimed: Claimed) -> int:
    """How many claims on it ended without a word: whoever had it died, or was away for longer than its lease."""
    return claimed.lease.attempt - 1 - claimed.failures


def suspect(batch: Sequence[Claimed]) -> Claimed | None:
    """The first event that may be what kills its relays, or what stands before it in the line of its key.

    All that were claimed together with the one that does look the same. Published one by one, with nothing beside it,
    each shows what it is: the others arrive, and that one alone goes on collecting deaths. But none may overtake its
    key: a replayed event, whose count began anew, can stand before one that has seen relays die.
    """
    first = next((claimed for claimed in batch if deaths(claimed) >= SUSPECT), None)
    if first is None or first.row.key is None:
        return first
    line = (first.row.topic, first.row.key)
    return next(claimed for claimed in batch if (claimed.row.topic, claimed.row.key) == line)


def deadly(claimed: Claimed, attempts: int | None) -> bool:
    """Did it outlive as many relays, when it was alone with them, as an event has attempts?"""
    return attempts is not None and deaths(claimed) >= SUSPECT + attempts


def by_topic(batch: Sequence[Claimed]) -> dict[str, list[Claimed]]:
    """One list per topic, so that a slow topic keeps nobody else waiting."""
    groups: dict[str, list[Claimed]] = {}
    for claimed in batch:
        groups.setdefault(claimed.row.topic, []).append(claimed)
    return groups


def leases(batch: Sequence[Claimed]) -> list[Lease]:
    """What we hold."""
    return [claimed.lease for claimed in batch]


class TopicHealth:
    """Whether a topic can be published to at the moment, and how much at once.

    After an outage it begins with a single event and doubles: a broker that has just come back is not greeted with
    everything that has gathered meanwhile.
    """

    __slots__ = ("in_flight", "outages", "until", "window")

    def __init__(self) -> None:
        self.in_flight = 0
        self.outages = 0
        self.until = 0.0
        self.window: int | None = None  # None: no bound

    def closed(self, now: float, most: int) -> bool:
        """Should nothing of this topic be claimed now?"""
        most = 1 if self.window is not None else most
        return self.in_flight >= most or now < self.until

    def fell(self, now: float, delay: float) -> None:
        """It is away: not before `delay` seconds, and then with one event."""
        self.outages += 1
        self.until = now + delay
        self.window = 1

    def worked(self, most: int) -> None:
        """It took what it was given."""
        self.outages = 0
        if self.window is not None:
            self.window *= 2
            if self.window >= most:
                self.window = None
