"""What a saga is made of: steps, each with what it does and what undoes it, and groups that run at the same time."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any, Final, Literal, Protocol, TypeAlias

from everkeel.errors import ConfigError, NotRetryable
from everkeel.runtime.backoff import Backoff, Jitter, as_backoff, as_jitter, exponential
from everkeel.runtime.settings import Count, Duration, Kind, Seconds
from everkeel.sagas.context import Context


class _Nothing:
    """There is nothing to undo."""

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()
"""The compensation of a step that has no effect: a look-up, a check."""

Work: TypeAlias = Callable[[Context[Any, Any]], Awaitable[Any] | Any]


class Guarding(Protocol):
    """What may stand around an action: a policy, a pipeline, a guard."""

    async def acall(self, fn: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Any: ...


class Step:
    """One step: what it does, and what undoes it.

    Args:
        name: Its identity: in the store, in errors, in idempotency keys. Not to be changed while sagas are running.
        action: A function of the `Context`, awaited or run in a thread; what it returns is kept, as JSON.
        compensation: What undoes it; a function of the `Context`. It must be idempotent, and content when there is
            nothing to undo: it is also called when nobody knows whether the action had its effect. `NOTHING` for a step
            without effect. Needed for every step that does not come after the pivot.
        attempts: How often the action is tried before the saga turns back. Past the pivot there is no bound.
        backoff: How long between tries: 0.2 s, doubling up to half a minute.
        jitter: The randomness of it.
        timeout: Seconds after which a try is interrupted; its outcome is then unknown.
        policies: A policy, a pipeline or a guard around each try of the action: a breaker for what is behind it.
        rejects: Errors that are business answers, besides those that are `NotRetryable`: the saga turns back at once.
        on_unknown: "retry" tries again with the same idempotency key when nobody knows whether a try had its effect;
            "compensate" turns back.
        pivot: The point of no return: once it is done the saga only goes forward.
        when: A condition on the context; False: the step is skipped. It must depend on nothing else.
        after: The steps it waits for, in place of the one before it.
        undo_attempts: How often the compensation is tried before an operator is needed.
        undo_timeout: Seconds after which a try of the compensation is interrupted.
        undo_policies: Policies around each try of the compensation.
    """

    def __init__(
        self,
        name: str,
        action: Work,
        compensation: Work | _Nothing | None = None,
        *,
        attempts: int = 3,
        backoff: Backoff | Seconds | Sequence[Seconds] = exponential(0.2, factor=2, max=30),
        jitter: Jitter = "full",
        timeout: Seconds | None = None,
        policies: Guarding | None = None,
        rejects: type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] = (),
        on_unknown: Literal["retry", "compensate"] = "retry",
        pivot: bool = False,
        when: Callable[[Context[Any, Any]], bool] | None = None,
        after: str | Sequence[str] | None = None,
        undo_attempts: int = 5,
        undo_timeout: Seconds | None = None,
        undo_policies: Guarding | None = None,
    ) -> None:
        if not is_name(name, without=",:"):
            raise ConfigError("step", "name", "must be a printable text without commas and colons", repr(name))
        owner = f"step {name!r}"
        self.name, self.action, self.compensation = name, action, compensation
        for what, work in (("action", action), ("compensation", compensation)):
            if work is not None and work is not NOTHING and not callable(work):
                raise ConfigError(owner, what, "must be a function of the context", repr(work))
        if compensation is not None and action is compensation:
            raise ConfigError(owner, "compensation", "must not be the action itself", None)
        self.attempts = checked(owner, "attempts", Count(at_least=1), attempts)
        self.undo_attempts = checked(owner, "undo_attempts", Count(at_least=1), undo_attempts)
        self.timeout = None if timeout is None else checked(owner, "timeout", Duration(), timeout)
        self.undo_timeout = None if undo_timeout is None else checked(owner, "undo_timeout", Duration(), undo_timeout)
        try:
            self.backoff = as_backoff(backoff)
        except ValueError as error:
            raise ConfigError(owner, "backoff", str(error), repr(backoff)) from None
        try:
            self.jitter: Jitter = as_jitter(jitter)
        except ValueError as error:
            raise ConfigError(owner, "jitter", str(error), repr(jitter)) from None
        for what, around in (("policies", policies), ("undo_policies", undo_policies)):
            if around is not None and not hasattr(around, "acall"):
                raise ConfigError(owner, what, "must be a policy, a pipeline or a guard", repr(around))
        if on_unknown not in ("retry", "compensate"):
            raise ConfigError(owner, "on_unknown", "must be 'retry' or 'compensate'", repr(on_unknown))
        if not _is_rejection(rejects):  # a list, or a name in quotes, would match nothing, and nobody would know
            allowed = "must be an exception class, a tuple of them, or a function of the exception"
            raise ConfigError(owner, "rejects", allowed, repr(rejects))
        if when is not None and not callable(when):
            raise ConfigError(owner, "when", "must be a function of the context", repr(when))
        if not isinstance(pivot, bool):
            raise ConfigError(owner, "pivot", "must be True or False", repr(pivot))
        self.policies, self.undo_policies = policies, undo_policies
        self.rejects, self.on_unknown, self.pivot, self.when = rejects, on_unknown, pivot, when
        self.after = names_of(owner, "after", after)

    @cached_property
    def awaited(self) -> bool:
        """Is its action a coroutine function?"""
        return _is_awaited(self.action)

    @cached_property
    def undo_awaited(self) -> bool:
        """Is its compensation a coroutine function?"""
        return _is_awaited(self.compensation)

    @property
    def undoable(self) -> bool:
        """Has it a compensation?"""
        return self.compensation is not None and self.compensation is not NOTHING

    def is_rejection(self, error: BaseException) -> bool:
        """Is it a business answer rather than a failure?"""
        if isinstance(error, NotRetryable):
            return True
        if isinstance(self.rejects, type | tuple):
            return isinstance(error, self.rejects)
        return bool(self.rejects(error))

    def __repr__(self) -> str:
        return f"<Step {self.name!r}>"


class Parallel:
    """Steps that run at the same time; the next one waits for all of them. They are undone at the same time, too."""

    def __init__(self, *steps: Step) -> None:
        if len(steps) < 2 or not all(isinstance(step, Step) for step in steps):
            raise ConfigError("parallel", "steps", "must be two steps or more", repr(steps))
        if any(step.after is not None for step in steps):
            raise ConfigError("parallel", "after", "is not for steps of a group: give it to single steps", None)
        self.steps = steps


def checked(owner: str, parameter: str, kind: Kind, value: Any) -> Any:
    """A setting as it is kept; a `ConfigError` where it is not allowed."""
    try:
        return kind.check(value)
    except ValueError as error:
        raise ConfigError(owner, parameter, str(error), repr(value)) from None


def names_of(owner: str, parameter: str, names: object) -> tuple[str, ...] | None:
    """One name or several, as they are kept."""
    if names is None:
        return None
    listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, list | tuple | set) else ("",)
    if not all(isinstance(name, str) and name for name in listed):
        raise ConfigError(owner, parameter, "must be a name, or a list of names", repr(names))
    return listed


def is_name(name: object, *, without: str) -> bool:
    """May a saga or a step be called so? It stands in keys, lists and pictures."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
        return False
    return not any(mark in name for mark in without)


def _is_rejection(rejects: object) -> bool:
    if isinstance(rejects, tuple):
        return all(isinstance(one, type) and issubclass(one, BaseException) for one in rejects)
    return issubclass(rejects, BaseException) if isinstance(rejects, type) else callable(rejects)


def _is_awaited(work: Any) -> bool:
    call = getattr(work, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function, too
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(call)
