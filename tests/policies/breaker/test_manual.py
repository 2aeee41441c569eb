"""Changing the state by hand."""

from __future__ import annotations

import threading

import pytest

from everkeel import circuit_breaker
from everkeel.events import CircuitClosed, CircuitForced, CircuitHalfOpened, CircuitOpened, CircuitReset
from everkeel.testing import assert_state


def test_forced_open_it_rejects_until_told_otherwise(calls, clock):
    breaker = circuit_breaker("payments", open_for=1)
    breaker.force_open()
    clock.advance(1_000_000)
    error = calls(breaker).rejected()
    assert str(error) == "circuit 'payments' is open (forced)"
    assert (error.retry_after, error.failure_rate, error.calls, error.reason) == (None, None, 0, "forced")
    assert_state(breaker, "open", retry_after=None)


def test_forced_closed_it_lets_every_call_pass(calls):
    breaker = circuit_breaker("payments", consecutive=1, minimum_calls=1)
    breaker.force_closed()
    assert calls(breaker).feed("f" * 50) == "f" * 50
    assert_state(breaker, "closed", failure_rate=1.0)


def test_forced_closed_it_still_sees_failures(calls):
    breaker = circuit_breaker("payments", minimum_calls=2)
    breaker.force_closed()
    calls(breaker).feed("sf")
    assert_state(breaker, "closed", failure_rate=0.5, failure=1, success=1)


def test_forced_closed_it_closes_an_open_circuit(calls, clock):
    breaker = circuit_breaker("payments", consecutive=1)
    payments = calls(breaker)
    payments.feed("f")
    breaker.force_closed()
    assert payments.feed("sfs") == "sfs"


def test_a_slow_call_does_not_open_a_circuit_that_is_forced_closed(calls, clock):
    breaker = circuit_breaker("payments", slow_duration=1, minimum_calls=1)
    breaker.force_closed()
    calls(breaker).feed("ss", during=lambda: clock.advance(2))
    assert_state(breaker, "closed", slow_rate=1.0)


def test_half_open_lets_the_probes_find_out_now(calls):
    breaker = circuit_breaker("payments", probes=1)
    breaker.force_open()
    breaker.half_open()
    calls(breaker).feed("s")
    assert_state(breaker, "closed")


def test_half_open_by_hand_may_open_too(calls):
    breaker = circuit_breaker("payments", probes=1)
    breaker.half_open()
    payments = calls(breaker)
    payments.feed("f")
    assert payments.rejected().retry_after == 30


def test_reset_closes_and_forgets(calls):
    breaker = circuit_breaker("payments", consecutive=2)
    payments = calls(breaker)
    payments.feed("ff")
    breaker.reset()
    assert_state(breaker, "closed", window_calls=0, failure_rate=0.0, opened=0)
    assert payments.feed("f") == "f"
    assert_state(breaker, "closed")


def test_reset_ends_what_was_forced(calls):
    breaker = circuit_breaker("payments", consecutive=1)
    breaker.force_closed()
    breaker.reset()
    assert calls(breaker).feed("f s") == "fx"


def test_what_was_counted_survives_a_reset(calls):
    breaker = circuit_breaker("payments")
    calls(breaker).feed("sssf")
    breaker.reset()
    assert_state(breaker, "closed", success=3, failure=1)


# ------------------------------------------------------------------ isolation


def test_isolated_it_rejects_every_call(calls, clock):
    breaker = circuit_breaker("payments", open_for=1)
    with breaker.isolate():
        clock.advance(100)
        error = calls(breaker).rejected()
    assert str(error) == "circuit 'payments' is open (isolated)"
    assert (error.retry_after, error.reason) == (None, "isolated")


def test_after_the_release_probes_find_out(calls):
    breaker = circuit_breaker("payments", probes=1)
    with breaker.isolate():
        pass
    assert_state(breaker, "half_open")
    calls(breaker).feed("s")
    assert_state(breaker, "closed")


def test_two_holders_must_both_release_it(calls):
    breaker = circuit_breaker("payments")
    payments = calls(breaker)
    first, second = breaker.isolate(), breaker.isolate()
    first.release()
    payments.rejected()
    second.release()
    assert payments.feed("s") == "s"


def test_a_holder_that_releases_twice_counts_once(calls):
    breaker = circuit_breaker("payments")
    first, second = breaker.isolate(), breaker.isolate()
    first.release()
    first.release()
    calls(breaker).rejected()
    second.release()
    assert_state(breaker, "half_open")


def test_a_second_isolation_may_follow_the_first(calls):
    breaker = circuit_breaker("payments")
    breaker.isolate().release()
    with breaker.isolate():
        calls(breaker).rejected()


def test_a_result_in_flight_does_not_end_an_isolation(calls):
    breaker = circuit_breaker("payments", consecutive=1)
    holders = []
    calls(breaker).feed("f", during=lambda: holders.append(breaker.isolate()))
    assert_state(breaker, "open", retry_after=None)


@pytest.mark.parametrize(
    "change",
    ["force_open", "force_closed", "half_open", "reset"],
)
def test_while_isolated_other_manual_changes_are_refused(clock, change):
    breaker = circuit_breaker("payments")
    with breaker.isolate(), breaker.isolate():
        with pytest.raises(RuntimeError) as raised:
            getattr(breaker, change)()
    assert str(raised.value) == ("circuit breaker 'payments' is isolated by 2; it changes when the last releases it")
    assert_state(breaker, "half_open")


def test_while_isolated_no_saved_state_is_restored(clock):
    breaker = circuit_breaker("payments")
    saved = breaker.save_state()
    with breaker.isolate(), pytest.raises(RuntimeError, match="is isolated by 1"):
        breaker.restore_state(saved)


class Interleaving:
    """A lock that lets something else happen right after it was let go for the first time."""

    def __init__(self, then):
        self._lock, self._then = threading.Lock(), then

    def __enter__(self):
        self._lock.acquire()

    def __exit__(self, *error):
        self._lock.release()
        then, self._then = self._then, lambda: None
        then()


def test_nothing_comes_between_isolating_and_being_isolated(clock):
    breaker = circuit_breaker("payments")

    def another_operator():
        with pytest.raises(RuntimeError, match="is isolated by 1"):
            breaker.force_closed()

    breaker.lock = Interleaving(another_operator)
    with breaker.isolate():
        assert_state(breaker, "open")


def test_an_isolation_that_begins_while_the_last_one_ends_holds(clock):
    breaker = circuit_breaker("payments")
    first, second = breaker.isolate(), []
    breaker.lock = Interleaving(lambda: second.append(breaker.isolate()))
    first.release()
    assert_state(breaker, "open", retry_after=None)


def test_many_holders_in_threads_leave_it_half_open_at_the_end(clock, together):
    breaker = circuit_breaker("payments", clock=clock)

    def operator():
        for _ in range(50):
            with breaker.isolate():
                assert breaker.snapshot()["state"] == "open"

    assert together(*[operator] * 8) == [None] * 8
    assert_state(breaker, "half_open")


# ------------------------------------------------------------------ what is told


def circuit_events(heard):
    kinds = (CircuitOpened, CircuitHalfOpened, CircuitClosed, CircuitForced, CircuitReset)
    return [
        (type(event).__name__, *([event.state] if isinstance(event, CircuitForced) else []))
        for event in heard.of(*kinds)
    ]


def test_forcing_is_told_with_the_state(heard):
    breaker = circuit_breaker("payments")
    breaker.force_open()
    breaker.force_closed()
    breaker.half_open()
    assert circuit_events(heard) == [
        ("CircuitOpened",),
        ("CircuitForced", "open"),
        ("CircuitClosed",),
        ("CircuitForced", "closed"),
        ("CircuitHalfOpened",),
        ("CircuitForced", "half_open"),
    ]


def test_a_reset_is_told(heard):
    circuit_breaker("payments").reset()
    assert circuit_events(heard) == [("CircuitClosed",), ("CircuitReset",)]


def test_isolating_is_told_as_an_opening_without_an_end(heard):
    breaker = circuit_breaker("payments")
    with breaker.isolate(), breaker.isolate():
        pass
    assert heard.of(CircuitOpened) == [
        CircuitOpened(
            policy="payments", policy_type="circuit_breaker", failure_rate=None, open_for=None, reason="isolated"
        )
    ]
    assert circuit_events(heard) == [("CircuitOpened",), ("CircuitHalfOpened",)]
