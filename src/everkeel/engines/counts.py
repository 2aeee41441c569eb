"""What an engine's stores refused because somebody else was faster, and what detectors took: counted for metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias, TypeVar

S = TypeVar("S")
Kind: TypeAlias = Literal["outbox", "inbox", "dead_letter", "saga"]
Lost: TypeAlias = Callable[[Any, Any], int]
"""How many of the writes that were asked for were refused, by the answer."""

BEGUN = {"Fresh": "fresh", "Duplicate": "duplicate", "InProgress": "in_progress", "Mismatch": "mismatch"}
"""How an inbox may answer, and what that is called in metrics."""
MOST_SCOPES = 1000
"""Scopes that are counted by their names, which are people's choice; those that come later count as one."""

KINDS: tuple[Kind, ...] = ("outbox", "inbox", "dead_letter", "saga")


class StoreCounts:
    """Counts of one engine in this process, from any thread.

    >>> counts = StoreCounts()
    >>> counts.conflict("saga", 2)
    >>> counts.conflicts["saga"], counts.conflicts["outbox"]
    (2, 0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._conflicts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._claimed: Counter[str] = Counter()
        self._begun: dict[str, dict[str, int]] = {}

    def conflict(self, kind: Kind, number: int = 1) -> None:
        """So many writes came too late: another process had changed or taken over what they were about."""
        with self._lock:
            self._conflicts[kind] += number

    def claimed(self, types: list[str]) -> None:
        """Sagas of these types were due, and taken."""
        with self._lock:
            self._claimed.update(types)

    @property
    def conflicts(self) -> Mapping[str, int]:
        """By what they were about."""
        with self._lock:
            return dict(self._conflicts)

    def began(self, scope: str, answer: object) -> None:
        """Somebody asked the inbox whether to do some work, and was answered."""
        if scope.startswith("http:"):
            scope = "http"  # behind it stands who called: there is no end to those
        with self._lock:
            if scope not in self._begun and len(self._begun) >= MOST_SCOPES:
                scope = "(others)"
            results = self._begun.setdefault(scope, dict.fromkeys(BEGUN.values(), 0))
            results[BEGUN[type(answer).__name__]] += 1

    @property
    def begun(self) -> Mapping[str, Mapping[str, int]]:
        """Answers of the inbox, by scope and result."""
        with self._lock:
            return {scope: dict(results) for scope, results in self._begun.items()}

    @property
    def sagas_claimed(self) -> Mapping[str, int]:
        """By type."""
        with self._lock:
            return dict(self._claimed)


def counted(store: S, kind: Kind, counts: StoreCounts) -> S:
    """The same store, whose fenced writes and compare-and-sets are counted when they are refused.

    Here, and not in each store: what a refusal looks like is part of the stores' protocols, the same in every engine.
    """
    for name, lost in _REFUSED[kind].items():
        _watch(store, name, partial(_refused, counts, kind, lost))
    if kind == "inbox":
        _watch(store, "begin", counts.began)
    if kind == "saga":
        _watch(store, "claim_due", lambda asked, rows: counts.claimed([row.type for row in rows]))
    return store


def _refused(counts: StoreCounts, kind: Kind, lost: Lost, asked: Any, answer: Any) -> None:
    if number := lost(asked, answer):
        counts.conflict(kind, number)


def _watch(store: Any, name: str, see: Callable[[Any, Any], None]) -> None:
    method = getattr(store, name)

    @wraps(method)
    async def awaited(*args: Any, **options: Any) -> Any:
        answer = await method(*args, **options)
        see(_asked(args, options), answer)
        return answer

    @wraps(method)
    def blocking(*args: Any, **options: Any) -> Any:
        answer = method(*args, **options)
        see(_asked(args, options), answer)
        return answer

    setattr(store, name, awaited if iscoroutinefunction(method) else blocking)


def _asked(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return args[0] if args else next(iter(options.values()), None)


def _those_not_kept(asked: Any, kept: Any) -> int:
    return len(asked) - len(kept)


def _nothing(asked: Any, answer: Any) -> int:
    return int(answer is None)


def _false(asked: Any, answer: Any) -> int:
    return int(answer is False)


_REFUSED: Mapping[Kind, Mapping[str, Lost]] = {
    "outbox": {**dict.fromkeys(("ack", "extend", "retry", "release"), _those_not_kept), "bury": _nothing},
    "inbox": dict.fromkeys(("complete", "fail", "extend"), _false),
    "dead_letter": {"transition": _nothing},
    "saga": {"save": _nothing, "write": lambda asked, answer: answer[1].count(None)},
}
