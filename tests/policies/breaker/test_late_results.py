"""What calls report that began before the circuit changed its state; and calls that are cancelled."""

from __future__ import annotations

import asyncio

import pytest

from everkeel import CircuitOpenError, circuit_breaker
from everkeel.testing import assert_state, cancel_at_every_await


@pytest.fixture(params=["watched", "quick"])
def tripped(request, calls):
    """A breaker that opens while a call is in flight that began in the closed state; `meanwhile` happens in it too.

    watched: the call has a permit that must be told how it ended; quick: its permit is nothing but a tally.
    """

    def run(outcome, meanwhile, **settings):
        breaker = circuit_breaker(
            "payments", **{"consecutive": 2, "probes": 1, "minimum_calls": 10, "open_for": 30, **settings}
        )
        payments = calls(breaker)
        if request.param == "quick":
            payments.feed("s" * 10)

        def during():
            assert payments.feed("ff") == "ff"
            assert_state(breaker, "open")
            meanwhile(breaker, payments)

        payments.feed(outcome, during=during)
        return breaker, payments

    return run


def nothing(breaker, payments):
    """The circuit is open, and that is all."""


@pytest.mark.parametrize("late", ["s", "f", "c"])
def test_a_late_result_changes_nothing_while_it_is_open(tripped, late):
    breaker, _ = tripped(late, nothing)
    assert_state(breaker, "open", failure_rate=1.0, window_calls=2, opened=1)


def test_a_late_success_from_before_the_trip_does_not_close_a_half_open_circuit(tripped, clock):
    def probing(breaker, payments):
        clock.advance(30)
        breaker.half_open()

    breaker, payments = tripped("s", probing)
    assert_state(breaker, "half_open")
    payments.feed("s")
    assert_state(breaker, "closed")


def test_a_late_failure_from_before_the_trip_does_not_open_a_half_open_circuit(tripped, clock):
    def probing(breaker, payments):
        clock.advance(30)
        breaker.half_open()

    breaker, _ = tripped("f", probing)
    assert_state(breaker, "half_open")


def test_a_late_result_takes_no_place_of_a_probe(tripped, clock):
    def while_the_probe_runs(breaker, payments):
        clock.advance(30)

    breaker, payments = tripped("s", while_the_probe_runs)
    assert payments.feed("s") == "s"
    assert_state(breaker, "closed")


def test_a_late_failure_does_not_count_in_the_next_closed_state(tripped, clock):
    def recovers(breaker, payments):
        clock.advance(30)
        payments.feed("s")
        payments.feed("f")

    breaker, payments = tripped("f", recovers)
    assert_state(breaker, "closed", window_calls=1, failure_rate=1.0)
    assert payments.feed("f s") == "fx"


def test_a_late_success_does_not_count_in_the_next_closed_state(tripped, clock):
    def recovers(breaker, payments):
        clock.advance(30)
        payments.feed("s")
        payments.feed("f")

    breaker, payments = tripped("s", recovers)
    assert_state(breaker, "closed", window_calls=1, failure_rate=1.0)
    assert payments.feed("f s") == "fx", "a late success interrupted a row of failures"


@pytest.mark.parametrize("late", ["s", "f"])
def test_a_result_from_several_states_ago_is_ignored(tripped, clock, late):
    def several_generations(breaker, payments):
        for _ in range(3):
            clock.advance(30)
            assert payments.feed("s ff") == "sff"
        clock.advance(30)
        payments.feed("s")

    breaker, _ = tripped(late, several_generations)
    assert_state(breaker, "closed", window_calls=0)


@pytest.mark.parametrize("late", ["s", "f"])
def test_a_probe_of_an_earlier_half_open_state_is_no_probe_of_this_one(calls, clock, late):
    breaker = circuit_breaker("payments", probes=1)
    breaker.half_open()
    payments = calls(breaker)
    payments.feed(late, during=breaker.half_open)
    assert_state(breaker, "half_open")
    assert payments.feed("s") == "s"
    assert_state(breaker, "closed")


@pytest.mark.parametrize("late", ["s", "f", "c", "i"])
def test_a_call_that_a_reset_overtook_is_ignored(calls, late):
    breaker = circuit_breaker("payments", ignore=KeyError, consecutive=1)
    calls(breaker).feed(late, during=breaker.reset)
    assert_state(breaker, "closed", window_calls=0)


# ------------------------------------------------------------------ cancelled and interrupted


def test_cancellation_does_not_open_the_breaker(awaited, clock):
    breaker = circuit_breaker("payments", consecutive=2)

    async def hang():
        await asyncio.sleep(3600)

    guarded = awaited(breaker, hang)

    async def main():
        for _ in range(3):
            task = asyncio.create_task(guarded())
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    clock.run(main)
    assert_state(breaker, "closed", window_calls=0, success=0, failure=0, ignored=0)


def test_a_cancelled_call_does_not_interrupt_a_row_of_failures(calls):
    breaker = circuit_breaker("payments", failure_rate=None, consecutive=2)
    assert calls(breaker).feed("f c f s") == "fcfx"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_ctrl_c_is_not_counted(calls, interrupt):
    breaker = circuit_breaker("payments", consecutive=2)
    payments = calls(breaker)
    for _ in range(3):
        with pytest.raises(interrupt):  # and is not replaced by an error of ours either
            payments(interrupt)
    assert_state(breaker, "closed", window_calls=0, failure=0, success=0, ignored=0)


def test_ctrl_c_counts_neither_once_the_circuit_is_quick(calls):
    breaker = circuit_breaker("payments", minimum_calls=2, failure_rate=0.1)
    payments = calls(breaker)
    payments.feed("ssss cccc")
    assert_state(breaker, "closed", window_calls=4, success=4)


def test_a_cancelled_probe_is_no_evidence(calls, clock):
    breaker = circuit_breaker("payments", probes=1)
    breaker.half_open()
    payments = calls(breaker)
    assert payments.feed("cccc") == "cccc"
    assert_state(breaker, "half_open")
    payments.feed("s")
    assert_state(breaker, "closed")


def test_a_cancelled_probe_makes_room_for_another_at_once(calls, clock):
    breaker = circuit_breaker("payments", probes=2, probe_success_rate=1.0)
    breaker.half_open()
    payments = calls(breaker)

    def during():
        assert payments.feed("c") == "c"
        assert payments.feed("s") == "s"
        assert payments.feed("s") == "x"

    payments.feed("s", during=during)
    assert_state(breaker, "closed")


def test_a_probe_cancelled_at_any_await_leaves_its_place(awaited, clock):
    breakers = []

    async def backend():
        await asyncio.sleep(1)
        await asyncio.sleep(1)
        return "ok"

    def make():
        breakers.append(circuit_breaker(probes=1))
        breakers[-1].half_open()
        return awaited(breakers[-1], backend)()

    async def check(run):
        breaker = breakers[-1]
        if run.cancelled:
            assert_state(breaker, "half_open")
            assert await awaited(breaker, backend)() == "ok"
        assert_state(breaker, "closed")

    assert cancel_at_every_await(make, check) == 2


def test_a_probe_whose_coroutine_is_closed_leaves_its_place(awaited, clock):
    breaker = circuit_breaker("payments", probes=1)
    breaker.half_open()

    async def backend():
        await asyncio.sleep(0)

    probe, other = awaited(breaker, backend)(), awaited(breaker, backend)()
    probe.send(None)
    with pytest.raises(CircuitOpenError):
        other.send(None)
    probe.close()
    assert_state(breaker, "half_open")
    clock.run(awaited(breaker, backend)())
    assert_state(breaker, "closed")


def test_an_abandoned_stream_is_no_evidence(clock):
    breaker = circuit_breaker("pages", probes=1)
    breaker.half_open()

    @breaker
    def pages():
        yield 1
        yield 2

    for page in pages():
        assert page == 1
        break
    assert_state(breaker, "half_open")
    assert list(pages()) == [1, 2]
    assert_state(breaker, "closed")


def test_an_abandoned_async_stream_is_no_evidence(clock):
    breaker = circuit_breaker("pages", probes=1)
    breaker.half_open()

    @breaker
    async def pages():
        yield 1
        yield 2

    async def main():
        stream = pages()
        assert await anext(stream) == 1
        await stream.aclose()
        assert_state(breaker, "half_open")
        assert [page async for page in pages()] == [1, 2]

    clock.run(main)
    assert_state(breaker, "closed")


def test_a_stream_that_breaks_is_a_failure(clock):
    breaker = circuit_breaker("pages", consecutive=1)

    @breaker
    def pages():
        yield 1
        raise ConnectionError("reset")

    with pytest.raises(ConnectionError):
        list(pages())
    with pytest.raises(CircuitOpenError):
        list(pages())
