"""The process-wide switch that turns every policy into a plain call."""

from __future__ import annotations

import os
from collections.abc import Callable

on: bool = os.environ.get("EVERKEEL_ENABLED", "true").strip().lower() not in ("false", "0", "no", "off")
"""False while policies do nothing. EVERKEEL_ENABLED=false in the environment starts a process that way."""

on_change: list[Callable[[], object]] = []


def disable() -> None:
    """Turn every policy in this process into a plain call: for debugging, or where a service mesh does the work.

    >>> from everkeel import disable, enable, retry
    >>> disable()
    >>> retry(attempts=5).call(lambda: "called once, come what may")
    'called once, come what may'
    >>> enable()
    """
    _set(False)


def enable() -> None:
    """Undo `disable`."""
    _set(True)


def _set(value: bool) -> None:
    global on
    if on != value:
        on = value
        for act in on_change:
            act()
