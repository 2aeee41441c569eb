"""What a policy may be set to: one frozen object per policy that validates itself, and where its values come from.

A policy's config is a dataclass whose fields say what they allow:

    @dataclass(frozen=True, kw_only=True, slots=True)
    class RetryConfig(Settings):
        attempts: int | None = setting(Count(at_least=1), default=3, none="no bound but time")

`Settings` checks every field when the object is made and raises a `ConfigError` that names policy, parameter, value
and what is allowed. The same kinds tell a configuration file's reader how to parse and describe each setting.

Values come in layers, weakest first: default, code, *overrides* (configuration loaded from outside, perhaps long
after the function was decorated), live changes. `overrides` is the hook by which that configuration binds late.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from inspect import iscoroutinefunction
from math import isfinite
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeGuard

from everkeel.errors import ConfigError

Seconds: TypeAlias = float | timedelta
Mode: TypeAlias = Literal["enforce", "shadow", "off"]


class Names(Protocol):
    """What names in configuration stand for: classes and functions that the application has, never new code."""

    def error(self, name: str) -> Any:
        """An exception class, or a registered predicate on exceptions."""
        ...

    def function(self, name: str) -> Callable[..., Any]:
        """A registered function."""
        ...

    def instance(self, name: str, cls: type) -> Any:
        """A registered object of a class."""
        ...


NAME = r"^[A-Za-z_][A-Za-z0-9_-]*([.][A-Za-z_][A-Za-z0-9_-]*)*$"
"""How configuration may write the name of a class or function."""


def is_name(value: Any) -> TypeGuard[str]:
    """Is it the name of something, as configuration writes one?"""
    import re

    return isinstance(value, str) and re.search(NAME, value) is not None


class Kind:
    """What one setting allows: `check` answers the value as it is kept, or raises ValueError saying what it must be.

    Configuration asks three more things: what a value in a file stands for (`parse`), what a text in the environment
    does (`from_text`), and how to describe both to an editor (`schema`).
    """

    form: str | None = None
    """Which of the forms in `everkeel.config.forms` reads it; None: the kind itself does."""

    def check(self, value: Any) -> Any:
        """The value as it is kept; ValueError with a sentence beginning with "must be" where it is not allowed."""
        raise TypeError(f"{type(self).__name__} does not say what it allows")  # pragma: no cover

    def parse(self, value: Any, names: Names) -> Any:
        """The value that plain data (as of JSON) stands for, checked; ValueError where it is not allowed."""
        return self.check(value)

    def from_text(self, text: str) -> Any:
        """The plain data that a text stands for: JSON where it is, the text itself otherwise."""
        import json

        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    def schema(self) -> dict[str, Any]:
        """What `parse` takes, as a JSON Schema."""
        return {}


class Count(Kind):
    """A whole number."""

    def __init__(self, at_least: int = 0) -> None:
        self.at_least = at_least

    def check(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number of at least {self.at_least}")
        if value < self.at_least:
            raise ValueError(f"must be at least {self.at_least}")
        return value

    def parse(self, value: Any, names: Names) -> int:
        # JSON does not tell 5.0 from 5, nor does its schema.
        return self.check(int(value) if isinstance(value, float) and value.is_integer() else value)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.at_least}


def seconds(value: Any) -> float:
    """A length of time as float seconds; ValueError where it is not one."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError("must be seconds as a number, or a timedelta")
    return float(value)


class Duration(Kind):
    """A length of time: seconds as a number, or a timedelta; kept as float seconds."""

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero

    def check(self, value: Any) -> float:
        length = seconds(value)
        if length < 0 or (length == 0 and not self.zero):
            raise ValueError("must not be negative" if self.zero else "must be more than 0 seconds")
        return length

    def parse(self, value: Any, names: Names) -> float:
        from everkeel.runtime.durations import as_seconds

        return self.check(as_seconds(value))

    def schema(self) -> dict[str, Any]:
        from everkeel.runtime.durations import schema

        return schema(zero=self.zero)


class Share(Kind):
    """A share: a number from 0 to 1."""

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero

    def check(self, value: Any) -> float:
        allowed = "must be a share from 0 to 1" if self.zero else "must be a share above 0 and up to 1"
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(allowed)
        if value == 0 and not self.zero:
            raise ValueError(allowed)
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum" if self.zero else "exclusiveMinimum": 0, "maximum": 1}


class Number(Kind):
    """A finite number within bounds."""

    def __init__(self, at_least: float) -> None:
        self.at_least = at_least

    def check(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise ValueError(f"must be a number of at least {self.at_least:g}")
        if value < self.at_least:
            raise ValueError(f"must be at least {self.at_least:g}")
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.at_least}


class Choice(Kind):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError("must be " + " or ".join(repr(word) for word in self.words))
        return value

    def from_text(self, text: str) -> str:
        return text.strip()

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


class Flag(Kind):
    """True or False."""

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError("must be True or False")
        return value

    def from_text(self, text: str) -> Any:
        word = text.strip().lower()
        return word in ("true", "1", "yes", "on") if word in _YES_OR_NO else text

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


_YES_OR_NO = frozenset({"true", "1", "yes", "on", "false", "0", "no", "off"})


class Function(Kind):
    """Something to call."""

    def __init__(self, signature: str, *, awaited: bool = False) -> None:
        """`awaited`: it may be a coroutine function; whoever has the setting knows where to await it."""
        self.signature, self.awaited = signature, awaited

    def check(self, value: Any) -> Callable[..., Any]:
        if not callable(value) or isinstance(value, type):
            raise ValueError(f"must be a function {self.signature}")
        if not self.awaited and iscoroutinefunction(value):
            raise ValueError(f"must be a plain function {self.signature}, which nobody needs to await")
        return value  # type: ignore[no-any-return]  # callable() narrows to an unknown signature

    def parse(self, value: Any, names: Names) -> Callable[..., Any]:
        name = value["function"] if isinstance(value, dict) and list(value) == ["function"] else value
        if not is_name(name):
            raise ValueError(f"must be the name of a registered function {self.signature}")
        return self.check(names.function(name.strip()))

    def schema(self) -> dict[str, Any]:
        name = {"type": "string", "pattern": NAME, "description": f"a registered function {self.signature}"}
        by_key = {"properties": {"function": name}, "required": ["function"], "additionalProperties": False}
        return {"anyOf": [name, {"type": "object", **by_key}]}


class Instance(Kind):
    """An object of a class."""

    def __init__(self, cls: type, what: str, *, form: str | None = None) -> None:
        self.cls, self.what, self.form = cls, what, form

    def check(self, value: Any) -> Any:
        if not isinstance(value, self.cls):
            raise ValueError(f"must be {self.what}")
        return value

    def parse(self, value: Any, names: Names) -> Any:
        if self.cls is str:
            return self.check(value)
        if not is_name(value):
            raise ValueError(f"must be the name of a registered object: {self.what}")
        return self.check(names.instance(value.strip(), self.cls))

    def from_text(self, text: str) -> str:
        return text

    def schema(self) -> dict[str, Any]:
        if self.cls is str:
            return {"type": "string"}
        return {"type": "string", "pattern": NAME, "description": f"the name of a registered object: {self.what}"}


class Converted(Kind):
    """Whatever a function makes of it; the function raises ValueError for what it cannot take."""

    def __init__(self, convert: Callable[[Any], Any], form: str | None = None) -> None:
        self.convert, self.form = convert, form

    def check(self, value: Any) -> Any:
        return self.convert(value)

    def parse(self, value: Any, names: Names) -> Any:
        raise ValueError("must be set in code: it has no form in configuration")

    def schema(self) -> dict[str, Any]:
        return {"not": {}}


REQUIRED = object()


def setting(kind: Kind, *, default: Any = REQUIRED, none: str | None = None) -> Any:
    """A field of a config. `none` says what None means where it is allowed."""
    metadata = {"kind": kind, "none": none}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The config of a policy: immutable, and right from the moment it exists."""

    policy_type: ClassVar[str] = "policy"

    mode: Mode = setting(Choice("enforce", "shadow", "off"), default="enforce")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not field.init:
                continue  # derived from the others by check_together
            value = getattr(self, field.name)
            if value is None and field.metadata["none"] is not None:
                continue
            try:
                kept = field.metadata["kind"].check(value)
            except ValueError as error:
                allowed = str(error)
                if field.metadata["none"] is not None:
                    allowed += f", or None ({field.metadata['none']})"
                raise self.wrong(field.name, value, allowed) from None
            if kept is not value:
                object.__setattr__(self, field.name, kept)
        self.check_together()

    def check_together(self) -> None:
        """What no single field can know: raise `self.wrong(...)` where two settings contradict each other."""

    def wrong(self, parameter: str, value: object, allowed: str) -> ConfigError:
        """The error for a value that is not allowed."""
        return ConfigError(self.policy_type, parameter, allowed, repr(value))

    @classmethod
    def make(cls, name: str | None, values: Mapping[str, Any]) -> Self:
        """A config from values by name, whose errors say which policy it is for."""
        with _naming(cls.policy_type, name):
            cls._know(values)
            return cls(**values)

    def changed(self, name: str | None, changes: Mapping[str, Any]) -> Self:
        """This config with some values changed, validated as a whole."""
        with _naming(self.policy_type, name):
            self._know(changes)
            return dataclasses.replace(self, **changes)

    @classmethod
    def names(cls) -> list[str]:
        """What may be set."""
        return [field.name for field in dataclasses.fields(cls) if field.init]

    @classmethod
    def may_be_set(cls) -> dict[str, dataclasses.Field[Any]]:
        """The same, with what each allows (`kind`), and what None means (`none`), in the field's metadata."""
        return {field.name: field for field in dataclasses.fields(cls) if field.init}

    @classmethod
    def _know(cls, names: Iterable[str]) -> None:
        known = cls.names()
        for name in names:
            if name not in known:
                from difflib import get_close_matches  # 2 ms of import, for a message

                close = get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(sorted(known))}"
                raise ConfigError(cls.policy_type, None, f"has no setting {name!r}{hint}", None)


def label(policy_type: str, name: str | None) -> str:
    """How a policy is called in messages: `retry 'fetch'`, or just `retry`."""
    return policy_type.replace("_", " ") if name is None else f"{policy_type.replace('_', ' ')} {name!r}"


class _naming:
    """Puts the policy's name into a ConfigError raised by a config, which does not know it."""

    def __init__(self, policy_type: str, name: str | None) -> None:
        self.policy_type, self.name = policy_type, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ConfigError) and error.args[0] == self.policy_type:
            error.args = (label(self.policy_type, self.name), *error.args[1:])


Overrides: TypeAlias = Callable[[str, str], Mapping[str, Any]]


def no_overrides(policy_type: str, name: str) -> Mapping[str, Any]:
    return {}


overrides: Overrides = no_overrides
"""Asked for the values that configuration gives to a named policy; `configured.override_with` installs the answer."""
