"""What a hedge is for: the tail of a long-tailed service, at a known price. The run is the one the guide shows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "simulate_services.py"


@pytest.fixture(scope="module")
def services() -> ModuleType:
    if SCRIPT.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[SCRIPT.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[SCRIPT.stem])
    return sys.modules[SCRIPT.stem]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_99th_percentile_falls_to_less_than_a_tenth_for_six_per_cent_more_calls(services, seed):
    # Seen: from 280 ms and more to 23 ms, for 5 % more calls, which is what a delay at the 95th percentile says.
    before, after = services.long_tail(hedged=False, seed=seed), services.long_tail(hedged=True, seed=seed)
    assert after.quantile(0.99) <= before.quantile(0.99) / 10
    assert after.attempts <= 1.06 * before.attempts
    assert after.quantile(0.5) == pytest.approx(before.quantile(0.5), rel=0.05)
