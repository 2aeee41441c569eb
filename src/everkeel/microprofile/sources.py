"""Where configuration comes from: mappings, properties files, the environment, ranked as MicroProfile Config does.

The higher ordinal wins: a mapping given in code 400 (the place of Java's system properties), the environment 300, a
properties file 100. A source that holds `config_ordinal` says its own. Each is read once, when it is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from everkeel.microprofile.exceptions import FaultToleranceDefinitionException
from everkeel.microprofile.properties import parse_properties

MAPPING_ORDINAL, ENVIRONMENT_ORDINAL, FILE_ORDINAL = 400, 300, 100

_NOT_IN_A_VARIABLE = re.compile(r"[^A-Za-z0-9]")


class Source(Protocol):
    """One place that knows configuration: write your own for a configuration server.

    What `get` answers for a key is asked once for each guarded method, at its first use.
    """

    @property
    def name(self) -> str:
        """What error messages call it; decides between sources of the same ordinal."""
        ...

    @property
    def ordinal(self) -> int:
        """Its rank: where two sources know a key, the higher ordinal is believed."""
        ...

    def get(self, key: str, /) -> str | None:
        """The value of a key, None where it is not set, `""` where it is set to nothing."""
        ...


class MappingSource:
    """Configuration from a mapping; numbers and booleans are taken as their text.

    >>> MappingSource({"Retry/maxRetries": 2}).get("Retry/maxRetries")
    '2'
    """

    def __init__(self, values: Mapping[str, object], *, name: str = "mapping", ordinal: int = MAPPING_ORDINAL) -> None:
        self._values = {key: _as_text(key, value, name) for key, value in values.items()}
        self.name, self.ordinal = name, _own_ordinal(self._values.get("config_ordinal"), ordinal, name)

    def get(self, key: str, /) -> str | None:
        """The value of exactly this key."""
        return self._values.get(key)


class PropertiesSource(MappingSource):
    """Configuration from a Java `.properties` file in UTF-8, as `META-INF/microprofile-config.properties` is one."""

    def __init__(self, path: str | os.PathLike[str], *, ordinal: int = FILE_ORDINAL) -> None:
        name = f"properties file {os.fspath(path)!r}"
        try:
            values = parse_properties(Path(path).read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise FaultToleranceDefinitionException(name, None, f"cannot be read: {error.strerror}") from error
        except ValueError as error:  # also what is not UTF-8
            raise FaultToleranceDefinitionException(name, None, f"cannot be read: {error}") from error
        super().__init__(values, name=name, ordinal=ordinal)


class EnvironmentSource:
    """Configuration from environment variables, with the names a shell can set.

    A key is looked for as it is, then with every character that is no letter or digit replaced by `_`, then that in
    upper case: `shop.Orders/pay/Retry/maxRetries` is `SHOP_ORDERS_PAY_RETRY_MAXRETRIES`.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, *, ordinal: int = ENVIRONMENT_ORDINAL) -> None:
        self._values = dict(os.environ if environ is None else environ)
        self.name = "environment"
        self.ordinal = _own_ordinal(self.get("config_ordinal"), ordinal, self.name)

    def get(self, key: str, /) -> str | None:
        """The value of the first of the three spellings that is set."""
        mangled = _NOT_IN_A_VARIABLE.sub("_", key)
        for spelling in (key, mangled, mangled.upper()):
            if spelling in self._values:
                return self._values[spelling]
        return None


def source_of(given: Source | Mapping[str, object] | str | os.PathLike[str]) -> Source:
    """A source as it is; a mapping and the path of a properties file as one."""
    if isinstance(given, Mapping):
        return MappingSource(given)
    if isinstance(given, str | os.PathLike):
        return PropertiesSource(given)
    return given


def _as_text(key: object, value: object, source: str) -> str:
    if not isinstance(key, str):
        raise FaultToleranceDefinitionException(source, "keys", "must be text", repr(key))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise FaultToleranceDefinitionException(source, key, "must be text, a number or a boolean", repr(value))


def _own_ordinal(said: str | None, otherwise: int, source: str) -> int:
    if not said:
        return otherwise
    try:
        return int(said)
    except ValueError:
        raise FaultToleranceDefinitionException(
            source, "config_ordinal", "must be a whole number", repr(said)
        ) from None
