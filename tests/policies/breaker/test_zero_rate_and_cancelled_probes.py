"""Two rules that other systems have: a rate of zero, and a cancelled probe as a failed one."""

from __future__ import annotations

import asyncio

import pytest

from everkeel import ConfigError, circuit_breaker
from everkeel.testing import assert_state


def refused() -> None:
    raise ConnectionRefusedError


def test_a_rate_of_zero_opens_as_soon_as_the_window_is_full(clock):
    breaker = circuit_breaker("payments", failure_rate=0, allow_zero_rate=True, window=3, minimum_calls=3)
    for _ in range(2):
        breaker.call(int)
    assert_state(breaker, "closed")
    breaker.call(int)
    assert_state(breaker, "open")


def test_it_closes_again_and_needs_a_full_window_again(clock):
    breaker = circuit_breaker(
        "payments", failure_rate=0, allow_zero_rate=True, window=2, minimum_calls=2, probes=1, probe_success_rate=1.0
    )
    for _ in range(2):
        breaker.call(int)
    clock.advance(30)
    breaker.call(int)
    assert_state(breaker, "closed")
    breaker.call(int)
    assert_state(breaker, "closed")


@pytest.mark.parametrize("rate", [0, 0.0])
def test_a_rate_of_zero_must_be_asked_for(clock, rate):
    with pytest.raises(ConfigError, match="failure_rate must be a share above 0 and up to 1"):
        circuit_breaker("payments", failure_rate=rate)


@pytest.mark.parametrize(("cancelled_probe", "state"), [("no_evidence", "half_open"), ("failure", "open")])
def test_a_cancelled_probe_may_count_as_a_failure(clock, cancelled_probe, state):
    breaker = circuit_breaker("payments", consecutive=1, probes=1, cancelled_probe=cancelled_probe)

    async def main() -> None:
        with pytest.raises(OSError):
            breaker.call(refused)
        await asyncio.sleep(30)
        probe = asyncio.ensure_future(breaker.acall(asyncio.sleep, 5))
        await asyncio.sleep(1)
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe

    clock.run(main)
    assert_state(breaker, state)


def test_an_ignored_error_of_a_probe_is_no_cancellation(clock):
    breaker = circuit_breaker(
        "payments", on=OSError, ignore=KeyError, consecutive=1, probes=1, cancelled_probe="failure"
    )
    with pytest.raises(OSError):
        breaker.call(refused)
    clock.advance(30)
    with pytest.raises(KeyError):
        breaker.call(lambda: {}["x"])
    assert_state(breaker, "half_open")
