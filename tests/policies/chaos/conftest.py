"""A process in which chaos is enabled, and what a call came to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everkeel import enable_chaos
from everkeel.testing import VirtualClock


@pytest.fixture
def chaotic(clock: VirtualClock) -> VirtualClock:
    """Chaos is enabled for this test; `clock`, by way of a fresh Everkeel, takes that back."""
    enable_chaos()
    return clock


@pytest.fixture
def ended() -> Callable[..., list[str]]:
    """`ended(call, 5)` calls five times, and answers how each ended: what it returned, or the class it raised."""

    def run(call: Callable[..., Any], times: int, *args: Any) -> list[str]:
        outcomes = []
        for _ in range(times):
            try:
                outcomes.append(str(call(*args)))
            except Exception as error:
                outcomes.append(type(error).__name__)
        return outcomes

    return run
