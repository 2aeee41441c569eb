"""A process that has seen no MicroProfile configuration and no guarded method yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everkeel.microprofile import config
from everkeel.microprofile.metrics import MetricRegistry


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    config.forget()
    yield
    config.forget()


@pytest.fixture
def numbers() -> MetricRegistry:
    """A registry of the test's own."""
    return MetricRegistry()
