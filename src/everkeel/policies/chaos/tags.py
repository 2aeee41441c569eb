"""Words that calls carry, so that chaos can be for the load test, the canary, one tenant, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CARRIED: ContextVar[frozenset[str]] = ContextVar("everkeel.chaos.tags", default=frozenset())


@contextmanager
def chaos_tags(*tags: str) -> Iterator[None]:
    """Calls in this block, and the tasks it starts, carry these words, in addition to those around it.

    >>> from everkeel import chaos, chaos_tags, disable_chaos, enable_chaos
    >>> enable_chaos()
    >>> faults = chaos(rate=1.0, result="fault", tags={"load test"})
    >>> with chaos_tags("load test"):
    ...     faults.call(lambda: "answer")
    'fault'
    >>> faults.call(lambda: "answer")
    'answer'
    >>> disable_chaos()
    """
    token = CARRIED.set(CARRIED.get() | frozenset(tags))
    try:
        yield
    finally:
        CARRIED.reset(token)
