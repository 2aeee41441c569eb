"""Handlers: what they may ask for, checked when they are registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from everkeel.errors import ConfigError
from everkeel.idempotency.records import Token
from everkeel.messaging.event import MOST_NAME, Event
from everkeel.runtime.policy import policies_of

MAY_ASK = ("tx", "context")


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler may want to know about the try it is."""

    consumer: str
    topic: str
    attempt: int
    """From 1; tries that ended in a crash count too."""
    token: Token
    """The claim it runs under; `token.fence` is for systems that can refuse the smaller of two."""
    tx: Any
    number: int | None = None
    """Its number within its key, where the consumer takes events in sequence."""

    @property
    def key(self) -> str:
        """The same for every try of this event: pass it on as an idempotency key to what cannot join a transaction."""
        return f"{self.consumer}:{self.token.key}"


class Guarding(Protocol):
    """A policy, a pipeline or a guard."""

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(slots=True)
class Handler:
    """A function for the events of some types."""

    fn: Callable[..., Any]
    types: tuple[str, ...]
    wants: tuple[str, ...]
    awaited: bool
    policies: Guarding | None
    paused_until: float = 0.0
    """One of its policies has said no: others need not try before this moment of the clock."""
    pauses: int = 0
    """How often in a row that was so."""

    @property
    def transactional(self) -> bool:
        """Does it do its work in the transaction?"""
        return "tx" in self.wants

    def outage(self, policies: Guarding | None) -> bool:
        """Is a breaker around it not closed? Then what fails, fails because of what is behind it."""
        around = (*_policies_in(policies), *policies_of(self.fn))
        return any(
            policy.type == "circuit_breaker" and policy.snapshot().get("state") in ("open", "half_open")
            for policy in around
        )

    def arguments(self, context: Context) -> dict[str, Any]:
        """What it asked for by name."""
        given = {"tx": context.tx, "context": context}
        return {name: given[name] for name in self.wants}


def handler_of(fn: Callable[..., Any], types: tuple[str, ...], policies: Guarding | None, owner: str) -> Handler:
    """A handler of this function; a `ConfigError` that says what it may look like, where it does not."""
    name = getattr(fn, "__qualname__", repr(fn))
    if not callable(fn):
        raise ConfigError(owner, "handler", "must be a function of an event", repr(fn))
    if not types or not all(isinstance(one, str) and one for one in types):
        raise ConfigError(owner, f"handler {name}", "needs the types of its events: @consumer.on('OrderCreated')", None)
    if policies is not None and not hasattr(policies, "acall"):
        raise ConfigError(owner, f"policies of {name}", "must be a policy, a pipeline or a guard", repr(policies))
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise ConfigError(owner, f"handler {name}", "must be a function or a coroutine function, no generator", None)
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(owner, f"handler {name}", f"must have a signature that can be read: {error}", None) from None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in (*positional, inspect.Parameter.VAR_POSITIONAL):
        raise ConfigError(owner, f"handler {name}", "must take the event as its first argument", _signature(fn))
    wants: list[str] = []
    for parameter in parameters[1:]:
        if parameter.name in MAY_ASK and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
            wants.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            allowed = "may ask for tx and context after the event, and nothing else without a default"
            raise ConfigError(owner, f"handler {name}", allowed, _signature(fn))
    call = getattr(fn, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function is awaited too
    awaited = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)
    return Handler(fn, types, tuple(wants), awaited, policies)


def _policies_in(policies: Guarding | None) -> tuple[Any, ...]:
    """The single policies of a policy, a pipeline or a guard."""
    inner = getattr(policies, "pipeline", policies)
    if inner is None:
        return ()
    return tuple(getattr(inner, "policies", (inner,)))


def _signature(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__name__', 'handler')}{inspect.signature(fn)}"


def undecodable(body: bytes, topic: str, key: str | None) -> Event:
    """An event that stands for bytes that are none, so that they can be kept as a dead letter."""
    from hashlib import sha256

    if key is not None and len(key.encode()) > MOST_NAME:
        key = None  # which may be what is wrong with it
    return Event("everkeel.undecodable", body, source=f"/everkeel/{topic}", id=sha256(body).hexdigest(), key=key)


def announced(event: Event, letter: str, reason: str, consumer: str) -> Event:
    """An event as it is published to a topic of dead letters: a message of its own, with the letter's id.

    With the event's own id, the second consumer that gives up on it, and the second time the first one does, would be
    duplicates for whoever listens; and what was replayed for one consumer would be ignored by all others.
    """
    attributes = {name: value for name, value in event.attributes.items() if name not in ("replayfor", "replayepoch")}
    attributes |= {
        "deadletterid": letter, "deadletterof": event.id, "deadletterreason": reason, "deadletterfor": consumer,
    }  # fmt: skip
    return Event._made(letter, event.source, event.type, attributes, event.body)
