"""Policies as blocks: `with breaker:`, `with breaker.entry() as entry:`, `async with bulkhead:`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from everkeel.runtime.outcome import NO_RESULT

if TYPE_CHECKING:
    from everkeel.runtime.state import State

T = TypeVar("T")


class Entry:
    """One passage through a policy. Report what the block produced with `result`, so that `on_result` can judge it.

    >>> from everkeel import circuit_breaker
    >>> payments = circuit_breaker(on_result=lambda answer: answer == "error")
    >>> with payments.entry() as entry:
    ...     answer = entry.result("error")
    >>> payments.snapshot()["failure"]
    1
    """

    __slots__ = ("_layers", "_permits", "_result")

    def __init__(self, layers: tuple[State, ...]) -> None:
        self._layers = layers
        self._permits: list[tuple[State, Any]] = []
        self._result: Any = NO_RESULT

    def result(self, value: T) -> T:
        """Report what the guarded work returned; hands it back."""
        self._result = value
        return value

    def __enter__(self) -> Entry:
        try:
            for layer in self._layers:
                self._permits.append((layer, layer.enter()))
        except BaseException as error:
            self._end(error)
            raise
        return self

    async def __aenter__(self) -> Entry:
        try:
            for layer in self._layers:
                self._permits.append((layer, await layer.aenter()))
        except BaseException as error:
            self._end(error)
            raise
        return self

    def _end(self, error: BaseException | None) -> None:
        """End the permits, innermost first. An ending may raise (a timeout does): the outer ones then see that."""
        while self._permits:
            layer, permit = self._permits.pop()
            try:
                layer.ended(permit, error, self._result)
            except BaseException as other:
                self._end(other)
                raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end(error)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end(error)


# The entries of the `with policy:` blocks this context is inside, innermost first. A context variable, because the
# policy object is shared by every thread and task, and blocks may be entered recursively.
BLOCKS: ContextVar[tuple[Entry, Any] | None] = ContextVar("everkeel.blocks", default=None)


def push(entry: Entry) -> None:
    """`entry` is the innermost block now."""
    BLOCKS.set((entry, BLOCKS.get()))


def pop() -> Entry:
    """The innermost block, which ends now."""
    innermost = BLOCKS.get()
    if innermost is None:
        raise RuntimeError("a policy block ended in another context than it began in; use policy.entry() there")
    entry, outer = innermost
    BLOCKS.set(outer)
    return entry
