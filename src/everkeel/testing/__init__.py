"""Tools to test what waits, fails and recovers: virtual time, a pytest plugin, recorders, assertions and test doubles.

In pytest the fixtures `virtual_time`, `fresh_everkeel` and `record_events` are there once Everkeel is installed.
Elsewhere, `run` and `virtual_time` do the same.
"""

from everkeel.testing.clock import VirtualClock
from everkeel.testing.deadlock import DeadlockError
from everkeel.testing.loop import VirtualLoop, wait_until_idle
from everkeel.testing.running import run, virtual_time

__all__ = ["DeadlockError", "VirtualClock", "VirtualLoop", "run", "virtual_time", "wait_until_idle"]
