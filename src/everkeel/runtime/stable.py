"""Chance that is the same everywhere: for the same words the same number, in every process, on every version of Python.

`hash()` is not that (it differs from process to process), and a random generator is not either (it depends on who drew
before). A number here is the first 53 bits of SHA-256, so that other languages can agree with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def text_of(key: Any) -> str:
    """A key as text. 7 and "7" are the same; ValueError for what has no text that is the same everywhere.

    >>> text_of(7), text_of(("acme", 7))
    ('7', 'acme\\x1f7')
    """
    if isinstance(key, str):
        return str.__str__(key)  # of an enum the value: what `str()` makes of one depends on the version of Python
    if isinstance(key, int):
        return int.__repr__(key)
    if isinstance(key, bytes):
        return key.decode("utf-8", "surrogateescape")
    if isinstance(key, tuple):
        return "\x1f".join(text_of(part) for part in key)
    if type(key).__name__ == "UUID":
        return str(key)
    raise ValueError("must be a string, an int, bytes, a UUID, or a tuple of those")


_sha256: Callable[[bytes], Any] | None = None


def digest(*words: str) -> bytes:
    """Thirty-two bytes that depend on the words and on nothing else."""
    global _sha256
    if _sha256 is None:
        from hashlib import sha256 as _sha256  # 2 ms of import that most processes need not pay

        assert _sha256 is not None
    hashed: bytes = _sha256("\0".join(words).encode("utf-8", "surrogateescape")).digest()
    return hashed


def fraction(digested: bytes, place: int = 0) -> float:
    """A number from 0 up to, not including, 1: the first one in a digest, or the second, third or fourth.

    >>> fraction(digest("salt", "key"))
    0.4311130305939672
    """
    return (int.from_bytes(digested[8 * place : 8 * place + 8], "big") >> 11) / (1 << 53)
