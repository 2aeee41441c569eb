"""What nobody may see of a saga: the values of fields that its definition names, also where texts repeat them.

The names are kept with the saga, so that every process hides the same, whether it has the definition or not. What steps
are told is whole, and so is what is kept: for that there is a codec (`everkeel.sagas.coding`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from everkeel.errors import ConfigError
from everkeel.messaging.dead_letters.failure import Redactor
from everkeel.messaging.event import Event
from everkeel.sagas.record import Record, evolve

if TYPE_CHECKING:
    from everkeel.sagas.view import SagaView

T = TypeVar("T")


def fields(owner: str, names: object) -> tuple[str, ...]:
    """The names of hidden fields, checked."""
    if isinstance(names, Collection) and not isinstance(names, str | bytes | bytearray):
        found = tuple(name for name in names if isinstance(name, str) and name)
        if len(found) == len(names):
            return found
    raise ConfigError(owner, "redact", "must be names of fields, as a list", repr(names)[:200])


def hide(value: Any, names: Collection[str]) -> Any:
    """A value with the named fields hidden, however deep they are."""
    return Redactor(names).data(value) if names else value


def hider(names: Collection[str], *known: Any) -> Callable[[str | None], str | None]:
    """A function that takes the values of the named fields in `known` out of a text."""
    if not names:
        return lambda text: text
    redactor, event = Redactor(names), Event("saga", list(known), source="/sagas")
    return lambda text: None if text is None else redactor.text(text, event)


def without_secrets(happening: T, record: Record) -> T:
    """What happened to a saga, as it may be written down: errors and reasons like to repeat what they were given."""
    told = {name: text for name in ("error", "reason") if (text := getattr(happening, name, ""))}
    if not told:
        return happening
    text = hider_of(record)
    return replace(happening, **{name: text(one) for name, one in told.items()})  # type: ignore[type-var]  # all are


def hider_of(record: Record, *more: Any) -> Callable[[str | None], str | None]:
    """The same for what a saga knows."""
    results = {name: step.result for name, step in record.steps.items()}
    return hider(record.redact, record.input, dict(record.data), record.result, results, *more)


def hidden(view: SagaView, names: Collection[str]) -> SagaView:
    """A saga as it may be shown."""
    if not names:
        return view
    results = {name: step.result for name, step in view.steps.items() if step.result is not None}
    text, shown = hider(names, view.input, dict(view.data), view.result, results), hide(results, names)
    return replace(
        view,
        steps={name: evolve(step, result=shown.get(name), error=text(step.error)) for name, step in view.steps.items()},
        input=hide(view.input, names),
        data=hide(view.data, names),
        result=hide(view.result, names),
        error=text(view.error),
        timeline=[evolve(entry, detail=text(entry.detail)) for entry in view.timeline],
    )
