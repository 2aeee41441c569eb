"""What an action or a compensation is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from everkeel.messaging.tracing import traced

if TYPE_CHECKING:
    from everkeel.messaging.event import Event

I = TypeVar("I")  # noqa: E741 - the input
S = TypeVar("S")


class Context(Generic[I, S]):
    """What a step knows about its saga.

    `state` may be changed: what is different afterwards is kept together with the step's result. Steps that run at the
    same time each have a copy of their own, and their changes are merged field by field.
    """

    __slots__ = ("attempt", "cause", "correlation_id", "emitted", "input", "number", "results", "saga_id",
                 "saga_type", "series", "state", "step", "undo")  # fmt: skip

    def __init__(
        self,
        *,
        saga_id: str,
        saga_type: str,
        step: str,
        attempt: int,
        input: I,
        state: S,
        results: Mapping[str, Any],
        correlation_id: str | None,
        cause: str | None = None,
        undo: bool = False,
        series: int = 0,
        number: int = 1,
    ) -> None:
        self.saga_id, self.saga_type, self.step, self.attempt = saga_id, saga_type, step, attempt
        self.input, self.state, self.results = input, state, results
        self.correlation_id, self.cause, self.undo = correlation_id, cause, undo
        self.number, self.series = number, series
        self.emitted: list[tuple[Event, str | None]] = []

    @property
    def key(self) -> str:
        """The same for every try of this step: hand it on as the idempotency key. A compensation has its own; and
        another one where the action's success came to light after it was undone, since that must not be taken for a
        repetition."""
        if not self.undo:
            return self.action_key
        return f"{self.action_key}:undo:{self.series}" if self.series else f"{self.action_key}:undo"

    @property
    def action_key(self) -> str:
        """The key that the step's action was given, for a compensation to name what it undoes."""
        return f"{self.saga_id}:{self.step}"

    @property
    def result(self) -> Any:
        """What this step's action returned; None where that is not known."""
        return self.results.get(self.step)

    def emit(self, event: Event, *, topic: str | None = None) -> None:
        """Send an event with this step: it is written in the transaction that says that the step is done, or not at
        all. It is given the saga's id, type, step and correlation, and an id that is the same in every try."""
        place = len(self.emitted)
        attributes: dict[str, Any] = {
            "sagaid": self.saga_id,
            "sagatype": self.saga_type,
            "sagastep": self.step,
            "sagastepnumber": self.number,
        }
        if self.undo:
            attributes["sagacompensating"] = True
        if event.correlation_id is None:
            attributes["correlationid"] = self.correlation_id or self.saga_id
        if event.key is None:
            attributes["partitionkey"] = self.saga_id
        marked = traced(event).changed(**attributes)
        marked = type(event)._made(f"{self.key}:{place}", event.source, event.type, marked.attributes, event.body)
        self.emitted.append((marked, topic))

    def __repr__(self) -> str:
        return f"<Context of {self.key!r}, attempt {self.attempt}>"
