"""How long to wait before the next try: small immutable values, used by retries and by a breaker's open time alike.

A backoff answers the delay after the n-th failure. Jitter is applied afterwards, so that every backoff can be
combined with every kind of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from everkeel.runtime.outcome import Outcome
from everkeel.runtime.settings import Seconds, seconds

Jitter: TypeAlias = Literal["full", "equal", "decorrelated"] | Seconds | None
_FOREVER = float("inf")


class Backoff:
    """A delay for each attempt. Make one with `constant`, `linear`, `exponential`, `fibonacci`, or from your function.

    >>> exponential(0.2, factor=2, max=30)
    exponential(0.2, factor=2.0, max=30.0)
    >>> [exponential(1).delay(attempt) for attempt in (1, 2, 3)]
    [1.0, 2.0, 4.0]
    """

    __slots__ = ("_delay", "_text", "ceiling", "first", "fixed", "form")

    def __init__(
        self,
        delay: Callable[[int, Outcome | None], float],
        text: str,
        first: float,
        ceiling: float,
        *,
        fixed: float | None = None,
        form: Any = None,
    ) -> None:
        self._delay, self._text = delay, text
        self.first, self.ceiling = first, ceiling  # what decorrelated jitter moves between
        self.fixed = fixed  # the delay, where it is the same after every attempt and nobody need be asked
        self.form = form  # how configuration writes it; None where a function decides, which only code can give

    def delay(self, attempt: int, outcome: Outcome | None = None) -> float:
        """Seconds to wait after the `attempt`-th try (1 for the first) ended in `outcome`."""
        return self._delay(attempt, outcome)

    def __repr__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        """Two that were made alike wait alike: a configuration that says the same again changes nothing."""
        if self is other:
            return True
        if not isinstance(other, Backoff) or self.form is None:
            return False if isinstance(other, Backoff) else NotImplemented
        return self.form == other.form and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def constant(delay: Seconds) -> Backoff:
    """The same delay each time.

    >>> constant(0.5).delay(7)
    0.5
    """
    length = _length("constant", "delay", delay)
    return Backoff(lambda attempt, outcome: length, f"constant({length})", length, length, fixed=length, form=length)


def linear(first: Seconds, step: Seconds | None = None, *, max: Seconds | None = None) -> Backoff:
    """`first`, then `step` more each time (default: `first` more), up to `max`.

    >>> [linear(1, 0.5, max=2).delay(attempt) for attempt in (1, 2, 3, 4)]
    [1.0, 1.5, 2.0, 2.0]
    """
    start = _length("linear", "first", first)
    more = start if step is None else _length("linear", "step", step)
    top = _FOREVER if max is None else _length("linear", "max", max)
    return Backoff(
        lambda attempt, outcome: min(top, start + more * (attempt - 1)),
        f"linear({start}, {more}, max={None if top == _FOREVER else top})",
        start,
        top,
        form={"linear": {"first": start, "step": more, "max": None if top == _FOREVER else top}},
    )


def exponential(first: Seconds, *, factor: float = 2.0, max: Seconds | None = 30.0) -> Backoff:
    """`first`, then `factor` times as long each time, up to `max` (30 s: to wait longer, a queue is the better place).

    >>> [exponential(0.2, max=1).delay(attempt) for attempt in (1, 2, 3, 4)]
    [0.2, 0.4, 0.8, 1.0]
    """
    start = _length("exponential", "first", first)
    top = _FOREVER if max is None else _length("exponential", "max", max)
    growth = _factor(factor)

    def delay(attempt: int, outcome: Outcome | None) -> float:
        try:
            return min(top, start * growth ** (attempt - 1))
        except OverflowError:  # the thousandth attempt
            return top if start else 0.0

    most = None if top == _FOREVER else top
    form = {"exponential": {"first": start, "factor": growth, "max": most}}
    return Backoff(delay, f"exponential({start}, factor={growth}, max={most})", start, top, form=form)


def fibonacci(first: Seconds, *, max: Seconds | None = 30.0) -> Backoff:
    """`first` times 1, 1, 2, 3, 5, 8 ..., up to `max`: gentler than doubling.

    >>> [fibonacci(1).delay(attempt) for attempt in (1, 2, 3, 4, 5)]
    [1.0, 1.0, 2.0, 3.0, 5.0]
    """
    start = _length("fibonacci", "first", first)
    top = _FOREVER if max is None else _length("fibonacci", "max", max)

    def delay(attempt: int, outcome: Outcome | None) -> float:
        one, two = 0.0, start
        for _ in range(attempt - 1):
            if two >= top:
                return top
            one, two = two, one + two
        return min(top, two)

    most = None if top == _FOREVER else top
    form = {"fibonacci": {"first": start, "max": most}}
    return Backoff(delay, f"fibonacci({start}, max={most})", start, top, form=form)


def as_backoff(value: Any) -> Backoff:
    """What `backoff=` accepts, as a Backoff: one, seconds, a sequence of them, a function, or a table by error class.

    A function takes the attempt, or the attempt and the `Outcome`. A sequence's last delay repeats. A table is asked
    in its own order; an error it does not name waits as `exponential(0.2)` says.

    >>> as_backoff([0.1, 1]).delay(5)
    1.0
    >>> as_backoff(lambda attempt: attempt * 3).delay(2)
    6.0
    """
    if isinstance(value, Backoff):
        return value
    if isinstance(value, Mapping):
        return _by_error(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if not value:
            raise ValueError("must not be an empty sequence")
        try:
            delays = tuple(_length("backoff", "delay", item) for item in value)
        except ValueError:
            raise ValueError("must be a sequence of seconds, none of them negative") from None
        return Backoff(
            lambda attempt, outcome: delays[min(attempt, len(delays)) - 1],
            repr(list(delays)),
            delays[0],
            max(delays),
            form=list(delays),
        )
    if callable(value) and not isinstance(value, type):
        return _from_function(value)
    try:
        return constant(cast("Seconds", value))
    except ValueError:
        raise ValueError(
            "must be a Backoff (constant, linear, exponential, fibonacci), seconds, a sequence of seconds, "
            "a function of the attempt, or a table from error class to one of these"
        ) from None


def _from_function(function: Callable[..., Any]) -> Backoff:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        wanted = 2
    else:
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        wanted = 2 if starred or len(positional) >= 2 else len(positional)
        if wanted == 0:
            raise ValueError("must be a function of the attempt, or of the attempt and the outcome")

    def delay(attempt: int, outcome: Outcome | None) -> float:
        length = function(attempt) if wanted == 1 else function(attempt, outcome)
        try:
            return max(0.0, seconds(length))
        except ValueError:
            raise TypeError(f"the backoff function returned {length!r}; it must return seconds") from None

    return Backoff(delay, getattr(function, "__qualname__", repr(function)), 0.0, _FOREVER)


def _by_error(table: Mapping[Any, Any]) -> Backoff:
    rows: list[tuple[type[BaseException], Backoff]] = []
    for cls, value in table.items():
        if not isinstance(cls, type) or not issubclass(cls, BaseException):
            raise ValueError(f"must have exception classes as the keys of its table, not {cls!r}")
        rows.append((cls, as_backoff(value)))
    if not rows:
        raise ValueError("must not be an empty table")
    otherwise = exponential(0.2)

    def delay(attempt: int, outcome: Outcome | None) -> float:
        error = None if outcome is None else outcome.error
        for cls, backoff in rows:
            if isinstance(error, cls):
                return backoff.delay(attempt, outcome)
        return otherwise.delay(attempt, outcome)

    text = ", ".join(f"{cls.__name__}: {backoff!r}" for cls, backoff in rows)
    return Backoff(delay, "{" + text + "}", rows[0][1].first, max(backoff.ceiling for _, backoff in rows))


def as_jitter(value: Any) -> Jitter:
    """What `jitter=` accepts: a word, or seconds that are added at most."""
    if value is None or value in ("full", "equal", "decorrelated"):
        return value  # type: ignore[no-any-return]  # the words were just checked
    try:
        length = seconds(value)
    except ValueError:
        length = -1.0
    if length < 0:
        raise ValueError('must be "full", "equal", "decorrelated", seconds to add at most, or None')
    return length


def jittered(delay: float, backoff: Backoff, jitter: Jitter, previous: float, chance: Callable[[], float]) -> float:
    """`delay` with randomness, so that clients that failed together do not come back together.

    full: anything from 0 to the delay. equal: half of it, and anything up to the other half. decorrelated: anything
    from the first delay to three times the previous one. Seconds: the delay, and anything up to so many seconds more.
    """
    if jitter is None or (delay <= 0 and not isinstance(jitter, float)):
        return delay
    if jitter == "full":
        return delay * chance()
    if jitter == "equal":
        return delay * (0.5 + 0.5 * chance())
    if jitter == "decorrelated":
        low = min(backoff.first or delay, backoff.ceiling)  # a function of the user's has no first delay to know
        high = max(low, 3 * (previous or low))
        return min(backoff.ceiling, low + (high - low) * chance())
    return delay + seconds(jitter) * chance()


def _length(owner: str, parameter: str, value: Any) -> float:
    from everkeel.errors import ConfigError

    try:
        length = seconds(value)
    except ValueError as error:
        raise ConfigError(owner, parameter, str(error), repr(value)) from None
    if length < 0:
        raise ConfigError(owner, parameter, "must not be negative", repr(value))
    return length


def _factor(value: Any) -> float:
    from everkeel.errors import ConfigError

    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < _FOREVER:
        raise ConfigError("exponential", "factor", "must be a number of at least 1", repr(value))
    return float(value)
