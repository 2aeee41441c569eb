"""Tools to test what waits, fails and recovers: virtual time, a pytest plugin, a recorder, assertions, test doubles.

In pytest the fixtures `virtual_time`, `fresh_everkeel` and `record_events` are there once Everkeel is installed; the
blocks of the same names do their work elsewhere.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from everkeel.testing.assertions import assert_attempts, assert_delays, assert_explained, assert_state
    from everkeel.testing.cancelling import CancelledRun, cancel_at_every_await
    from everkeel.testing.clock import VirtualClock
    from everkeel.testing.crashing import Crashed, crash_as_told, crash_at
    from everkeel.testing.deadlock import DeadlockError
    from everkeel.testing.double import Flaky
    from everkeel.testing.isolation import fresh_everkeel
    from everkeel.testing.loop import VirtualLoop, wait_until_idle
    from everkeel.testing.recorder import EventRecorder, record_events
    from everkeel.testing.running import run, virtual_time
    from everkeel.testing.shrinking import shrink_faults

__all__ = [
    "CancelledRun", "Crashed", "DeadlockError", "EventRecorder", "Flaky", "VirtualClock", "VirtualLoop",
    "assert_attempts", "assert_delays", "assert_explained", "assert_state", "cancel_at_every_await", "crash_as_told",
    "crash_at", "fresh_everkeel", "record_events", "run", "shrink_faults", "virtual_time", "wait_until_idle",
]  # fmt: skip

_HOMES = {
    "assertions": ("assert_attempts", "assert_delays", "assert_explained", "assert_state"),
    "cancelling": ("CancelledRun", "cancel_at_every_await"),
    "clock": ("VirtualClock",),
    "crashing": ("Crashed", "crash_as_told", "crash_at"),
    "deadlock": ("DeadlockError",),
    "double": ("Flaky",),
    "isolation": ("fresh_everkeel",),
    "loop": ("VirtualLoop", "wait_until_idle"),
    "recorder": ("EventRecorder", "record_events"),
    "running": ("run", "virtual_time"),
    "shrinking": ("shrink_faults",),
}


def __getattr__(name: str) -> object:
    """Imported when first used: pytest loads the plugin, and so this module, in every project that has Everkeel."""
    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(_import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
