"""Tests of code that waits for minutes, in milliseconds. With pytest or without:

python -m pytest examples/testing_with_virtual_time.py
python examples/testing_with_virtual_time.py
"""

import asyncio

from everkeel import TimeoutExceededError, circuit_breaker, retry, timeout
from everkeel.testing import Flaky, VirtualClock, assert_delays, assert_explained, assert_state
from everkeel.testing import virtual_time as in_virtual_time

# ------------------------------------------------------------------ what is tested

patient = retry("patient", on=ConnectionError, attempts=4, backoff=[60, 300, 900], jitter=None)


async def nightly_report(source: Flaky) -> object:
    """Gathers for hours if it must, but not for longer than two."""
    async with timeout(7200):
        return await patient.acall(source.async_())


# ------------------------------------------------------------------ the tests


def test_it_waits_longer_each_time(virtual_time: VirtualClock) -> None:
    """The fixture `virtual_time` comes with Everkeel."""
    patient.call(Flaky(ConnectionError, ConnectionError, ConnectionError, "rows"))
    assert_delays(virtual_time, [60, 300, 900])


def test_it_says_why_it_gave_up(virtual_time: VirtualClock) -> None:
    """Handlers and tests read the same record."""
    try:
        patient.call(Flaky(ConnectionError("no route")))
    except ConnectionError as error:
        assert_explained(error, policy="patient", attempts=4, delays=[60, 300, 900])
    else:
        raise AssertionError("it should have given up")


async def test_the_report_ends_after_two_hours(virtual_time: VirtualClock) -> None:
    """Async tests run on an event loop of the same virtual time."""
    try:
        await nightly_report(Flaky("rows", takes=10_000))
    except TimeoutExceededError:
        assert virtual_time.monotonic() == 7200
    else:
        raise AssertionError("it should have been ended")


async def test_the_circuit_is_tried_again_after_half_a_minute(virtual_time: VirtualClock) -> None:
    """States change with time, and time is ours."""
    breaker = circuit_breaker(consecutive=1, open_for=30, probes=1)
    service = Flaky(ConnectionError, "answer").async_()
    try:
        await breaker.acall(service)
    except ConnectionError:
        assert_state(breaker, "open")
    await asyncio.sleep(30)
    assert await breaker.acall(service) == "answer"
    assert_state(breaker, "closed")


# ------------------------------------------------------------------ the same without pytest


def main() -> None:
    """Run the tests above in blocks of virtual time."""
    for test in (test_it_waits_longer_each_time, test_it_says_why_it_gave_up):
        with in_virtual_time() as clock:
            test(clock)
        print(f"{test.__name__}: passed, {clock.monotonic() / 60:g} minutes of virtual time")
    for atest in (test_the_report_ends_after_two_hours, test_the_circuit_is_tried_again_after_half_a_minute):
        with in_virtual_time() as clock:
            clock.run(atest(clock))
        print(f"{atest.__name__}: passed, {clock.monotonic() / 60:g} minutes of virtual time")


if __name__ == "__main__":
    main()
