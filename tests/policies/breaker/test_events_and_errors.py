"""What a breaker tells: its errors, its events, its numbers."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest

from everkeel import CircuitOpenError, RejectedError, circuit_breaker, explain, policies_of, registry
from everkeel.events import (
    CallRejected,
    CircuitClosed,
    CircuitHalfOpened,
    CircuitOpened,
    Failed,
    Ignored,
    PolicyAdded,
    Succeeded,
)
from everkeel.testing import assert_state


class PaymentsDownError(CircuitOpenError):
    """A class of the user's own."""


# ------------------------------------------------------------------ the error


def test_the_error_says_who_why_and_when(calls, clock):
    breaker = circuit_breaker("payments", failure_rate=0.5, window=100, minimum_calls=100)
    payments = calls(breaker)
    payments.feed("s" * 48 + "f" * 52)
    clock.advance(26.8)
    error = payments.rejected()
    assert str(error) == "circuit 'payments' is open (52% of the last 100 calls failed); next probe in 3.2 s"
    assert (error.policy, error.failure_rate, error.calls, error.reason) == ("payments", 0.52, 100, None)
    assert error.retry_after == pytest.approx(3.2)


def test_the_error_after_failures_in_a_row_says_how_many(calls):
    payments = calls(circuit_breaker("payments", consecutive=5))
    payments.feed("sss fffff")
    assert str(payments.rejected()) == (
        "circuit 'payments' is open (100% of the last 5 calls failed); next probe in 30.0 s"
    )


def test_the_error_is_a_rejection(calls):
    payments = calls(circuit_breaker("payments", consecutive=1))
    payments.feed("f")
    assert isinstance(payments.rejected(), RejectedError)


@pytest.mark.parametrize("remake", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_the_error_survives_pickling_and_copying(calls, remake):
    payments = calls(circuit_breaker("payments", consecutive=1))
    payments.feed("f")
    error = payments.rejected()
    again = remake(error)
    assert type(again) is CircuitOpenError
    assert str(again) == str(error)
    fields = ("policy", "retry_after", "failure_rate", "calls", "reason")
    assert [getattr(again, name) for name in fields] == [getattr(error, name) for name in fields]


def test_an_error_class_of_ones_own_is_raised(calls, clock):
    breaker = circuit_breaker("payments", consecutive=1, probes=1, open_error=PaymentsDownError)
    payments = calls(breaker)
    payments.feed("f")
    assert type(payments.rejected()) is PaymentsDownError
    clock.advance(30)
    errors = []
    payments.feed("s", during=lambda: errors.append(payments.rejected()))
    assert type(errors[0]) is PaymentsDownError


def test_a_rejection_keeps_nothing_alive(calls, clock):
    breaker = circuit_breaker("payments", probes=1)
    payments = calls(breaker)
    errors = []

    def reject():
        try:
            payments("ok")
        except CircuitOpenError as error:
            errors.append(weakref.ref(error))

    gc.collect()
    gc.disable()
    try:
        breaker.force_open()
        reject()
        breaker.half_open()
        payments("ok", reject)
        assert [error() for error in errors] == [None, None], "only the garbage collector can free it"
    finally:
        gc.enable()


def test_a_rejection_that_is_heard_keeps_nothing_alive(calls, clock):
    breaker = circuit_breaker("payments")
    breaker.subscribe(lambda event: None, CallRejected)
    breaker.force_open()
    payments = calls(breaker)
    gc.collect()
    gc.disable()
    try:
        try:
            payments("ok")
        except CircuitOpenError as error:
            freed = weakref.ref(error)
        assert freed() is None, "only the garbage collector can free it"
    finally:
        gc.enable()


def test_a_rejection_is_explained(calls):
    payments = calls(circuit_breaker("payments", consecutive=1))
    payments.feed("f")
    assert "circuit 'payments' is open" in str(explain(payments.rejected()))


# ------------------------------------------------------------------ blocks


def test_with_breaker_while_open_does_not_run_the_body(blocks):
    breaker = circuit_breaker("payments")
    breaker.force_open()
    blocks(breaker).rejected()
    assert_state(breaker, "open", rejected=1, success=0)


def test_a_block_reports_its_failure(blocks):
    breaker = circuit_breaker("payments", consecutive=2)
    assert blocks(breaker).feed("s ff s") == "sffx"


def test_blocks_may_be_nested(blocks):
    breaker = circuit_breaker("payments", failure_rate=0.9)
    payments = blocks(breaker)
    payments.feed("s", during=lambda: payments.feed("f", during=lambda: payments.feed("s")))
    assert_state(breaker, "closed", success=2, failure=1)


def test_a_block_hands_out_the_breaker(clock):
    breaker = circuit_breaker("payments")
    with breaker as held:
        assert held is breaker


def test_an_entry_hands_the_result_back(clock):
    with circuit_breaker("payments").entry() as entry:
        assert entry.result("ok") == "ok"


# ------------------------------------------------------------------ events


def test_the_events_tell_what_happened(calls, heard, clock):
    breaker = circuit_breaker("payments", consecutive=2, probes=1, ignore=KeyError)
    payments = calls(breaker)
    payments.feed("s i ff x".replace("x", "s"))
    clock.advance(30)
    payments.feed("s")
    assert heard.names() == [
        "PolicyAdded",
        "Succeeded",
        "Ignored",
        "Failed",
        "CircuitOpened",
        "Failed",
        "CallRejected",
        "CircuitHalfOpened",
        "CircuitClosed",
        "Succeeded",
    ]


def test_opening_is_told_with_its_rate_and_its_length(calls, heard):
    calls(circuit_breaker("payments", minimum_calls=4, open_for=12)).feed("ssff")
    assert heard.of(CircuitOpened) == [
        CircuitOpened(policy="payments", policy_type="circuit_breaker", failure_rate=0.5, open_for=12.0, reason=None)
    ]


def test_opening_for_slowness_is_told_as_such(calls, heard, clock):
    breaker = circuit_breaker("payments", minimum_calls=1, slow_duration=1)
    calls(breaker).feed("s", during=lambda: clock.advance(1))
    assert [event.reason for event in heard.of(CircuitOpened)] == ["slow"]


def test_an_opening_whose_length_a_function_says_is_told_with_that_length(calls, heard):
    calls(circuit_breaker("payments", consecutive=1, open_for=lambda times: 3.5)).feed("f")
    assert [event.open_for for event in heard.of(CircuitOpened)] == [3.5]


def test_a_rejection_is_told_with_its_error(calls, heard):
    breaker = circuit_breaker("payments")
    breaker.force_open()
    error = calls(breaker).rejected()
    assert [event.error for event in heard.of(CallRejected)] == [error]
    assert not heard.of(Failed, Ignored, Succeeded)


def test_listening_for_trouble_adds_no_layer_to_a_call(clock):
    breaker = circuit_breaker("payments")
    breaker.subscribe(lambda event: None, CircuitOpened, CircuitClosed, CircuitHalfOpened, CallRejected)
    assert len(breaker.layers()) == 1
    breaker.subscribe(lambda event: None, Failed)
    assert len(breaker.layers()) == 2


def test_a_listener_may_call_the_breaker_again(calls, clock):
    breaker = circuit_breaker("payments", consecutive=1, probes=1)
    payments = calls(breaker)
    seen = []

    def listener(event):  # were it called under the lock, this would never end
        seen.append((type(event).__name__, breaker.snapshot()["state"], payments.feed("s")))

    breaker.subscribe(listener, CircuitOpened, CircuitHalfOpened, CircuitClosed)
    payments.feed("f")
    clock.advance(30)
    payments.feed("s")
    assert seen == [
        ("CircuitOpened", "open", "x"),
        ("CircuitHalfOpened", "half_open", "x"),
        ("CircuitClosed", "closed", "s"),
    ]


def test_a_listener_may_change_the_circuit(calls):
    breaker = circuit_breaker("payments", consecutive=1)
    breaker.subscribe(lambda event: breaker.reset(), CircuitOpened)
    assert calls(breaker).feed("f s f s") == "fsfs"
    assert_state(breaker, "closed", transitions={"closed_to_open": 2, "open_to_closed": 2})


def test_a_listener_that_raises_harms_nobody(calls, caplog):
    def listener(event):
        raise RuntimeError("broken")

    breaker = circuit_breaker("payments", consecutive=1)
    breaker.subscribe(listener)
    assert calls(breaker).feed("s f s") == "sfx"
    assert "a listener raised on CircuitOpened" in caplog.text


def test_who_hears_of_a_new_breaker_may_look_at_it(clock, heard):
    from everkeel import subscribe

    seen = []
    subscribe(lambda event: seen.append(registry.get(event.policy_type, event.policy).snapshot()), PolicyAdded)
    circuit_breaker("payments")
    assert [snapshot["state"] for snapshot in seen] == ["closed"]


# ------------------------------------------------------------------ numbers


def test_the_snapshot_shows_what_happened(calls, clock):
    breaker = circuit_breaker("payments", consecutive=2, ignore=KeyError)
    payments = calls(breaker)
    payments.feed("sss i ff ss")
    clock.advance(10)
    assert dict(breaker.snapshot()) == {
        "name": "payments",
        "type": "circuit_breaker",
        "mode": "enforce",
        "success": 3,
        "failure": 2,
        "ignored": 1,
        "rejected": 2,
        "would": {},
        "state": "open",
        "failure_rate": 1.0,
        "slow_rate": 0.0,
        "window_calls": 2,
        "retry_after": 20.0,
        "opened": 1,
        "transitions": {"closed_to_open": 1},
        "time_in_state": {"closed": 0.0, "open": 10.0},
    }


def test_the_time_in_each_state_adds_up(calls, clock):
    breaker = circuit_breaker("payments", consecutive=1, probes=2, probe_success_rate=1.0)
    payments = calls(breaker)
    clock.advance(5)
    payments.feed("f")
    clock.advance(40)
    payments.feed("s")
    clock.advance(2)
    payments.feed("s")
    clock.advance(100)
    assert_state(breaker, "closed", time_in_state={"closed": 105.0, "open": 40.0, "half_open": 2.0})


def test_successes_of_every_closed_period_and_of_probes_are_counted(calls, clock):
    breaker = circuit_breaker("payments", consecutive=1, probes=2, probe_success_rate=1.0)
    payments = calls(breaker)
    for _ in range(3):
        payments.feed("sssss f")
        clock.advance(30)
        payments.feed("ss")
    assert_state(breaker, "closed", success=21, failure=3)


def test_reading_the_snapshot_changes_nothing(calls, clock):
    breaker = circuit_breaker("payments", minimum_calls=2)
    payments = calls(breaker)
    payments.feed("ff")
    clock.advance(31)
    assert_state(breaker, "open", retry_after=0.0)
    assert_state(breaker, "open", transitions={"closed_to_open": 1})


# ------------------------------------------------------------------ decorated functions


def test_async_def_under_the_plain_decorator_is_protected(clock):
    breaker = circuit_breaker("payments", consecutive=2)

    @breaker
    async def charge():
        raise ConnectionError

    async def main():
        for error in (ConnectionError, ConnectionError, CircuitOpenError):
            with pytest.raises(error):
                await charge()

    clock.run(main)


def test_call_refuses_a_coroutine_function(clock):
    async def charge():
        pass

    with pytest.raises(TypeError, match="use acall"):
        circuit_breaker("payments").call(charge)


def test_methods_of_many_objects_share_one_breaker(clock):
    breaker = circuit_breaker("bank", consecutive=2)

    class Bank:
        @breaker
        def charge(self, amount):
            raise ConnectionError(amount)

    for error in (ConnectionError, ConnectionError, CircuitOpenError):
        with pytest.raises(error):
            Bank().charge(1)
    assert policies_of(Bank.charge) == (breaker,)


def test_several_functions_share_one_breaker(clock):
    breaker = circuit_breaker("bank", consecutive=2)

    @breaker
    def charge():
        raise ConnectionError

    @breaker
    def refund():
        return "refunded"

    for _ in range(2):
        with pytest.raises(ConnectionError):
            charge()
    with pytest.raises(CircuitOpenError):
        refund()
