"""Several policies as one: outermost first, as written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import CoroutineType
from typing import Any, ParamSpec, TypeVar, cast

from everkeel.errors import ConfigError
from everkeel.runtime.policy import AnyPolicy, Policy, guard_with, refuse_coroutine
from everkeel.runtime.state import State, fold
from everkeel.runtime.weave import F, weaving_of

P = ParamSpec("P")
T = TypeVar("T")


class Pipeline:
    """Policies in the order a call meets them. Make one with `pipeline(...)`.

    It has no state of its own: a breaker in two pipelines is one breaker.
    """

    __slots__ = ("policies",)

    def __init__(self, *policies: AnyPolicy | Pipeline) -> None:
        flat: list[AnyPolicy] = []
        for position, policy in enumerate(policies, 1):
            if isinstance(policy, Pipeline):
                flat += policy.policies
            elif isinstance(policy, Policy):
                flat.append(policy)
            else:
                raise ConfigError(
                    "pipeline", f"policy {position}", "must be a policy or a pipeline, outermost first", repr(policy)
                )
        self.policies: tuple[AnyPolicy, ...] = tuple(flat)

    def __call__(self, fn: F) -> F:
        """Decorate a function, method, coroutine function or generator function. Its type stays exactly as it is."""
        return guard_with(fn, self.policies, "pipeline")

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `fn(*args, **kwargs)` under all of them."""
        result = fold(self._layers(), "sync", fn)(*args, **kwargs)
        if type(result) is CoroutineType:
            refuse_coroutine("pipeline", result)
        return cast("T", result)

    async def acall(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `fn(*args, **kwargs)` under all of them."""
        return cast("T", await fold(self._layers(), "async", fn)(*args, **kwargs))

    def _layers(self) -> list[State]:
        return [layer for policy in self.policies for layer in policy.layers()]

    def __enter__(self) -> None:
        raise TypeError("a pipeline cannot be a block: decorate a function, or use call() or acall()")

    def __exit__(self, *error: object) -> None:  # pragma: no cover - never entered
        return None

    def __iter__(self) -> Iterator[AnyPolicy]:
        return iter(self.policies)

    def __len__(self) -> int:
        return len(self.policies)

    def __str__(self) -> str:
        return " > ".join(policy.label + _mode(policy) for policy in self.policies) or "(no policy)"

    def __repr__(self) -> str:
        return f"<pipeline {self}>"


def _mode(policy: AnyPolicy) -> str:
    return "" if policy.mode == "enforce" else f" ({policy.mode})"


def pipeline(*policies: AnyPolicy | Pipeline) -> Pipeline:
    """Compose policies, outermost first as written; pipelines inside are taken apart.

    The order that is almost always right: fallback, retry, circuit breaker, timeout, bulkhead.

    >>> from everkeel import fallback, pipeline, retry
    >>> resilient = pipeline(fallback("unknown"), retry("docs.quote", attempts=2, backoff=0))
    >>> print(resilient)
    fallback > retry 'docs.quote'
    >>> @resilient
    ... def quote() -> str:
    ...     raise ConnectionError
    >>> quote()
    'unknown'
    """
    return Pipeline(*policies)


def source(fn: Callable[..., Any]) -> str:
    """The text of the function that was woven from a function and its policies: for reading, when in doubt.

    Empty for generator functions, which are not woven, and for functions that are not decorated.
    """
    weaving = weaving_of(fn)
    return "" if weaving is None else weaving.source()


def weave(fn: F) -> F:
    """Weave a decorated function now instead of at its first call, for the sake of that call's latency."""
    weaving = weaving_of(fn)
    if weaving is not None and weaving.kind in ("sync", "async"):
        weaving.weave()
    return fn
