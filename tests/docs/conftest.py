"""What examples run in: virtual time, so that none of them really waits, and a process without other policies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from everkeel.runtime.clock import DEFAULT
from everkeel.testing import VirtualClock, fresh_everkeel, virtual_time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Examples may say `asyncio.run` and `time.sleep`, as their readers will: both are virtual here."""
    with fresh_everkeel(), virtual_time() as clock:
        monkeypatch.setattr(asyncio, "run", clock.run)
        monkeypatch.setattr(time, "sleep", lambda seconds: DEFAULT.sleep(seconds))
        yield clock
