"""Virtual time and a process without other policies, for every test about telemetry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everkeel.testing import VirtualClock, fresh_everkeel, virtual_time


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    with fresh_everkeel(), virtual_time() as clock:
        yield clock
