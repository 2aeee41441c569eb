"""An event's data, out and in: JSON from dataclasses, pydantic models and msgspec structs, and back into them.

Nothing is ever unpickled, and no class is looked up by a name that came over the wire: the reader says what it expects.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

T = TypeVar("T")


def to_json(value: Any) -> bytes:
    """JSON of plain values, dataclasses, models and structs; TypeError or ValueError where there is none.

    >>> to_json({"amount": Decimal("9.90")})
    b'{"amount":"9.90"}'
    """
    # No NaN: it is not JSON, and the reader in another language is the one who would find out.
    text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()  # a lone surrogate is an error here, and not in the database


def _plain(value: Any) -> Any:
    """What json does not know, in terms that it does."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json")
    if hasattr(value, "__struct_fields__") and not isinstance(value, type):
        import msgspec

        return msgspec.to_builtins(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    raise TypeError(f"{type(value).__qualname__} is nothing that JSON knows")


def from_json(body: bytes, wanted: type[T]) -> T:
    """JSON as a class of yours: a pydantic model, a msgspec struct, or a dataclass with plain fields.

    >>> @dataclasses.dataclass
    ... class Placed:
    ...     order: int
    ...     at: datetime
    >>> from_json(b'{"order": 7, "at": "2026-01-01T00:00:00+00:00"}', Placed).order
    7
    """
    kind: Any = wanted
    if hasattr(kind, "model_validate_json"):
        return cast("T", kind.model_validate_json(body))
    if hasattr(kind, "__struct_fields__"):
        import msgspec

        return msgspec.json.decode(body, type=wanted)
    return cast("T", _build(json.loads(body), wanted, "data"))


def _build(value: Any, wanted: Any, where: str) -> Any:
    """A value of the wanted type, or a ValueError that says where it is not one."""
    if wanted is Any or wanted is object:
        return value
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return _one_of(value, inner, where)
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{where} must be one of {inner} (got {value!r})")
        return value
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return _dataclass(value, wanted, where)
    container = origin or wanted
    if container in (list, tuple, set, frozenset):
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list (got {value!r})")
        of = inner[0] if inner else Any
        return container(_build(item, of, f"{where}[{place}]") for place, item in enumerate(value))
    if container in (dict, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be an object (got {value!r})")
        of = inner[1] if inner else Any
        return {key: _build(item, of, f"{where}.{key}") for key, item in value.items()}
    return _scalar(value, wanted, where)


def _one_of(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    if value is None and NoneType in kinds:
        return None
    for kind in kinds:
        try:
            return _build(value, kind, where)
        except ValueError:
            continue
    raise ValueError(f"{where} fits none of {kinds} (got {value!r})")


def _dataclass(value: Any, wanted: type, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object with the fields of {wanted.__qualname__} (got {value!r})")
    hints = get_type_hints(wanted)
    fields = {field.name: field for field in dataclasses.fields(cast("Any", wanted)) if field.init}
    # Fields we do not know are left out: the producer may be newer than we are.
    given = {name: _build(value[name], hints[name], f"{where}.{name}") for name in fields if name in value}
    needed = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if absent := [name for name in needed if name not in given]:
        raise ValueError(f"{where} lacks {', '.join(absent)} of {wanted.__qualname__}")
    return wanted(**given)


def _scalar(value: Any, wanted: Any, where: str) -> Any:
    if wanted in (str, bool, NoneType) or wanted is None:
        fits = value is None if wanted in (None, NoneType) else type(value) is wanted
    elif wanted in (int, float):
        fits = not isinstance(value, bool) and isinstance(value, int if wanted is int else int | float)
    elif wanted in (datetime, date, time) and isinstance(value, str):
        return wanted.fromisoformat(value)
    elif wanted is timedelta and isinstance(value, int | float):
        return timedelta(seconds=value)
    elif wanted in (Decimal, UUID) and isinstance(value, str | int):
        try:
            return wanted(str(value))
        except ArithmeticError:
            fits = False
    elif isinstance(wanted, type) and issubclass(wanted, Enum):
        return wanted(value)
    else:
        raise ValueError(f"{where}: do not know how to make a {wanted!r}; use a pydantic model or a msgspec struct")
    if not fits:
        raise ValueError(f"{where} must be {getattr(wanted, '__name__', wanted)} (got {value!r})")
    return float(value) if wanted is float else value
