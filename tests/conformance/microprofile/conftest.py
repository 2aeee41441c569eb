"""Each test is a deployment of its own: no state, no metrics, no configuration from another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everkeel.microprofile import fresh_deployment


@pytest.fixture(autouse=True)
def _deployed() -> Iterator[None]:
    with fresh_deployment():
        yield
