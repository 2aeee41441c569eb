"""Settings as plain data that JSON takes, in the form in which configuration would write them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite, isinf
from typing import Any

_BUILTIN = "builtins"


def render(value: Any) -> Any:
    """`value` as plain data: numbers, texts, lists and tables. What only code can say is a text that describes it.

    >>> from everkeel import exponential
    >>> render(exponential(0.2)), render((ConnectionError, TimeoutError))
    ({'exponential': {'first': 0.2, 'factor': 2.0, 'max': 30.0}}, ['ConnectionError', 'TimeoutError'])
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, type):
        return dotted(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(render(key)): render(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((render(one) for one in value), key=lambda one: (type(one).__name__, str(one)))
    if isinstance(value, list | tuple):
        return [render(one) for one in value]
    return _special(value)


def dotted(thing: Any) -> str:
    """The dotted name of a class or function; of a builtin the name alone."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if name is None:
        return repr(thing)
    return str(name) if module in (None, _BUILTIN) else f"{module}.{name}"


def _special(value: Any) -> Any:
    from everkeel.policies.fallback import Alternative, Alternatives
    from everkeel.policies.retry.budget import RetryBudget
    from everkeel.runtime.backoff import Backoff
    from everkeel.runtime.schedule import Schedule

    if isinstance(value, Backoff):
        return repr(value) if value.form is None else render(value.form)
    if isinstance(value, RetryBudget):
        return {"ratio": value.ratio, "floor": value.floor}
    if isinstance(value, Alternatives):
        return [_row(part) for part in value.given]
    if isinstance(value, Alternative):
        return _answer(value.given)
    if isinstance(value, Schedule):
        return [_opening(part) for part in value.parts]
    if type(value) is object:
        return None  # a mark for "not set", where None is a value
    return _function(value) if callable(value) else repr(value)


def _row(part: Any) -> Any:
    by_error = isinstance(part, Mapping) and bool(part) and all(isinstance(key, type) for key in part)
    return {"by_error": {dotted(key): _answer(one) for key, one in part.items()}} if by_error else _answer(part)


def _answer(given: Any) -> Any:
    return _function(given) if callable(given) else render(given)


def _function(value: Any) -> dict[str, str]:
    from everkeel.config.names import name_of

    return {"function": name_of(value) or dotted(value)}


def _opening(part: Any) -> dict[str, Any]:
    from everkeel.runtime.schedule import Daily

    if isinstance(part, Daily):
        return {"from": part.start.isoformat(), "until": part.end.isoformat(), "timezone": str(part.zone)}
    return {"from": _moment(part.start), "until": _moment(part.end)}


def _moment(seconds: float) -> str | None:
    if isinf(seconds):
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat()
