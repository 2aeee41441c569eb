"""The adaptive throttle: rejects here in proportion as the backend fails, lets probes through, and recovers."""

from __future__ import annotations

import asyncio
import sys
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel import ConfigError, ShedError, ThrottledError, adaptive_throttle, events, guard, policies_of
from everkeel.policies.throttle import Acceptance, ThrottleConfig, Throttling
from everkeel.runtime.state import State
from everkeel.testing import assert_state

STYLES = ["plain", "woven", "unrolled", "seam"]


@pytest.fixture(params=[f"{style}-{kind}" for style in STYLES for kind in ("sync", "async")])
def throttled(request, clock, monkeypatch):
    """Every form: `throttled(policy, fn)` is a sync function, whatever is inside."""
    style, _, kind = request.param.partition("-")
    if style == "unrolled":
        monkeypatch.setattr(Throttling, "fragment", State.fragment)
    if style == "seam":
        monkeypatch.setattr(Throttling, "fragment", lambda self, kind: None)

    def guarded(policy, fn):
        if kind == "sync":
            return partial(policy.call, fn) if style == "plain" else policy(fn)

        async def awaited(*args):
            return fn(*args)

        call = partial(policy.acall, awaited) if style == "plain" else policy(awaited)
        return lambda *args: clock.run(call(*args))

    return guarded


class Backend:
    """Answers, or fails, a share of the calls in turn."""

    def __init__(self, accepts: float) -> None:
        self.accepts, self.calls, self._credit = accepts, 0, 0.0

    def __call__(self) -> str:
        self.calls += 1
        self._credit += self.accepts
        if self._credit >= 1 - 1e-9:
            self._credit -= 1
            return "answer"
        raise ConnectionError


def attempt(call) -> str:
    try:
        call()
    except ThrottledError:
        return "rejected"
    except ConnectionError:
        return "failed"
    return "accepted"


def test_while_all_is_well_everything_passes(throttled, clock):
    policy = adaptive_throttle("search")
    call = throttled(policy, Backend(1.0))
    assert {attempt(call) for _ in range(50)} == {"accepted"}
    assert_state(policy, success=50, rejected=0, share=0.0)


def test_half_accepted_is_well_enough_by_default(throttled, clock):
    policy = adaptive_throttle("search")
    call = throttled(policy, Backend(0.5))
    assert [attempt(call) for _ in range(100)].count("rejected") <= 2


def test_a_backend_that_fails_everything_gets_hardly_anything(throttled, clock):
    policy, backend = adaptive_throttle("search", floor=0), Backend(0.0)
    call = throttled(policy, backend)
    outcomes = [attempt(call) for _ in range(300)]
    assert outcomes[:9] == ["failed"] * 9  # too few to judge by
    assert backend.calls < 40
    assert policy.snapshot()["share"] > 0.98


def test_the_error_and_the_event_say_what_share_is_rejected(throttled, clock, heard):
    policy = adaptive_throttle("search", floor=0)
    call = throttled(policy, Backend(0.0))
    for _ in range(50):
        attempt(call)
    rejected = heard.of(events.CallRejected)
    assert len(rejected) == policy.snapshot()["rejected"] > 0
    error = rejected[-1].error
    assert 0.9 < error.share < 1
    assert (
        str(error)
        == f"adaptive throttle 'search': rejecting {error.share:.0%} of calls, because the backend fails so many"
    )


def test_rejections_are_in_proportion_to_what_the_formula_says(clock):
    # At equilibrium the backend gets `multiplier` times what it accepts. It accepts 20 a second of 100 asked.
    policy, sent, accepted = adaptive_throttle("search", multiplier=2.0, window=10, floor=0), 0, 0
    room = 0

    def backend() -> None:
        nonlocal room, sent, accepted
        sent += 1
        if room < 1:
            raise ConnectionError
        room -= 1
        accepted += 1

    call = policy(backend)
    for second in range(120):
        if second == 60:
            sent = accepted = 0
        for _tenth in range(10):
            room = min(room + 2, 4)
            for _ in range(10):
                attempt(call)
            clock.advance(0.1)
    assert accepted / 60 == pytest.approx(20, rel=0.05)
    assert sent / accepted == pytest.approx(2.0, rel=0.1)
    assert policy.snapshot()["share"] == pytest.approx((1000 - 2 * 200) / 1001, rel=0.05)


def test_probes_pass_in_any_case(clock):
    policy, backend = adaptive_throttle("search", floor=2, window=10), Backend(0.0)
    call = policy(backend)
    for _ in range(2000):
        attempt(call)
    before = backend.calls
    for _ in range(1000):  # ten seconds
        clock.advance(0.01)
        attempt(call)
    assert 19 <= backend.calls - before <= 35  # two a second, and the few that pass by chance


def test_it_recovers_with_its_backend(clock):
    policy, backend = adaptive_throttle("search", window=10), Backend(0.0)
    call = policy(backend)
    for _ in range(500):
        attempt(call)
        clock.advance(0.01)
    backend.accepts = 1.0
    last = []
    for _ in range(4000):  # forty seconds
        last.append(attempt(call))
        clock.advance(0.01)
    assert last[-1000:].count("rejected") == 0
    assert_state(policy, share=0.0)


def test_what_is_older_than_the_window_does_not_count(throttled, clock):
    policy, backend = adaptive_throttle("search", window=10), Backend(0.0)
    call = throttled(policy, backend)
    for _ in range(50):
        attempt(call)
    clock.advance(11)
    backend.accepts = 1.0
    assert attempt(call) == "accepted"
    assert policy.state.alert is False


def test_a_short_hiccup_of_a_busy_backend_rejects_nothing(throttled, clock):
    # A hundred answers within the window, then fifteen failures in a row: that is far from half.
    policy, backend = adaptive_throttle("search", window=30), Backend(1.0)
    call = throttled(policy, backend)
    for _ in range(100):
        attempt(call)
    backend.accepts = 0.0
    assert [attempt(call) for _ in range(15)] == ["failed"] * 15


def test_answers_from_before_the_window_are_not_held_against_a_failing_backend(throttled, clock):
    policy, backend = adaptive_throttle("search", window=10, floor=0), Backend(1.0)
    call = throttled(policy, backend)
    for _ in range(100):
        attempt(call)
    clock.advance(1000)
    backend.accepts = 0.0
    assert [attempt(call) for _ in range(60)].count("rejected") > 30


def test_fewer_than_the_minimum_say_nothing(throttled, clock):
    policy = adaptive_throttle("search", minimum_calls=1000)
    call = throttled(policy, Backend(0.0))
    assert [attempt(call) for _ in range(200)] == ["failed"] * 200


def test_the_calm_path_does_not_look_at_the_clock(throttled, clock, monkeypatch):
    policy = adaptive_throttle("search", clock=clock)
    call = throttled(policy, Backend(1.0))
    call()
    looks, real = [], clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: looks.append(sys._getframe(1).f_globals["__name__"]) or real())
    call()
    assert [name for name in looks if "throttle" in name or name == __name__] == []


# ------------------------------------------------------------------ what counts


def test_errors_that_on_does_not_name_are_accepted(throttled, clock):
    policy = adaptive_throttle("search", on=OSError)

    def body() -> None:
        raise KeyError("unknown")

    call = throttled(policy, body)
    for _ in range(30):
        with pytest.raises(KeyError):
            call()
    assert_state(policy, success=30, failure=0, ignored=0, share=0.0)


@pytest.mark.parametrize("error", [KeyError("ignored"), ShedError("pool", None, 1, None)])
def test_what_is_ignored_or_rejected_inside_is_no_evidence(throttled, clock, error):
    policy = adaptive_throttle("search", ignore=KeyError)

    def body() -> None:
        raise error

    call = throttled(policy, body)
    for _ in range(30):
        with pytest.raises(type(error)):
            call()
    assert_state(policy, success=0, failure=0, ignored=30, share=0.0)


def test_cancelled_calls_are_no_evidence(clock):
    policy = adaptive_throttle("search")

    async def main() -> None:
        for _ in range(30):
            task = asyncio.create_task(policy(asyncio.sleep)(60))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

    clock.run(main)
    assert_state(policy, success=0, failure=0, ignored=0, share=0.0)


def test_a_result_may_count_as_a_failure(throttled, clock):
    policy = adaptive_throttle("search", on_result=lambda answer: answer == 503, floor=0)
    call = throttled(policy, lambda: 503)
    assert [attempt(call) for _ in range(100)].count("rejected") > 50
    assert policy.snapshot()["success"] == 0


def test_each_key_is_counted_apart(throttled, clock):
    policy = adaptive_throttle("search", key=lambda host: host, floor=0)

    def body(host: str) -> str:
        if host == "bad":
            raise ConnectionError
        return host

    call = throttled(policy, body)
    for _ in range(50):
        attempt(lambda: call("bad"))
    assert {attempt(lambda: call("good")) for _ in range(50)} == {"accepted"}
    assert policy.snapshot()["share"] > 0.9
    assert policy.state.at("good").forgettable()
    assert not policy.state.at("bad").forgettable()


# ------------------------------------------------------------------ modes, changes, threads


def test_a_shadow_rejects_nothing_and_counts_what_it_would_have(throttled, clock, heard):
    policy, backend = adaptive_throttle("search", mode="shadow", floor=0), Backend(0.0)
    call = throttled(policy, backend)
    assert [attempt(call) for _ in range(100)] == ["failed"] * 100
    assert policy.snapshot()["would"]["reject"] > 50
    assert_state(policy, rejected=0)
    assert not heard.of(events.CallRejected)


def test_a_change_of_the_window_keeps_what_was_counted(throttled, clock):
    policy = adaptive_throttle("search", floor=0)
    call = throttled(policy, Backend(0.0))
    for _ in range(50):
        attempt(call)
    before = policy.snapshot()["share"]
    policy.reconfigure(window=60)
    assert policy.snapshot()["share"] == pytest.approx(before)


def test_a_change_of_the_multiplier_holds_at_once(throttled, clock):
    policy = adaptive_throttle("search", multiplier=1.0, floor=0)
    call = throttled(policy, Backend(0.5))
    for _ in range(100):
        attempt(call)
    assert policy.snapshot()["share"] > 0.3
    policy.reconfigure(multiplier=100)
    assert policy.snapshot()["share"] == 0.0


def test_threads_lose_no_count():
    policy, together = adaptive_throttle(minimum_calls=10**6), threading.Barrier(4)

    def body(i: int) -> None:
        if i % 2:
            raise ConnectionError

    call = policy(body)

    def work() -> None:
        together.wait()
        for i in range(500):
            attempt(partial(call, i))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert_state(policy, success=1000, failure=1000, rejected=0)


def test_guard_knows_it():
    assert [policy.type for policy in policies_of(guard(adaptive_throttle=True)(attempt))] == ["adaptive_throttle"]


def test_a_block_counts_too(clock):
    policy = adaptive_throttle("search", floor=0)

    def failing_block() -> None:
        with policy:
            raise ConnectionError

    assert [attempt(failing_block) for _ in range(100)].count("rejected") > 50


# ------------------------------------------------------------------ the core

RULES = st.builds(
    ThrottleConfig,
    multiplier=st.floats(1, 10),
    window=st.floats(1, 60),
    minimum_calls=st.integers(1, 20),
    floor=st.floats(0, 5),
)


@given(RULES, st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=100))
def test_the_share_is_the_formula_over_the_window(rules, calls):
    core, now, accepted, log = Acceptance(rules, 0.0, 0, (0.0, 0)), 0.0, 0, []
    for passed, good in calls:
        now += passed
        share = core.share(rules, now, accepted)
        assert 0 <= share < 1
        if good:
            accepted += 1
        else:
            core.refused(now, accepted)
        log.append((now, good))
    share = core.share(rules, now, accepted)
    if log and log[0][0] > now - 0.9 * rules.window:  # nothing has left the window yet
        asked, good = len(log), sum(good for _, good in log)
        expected = max(0.0, (asked - rules.multiplier * good) / (asked + 1)) if asked >= rules.minimum_calls else 0.0
        assert share == pytest.approx(expected)


@given(RULES, st.integers(0, 10**6), st.floats(0, 1e5))
def test_successes_nobody_took_the_time_of_count_for_at_most_a_window(rules, accepted, length):
    core = Acceptance(rules, length, accepted, (0.0, 0))
    lately = core.asked(accepted)
    assert 0 <= lately <= accepted
    if length <= rules.window:
        assert lately == accepted
    else:
        assert lately == pytest.approx(accepted * rules.window / length, abs=1)
    core.share(rules, length + 1.2 * rules.window, accepted)
    assert core.asked(accepted) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"multiplier": 0.5}, "multiplier must be at least 1 (got 0.5)"),
        ({"window": 0}, "window must be more than 0 seconds (got 0)"),
        ({"minimum_calls": 0}, "minimum_calls must be at least 1 (got 0)"),
        ({"floor": -1}, "floor must be at least 0 (got -1)"),
        ({"on": 5}, "on must be exception classes or predicates on an exception, not 5 (got 5)"),
        (
            {"ignore": 5},
            "ignore must be exception classes or predicates on an exception, not 5, or None (nothing) (got 5)",
        ),
        ({"on_result": 5}, "on_result must be a function of the result, or None (every result is fine) (got 5)"),
        ({"causes": 1}, "causes must be True or False (got 1)"),
        ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
        ({"key": 5}, "key must be a function of the call's arguments (got 5)"),
        ({"key": len, "max_keys": 0}, "max_keys must be a whole number of at least 1 (got 0)"),
    ],
)
def test_a_wrong_setting_says_whose_it_is_what_it_got_and_what_it_allows(clock, settings, message):
    with pytest.raises(ConfigError) as raised:
        adaptive_throttle("search", **settings)
    assert str(raised.value) == f"adaptive throttle 'search': {message}"
