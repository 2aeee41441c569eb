"""Names for generated code: whatever a document calls a thing, the answer is a plain Python identifier.

Nothing from a document becomes code. Names pass through here and come out as ASCII letters, digits and underscores;
everything else is written as a literal (`generator/source.py`).
"""

from __future__ import annotations

import keyword
import re
import unicodedata

__all__ = ["Names", "camel", "snake"]

MAX_LENGTH = 60

_NOT_WORD = re.compile(r"[^A-Za-z0-9]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Words that are legal names but would hide what the generated code itself uses.
_TAKEN = frozenset({"list", "dict", "str", "int", "float", "bool", "bytes", "self", "cls"})


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return [word for part in _NOT_WORD.split(plain) for word in _HUMP.split(part) if word]


def snake(text: str, otherwise: str = "value") -> str:
    """`order-id`, `orderId` and `Order ID` are `order_id`; what has no letters is `otherwise`."""
    return _legal("_".join(_words(text)).lower()[:MAX_LENGTH].strip("_"), otherwise, "_")


def camel(text: str, otherwise: str = "Model") -> str:
    """`order-item` and `order item` are `OrderItem`."""
    words = [word[0].upper() + word[1:] for word in _words(text)]
    return _legal("".join(words)[:MAX_LENGTH], otherwise, "")


def _legal(name: str, otherwise: str, joint: str) -> str:
    if not name:
        return otherwise
    if name[0].isdigit():
        name = f"{otherwise}{joint}{name}"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in _TAKEN:
        name += "_"
    return name


class Names:
    """Gives each thing a name nobody else has: `order`, `order_2`."""

    def __init__(self, *taken: str) -> None:
        self._taken = set(taken)

    def give(self, wanted: str, joint: str = "_") -> str:
        """`wanted`, or the next free one after it."""
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}{joint}{number}"
        self._taken.add(name)
        return name
