"""What undoes what, and who does it: the answer to the question that is otherwise spread over all services."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from everkeel.errors import ConfigError
from everkeel.sagas.choreography import Choreography
from everkeel.sagas.definition import Saga


@dataclass(frozen=True, kw_only=True, slots=True)
class Compensation:
    """One effect and what undoes it."""

    event: str
    """The event that says it happened; for an orchestrated step, the action."""
    undone_by: str
    """The event that asks for it to be undone; for an orchestrated step, the compensation."""
    confirmed_by: str | None = None
    """The event that says it was undone."""
    by: str = ""
    """The service that does it."""
    saga: str | None = None
    step: str | None = None
    note: str = ""


class CompensationRegistry:
    """Documents which event is undone by which, and by whom: from definitions, and from what is registered by hand.

    >>> registry = CompensationRegistry()
    >>> registry.register("StockReserved", undone_by="ReleaseStock", confirmed_by="StockReleased", by="inventory")
    >>> registry["StockReserved"].by
    'inventory'
    """

    def __init__(self, *definitions: Saga[Any, Any, Any] | Choreography) -> None:
        self._known: dict[tuple[str | None, str | None, str], Compensation] = {}
        for definition in definitions:
            self.add(definition)

    def register(
        self,
        event: str,
        *,
        undone_by: str,
        confirmed_by: str | None = None,
        by: str = "",
        saga: str | None = None,
        step: str | None = None,
        note: str = "",
    ) -> None:
        """Write down that one event is undone by another; a second word about the same event must be the same."""
        one = Compensation(
            event=event, undone_by=undone_by, confirmed_by=confirmed_by, by=by, saga=saga, step=step, note=note
        )
        known = self._known.setdefault((saga, step, event), one)
        if known != one:
            allowed = f"is undone by {known.undone_by!r} already, not by {undone_by!r}"
            raise ConfigError("compensations", f"event {event!r}", allowed, None)

    def add(self, definition: Saga[Any, Any, Any] | Choreography) -> None:
        """Write down what a definition says."""
        if isinstance(definition, Choreography):
            for reaction in definition.steps:
                if reaction.compensation is not None:
                    self.register(
                        reaction.done, undone_by=reaction.compensation, confirmed_by=reaction.undone, by=reaction.by,
                        saga=definition.name, step=reaction.name,
                    )  # fmt: skip
            return
        for step in definition.steps:
            if step.undoable:
                self.register(
                    _name(step.action), undone_by=_name(step.compensation), by="orchestrator", saga=definition.name,
                    step=step.name,
                )  # fmt: skip

    def __getitem__(self, event: str) -> Compensation:
        """What undoes an event; a LookupError that names it where nobody knows."""
        for one in self._known.values():
            if one.event == event:
                return one
        raise LookupError(f"nothing is registered that undoes {event!r}")

    def __contains__(self, event: object) -> bool:
        return any(one.event == event for one in self._known.values())

    def __iter__(self) -> Iterator[Compensation]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def markdown(self) -> str:
        """A table for the team's documentation."""
        lines = ["| saga | step | what happened | undone by | confirmed by | who |", "|---|---|---|---|---|---|"]
        for one in self:
            cells = (one.saga, one.step, one.event, one.undone_by, one.confirmed_by, one.by)
            lines.append("| " + " | ".join(cell or "" for cell in cells) + " |")
        return "\n".join(lines)


def _name(work: Any) -> str:
    return str(getattr(work, "__qualname__", None) or type(work).__qualname__).replace("<locals>.", "")
