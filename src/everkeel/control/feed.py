"""What live streams are fed with: rounds of listening and reading, for all readers of an event loop together."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

from everkeel.control import stream
from everkeel.control.board import Board, Identity, Numbers, Row, plain
from everkeel.control.ear import Ear, Happening
from everkeel.control.moments import iso
from everkeel.control.problems import ProblemError
from everkeel.control.stream import Reader, message
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.runtime.clock import Clock
    from everkeel.runtime.policy import AnyPolicy
    from everkeel.runtime.registry import Registry

ROUND = 0.25
"""Seconds between two rounds of happenings."""
ROUNDS_PER_READING = 4
LINGER = 120
"""Rounds to listen on after the last reader left: to begin and to end listening lets every decorated function be woven
anew, and a page that is reloaded comes back at once."""
AT_ONCE = 50
"""So many policies are read before others get the event loop."""


def reading_of(policy: AnyPolicy) -> Numbers | None:
    """The snapshot of a policy as JSON has it; None where it cannot be read, which is reported."""
    try:
        snapshot: dict[str, Any] = plain(policy.snapshot())
    except Exception as error:
        report(f"{policy.label}: its snapshot could not be read", error)
        return None
    return {name: value for name, value in snapshot.items() if name not in ("name", "type")}


def shown(identity: Identity, row: Row) -> dict[str, Any]:
    """A policy in a snapshot or a change."""
    numbers = dict(row.numbers)
    mode, state = numbers.pop("mode", None), numbers.get("state")
    return {
        "type": identity[0],
        "name": identity[1],
        "mode": mode,
        "state": state,
        "rates": row.rates,
        "metrics": numbers,
        "last_updated": iso(row.updated),
    }


class Feed:
    """Reads the policies, hears their events, and hands both to readers."""

    def __init__(self, registry: Registry, clock: Clock, most_readers: int) -> None:
        self.board = Board()
        self._registry, self._clock, self._most = registry, clock, most_readers
        self._rounds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Rounds] = weakref.WeakKeyDictionary()
        self._reading: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    # ------------------------------------------------------------------ the numbers

    async def read(self) -> int:
        """A round of readings of every policy, giving way to others in between; answers the board's version."""
        loop = asyncio.get_running_loop()
        lock = self._reading.setdefault(loop, asyncio.Lock())
        async with lock:
            now = self._clock.monotonic()
            readings: list[tuple[Identity, int, Numbers]] = []
            for number, policy in enumerate(self._registry, 1):
                numbers = reading_of(policy)
                if numbers is not None:
                    readings.append(((policy.type, str(policy.name)), id(policy), numbers))
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
            return self.board.read(readings, now, self._clock.time())

    def look(self, policy: AnyPolicy) -> Row | None:
        """The numbers of one policy, read now."""
        identity, numbers = (policy.type, str(policy.name)), reading_of(policy)
        if numbers is None:
            return None
        self.board.note(identity, id(policy), numbers, self._clock.monotonic(), self._clock.time())
        return self.board.rows[identity]

    def reset(self, policy: AnyPolicy) -> None:
        """Let the counters of a policy begin at zero from now on, as far as the control plane shows them."""
        numbers = reading_of(policy)
        if numbers is not None:
            self.board.reset((policy.type, str(policy.name)), id(policy), numbers)
            self.look(policy)

    # ------------------------------------------------------------------ readers

    @property
    def readers(self) -> int:
        """How many there are."""
        return sum(len(rounds.readers) for rounds in list(self._rounds.values()))

    def join(self, who: str, wants: Callable[[Happening], bool] | None = None) -> Reader:
        """A reader that is fed from now on; a problem where there are too many, or half of them are the caller's."""
        everybody = [reader for rounds in list(self._rounds.values()) for reader in rounds.readers]
        own = sum(reader.who == who for reader in everybody)
        if len(everybody) >= self._most or own >= max(1, self._most // 2):
            detail = (
                f"there are {len(everybody)} live streams already, {own} of them yours; close one, or come back later"
            )
            raise ProblemError(503, "too-many-streams", detail, headers={"Retry-After": "10"})
        reader = Reader(who, self._clock.monotonic() + stream.LONGEST, wants)
        loop = asyncio.get_running_loop()
        rounds = self._rounds.get(loop)
        if rounds is None:
            rounds = self._rounds[loop] = _Rounds(self, Ear(self._clock))
        rounds.join(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        """Feed it no more."""
        rounds = self._rounds.get(asyncio.get_running_loop())
        if rounds is not None:
            rounds.readers.discard(reader)

    def close(self, reason: str = "the control plane is closing") -> None:
        """Let every stream of this loop end."""
        rounds = self._rounds.get(asyncio.get_running_loop())
        for reader in list(rounds.readers) if rounds is not None else []:
            reader.end("bye", reason)

    def end_what_is_over(self, readers: Iterable[Reader]) -> None:
        """Let streams end whose time is over."""
        now = self._clock.monotonic()
        for reader in readers:
            if now >= reader.until:
                reader.end("bye", "an hour is over: connect again", again=True)

    async def everything(self, reader: Reader) -> AsyncIterator[bytes]:
        """The first messages of a reader that follows the numbers: all there are, in pieces of bounded size."""
        reader.version = version = await self.read()
        rows = list(self.board.rows.items())
        for start in range(0, max(1, len(rows)), AT_ONCE):
            piece = [shown(identity, row) for identity, row in rows[start : start + AT_ONCE]]
            last = start + AT_ONCE >= len(rows)
            yield message("snapshot", {"version": version, "total": len(rows), "complete": last, "policies": piece})

    async def changes(self, version: int) -> tuple[int, bytes | None]:
        """What changed on the board since a version, as a message, and the version now; none where nothing did."""
        now, news = self.board.version, self.board.since(version)
        if news is None:
            raise LookupError("more was removed than is remembered")
        changed, gone = news
        if not changed and not gone:
            return now, None
        pieces = []
        for number, (identity, row) in enumerate(changed, 1):
            pieces.append(json.dumps(shown(identity, row), separators=(",", ":")))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        lost = json.dumps([{"type": one[0], "name": one[1]} for one in gone])
        when = iso(self._clock.time())
        text = f'{{"version":{now},"time":"{when}","policies":[{",".join(pieces)}],"gone":{lost}}}'
        return now, message("changes", text)

    async def pause(self) -> None:
        """Until the next round."""
        await self._clock.asleep(ROUND)


class _Rounds:
    """The rounds of one event loop: begun by its first reader, over a while after its last."""

    def __init__(self, feed: Feed, ear: Ear) -> None:
        self._feed, self._ear = feed, ear
        self.readers: set[Reader] = set()
        self._task: asyncio.Task[None] | None = None
        self._number = 0

    def join(self, reader: Reader) -> None:
        self.readers.add(reader)
        if self._task is None or self._task.done():
            self._ear.open()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="everkeel control plane feed")

    async def _run(self) -> None:
        try:
            turn = last = 0
            while turn - last < LINGER:
                await self._feed.pause()
                turn += 1
                last = turn if self.readers else last
                try:
                    self._tell(self._ear.take())
                    if turn % ROUNDS_PER_READING == 0:
                        await self._tell_numbers()
                except Exception as error:
                    report("a round of the control plane's live streams failed", error)
                self._feed.end_what_is_over(self.readers)
                if stream.server_is_stopping():
                    for reader in self.readers:
                        reader.end("bye", "the server is stopping")
                    return
        finally:
            self._ear.close()
            self._task = None  # it knows its loop, which is kept alive by nobody else

    def _tell(self, happenings: list[Happening]) -> None:
        """One round is one place in a queue, however much happened: a burst is no reason to drop a reader."""
        told = []
        for happening in happenings:
            self._number += 1
            told.append((happening, message("happened", happening, self._number)))
        everything = b"".join(one for _, one in told)
        for reader in self.readers:
            wants = reader.wants
            round_ = everything if wants is None else b"".join(one for happening, one in told if wants(happening))
            if round_:
                reader.offer(round_)

    async def _tell_numbers(self) -> None:
        made: dict[int, tuple[int, bytes | None]] = {}  # readers of one version share one message
        following = [(reader, reader.version) for reader in self.readers if reader.version is not None]
        if following:
            await self._feed.read()
        for reader, version in following:
            if version not in made:
                try:
                    made[version] = await self._feed.changes(version)
                except LookupError as error:
                    reader.end("bye", f"{error}: connect again for a new snapshot", again=True)
                    continue
            reader.version, news = made[version]
            if news is not None:
                reader.offer(news)


def wanted(query: dict[str, Any]) -> Callable[[Happening], bool]:
    """The filter of a stream of happenings: `type`, `name` (with `*`) and `event`."""
    from fnmatch import fnmatchcase

    def wants(happening: Happening) -> bool:
        return all(
            pattern is None or fnmatchcase(str(happening[field] or ""), pattern)
            for field, pattern in ((field, query.get(field)) for field in ("type", "name", "event"))
        )

    return wants
