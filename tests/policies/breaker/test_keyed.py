"""One circuit per key, in bounded memory."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everkeel import CircuitOpenError, ConfigError, circuit_breaker
from everkeel.events import CallRejected, CircuitClosed, CircuitHalfOpened, CircuitOpened
from everkeel.runtime.keyed import Keyed
from everkeel.testing import assert_state


def by_key(outcome="ok", during=None, *, key=None):
    return key


def keyed_breaker(**settings):
    return circuit_breaker("hosts", **{"key": by_key, "consecutive": 2, "open_for": 30, **settings})


# ------------------------------------------------------------------ circuits of their own


def test_each_key_has_a_circuit_of_its_own(decorated):
    hosts = decorated(keyed_breaker())
    assert hosts.feed("ff s", key="a") == "ffx"
    assert hosts.feed("s", key="b") == "s"


def test_a_key_is_made_of_the_arguments_as_they_were_passed(clock):
    breaker = circuit_breaker("hosts", key=lambda host, path="/": (host, path), consecutive=1)

    @breaker
    def get(host, path="/"):
        raise ConnectionError

    for args in [("a",), ("a", "/x"), ("b",)]:
        with pytest.raises(ConnectionError):
            get(*args)
    assert breaker.snapshot()["keys"] == 3


def test_the_failures_of_one_key_do_not_add_up_with_those_of_another(decorated):
    hosts = decorated(keyed_breaker())
    for key in "abcdef":
        assert hosts.feed("f", key=key) == "f"
    assert hosts.breaker.snapshot()["states"] == {"closed": 6, "open": 0, "half_open": 0}


def test_each_key_recovers_on_its_own(decorated, clock):
    hosts = decorated(keyed_breaker(probes=1))
    hosts.feed("ff", key="a")
    clock.advance(20)
    hosts.feed("ff", key="b")
    clock.advance(10)
    assert hosts.feed("s", key="a") == "s"
    assert hosts.feed("s", key="b") == "x"


def test_each_key_becomes_quick_on_its_own(decorated):
    hosts = decorated(keyed_breaker(minimum_calls=3, consecutive=None))
    hosts.feed("s" * 20, key="a")
    assert hosts.feed("sfs s", key="b") == "sfss"
    assert hosts.feed("fff s", key="c") == "fffx"
    assert_state(hosts.breaker, success=23, failure=4, rejected=1)


def test_a_keyed_call_in_a_time_window(decorated, clock):
    hosts = decorated(keyed_breaker(consecutive=None, window_duration=10, minimum_calls=2))
    hosts.feed("f", key="a")
    clock.advance(20)
    assert hosts.feed("f", key="a") == "f"
    assert hosts.feed("f s", key="a") == "fx"


def test_a_result_can_be_a_failure_of_its_key(decorated):
    hosts = decorated(keyed_breaker(on_result=lambda answer: answer == 503))
    assert [hosts(503, key="a"), hosts(503, key="a")] == [503, 503]
    hosts.rejected(key="a")
    assert hosts(200, key="b") == 200


def test_a_late_result_is_one_of_its_key(decorated):
    hosts = decorated(keyed_breaker())
    hosts.feed("f", key="a", during=lambda: hosts.feed("ff", key="b"))
    assert hosts.feed("f s", key="a") == "fx"


def test_an_entry_takes_the_key(clock):
    breaker = keyed_breaker(consecutive=1)
    with pytest.raises(ConnectionError), breaker.entry(key="a"):
        raise ConnectionError
    with pytest.raises(CircuitOpenError), breaker.entry(key="a"):
        pytest.fail("the body ran")
    with breaker.entry(key="b") as entry:
        entry.result("ok")


def test_an_async_entry_takes_the_key(clock):
    breaker = keyed_breaker(consecutive=1)

    async def main():
        with pytest.raises(ConnectionError):
            async with breaker.entry(key="a"):
                raise ConnectionError
        with pytest.raises(CircuitOpenError):
            async with breaker.entry(key="a"):
                pytest.fail("the body ran")

    clock.run(main)


def test_a_keyed_breaker_is_no_block_by_itself(clock):
    with pytest.raises(TypeError) as raised, keyed_breaker():
        pass
    assert str(raised.value) == (
        "circuit breaker 'hosts' has a key function: use entry(key=...) instead of the policy as a block"
    )


def test_a_key_that_cannot_be_hashed_is_refused(decorated):
    hosts = decorated(keyed_breaker())
    with pytest.raises(ConfigError) as raised:
        hosts("ok", key=["a"])
    assert str(raised.value) == (
        "circuit breaker 'hosts': key must return something hashable, such as a string (got ['a'])"
    )


def test_an_error_of_the_key_function_reaches_the_caller(decorated):
    def broken(*args, **kwargs):
        raise LookupError("no tenant")

    hosts = decorated(circuit_breaker("hosts", key=broken))
    with pytest.raises(LookupError, match="no tenant"):
        hosts("ok", key="a")


# ------------------------------------------------------------------ by hand and watched


def test_one_key_is_changed_by_hand(decorated):
    breaker = keyed_breaker(probes=1)
    hosts = decorated(breaker)
    breaker.force_open(key="a")
    assert hosts.feed("s", key="a") + hosts.feed("s", key="b") == "xs"
    breaker.half_open(key="a")
    assert breaker.snapshot()["states"] == {"closed": 1, "open": 0, "half_open": 1}
    breaker.reset(key="a")
    breaker.force_closed(key="b")
    assert hosts.feed("fff", key="b") == "fff"
    with breaker.isolate(key="a"), pytest.raises(RuntimeError, match="is isolated by 1"):
        breaker.reset(key="a")


def test_isolating_one_key_leaves_the_others_alone(decorated):
    breaker = keyed_breaker()
    hosts = decorated(breaker)
    with breaker.isolate(key="a"):
        assert hosts.feed("s", key="a") + hosts.feed("s", key="b") == "xs"
        breaker.reset(key="b")


def test_events_say_which_key(decorated, heard):
    hosts = decorated(keyed_breaker(probes=1, open_for=0))
    hosts.feed("ff", key="a")
    hosts.feed("s", key="a")
    assert [event.key for event in heard.of(CircuitOpened, CircuitHalfOpened, CircuitClosed)] == ["a"] * 3


def test_a_rejection_says_which_key(decorated, heard):
    hosts = decorated(keyed_breaker())
    hosts.feed("ffs", key="a")
    assert [event.key for event in heard.of(CallRejected)] == ["a"]


def test_the_snapshot_is_over_all_keys(decorated, clock):
    hosts = decorated(keyed_breaker(probes=2))
    hosts.feed("sss f", key="a")
    hosts.feed("ss ff s", key="b")
    hosts.feed("ff", key="c")
    clock.advance(30)
    hosts.feed("s", key="c")
    assert_state(
        hosts.breaker,
        success=6,
        failure=5,
        rejected=1,
        keys=3,
        overflow=0,
        states={"closed": 1, "open": 1, "half_open": 1},
        transitions={"closed_to_open": 2, "open_to_half_open": 1},
    )


# ------------------------------------------------------------------ in bounded memory


def test_there_are_never_more_keys_than_max_keys(decorated):
    hosts = decorated(keyed_breaker(max_keys=10))
    for number in range(100):
        hosts.feed("s", key=f"host {number}")
        assert hosts.breaker.snapshot()["keys"] <= 10
    assert_state(hosts.breaker, success=100, overflow=0)


def test_an_open_circuit_is_never_forgotten(decorated):
    hosts = decorated(keyed_breaker(max_keys=10))
    hosts.feed("ff", key="down")
    for number in range(100):
        hosts.feed("s", key=f"host {number}")
    assert hosts.feed("s", key="down") == "x"


def test_a_row_of_failures_is_never_forgotten(decorated, clock):
    hosts = decorated(keyed_breaker(max_keys=10, window_duration=10))
    hosts.feed("f", key="down")
    clock.advance(100)  # out of the window, but still one in a row
    for number in range(100):
        hosts.feed("s", key=f"host {number}")
    assert hosts.feed("f s", key="down") == "fx"


def test_slow_calls_are_never_forgotten(decorated, clock):
    hosts = decorated(keyed_breaker(max_keys=10, consecutive=None, slow_duration=1, minimum_calls=2))
    hosts.feed("s", key="slow", during=lambda: clock.advance(1))
    for number in range(100):
        hosts.feed("s", key=f"host {number}")
    hosts.feed("s", key="slow", during=lambda: clock.advance(1))
    hosts.rejected(key="slow")


@pytest.mark.parametrize("change", ["force_open", "force_closed", "half_open", "isolate"])
def test_what_was_changed_by_hand_is_never_forgotten(decorated, change):
    breaker = keyed_breaker(max_keys=10)
    hosts = decorated(breaker)
    getattr(breaker, change)(key="special")
    before = breaker.save_state(key="special")
    for number in range(100):
        hosts.feed("s", key=f"host {number}")
    assert breaker.save_state(key="special") == before


def test_at_the_cap_new_keys_share_one_circuit(decorated, caplog):
    hosts = decorated(keyed_breaker(max_keys=2))
    hosts.feed("f", key="a")
    hosts.feed("f", key="b")
    assert hosts.feed("f", key="c") + hosts.feed("f", key="d") + hosts.feed("s", key="e") == "ffx"
    assert hosts.feed("s", key="a") == "s", "a key with a circuit of its own suffers from the others"
    assert_state(hosts.breaker, keys=2, overflow=3, states={"closed": 2, "open": 1, "half_open": 0})
    assert caplog.text.count("circuit breaker 'hosts': 2 keys are in use; further keys share one state") == 1


def test_when_there_is_room_again_a_new_key_gets_its_own(decorated):
    hosts = decorated(keyed_breaker(max_keys=1, window=2, minimum_calls=2, failure_rate=1.0))
    hosts.feed("f", key="a")
    hosts.feed("ff", key="b")  # opens the shared circuit
    hosts.feed("ss", key="a")  # its failure is out of the window
    assert hosts.feed("s", key="b") == "s"
    assert_state(hosts.breaker, keys=1)


def test_what_forgotten_keys_counted_stays_counted(decorated):
    hosts = decorated(keyed_breaker(max_keys=3))
    for number in range(30):
        hosts.feed("ss", key=number)
    assert_state(hosts.breaker, success=60, keys=3)


def test_a_key_that_is_looked_at_to_make_room_is_not_lost_to_whoever_asks_for_it_then(clock, together):
    # To look at an old key it is taken out of its place for a moment. Whoever misses it then must wait for it.
    breaker = keyed_breaker(max_keys=1, clock=clock)
    breaker.force_open(key="down")
    keyed = breaker.state
    assert isinstance(keyed, Keyed)
    circuit = keyed.at("down")
    looking, asked = threading.Event(), threading.Event()

    class Watched:
        """The open circuit, which is asked for while it is being looked at."""

        def forgettable(self):
            looking.set()
            asked.wait(0.05)  # long enough for the other thread to be served, were it not to wait for us
            return False

    def make_room():
        keyed.states["down"] = Watched()
        keyed.at("new")

    def ask():
        assert looking.wait(30)
        found = keyed.at("down")
        asked.set()
        return found

    _, found = together(make_room, ask)
    assert isinstance(found, Watched)
    assert circuit.phase.name == "open"


def test_one_key_asked_for_by_many_threads_at_once_is_one_circuit(clock, together):
    breaker = keyed_breaker(clock=clock)
    found = together(*[lambda: breaker.state.at("a")] * 16)
    assert len({id(circuit) for circuit in found}) == 1


def test_many_threads_on_many_keys_lose_no_count(clock, together):
    breaker = keyed_breaker(max_keys=50, clock=clock)

    @breaker
    def get(outcome, during=None, *, key):
        return outcome

    def worker():
        for number in range(500):
            get("ok", key=number % 40)

    assert together(*[worker] * 8) == [None] * 8
    assert_state(breaker, success=4000, keys=40)


# ------------------------------------------------------------------ live changes


def test_reconfiguring_reaches_every_key(decorated):
    hosts = decorated(keyed_breaker())
    hosts.feed("f", key="a")
    hosts.breaker.reconfigure(consecutive=3)
    assert hosts.feed("ff s", key="a") == "ffx"
    assert hosts.feed("fff s", key="b") == "fffx"


def test_the_overflow_is_reconfigured_too(decorated):
    hosts = decorated(keyed_breaker(max_keys=1))
    hosts.feed("f", key="a")
    hosts.feed("f", key="b")
    hosts.breaker.reconfigure(window_duration=60, consecutive=3)
    assert hosts.feed("fff s", key="b") == "fffx"


def test_a_shadow_has_a_circuit_for_each_key_too(decorated):
    hosts = decorated(keyed_breaker(mode="shadow"))
    assert hosts.feed("ff sss", key="a") == "ffsss"
    assert hosts.feed("s", key="b") == "s"
    assert_state(hosts.breaker, would={"reject": 3}, rejected=0, keys=2)


def test_a_shadow_and_its_breaker_share_their_circuits(decorated):
    hosts = decorated(keyed_breaker(mode="shadow", max_keys=1))
    hosts.feed("ff", key="a")
    hosts.feed("ff", key="b")  # in the circuit of all the others
    hosts.breaker.mode = "enforce"
    assert hosts.feed("s", key="a") + hosts.feed("s", key="b") == "xx"


def test_a_shadow_that_is_an_entry_takes_the_key(clock):
    breaker = keyed_breaker(mode="shadow", consecutive=1)
    for _ in range(3):
        with pytest.raises(ConnectionError), breaker.entry(key="a"):
            raise ConnectionError
    assert_state(breaker, would={"reject": 2})


def test_wait_closed_waits_for_one_key(clock):
    breaker = keyed_breaker()
    breaker.force_open(key="a")

    async def main():
        await breaker.wait_closed(key="b")
        waiter = asyncio.create_task(breaker.wait_closed(key="a"))
        await asyncio.sleep(1)
        breaker.reset(key="b")
        await asyncio.sleep(1)
        assert not waiter.done()
        breaker.reset(key="a")
        await waiter

    clock.run(main)
