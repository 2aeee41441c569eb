"""Circuit breakers by name, for operators and tests: their state, changes of it, and closing them by hand.

Beyond the standard. A name is given by `CircuitBreakerName` beside `CircuitBreaker`; a breaker exists from the first
call of its method on, and before that counts as closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from everkeel.events import CircuitClosed, CircuitHalfOpened, CircuitOpened, Event
from everkeel.microprofile.exceptions import FaultToleranceDefinitionException
from everkeel.policies.circuit_breaker.policy import CircuitBreaker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everkeel.microprofile.levels import Method


class CircuitBreakerState(StrEnum):
    """What a circuit breaker does: let pass, reject, or try."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


_STATES: dict[type[Event], CircuitBreakerState] = {
    CircuitClosed: CircuitBreakerState.CLOSED,
    CircuitOpened: CircuitBreakerState.OPEN,
    CircuitHalfOpened: CircuitBreakerState.HALF_OPEN,
}
Listener = Callable[[CircuitBreakerState], object]

_lock = threading.Lock()
_breakers: dict[str, tuple[str, CircuitBreaker]] = {}
_listeners: dict[str, list[Listener]] = {}


def current_state(name: str) -> CircuitBreakerState:
    """The state of the circuit breaker of this name.

    >>> from everkeel.microprofile import CircuitBreaker, CircuitBreakerName, current_state
    >>> @CircuitBreaker
    ... @CircuitBreakerName("bank")
    ... def charge() -> None: ...
    >>> current_state("bank")
    <CircuitBreakerState.CLOSED: 'CLOSED'>
    """
    breaker = _known(name)
    return CircuitBreakerState.CLOSED if breaker is None else _state_of(breaker)


def on_state_change(name: str, listener: Listener) -> None:
    """Have `listener` told of every new state of the circuit breaker of this name."""
    breaker = _known(name)
    with _lock:
        _listeners.setdefault(name, []).append(listener)
    if breaker is not None:
        _attach(breaker, listener)


def reset(name: str) -> None:
    """Close the circuit breaker of this name, and have it forget what it saw."""
    breaker = _known(name)
    if breaker is not None:
        breaker.reset()


def reset_all() -> None:
    """Close every circuit breaker of every guarded method, those without a name too."""
    for method in _methods():
        for guarded in method.guards():
            breaker = guarded.policy("circuit_breaker")
            if isinstance(breaker, CircuitBreaker):
                breaker.reset()


def join(name: str, where: str, breaker: CircuitBreaker) -> None:
    """A method is used for the first time: this is its circuit breaker."""
    with _lock:
        owner, _ = _breakers.get(name, (where, breaker))
        if owner != where:
            allowed = f"must be given to one circuit breaker only, and {owner} has it"
            raise FaultToleranceDefinitionException(where, "CircuitBreakerName.value", allowed, repr(name))
        _breakers[name] = where, breaker
        listeners = list(_listeners.get(name, ()))
    for listener in listeners:
        _attach(breaker, listener)


def forget() -> None:
    """As if no method had been used. For tests."""
    with _lock:
        _breakers.clear()
        _listeners.clear()


def _attach(breaker: CircuitBreaker, listener: Listener) -> None:
    breaker.subscribe(lambda event: listener(_STATES[type(event)]), *_STATES)


def _state_of(breaker: CircuitBreaker) -> CircuitBreakerState:
    return CircuitBreakerState(breaker.snapshot()["state"].upper())


def _known(name: str) -> CircuitBreaker | None:
    """The breaker of a name; None where its method was never called; an error where no method has the name."""
    with _lock:
        found = _breakers.get(name)
    if found is not None:
        return found[1]
    names = {getattr(method.declared.get("CircuitBreakerName"), "value", None) for method in _methods()}
    if name not in names:
        raise ValueError(f"there is no circuit breaker named {name!r}")
    return None


def _methods() -> Iterator[Method]:
    from everkeel.microprofile.levels import methods  # which stands on this module

    return iter(list(methods))
