"""What the user writes: a saga's steps, what undoes them, and the rules, in one readable place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, cast

from everkeel.errors import ConfigError
from everkeel.runtime.settings import Count, Duration, Seconds
from everkeel.sagas import hiding
from everkeel.sagas.context import Context
from everkeel.sagas.machine import Shape, StepShape
from everkeel.sagas.record import Record
from everkeel.sagas.shape import followers
from everkeel.sagas.steps import Parallel, Step, checked, is_name
from everkeel.sagas.values import as_fields, plain, typed

I = TypeVar("I")  # noqa: E741 - the input
S = TypeVar("S")
R = TypeVar("R")

DEADLINE = 30.0


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
        redact: Names of fields of input, state and results (or of steps, for their whole result) that nobody may see:
            views, the control plane, errors, events, logs and traces show `***`. Steps are told everything.

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
        redact: Collection[str] = (),
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
        self.redact = hiding.fields(owner, redact)
        for what, cls in (("input", input), ("state", state), ("result", result)):
            if cls is not None and not _is_class(cls):
                raise ConfigError(owner, what, "must be a class", repr(cls))
        if returns is not None and not callable(returns):
            raise ConfigError(owner, "returns", "must be a function of the context", repr(returns))
        self.input, self.state, self.result, self.returns = input, state, result, returns
        self.steps, self.after = _arranged(owner, steps)
        check_order(owner, self.after)
        allowed = (
            "has no compensation: give it one, say compensation=NOTHING if it has no effect, or make it, or one before "
            "it, the pivot"
        )
        check_compensations(owner, self.steps, self.after, allowed)

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
            series=mine.series,
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


# ------------------------------------------------------------------ checks


def _is_class(value: object) -> bool:
    return isinstance(value, type) or hasattr(value, "__args__")  # also list[int], int | None


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


def check_compensations(owner: str, steps: Sequence[Any], after: Mapping[str, Sequence[str]], allowed: str) -> None:
    """There is one pivot at most, and what does not come after it can be undone; `allowed` says how."""
    pivots = [step.name for step in steps if step.pivot]
    if len(pivots) > 1:
        raise ConfigError(owner, f"step {pivots[1]!r}", f"is a second pivot, after {pivots[0]!r}", None)
    past = {pivots[0], *followers(after)[pivots[0]]} if pivots else set()
    for step in steps:
        if step.name not in past and step.compensation is None:
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
