"""What is kept of a failure: small, without secrets, and enough to understand it at three in the morning."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import everkeel
from everkeel.engines.rows import ErrorInfo
from everkeel.errors import ConfigError
from everkeel.messaging.event import Event
from everkeel.runtime.trouble import report

MOST_TRACEBACK = 8192
FRAMES = 12
HIDDEN = "***"
_OURS = os.path.dirname(everkeel.__file__)  # frames of ours say nothing about what the handler did
_TOO_SHORT = 4  # a secret of three characters would blank out half of every message


class Redactor:
    """Hides what must not be seen: the values of named fields in an event's data, also where errors repeat them.

    The event itself is kept whole, or it could not be replayed; what is hidden is what people and other programs are
    shown of it. Error texts and tracebacks are redacted before they are stored.
    """

    def __init__(self, fields: Collection[str] = (), text: Callable[[str], str] | None = None) -> None:
        if isinstance(fields, str):
            raise ConfigError("dead letters", "redact", "must be names of fields, as a list", repr(fields))
        self._fields = frozenset(name.lower() for name in fields)
        self._text = text

    def data(self, value: Any) -> Any:
        """A value with the named fields hidden, however deep they are."""
        if isinstance(value, Mapping):
            return {
                name: HIDDEN if str(name).lower() in self._fields else self.data(inner) for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.data(inner) for inner in value]
        return value

    def restored(self, edited: Any, original: Any) -> Any:
        """Data that somebody corrected who was shown what `data` shows: what was hidden from them is as it was.

        Without this, a corrected order would be paid with the card `***`. Where it cannot be told which value was
        hidden, because fields were moved, a `ConfigError` asks for it.
        """
        if isinstance(edited, Mapping):
            had = original if isinstance(original, Mapping) else {}
            restored = {}
            for name, value in edited.items():
                if value != HIDDEN or str(name).lower() not in self._fields:
                    restored[name] = self.restored(value, had.get(name))
                elif name in had:
                    restored[name] = had[name]
                else:
                    allowed = f"must say what {name!r} is, or leave it out: nothing is hidden in its place"
                    raise ConfigError("dead letters", "data", allowed, None)
            return restored
        if isinstance(edited, list | tuple):
            # Items of a list have no names: with more or fewer of them than before, nobody knows which is which.
            same = isinstance(original, list | tuple) and len(original) == len(edited)
            return [self.restored(value, original[place] if same else None) for place, value in enumerate(edited)]
        return edited

    def text(self, text: str, event: Event | None) -> str:
        """A text without the values of those fields, and after the user's own function."""
        if event is not None and self._fields:
            for secret in sorted(self._secrets(event), key=len, reverse=True):
                text = text.replace(secret, HIDDEN)
        if self._text is None:
            return text
        try:
            return str(self._text(text))
        except Exception as error:  # what is hidden by a function that fails must not be shown because it failed
            report("a redaction raised; the text is left out", error)
            return HIDDEN

    def _secrets(self, event: Event) -> set[str]:
        try:
            found = {str(value) for value in self._values(event.data)}
        except Exception:
            return set()  # data that cannot be read has no fields
        return {value for value in found if len(value) >= _TOO_SHORT}

    def _values(self, value: Any, hidden: bool = False) -> Iterator[Any]:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield from self._values(inner, hidden or str(name).lower() in self._fields)
        elif isinstance(value, list | tuple):
            for inner in value:
                yield from self._values(inner, hidden)
        elif hidden and value is not None:
            yield value


def summary(error: BaseException) -> str:
    """Where it happened: the innermost frames of the error and of what caused it; no source, no variables."""
    lines: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < 5:
        seen.add(id(current))
        lines.append(ErrorInfo.of(current).type)
        frames = [
            frame for frame in traceback.extract_tb(current.__traceback__) if not frame.filename.startswith(_OURS)
        ]
        if len(frames) > FRAMES:
            lines.append(f"  ... {len(frames) - FRAMES} frames before")
        lines += [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames[-FRAMES:]]
        lines += [f"  note: {note}" for note in getattr(current, "__notes__", ())]
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        if current is not None:
            lines.append("because of")
    return "\n".join(lines)[:MOST_TRACEBACK]


def shown(event: Event, redactor: Redactor, *, most: int | None = None) -> Any:
    """An event's data as it may be shown; bytes and broken JSON as their length, and so is more than `most` bytes."""
    size = len(event.body or b"")
    if most is not None and size > most:
        return f"({size} bytes: look at the letter itself)"
    try:
        data = event.data
        json.dumps(data)
    except Exception:
        return f"({size} bytes that are not {event.content_type or 'JSON'})"
    return redactor.data(data)
