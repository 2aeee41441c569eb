"""What must be true before a saga is started: it is known here, its id can be kept, its input can be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from everkeel.engines.sagas import SagaRow
from everkeel.errors import ConfigError, SagaConflictError, UnknownSagaError
from everkeel.sagas.definition import Saga
from everkeel.sagas.record import decoded
from everkeel.sagas.values import plain, typed

if TYPE_CHECKING:
    from everkeel.sagas.orchestrator import Orchestrator


def check_known(host: Orchestrator, saga: Any, id: str | None) -> None:
    """The orchestrator must have this very definition, or it could start what it cannot carry on."""
    if not isinstance(saga, Saga):
        raise ConfigError(f"orchestrator {host.name!r}", "saga", "must be a Saga", repr(saga))
    known = host.definitions.get(saga.name, saga.version)
    if known is None:
        raise UnknownSagaError(saga.name, id or "(new)", saga.version, host.definitions.keys())
    if known is not saga:
        raise ConfigError(f"saga {saga.name!r}", "version", f"{saga.version} has another definition here", None)


def new_id(saga: Saga[Any, Any, Any], id: str | None, correlation_id: str | None) -> str:
    """The identity of a saga to be started; a new one where none is given."""
    key = str(uuid4()) if id is None else id
    for what, text in (("id", key), ("correlation_id", correlation_id)):
        if text is not None and not _is_id(text):
            allowed = "must be a printable text that is not empty, of at most 255 characters"
            raise ConfigError(f"saga {saga.name!r}", what, allowed, repr(text)[:80])
    return key


def checked_input(saga: Saga[Any, Any, Any], input: Any) -> Any:
    """The input as it is kept."""
    try:
        given = plain(input)
        typed(given, saga.input)
    except (TypeError, ValueError, RecursionError) as error:
        if saga.redact:  # an input that does not fit says its secrets too, and where they are nobody can tell
            raise ConfigError(
                f"saga {saga.name!r}", "input", f"cannot be used: {type(error).__qualname__}", None
            ) from None
        raise ConfigError(f"saga {saga.name!r}", "input", f"cannot be used: {error}", repr(input)[:200]) from error
    return given


def check_same(row: SagaRow, saga: Saga[Any, Any, Any], given: Any) -> None:
    """A second start with the same id must mean the same saga."""
    if row.type != saga.name:
        raise SagaConflictError(saga.name, row.id, f"it is a saga {row.type!r}")
    if decoded(row).input != given:
        raise SagaConflictError(saga.name, row.id, "it began with another input")


def _is_id(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip()) and text.isprintable() and len(text) <= 255
