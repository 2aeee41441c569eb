"""Reconfigured, watched only, switched off: while calls go on."""

from __future__ import annotations

import sys
import threading

import pytest

from everkeel import CircuitOpenError, ConfigError, circuit_breaker, disable, enable
from everkeel.events import CallRejected, CircuitOpened, WouldHave
from everkeel.testing import assert_state

# ------------------------------------------------------------------ reconfigured


def test_reconfiguring_keeps_an_open_circuit_open(calls, clock):
    breaker = circuit_breaker("payments", consecutive=1, open_for=30)
    payments = calls(breaker)
    payments.feed("f")
    breaker.reconfigure(failure_rate=0.9, open_for=5, window=20)
    assert payments.rejected().retry_after == 30
    assert_state(breaker, "open", opened=1)


def test_reconfiguring_keeps_the_calls_of_the_window(calls):
    breaker = circuit_breaker("payments", failure_rate=0.5, minimum_calls=10)
    payments = calls(breaker)
    payments.feed("sfsf")
    breaker.reconfigure(minimum_calls=5)
    assert_state(breaker, "closed", failure_rate=0.5, window_calls=4)
    assert payments.feed("f s") == "fx"


def test_a_smaller_window_looks_at_the_last_calls(calls):
    breaker = circuit_breaker("payments", failure_rate=0.6, window=10, minimum_calls=4)
    payments = calls(breaker)
    payments.feed("ssssss ff")
    breaker.reconfigure(window=4)
    assert_state(breaker, "closed", window_calls=4, failure_rate=0.5)
    assert payments.feed("f s") == "fx"


def test_a_larger_window_does_not_take_what_it_forgot_for_successes(calls):
    breaker = circuit_breaker("payments", failure_rate=0.9, window=5, minimum_calls=5)
    payments = calls(breaker)
    payments.feed("ffffs" * 10)
    breaker.reconfigure(window=50)
    # The last five, and the success before them: of the failure before that one only the place was kept.
    assert_state(breaker, "closed", window_calls=6, failure_rate=4 / 6)


def test_rules_that_old_evidence_meets_are_applied_at_the_next_result(calls):
    breaker = circuit_breaker("payments", failure_rate=0.9)
    payments = calls(breaker)
    payments.feed("sfsfsfsfsfsf")
    breaker.reconfigure(failure_rate=0.4)
    assert_state(breaker, "closed")
    assert payments.feed("s s") == "sx"


def test_a_minimum_that_is_lowered_is_applied_at_the_next_result(calls):
    breaker = circuit_breaker("payments", failure_rate=0.5, minimum_calls=50)
    payments = calls(breaker)
    payments.feed("fffs")
    breaker.reconfigure(minimum_calls=2)
    assert payments.feed("s s") == "sx"


def test_another_kind_of_window_begins_empty(calls, clock):
    breaker = circuit_breaker("payments", minimum_calls=4)
    payments = calls(breaker)
    payments.feed("sff")
    breaker.reconfigure(window_duration=60)
    assert_state(breaker, "closed", window_calls=0, success=1, failure=2)
    payments.feed("fff")
    clock.advance(60)
    payments.feed("s")
    assert_state(breaker, "closed", window_calls=1)
    breaker.reconfigure(window_duration=None)
    assert payments.feed("ffff s") == "ffffx"


def test_another_kind_of_window_leaves_what_was_forced(calls):
    breaker = circuit_breaker("payments", consecutive=1)
    breaker.force_closed()
    breaker.reconfigure(window_duration=60)
    assert calls(breaker).feed("fff") == "fff"


def test_a_call_in_flight_while_the_kind_of_window_changes_is_ignored(calls):
    breaker = circuit_breaker("payments", consecutive=1)
    calls(breaker).feed("f", during=lambda: breaker.reconfigure(window_duration=60))
    assert_state(breaker, "closed", window_calls=0, failure=1)


def test_a_call_in_flight_is_judged_by_the_rules_in_force_when_it_ends(calls):
    breaker = circuit_breaker("payments", consecutive=1)
    calls(breaker).feed("i", during=lambda: breaker.reconfigure(ignore=KeyError))
    assert_state(breaker, "closed", failure=0, ignored=1)


def test_slow_calls_are_noticed_from_the_change_on(calls, clock):
    breaker = circuit_breaker("payments", minimum_calls=2)
    payments = calls(breaker)
    payments.feed("ssss", during=lambda: clock.advance(5))
    breaker.reconfigure(slow_duration=1, slow_rate=0.2)
    assert_state(breaker, "closed", slow_rate=0.0)
    payments.feed("s", during=lambda: clock.advance(5))
    assert_state(breaker, "open")


def test_results_are_judged_from_the_change_on(calls):
    breaker = circuit_breaker("payments", minimum_calls=2)
    payments = calls(breaker)
    assert [payments(503), payments(503)] == [503, 503]
    breaker.reconfigure(on_result=lambda answer: answer == 503)
    assert [payments(503), payments(503)] == [503, 503]
    payments.rejected()
    breaker.reset()
    breaker.reconfigure(on_result=None)
    assert [payments(503) for _ in range(5)] == [503] * 5


def test_more_probes_are_let_in_at_once(calls):
    breaker = circuit_breaker("payments", probes=1, probe_success_rate=1.0)
    breaker.half_open()
    payments = calls(breaker)

    def during():
        assert payments.feed("s") == "x"
        breaker.reconfigure(probes=2)
        assert payments.feed("s") == "s"

    payments.feed("s", during=during)
    assert_state(breaker, "closed")


def test_fewer_probes_decide_with_what_is_known(calls):
    breaker = circuit_breaker("payments", probes=5, probe_success_rate=1.0)
    breaker.half_open()
    payments = calls(breaker)
    payments.feed("ss")
    breaker.reconfigure(probes=2)
    assert payments.feed("s") == "s"
    assert_state(breaker, "closed")


def test_a_reload_does_not_forget_the_state(calls):
    breaker = circuit_breaker("payments", consecutive=1)
    payments = calls(breaker)
    payments.feed("f")
    for _ in range(3):
        breaker.reconfigure(failure_rate=0.5, window=100)
        breaker.bind()
    payments.rejected()


def test_a_change_that_is_not_allowed_changes_nothing(calls):
    breaker = circuit_breaker("payments", consecutive=2)
    payments = calls(breaker)
    payments.feed("f")
    with pytest.raises(ConfigError):
        breaker.reconfigure(consecutive=0, failure_rate=0.1)
    assert (breaker.config.consecutive, breaker.config.failure_rate) == (2, 0.5)
    assert payments.feed("f s") == "fx"


# ------------------------------------------------------------------ shadow


def test_a_shadow_rejects_nothing_and_counts_what_it_would_have(calls):
    breaker = circuit_breaker("payments", consecutive=2, mode="shadow")
    assert calls(breaker).feed("ff sss") == "ffsss"
    assert_state(breaker, "open", would={"reject": 3}, rejected=0, failure=2)


def test_a_shadow_does_not_learn_from_calls_it_would_have_rejected(calls):
    breaker = circuit_breaker("payments", consecutive=1, mode="shadow")
    calls(breaker).feed("f sss fff")
    assert_state(breaker, "open", success=0, failure=1, would={"reject": 6})


def test_a_shadow_probes_as_the_real_one_would(calls, clock):
    breaker = circuit_breaker("payments", consecutive=1, probes=1, mode="shadow")
    payments = calls(breaker)
    payments.feed("f")
    clock.advance(30)
    payments.feed("s", during=lambda: payments.feed("ss"))
    assert_state(breaker, "closed", would={"reject": 2})


def test_a_shadow_tells_what_it_would_have_done(calls, heard):
    breaker = circuit_breaker("payments", consecutive=1, mode="shadow")
    calls(breaker).feed("fs")
    (event,) = heard.of(WouldHave)
    assert event.action == "reject"
    assert isinstance(event.error, CircuitOpenError)
    assert not heard.of(CallRejected), "nobody was rejected"
    assert len(heard.of(CircuitOpened)) == 1


def test_a_shadow_judges_results_and_lets_interrupts_pass(calls):
    breaker = circuit_breaker("payments", minimum_calls=2, mode="shadow", on_result=lambda answer: answer == 503)
    payments = calls(breaker)
    payments.feed("cc")
    assert [payments(503), payments(503), payments(200)] == [503, 503, 200]
    assert_state(breaker, "open", would={"reject": 1}, failure=2)


def test_a_shadow_that_is_a_block_rejects_nothing(block):
    breaker = circuit_breaker("payments", consecutive=1, mode="shadow")
    assert block(breaker).feed("f s c f") == "fscf"
    assert_state(breaker, "open", would={"reject": 3})


def test_a_shadow_that_is_enforced_rejects_at_once(calls):
    breaker = circuit_breaker("payments", consecutive=1, mode="shadow")
    payments = calls(breaker)
    payments.feed("f s")
    breaker.mode = "enforce"
    assert payments.feed("s") == "x"
    breaker.mode = "shadow"
    assert payments.feed("s") == "s"


def test_a_breaker_that_is_off_is_a_plain_call(calls):
    breaker = circuit_breaker("payments", consecutive=1, mode="off")
    assert calls(breaker).feed("fffs") == "fffs"
    assert_state(breaker, "closed", success=0, failure=0)


def test_a_breaker_that_was_off_goes_on_where_it_was(calls):
    breaker = circuit_breaker("payments", consecutive=2)
    payments = calls(breaker)
    payments.feed("ff")
    breaker.mode = "off"
    assert payments.feed("s") == "s"
    breaker.mode = "enforce"
    assert payments.feed("s") == "x"


def test_everything_can_be_switched_off(calls):
    breaker = circuit_breaker("payments")
    breaker.force_open()
    payments = calls(breaker)
    disable()
    assert payments.feed("s") == "s"
    enable()
    assert payments.feed("s") == "x"


def test_a_call_in_flight_ends_as_it_began_when_the_mode_changes(calls):
    breaker = circuit_breaker("payments", consecutive=1)
    payments = calls(breaker)

    def off():
        breaker.mode = "off"

    assert payments.feed("f", during=off) == "f"
    assert_state(breaker, "open")


# ------------------------------------------------------------------ under load


@pytest.fixture
def under_load():
    """`under_load(act, change)` calls `act` from several threads while `change(pace)` runs.

    `pace()` waits until calls have been made since. Answers every kind of ending there was.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns hundreds of times as often as usual
    yield _under_load
    sys.setswitchinterval(interval)


def _under_load(act, change, workers=4):
    stop, called, started, endings = threading.Event(), threading.Event(), threading.Barrier(workers + 1), set()

    def worker():
        started.wait(30)
        while not stop.is_set():
            for outcome in ("ok", "ok", "ok", ConnectionError):
                try:
                    endings.add(act(outcome))
                except (ConnectionError, CircuitOpenError) as error:
                    endings.add(type(error).__name__)
                except Exception as error:
                    endings.add(error)
            called.set()

    def pace():
        called.clear()
        assert called.wait(30)

    threads = [threading.Thread(target=worker) for _ in range(workers)]
    for thread in threads:
        thread.start()
    started.wait(30)
    try:
        change(pace)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    return endings


def loaded(threaded, clock, **settings):
    breaker = circuit_breaker("payments", **{"open_for": 0, "clock": clock, **settings})

    def dependency(outcome):
        if outcome is ConnectionError:
            raise outcome
        return outcome

    return breaker, threaded(breaker, dependency)


def test_modes_are_switched_under_load(threaded, clock, under_load):
    breaker, act = loaded(threaded, clock)

    def change(pace):
        for mode in ("shadow", "off", "enforce") * 7:
            breaker.mode = mode
            pace()

    assert under_load(act, change) <= {"ok", "ConnectionError", "CircuitOpenError"}
    assert breaker.mode == "enforce"
    assert breaker.snapshot()["success"] > 0


def test_settings_are_changed_under_load(threaded, clock, under_load):
    breaker, act = loaded(threaded, clock)

    def change(pace):
        for number in range(12):
            pace()
            breaker.reconfigure(window_duration=10 if number % 2 else None, failure_rate=0.2)
            breaker.reconfigure(slow_duration=None if number % 3 else 1.0, minimum_calls=1 + number % 10)
            breaker.reconfigure(window=10 + number, on_result=(lambda answer: False) if number % 2 else None)
            breaker.reconfigure(probes=1 + number % 4, consecutive=1 + number % 5)

    assert under_load(act, change) <= {"ok", "ConnectionError", "CircuitOpenError"}


def test_the_state_is_changed_by_hand_under_load(threaded, clock, under_load):
    breaker, act = loaded(threaded, clock)

    def change(pace):
        for _ in range(12):
            breaker.force_open()
            pace()
            breaker.half_open()
            pace()
            breaker.force_closed()
            with breaker.isolate():
                breaker.save_state()
            breaker.restore_state(breaker.save_state())
            breaker.reset()
            breaker.snapshot()
            pace()

    assert under_load(act, change) <= {"ok", "ConnectionError", "CircuitOpenError"}
    breaker.reset()
    assert act("ok") == "ok"


def test_listeners_come_and_go_under_load(threaded, clock, under_load):
    breaker, act = loaded(threaded, clock)

    def change(pace):
        for _ in range(20):
            with breaker.subscribe(lambda event: breaker.snapshot()):
                pace()
            pace()

    assert under_load(act, change) <= {"ok", "ConnectionError", "CircuitOpenError"}
