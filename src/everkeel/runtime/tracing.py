"""Where spans come from that are about messages and steps of sagas. Nobody opens any until a process is instrumented.

The arrows point down: telemetry knows OpenTelemetry and sets `opener`; messaging and sagas know neither of them. While
nothing is traced, `span` is a look at one variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol, TypeAlias

Kind: TypeAlias = Literal["send", "process", "step"]
Origin: TypeAlias = tuple[str | None, str | None]
"""A `traceparent` and a `tracestate`, as they travel with an event."""


class Told(Protocol):
    """A span that is open."""

    def failed(self, why: BaseException | str) -> None:
        """What it is about did not work, without raising."""
        ...


class Opener(Protocol):
    """Who opens spans."""

    def __call__(
        self, kind: Kind, name: str, attributes: Mapping[str, Any], *, links: Sequence[Origin], chain: str | None
    ) -> AbstractContextManager[Told]:
        """A span as a block."""
        ...


class _Untold:
    __slots__ = ()

    def failed(self, why: BaseException | str) -> None:
        pass


opener: Opener | None = None
UNTRACED: AbstractContextManager[Told] = nullcontext(_Untold())


def open_with(other: Opener | None) -> None:
    """Let `other` open spans from now on; None: nobody."""
    global opener
    opener = other


def span(
    kind: Kind, name: str, attributes: Mapping[str, Any], *, links: Sequence[Origin] = (), chain: str | None = None
) -> AbstractContextManager[Told]:
    """A span as a block, linked to where events began, and to the span before it of the same chain.

    Ask `tracing.opener is None` first where the attributes take work.
    """
    return UNTRACED if opener is None else opener(kind, name, attributes, links=links, chain=chain)
