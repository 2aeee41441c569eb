"""Which argument of a call is collected, and which result of a batch is whose. No clock, no thread, no task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from everkeel.errors import CollapseError
from everkeel.runtime.outcome import Outcome
from everkeel.runtime.signature import named, types_of


class Call(NamedTuple):
    """One call, taken apart: what is collected, and what all calls of a batch have in common."""

    item: Any
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    named: dict[str, Any]

    def common(self) -> Hashable:
        """Calls for which this is equal may go together."""
        others = (*self.before, *self.after)
        return len(self.before), others, types_of(others), named(self.named)

    def with_items(self, items: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call for all of them."""
        return (*self.before, items, *self.after), self.named


def position_of(fn: Callable[..., Any]) -> int:
    """Which positional parameter takes the list: the last one without a default; -1 where the function does not say."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return -1
    required = [
        at
        for at, parameter in enumerate(parameters)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    return required[-1] if required else -1


def take_apart(label: str, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """A call's arguments, by what becomes of them."""
    if not args or position >= len(args):
        raise TypeError(f"{label}: the argument that is collected must be given by position")
    at = position % len(args)
    return Call(args[at], args[:at], args[at + 1 :], kwargs)


def deal_out(policy: str | None, items: Sequence[Any], answer: object) -> list[Outcome]:
    """Each item's outcome: its value, or the error that is its own. An answer that fits nobody is an error for all."""
    if isinstance(answer, Mapping):
        return [_from_table(policy, item, answer) for item in items]
    if not isinstance(answer, Sequence) or isinstance(answer, str | bytes | bytearray):
        kind = type(answer).__name__
        return [
            Outcome(error=CollapseError(policy, f"a batch must answer with a list or a mapping, not {kind}"))
            for _ in items
        ]
    if len(answer) != len(items):
        text = f"{len(items)} went into the batch, and {len(answer)} results came back"
        return [Outcome(error=CollapseError(policy, text)) for _ in items]
    return [_single(one) for one in answer]


def _single(result: object) -> Outcome:
    return Outcome(error=result) if isinstance(result, Exception) else Outcome(result)


def _from_table(policy: str | None, item: Any, table: Mapping[Any, Any]) -> Outcome:
    try:
        return _single(table[item])
    except KeyError:
        return Outcome(error=CollapseError(policy, f"the batch answered nothing for {item!r}"))
    except TypeError as error:  # not hashable: the batch should have answered with a list
        return Outcome(error=error)


def fail_all(count: int, error: BaseException) -> list[Outcome]:
    """One error for all: each gets an exception of its own, since one that many raise has a traceback of no use."""
    return [Outcome(error=error), *(Outcome(error=_twin(error)) for _ in range(count - 1))]


def _twin(error: BaseException) -> BaseException:
    try:
        twin = copy(error)
    except Exception:
        return error  # its constructor wants other arguments than it kept
    if type(twin) is not type(error):
        return error
    twin.__cause__, twin.__suppress_context__ = error.__cause__, error.__suppress_context__
    return twin.with_traceback(error.__traceback__)
