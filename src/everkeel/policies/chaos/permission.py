"""May there be chaos in this process? Not unless somebody says so: a policy that was left in the code does no harm."""

from __future__ import annotations

import os
from collections.abc import Callable

from everkeel.runtime.trouble import warn

_said = os.environ.get("EVERKEEL_CHAOS", "").strip().lower()
on: bool = _said in ("true", "1", "yes", "on")
"""True while chaos may happen. EVERKEEL_CHAOS=true in the environment starts a process that way."""

_quiet = _said in ("false", "0", "no", "off")  # somebody said no: no need to tell them how to say yes
on_change: list[Callable[[], object]] = []


def enable_chaos() -> None:
    """Let chaos policies act in this process; without this (or EVERKEEL_CHAOS=true) they do nothing at all.

    >>> from everkeel import chaos, disable_chaos, enable_chaos
    >>> faults = chaos(rate=1.0, error=TimeoutError)
    >>> faults.call(lambda: "nothing happens")
    'nothing happens'
    >>> enable_chaos()
    >>> faults.call(lambda: "nothing happens")
    Traceback (most recent call last):
    TimeoutError: injected by chaos
    >>> disable_chaos()
    """
    _set(True)


def disable_chaos() -> None:
    """Undo `enable_chaos`: every chaos policy is inert again, at once."""
    _set(False)


def _set(value: bool) -> None:
    global on
    if on != value:
        on = value
        for act in on_change:
            act()


def say_inert(label: str) -> None:
    """Tell once in a process why nothing happens."""
    global _quiet
    if not _quiet:
        _quiet = True
        warn(
            "%s is inert: chaos is not enabled for this process (everkeel.enable_chaos(), or EVERKEEL_CHAOS=true; "
            "EVERKEEL_CHAOS=false to not be told)",
            label,
        )
