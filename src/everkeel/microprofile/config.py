"""Configuration of the MicroProfile face: which value a parameter has, and whether a policy is there at all.

Keys are the standard's: `shop.Orders/pay/Retry/maxRetries` for a method, `shop.Orders/Retry/maxRetries` for a class,
`Retry/maxRetries` for everything. Two rules look alike and are not:

- a *value* is looked for where the annotation stands (at the method, or at the class), then globally;
- *enabled* is looked for at the method, then the class, then globally, wherever the annotation stands.

Each guarded method asks once, at its first use. The live configuration of native policies (`everkeel.config`) does not
reach here: the standard wants values that stay as they were when the application started.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from everkeel.microprofile.exceptions import FaultToleranceDefinitionException
from everkeel.microprofile.sources import EnvironmentSource, Source, source_of
from everkeel.microprofile.values import PARAMETERS, Reader, boolean

NON_FALLBACK = "MP_Fault_Tolerance_NonFallback_Enabled"
METRICS = "MP_Fault_Tolerance_Metrics_Enabled"
CAUSES = "Everkeel_Fault_Tolerance_Causes_Enabled"
"""Ours, off by default: an exception that no list knows is judged by its causes."""
SIGNATURES = "Everkeel_Fault_Tolerance_Signatures_Enabled"
"""Ours, off by default: a method that is declared to return an awaitable is asynchronous without being marked so."""
PRIORITY = "mp.fault.tolerance.interceptor.priority"
"""Read by nobody: here the place of a decorator says what it is outside of."""

Level: TypeAlias = Literal["method", "class"]


class Found(NamedTuple):
    """A value that was configured, and where."""

    key: str
    text: str
    source: str


class Configuration:
    """What the sources say, the highest ordinal first. Immutable; global switches are read at once.

    >>> configuration = Configuration({"Retry/maxRetries": 1, "shop.Orders/pay/Retry/maxRetries": 5})
    >>> configuration.overrides("Retry", level="method", class_name="shop.Orders", method="pay")
    {'maxRetries': 5}
    >>> configuration.overrides("Retry", level="method", class_name="shop.Orders", method="refund")
    {'maxRetries': 1}
    """

    def __init__(self, *sources: Source | Mapping[str, object] | str | os.PathLike[str]) -> None:
        made = [source_of(one) for one in sources]
        self._sources = tuple(sorted(made, key=lambda source: (-source.ordinal, source.name)))
        self.non_fallback_enabled = self._switch(NON_FALLBACK)
        self.metrics_enabled = self._switch(METRICS)
        self.judges_causes = self._switch(CAUSES, otherwise=False)
        self.believes_signatures = self._switch(SIGNATURES, otherwise=False)

    def find(self, key: str) -> Found | None:
        """The value of a key in the highest source that has it. Set to nothing hides lower sources, and is no value."""
        for source in self._sources:
            text = source.get(key)
            if text is not None:
                stripped = text.strip()
                return Found(key, stripped, source.name) if stripped else None
        return None

    def overrides(self, annotation: str, *, level: Level, class_name: str, method: str) -> dict[str, object]:
        """Configured parameters of an annotation, in the standard's spelling, as the values they stand for.

        Args:
            annotation: Its name, `Retry`.
            level: Where it was declared: on the method, or on the class.
            class_name: The class that declares it; the module for a function that is in no class.
            method: The method's name.

        A parameter that nobody configured is not in the answer. Whether values are allowed is checked by the
        annotation, together with those from code.
        """
        place = f"{class_name}/{method}" if level == "method" else class_name
        where = f"{class_name}.{method}" if method else class_name
        values: dict[str, object] = {}
        for parameter, read in PARAMETERS[annotation].items():
            found = self.find(f"{place}/{annotation}/{parameter}") or self.find(f"{annotation}/{parameter}")
            if found is not None:
                values[parameter] = _read(read, found, where, f"{annotation}.{parameter}")
        return values

    def is_enabled(self, annotation: str, *, classes: Sequence[str], method: str) -> bool:
        """Is this annotation in force on this method?

        Args:
            annotation: Its name, `Retry`.
            classes: The classes whose keys speak for the method, the one that is believed first at the front: the class
                of the object, the class that declares the method, the class that declares the annotation.
            method: The method's name.
        """
        keys = [f"{cls}/{method}/{annotation}/enabled" for cls in classes]
        keys += [f"{cls}/{annotation}/enabled" for cls in classes]
        keys.append(f"{annotation}/enabled")
        for key in keys:
            found = self.find(key)
            if found is not None:
                return bool(_read(boolean, found, f"{classes[0]}.{method}", f"{annotation}.enabled"))
        return self.non_fallback_enabled or annotation == "Fallback"

    def _switch(self, key: str, *, otherwise: bool = True) -> bool:
        found = self.find(key)
        return otherwise if found is None else bool(_read(boolean, found, "configuration", key))


def _read(read: Reader, found: Found, where: str, what: str) -> object:
    try:
        return read(found.text)
    except ValueError as error:
        got = f"{found.text!r} for {found.key} from {found.source}"
        raise FaultToleranceDefinitionException(where, what, str(error), got) from error.__cause__


# --- the configuration of this process -------------------------------------------------------------

_current: Configuration | None = None
_given: Configuration | None = None
_choosing = threading.Lock()


def configure(
    *sources: Source | Mapping[str, object] | str | os.PathLike[str], environment: bool = True
) -> Configuration:
    """Say where configuration comes from: at startup, before the first guarded call. Without it, the environment alone.

    Args:
        sources: Mappings (ordinal 400), paths of `.properties` files (ordinal 100), or `Source` objects of your own.
        environment: Also read environment variables (ordinal 300).

    Once a guarded method has been used its values stand, so a later call is refused rather than half obeyed.

    >>> from everkeel.microprofile import configure, fresh_deployment
    >>> with fresh_deployment():
    ...     found = configure({"Retry/maxRetries": 2}, environment=False).find("Retry/maxRetries")
    >>> found.source
    'mapping'
    """
    global _given
    with _choosing:
        if _current is not None:
            allowed = "must be called before the first guarded call: configuration is read once, at first use"
            raise FaultToleranceDefinitionException("configuration", "configure()", allowed)
        _given = Configuration(*sources, *([EnvironmentSource()] if environment else []))
        return _given


def current() -> Configuration:
    """The configuration of this process, from its first use on always the same."""
    global _current
    if _current is None:
        with _choosing:
            if _current is None:
                _current = _given if _given is not None else Configuration(EnvironmentSource())
    return _current


def expected() -> Configuration:
    """What the configuration would be if it were used now. For checks at decoration, which must not settle it."""
    return _current or _given or Configuration(EnvironmentSource())


def forget() -> None:
    """As if the process had just started. For tests; guarded methods keep the values they have already read."""
    global _current, _given
    with _choosing:
        _current = _given = None
