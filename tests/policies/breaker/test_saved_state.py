"""A circuit's state to and from JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel import ConfigError, circuit_breaker
from everkeel.testing import VirtualClock, assert_state


def through_json(breaker, **key):
    return json.loads(json.dumps(breaker.save_state(**key), allow_nan=False))


def test_a_closed_circuit_goes_on_where_it_was(calls):
    settings = {"failure_rate": 0.5, "window": 8, "minimum_calls": 4}
    old, new = circuit_breaker("old", **settings), circuit_breaker("new", **settings)
    calls(old).feed("sfs")
    new.restore_state(through_json(old))
    assert_state(new, "closed", failure_rate=1 / 3, window_calls=3)
    assert calls(new).feed("f s") == "fx"


@given(script=st.text("sf", max_size=30), rest=st.text("sf", max_size=15), window=st.integers(1, 10))
def test_a_restored_window_decides_as_the_old_one_would_have(script, rest, window):
    settings = {"failure_rate": 0.7, "window": window, "minimum_calls": window, "consecutive": 5}
    old = circuit_breaker(clock=VirtualClock(), **settings)
    new = circuit_breaker(clock=VirtualClock(), **settings)

    def feed(breaker, letters):
        for letter in letters:
            if breaker.snapshot()["state"] != "closed":
                return
            entry = breaker.entry()
            entry.__enter__()
            entry.__exit__(None, ConnectionError() if letter == "f" else None, None)

    feed(old, script)
    new.restore_state(through_json(old))
    for letter in ["", *rest]:
        feed(old, letter)
        feed(new, letter)
        numbers = ("state", "failure_rate", "window_calls")
        assert [new.snapshot()[name] for name in numbers] == [old.snapshot()[name] for name in numbers]


def test_slow_calls_are_saved(calls, clock):
    settings = {"slow_duration": 1, "slow_rate": 0.5, "minimum_calls": 4}
    old, new = circuit_breaker("old", **settings), circuit_breaker("new", **settings)
    payments = calls(old)
    payments.feed("s")
    payments.feed("s", during=lambda: clock.advance(1))
    payments.feed("s")
    new.restore_state(through_json(old))
    assert_state(new, "closed", slow_rate=1 / 3)
    calls(new).feed("s", during=lambda: clock.advance(1))
    assert_state(new, "open")


@pytest.mark.parametrize("window_duration", [None, 60])
def test_failures_in_a_row_are_saved(calls, window_duration):
    settings = {"failure_rate": None, "consecutive": 3, "window_duration": window_duration}
    old, new = circuit_breaker("old", **settings), circuit_breaker("new", **settings)
    calls(old).feed("sff")
    new.restore_state(through_json(old))
    assert calls(new).feed("f s") == "fx"


def test_the_calls_of_a_time_window_are_not_saved(calls):
    settings = {"window_duration": 60, "minimum_calls": 2}
    old, new = circuit_breaker("old", **settings), circuit_breaker("new", **settings)
    calls(old).feed("sssssf")
    new.restore_state(through_json(old))
    assert_state(new, "closed", window_calls=0, failure_rate=0.0)
    assert calls(new).feed("ff s") == "ffx"


def test_the_calls_of_a_count_window_mean_nothing_to_a_time_window(calls):
    old, new = circuit_breaker("old"), circuit_breaker("new", window_duration=60)
    calls(old).feed("sssss")
    new.restore_state(through_json(old))
    assert_state(new, "closed", window_calls=0)


def test_the_calls_of_a_time_window_mean_nothing_to_a_count_window(calls):
    old, new = circuit_breaker("old", window_duration=60), circuit_breaker("new")
    calls(old).feed("ssssf")
    new.restore_state(through_json(old))
    assert_state(new, "closed", window_calls=0)


def test_a_smaller_window_takes_over_its_last_calls(calls):
    old, new = circuit_breaker("old", window=10, minimum_calls=10), circuit_breaker("new", window=2, minimum_calls=2)
    new.reconfigure(failure_rate=1.0)
    calls(old).feed("fssssf")
    new.restore_state(through_json(old))
    assert_state(new, "closed", window_calls=2, failure_rate=0.5)


def test_old_evidence_is_judged_by_the_new_rules_at_the_next_result(calls):
    old, new = circuit_breaker("old", failure_rate=0.9), circuit_breaker("new", failure_rate=0.4, minimum_calls=4)
    calls(old).feed("ssfff")
    new.restore_state(through_json(old))
    assert_state(new, "closed")
    assert calls(new).feed("s s") == "sx"


def test_an_open_circuit_stays_open_for_the_rest_of_its_time(calls, clock):
    old, new = (circuit_breaker(name, minimum_calls=2, open_for=30) for name in ("old", "new"))
    calls(old).feed("ff")
    clock.advance(10)
    data = through_json(old)
    clock.advance(5)
    new.restore_state(data)
    error = calls(new).rejected()
    assert (error.retry_after, error.failure_rate, error.calls) == (15, 1.0, 2)


def test_a_rest_that_ended_in_between_leads_to_probes(calls, clock):
    old, new = (circuit_breaker(name, minimum_calls=2, probes=1) for name in ("old", "new"))
    calls(old).feed("ff")
    data = through_json(old)
    clock.advance(3600)
    new.restore_state(data)
    assert_state(new, "open", retry_after=0.0)
    assert calls(new).feed("s") == "s"
    assert_state(new, "closed")


def test_a_wall_clock_that_went_back_shortens_nothing(calls, clock):
    new = circuit_breaker("new", minimum_calls=2)
    old = circuit_breaker("old", minimum_calls=2, clock=VirtualClock(wall=clock.time() + 3600))
    calls(old).feed("ff")
    new.restore_state(through_json(old))
    assert calls(new).rejected().retry_after == 30


def test_a_slow_opening_says_so_after_the_restart(calls, clock):
    old, new = (circuit_breaker(name, slow_duration=1, minimum_calls=1) for name in ("old", "new"))
    calls(old).feed("s", during=lambda: clock.advance(1))
    new.restore_state(through_json(old))
    assert str(calls(new).rejected()).startswith("circuit 'new' is open (100% of the last 1 calls were slow)")


@pytest.mark.parametrize("how", ["force_open", "isolate"])
def test_what_was_opened_by_hand_stays_open(calls, clock, how):
    old, new = circuit_breaker("old"), circuit_breaker("new")
    getattr(old, how)()
    new.restore_state(through_json(old))
    clock.advance(1_000_000)
    assert calls(new).rejected().retry_after is None
    new.reset()
    assert calls(new).feed("s") == "s"


def test_what_was_forced_closed_stays_closed(calls):
    old, new = circuit_breaker("old", consecutive=1), circuit_breaker("new", consecutive=1)
    old.force_closed()
    new.restore_state(through_json(old))
    assert calls(new).feed("fff") == "fff"


def test_a_half_open_circuit_begins_its_probes_anew(calls):
    old, new = (circuit_breaker(name, probes=2, probe_success_rate=1.0) for name in ("old", "new"))
    old.half_open()
    saved = []
    calls(old).feed("s", during=lambda: saved.append(through_json(old)))
    new.restore_state(saved[0])
    payments = calls(new)
    assert payments.feed("s") == "s"
    assert_state(new, "half_open")
    payments.feed("s")
    assert_state(new, "closed")


@pytest.mark.parametrize("half", [False, True])
def test_a_backoff_goes_on_where_it_was(calls, clock, half):
    settings = {"consecutive": 1, "open_for": [1, 2, 4, 8], "probes": 1}
    old, new = circuit_breaker("old", **settings), circuit_breaker("new", **settings)
    payments = calls(old)
    payments.feed("f")
    clock.advance(1)
    payments.feed("f")
    if half:
        old.half_open()
    new.restore_state(through_json(old))
    assert_state(new, opened=2)
    new.half_open() if not half else None
    successor = calls(new)
    successor.feed("f")
    assert successor.rejected().retry_after == 4


def test_one_key_is_saved_and_restored_on_its_own(clock):
    old, new = (circuit_breaker(name, key=lambda host: host) for name in ("old", "new"))
    old.force_open(key="a")
    new.restore_state(through_json(old, key="a"), key="a")
    assert new.snapshot()["states"] == {"closed": 0, "open": 1, "half_open": 0}


def test_what_is_saved_is_plain_json(calls):
    breaker = circuit_breaker("payments", minimum_calls=4)
    calls(breaker).feed("sf")
    assert through_json(breaker) == {
        "version": 1,
        "saved_at": breaker.clock.time(),
        "state": "closed",
        "opened": 0,
        "successes": 1,
        "failed": [0],
        "slow": [],
        "streak": 1,
        "pinned": False,
    }


CLOSED = {
    "version": 1, "saved_at": 0.0, "state": "closed", "opened": 0,
    "successes": 3, "failed": [2, 0], "slow": [], "streak": 1, "pinned": False,
}  # fmt: skip
OPEN = {
    "version": 1, "saved_at": 0.0, "state": "open", "opened": 1,
    "failure_rate": 0.5, "calls": 10, "reason": None, "remaining": 12.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "it is no dict"),
        ([], "it is no dict"),
        ("closed", "it is no dict"),
        ({}, "'version' is missing"),
        ({"version": 1}, "'state' is missing"),
        (CLOSED | {"version": 2}, "version must be 1"),
        (CLOSED | {"state": "ajar"}, "state 'ajar' is unknown"),
        (CLOSED | {"state": []}, "state [] is unknown"),
        (CLOSED | {"successes": -1}, "successes must be a whole number of at least 0"),
        (CLOSED | {"successes": 2.5}, "successes must be a whole number of at least 0"),
        (CLOSED | {"successes": True}, "successes must be a whole number of at least 0"),
        (CLOSED | {"successes": float("inf")}, "successes must be a whole number of at least 0"),
        (CLOSED | {"failed": 3}, "failed must be a list of whole numbers, the largest first"),
        (CLOSED | {"failed": ["1"]}, "failed must be a list of whole numbers, the largest first"),
        (CLOSED | {"failed": [0, 2]}, "failed must be a list of whole numbers, the largest first"),
        (CLOSED | {"failed": [2, 2]}, "failed must be a list of whole numbers, the largest first"),
        (CLOSED | {"failed": [2, -1]}, "failed must be a list of whole numbers, the largest first"),
        (CLOSED | {"failed": [99]}, "failed and slow must not be older than the calls there are"),
        (CLOSED | {"slow": [5]}, "failed and slow must not be older than the calls there are"),
        (CLOSED | {"slow": None}, "slow must be a list of whole numbers, the largest first"),
        (CLOSED | {"streak": -1}, "streak must be a whole number of at least 0"),
        (CLOSED | {"pinned": "no"}, "pinned must be True or False"),
        (CLOSED | {"opened": None}, "opened must be a whole number of at least 0"),
        (OPEN | {"opened": -1}, "opened must be a whole number of at least 0"),
        (OPEN | {"remaining": "12"}, "remaining must be a number of at least 0"),
        (OPEN | {"remaining": float("nan")}, "remaining must be a number of at least 0"),
        (OPEN | {"remaining": float("inf")}, "remaining must be a number of at least 0"),
        (OPEN | {"remaining": -1.0}, "remaining must be a number of at least 0"),
        (OPEN | {"remaining": 10**400}, "int too large to convert to float"),
        (OPEN | {"saved_at": None}, "saved_at must be a number of at least 0"),
        (OPEN | {"failure_rate": "half"}, "failure_rate must be a number of at least 0"),
        (OPEN | {"calls": 0.5}, "calls must be a whole number of at least 0"),
        (OPEN | {"reason": 7}, "reason must be a string or None"),
    ],
)  # fmt: skip
def test_what_was_not_saved_by_a_breaker_is_refused(clock, data, problem):
    breaker = circuit_breaker("payments")
    breaker.force_open()
    with pytest.raises(ConfigError) as raised:
        breaker.restore_state(data)
    refused = f"saved state must be what save_state() returned: {problem} (got {repr(data)[:100]})"
    assert str(raised.value) == f"circuit breaker 'payments': {refused}"
    assert_state(breaker, "open", retry_after=None)  # and nothing has changed


@pytest.mark.parametrize("whole", [CLOSED, OPEN])
def test_a_saved_state_with_anything_missing_is_refused(clock, whole):
    breaker = circuit_breaker("payments")
    for missing in sorted({*whole} - ({"saved_at"} if whole is CLOSED else set())):
        with pytest.raises(ConfigError, match=f"'{missing}' is missing"):
            breaker.restore_state({name: value for name, value in whole.items() if name != missing})


def test_an_absurd_number_of_successes_is_restored_in_no_time(clock):
    breaker = circuit_breaker("payments", window=10)
    breaker.restore_state(CLOSED | {"successes": 10**18})
    assert_state(breaker, "closed", window_calls=10, failure_rate=0.2)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(whole=st.sampled_from([CLOSED, OPEN]), data=st.data())
def test_whatever_is_in_a_saved_state_it_is_restored_or_refused(whole, data):
    changed = {**whole, data.draw(st.sampled_from(list(whole))): data.draw(json_values)}
    breaker = circuit_breaker(clock=VirtualClock())
    try:
        breaker.restore_state(changed)
    except ConfigError:
        assert_state(breaker, "closed", window_calls=0)
    else:
        assert json.loads(json.dumps(breaker.save_state(), allow_nan=False))["state"] == changed["state"]
