"""What the user writes: a saga's steps, what undoes them, and the rules, in one readable place."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from everkeel.errors import ConfigError, NotRetryable
from everkeel.messaging.data import from_json, to_json
from everkeel.runtime.backoff import Backoff, Jitter, as_backoff, as_jitter, exponential
from everkeel.runtime.settings import Count, Duration, Kind, Seconds
from everkeel.sagas.context import Context
from everkeel.sagas.machine import Shape, StepShape
from everkeel.sagas.record import Record

I = TypeVar("I")  # noqa: E741 - the input
S = TypeVar("S")
R = TypeVar("R")

DEADLINE = 30.0


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
            self.jitter: Jitter = as_jitter(jitter)
        except ValueError as error:
            raise ConfigError(owner, "backoff", str(error), repr(backoff)) from None
        for what, around in (("policies", policies), ("undo_policies", undo_policies)):
            if around is not None and not hasattr(around, "acall"):
                raise ConfigError(owner, what, "must be a policy, a pipeline or a guard", repr(around))
        if on_unknown not in ("retry", "compensate"):
            raise ConfigError(owner, "on_unknown", "must be 'retry' or 'compensate'", repr(on_unknown))
        self.policies, self.undo_policies = policies, undo_policies
        self.rejects, self.on_unknown, self.pivot, self.when = rejects, on_unknown, pivot, when
        self.after = None if after is None else (after,) if isinstance(after, str) else tuple(after)

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


def is_name(name: object, *, without: str) -> bool:
    """May a saga or a step be called so? It stands in keys, lists and pictures."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
        return False
    return not any(mark in name for mark in without)


def _is_awaited(work: Any) -> bool:
    call = getattr(work, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function, too
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(call)


class Saga(Generic[I, S, R]):
    """A business transaction over several services, in steps that can be undone.

    Args:
        name: What kind of saga it is.
        *steps: Steps and groups (`Parallel`), in their order.
        version: Raise it when steps change: running sagas go on with the version they began with.
        input: The class of what a saga is started with; plain JSON values without one.
        state: The class of what its steps share, made without arguments; a dict without one.
        result: The class of what it answers.
        returns: A function of the context that makes the result; by default the last step's result.
        deadline: Seconds for the way forward; after them it turns back. None: as long as it takes.
        on_blocked: When a compensation fails for good, "stop" until an operator has dealt with it (others may depend
            on its being undone first), or "continue" with those of earlier steps.

    >>> async def reserve(context): ...
    >>> async def release(context): ...
    >>> Saga("order", Step("reserve", reserve, release), deadline=10)
    <Saga 'order' version 1: reserve>
    """

    kind: Literal["orchestrated"] = "orchestrated"

    def __init__(
        self,
        name: str,
        *steps: Step | Parallel,
        version: int = 1,
        input: type[I] | None = None,
        state: type[S] | None = None,
        result: type[R] | None = None,
        returns: Callable[[Context[I, S]], R] | None = None,
        deadline: Seconds | None = DEADLINE,
        on_blocked: Literal["stop", "continue"] = "stop",
    ) -> None:
        if not is_name(name, without="@"):
            raise ConfigError("saga", "name", "must be a printable text without '@'", repr(name))
        owner = f"saga {name!r}"
        self.name = name
        self.version: int = checked(owner, "version", Count(at_least=1), version)
        self.deadline: float | None = None if deadline is None else checked(owner, "deadline", Duration(), deadline)
        if on_blocked not in ("stop", "continue"):
            raise ConfigError(owner, "on_blocked", "must be 'stop' or 'continue'", repr(on_blocked))
        self.on_blocked: Literal["stop", "continue"] = on_blocked
        self.input, self.state, self.result, self.returns = input, state, result, returns
        self.steps, self.after = _arranged(owner, steps)
        check_order(owner, self.after)
        _check_compensations(owner, self.steps, self.after)

    @cached_property
    def by_name(self) -> Mapping[str, Step]:
        """Each step by its name."""
        return {step.name: step for step in self.steps}

    @cached_property
    def shape(self) -> Shape:
        """What the machine must know."""
        return Shape(
            tuple(
                StepShape(
                    step.name, frozenset(self.after[step.name]), step.undoable, step.pivot, step.attempts,
                    step.undo_attempts, step.on_unknown == "retry", self._condition(step),
                )
                for step in self.steps
            ),
            on_blocked=self.on_blocked,
            result=self._result,
        )  # fmt: skip

    def _condition(self, step: Step) -> Callable[[Record], bool] | None:
        if step.when is None:
            return None
        when = step.when
        return lambda record: bool(when(self.context(record, step.name)))

    def _result(self, record: Record) -> Any:
        if self.returns is not None:
            return plain(self.returns(self.context(record, self.steps[-1].name)))
        return record.steps[self.steps[-1].name].result

    def context(self, record: Record, step: str, *, undo: bool = False) -> Context[I, S]:
        """What a step is told."""
        mine = record.steps[step]
        return Context(
            saga_id=record.id,
            saga_type=record.type,
            step=step,
            attempt=max(1, mine.undo_attempts if undo else mine.attempts),
            input=cast("I", typed(record.input, self.input)),
            state=cast("S", typed(dict(record.data), self.state)),
            results={name: one.result for name, one in record.steps.items() if one.done},
            correlation_id=record.correlation_id,
            cause=record.cause,
            undo=undo,
            number=self._numbers[step],
        )

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {step.name: number for number, step in enumerate(self.steps, 1)}

    def first_state(self) -> Mapping[str, Any]:
        """The shared state a saga begins with."""
        if self.state is None:
            return {}
        try:
            made = self.state()
        except TypeError as error:
            raise ConfigError(
                f"saga {self.name!r}", "state", f"must be made without arguments: {error}", None
            ) from None
        return as_fields(made)

    def __repr__(self) -> str:
        return f"<Saga {self.name!r} version {self.version}: {', '.join(step.name for step in self.steps)}>"


# ------------------------------------------------------------------ values


def plain(value: Any) -> Any:
    """A value as JSON knows it; TypeError or ValueError where it does not."""
    if value is None or isinstance(value, str | bool | int):
        return value
    return json.loads(to_json(value))


def typed(value: Any, wanted: type[Any] | None) -> Any:
    """A JSON value as the class that the definition names."""
    if wanted is None or wanted in (dict, list, str, int, float, bool, object):
        return value
    return from_json(json.dumps(value).encode(), wanted)


def as_fields(state: Any) -> Mapping[str, Any]:
    """The shared state as a JSON object."""
    fields = plain(state)
    if not isinstance(fields, dict):
        raise TypeError(f"the state of a saga must have fields (got {type(state).__qualname__})")
    return fields


# ------------------------------------------------------------------ checks


def _arranged(owner: str, parts: Iterable[Step | Parallel]) -> tuple[tuple[Step, ...], dict[str, tuple[str, ...]]]:
    """The steps in their order, and what each waits for."""
    steps: list[Step] = []
    after: dict[str, tuple[str, ...]] = {}
    before: tuple[str, ...] = ()
    for part in parts:
        group = part.steps if isinstance(part, Parallel) else (part,)
        for step in group:
            if not isinstance(step, Step):
                raise ConfigError(owner, "steps", "must be steps and groups of them (Parallel)", repr(step))
            if step.name in after:
                raise ConfigError(owner, f"step {step.name!r}", "is there twice: names of steps must be unique", None)
            steps.append(step)
            after[step.name] = before if step.after is None else step.after
        before = tuple(step.name for step in group)
    if not steps:
        raise ConfigError(owner, "steps", "must be at least one", None)
    return tuple(steps), after


def check_order(owner: str, after: Mapping[str, Sequence[str]]) -> None:
    """Every step waits only for steps that there are, and none for itself."""
    for name, names in after.items():
        for other in names:
            if other not in after:
                allowed = f"waits for {other!r}, which is no step of this saga"
                raise ConfigError(owner, f"step {name!r}", allowed, None)
    done: set[str] = set()
    while len(done) < len(after):
        free = [name for name, names in after.items() if name not in done and done.issuperset(names)]
        if not free:
            stuck = next(name for name in after if name not in done)
            chain = [stuck]
            while chain.count(chain[-1]) == 1:
                chain.append(next(name for name in after[chain[-1]] if name not in done))
            cycle = " after ".join(chain[chain.index(chain[-1]) :])
            raise ConfigError(owner, f"step {chain[-1]!r}", f"waits for itself: {cycle}", None)
        done.update(free)


def _check_compensations(owner: str, steps: Sequence[Step], after: Mapping[str, Sequence[str]]) -> None:
    pivots = [step.name for step in steps if step.pivot]
    if len(pivots) > 1:
        raise ConfigError(owner, f"step {pivots[1]!r}", f"is a second pivot, after {pivots[0]!r}", None)

    def follows(name: str, pivot: str) -> bool:
        return any(other == pivot or follows(other, pivot) for other in after[name])

    for step in steps:
        past = bool(pivots) and (step.name == pivots[0] or follows(step.name, pivots[0]))
        if not past and step.compensation is None:
            allowed = (
                "has no compensation: give it one, say compensation=NOTHING if it has no effect, or make it, or one "
                "before it, the pivot"
            )
            raise ConfigError(owner, f"step {step.name!r}", allowed, None)


@dataclass(frozen=True, slots=True)
class Definitions:
    """Definitions by type and version."""

    by_key: dict[tuple[str, int], Any] = field(default_factory=dict)

    def add(self, definition: Any) -> None:
        """Make it known; a `ConfigError` if another one of its name and version is."""
        key = (definition.name, definition.version)
        if self.by_key.get(key, definition) is not definition:
            owner = f"saga {definition.name!r}"
            raise ConfigError(owner, "version", f"{definition.version} has a definition already", None)
        self.by_key[key] = definition

    def get(self, type: str, version: int) -> Any | None:
        """The definition of a type and version."""
        return self.by_key.get((type, version))

    def latest(self, type: str) -> Any | None:
        """The newest definition of a type."""
        versions = [version for name, version in self.by_key if name == type]
        return self.by_key[type, max(versions)] if versions else None

    def keys(self) -> tuple[str, ...]:
        """What is known, as claims name it."""
        return tuple(sorted(f"{name}@{version}" for name, version in self.by_key))
