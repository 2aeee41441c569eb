"""Attempts beside each other: when they start, who wins, and what becomes of the rest. Async and sync alike."""

from __future__ import annotations

from random import Random

import pytest

from everkeel import HedgeTimeoutError, RetryBudget, ShedError, deadline, events, hedge
from everkeel.testing import assert_state


def test_a_call_that_answers_before_the_delay_is_made_once(both, service, clock):
    policy, backend = hedge("lookup", delay=1), service(0.5)
    assert both(policy, backend)() == 1
    assert (backend.began, clock.monotonic()) == (1, 0.5)
    assert_state(policy, success=1, started=0, won={})


def test_a_call_that_takes_longer_than_the_delay_gets_a_rival_that_may_win(both, service, clock):
    policy, backend = hedge("lookup", delay=1), service(60, 0.5)
    assert both(policy, backend)() == 2
    assert clock.monotonic() == 1.5
    assert_state(policy, success=1, started=1, won={2: 1})


def test_the_first_attempt_may_still_win(both, service, clock):
    policy, backend = hedge("lookup", delay=1), service(1.5, 60)
    assert both(policy, backend)() == 1
    assert clock.monotonic() == 1.5
    assert_state(policy, success=1, started=1, won={1: 1})


def test_attempts_start_one_delay_apart_and_no_more_than_allowed(both, service, clock):
    policy, backend = hedge("lookup", delay=1, attempts=4), service(60, 60, 60, 2)
    assert both(policy, backend)() == 4
    assert clock.monotonic() == 5.0
    assert_state(policy, started=3, won={4: 1})


def test_the_delay_may_be_a_function_of_the_attempt_under_way(both, service, clock):
    asked = []

    def delay(attempt: int) -> float:
        asked.append(attempt)
        return {1: 1.0, 2: 4.0}[attempt]

    assert both(hedge("lookup", delay=delay, attempts=3), service(60, 60, 1))() == 3
    assert clock.monotonic() == 6.0
    assert set(asked) == {1, 2}


def test_a_delay_function_that_raises_is_reported_and_the_initial_delay_is_used(both, service, clock, caplog):
    def delay(attempt: int) -> float:
        raise LookupError("no idea")

    assert both(hedge("lookup", delay=delay, initial_delay=2), service(60, 1))() == 2
    assert clock.monotonic() == 3.0
    assert "hedge 'lookup': the delay function raised" in caplog.text


def test_a_delay_of_zero_starts_all_at_once(both, service, clock):
    assert both(hedge("lookup", delay=0, budget=None), service(60, 1))() == 2
    assert clock.monotonic() == 1.0


# ------------------------------------------------------------------ failures


def test_a_failure_before_the_delay_starts_the_next_at_once(both, service, clock):
    policy = hedge("lookup", delay=10)
    assert both(policy, service(1, 1, outcomes={1: OSError("first")}))() == 2
    assert clock.monotonic() == 2.0
    assert_state(policy, success=1, failure=0, started=1, won={2: 1})


def test_a_failure_beside_others_starts_the_next_at_once(both, service, clock):
    policy, backend = hedge("lookup", delay=10, attempts=3), service(60, 1, 1, outcomes={2: OSError("second")})
    assert both(policy, backend)() == 3
    assert clock.monotonic() == 12.0


def test_a_first_attempt_that_fails_beside_a_rival_is_replaced_at_once(both, service, clock):
    policy, backend = hedge("lookup", delay=10, attempts=3), service(11, 60, 1, outcomes={1: OSError("first")})
    assert both(policy, backend)() == 3
    assert clock.monotonic() == 12.0


def test_when_all_have_failed_a_group_has_all_their_errors_in_order(both, service, clock, heard):
    policy = hedge("lookup", delay=10, attempts=3)
    errors = {1: OSError("first"), 2: OSError("second"), 3: TimeoutError("third")}
    with pytest.raises(ExceptionGroup, match="all 3 attempts failed") as raised:
        both(policy, service(12, 1, 1, outcomes=errors))()
    assert raised.value.exceptions == tuple(errors.values())
    assert_state(policy, success=0, failure=1, ignored=0)
    assert heard.of(events.Failed)[0].error is raised.value


def test_a_failure_that_cannot_be_replaced_leaves_as_it_is(both, service, clock):
    error = OSError("alone")
    error.__cause__ = cause = ValueError("why")
    policy = hedge("lookup", delay=10, budget=RetryBudget(ratio=0, floor=0))
    with pytest.raises(OSError, match="alone") as raised:
        both(policy, service(1, outcomes={1: error}))()
    assert raised.value is error
    assert raised.value.__cause__ is cause
    assert_state(policy, failure=1, refused=1, started=0)


def test_an_error_that_on_does_not_name_is_an_answer(both, service, clock):
    policy = hedge("lookup", delay=1, on=OSError)
    with pytest.raises(KeyError):
        both(policy, service(0.5, outcomes={1: KeyError("unknown")}))()
    assert_state(policy, ignored=1, failure=0, started=0)


def test_an_answer_that_is_an_error_wins_a_race(both, service, clock):
    policy, backend = hedge("lookup", delay=1, on=OSError), service(60, 1, outcomes={2: KeyError("unknown")})
    with pytest.raises(KeyError):
        both(policy, backend)()
    assert clock.monotonic() == 2.0
    assert_state(policy, ignored=1, failure=0, success=0, won={2: 1})


def test_an_error_of_the_first_that_is_an_answer_ends_the_race(both, service, clock):
    policy, backend = hedge("lookup", delay=1, ignore=KeyError), service(2, 60, outcomes={1: KeyError("unknown")})
    with pytest.raises(KeyError):
        both(policy, backend)()
    assert clock.monotonic() == 2.0
    assert_state(policy, ignored=1, won={1: 1})


def test_a_rival_that_is_rejected_does_not_end_the_first_attempt(both, service, clock):
    policy = hedge("lookup", delay=1)
    assert both(policy, service(5, 0, outcomes={2: ShedError("pool", None, 1, None)}))() == 1
    assert clock.monotonic() == 5.0


def test_a_rejection_alone_is_not_repeated(both, service, clock):
    policy, backend = hedge("lookup", delay=1), service(0, outcomes={1: ShedError("pool", None, 1, None)})
    with pytest.raises(ShedError):
        both(policy, backend)()
    assert backend.began == 1
    assert_state(policy, ignored=1, failure=0)


def test_a_failure_and_a_rejection_are_a_group(both, service, clock):
    policy = hedge("lookup", delay=1)
    outcomes = {1: OSError("down"), 2: ShedError("pool", None, 1, None)}
    with pytest.raises(ExceptionGroup) as raised:
        both(policy, service(0, outcomes=outcomes))()
    assert raised.value.exceptions == tuple(outcomes.values())
    assert_state(policy, failure=1)


# ------------------------------------------------------------------ time


def test_max_duration_ends_the_whole_call(both, service, clock, heard):
    policy, backend = hedge("lookup", delay=1, max_duration=3), service(60)
    with pytest.raises(HedgeTimeoutError) as raised:
        both(policy, backend)()
    assert str(raised.value) == "hedge 'lookup': no answer within 3 s"
    assert isinstance(raised.value, TimeoutError)
    assert clock.monotonic() == 3.0
    assert_state(policy, failure=1, ignored=0, started=1)
    assert len(heard.of(events.Failed)) == 1


def test_max_duration_is_a_failure_whatever_on_names(both, service, clock, heard):
    with pytest.raises(HedgeTimeoutError):
        both(hedge("lookup", delay=1, max_duration=3, on=KeyError), service(60))()
    assert len(heard.of(events.Failed)) == 1


def test_max_duration_is_never_longer_than_the_deadline(both, service, clock):
    with deadline(2), pytest.raises(HedgeTimeoutError, match="no answer within 2 s"):
        both(hedge("lookup", delay=1, max_duration=3), service(60))()


def test_an_attempt_that_cannot_start_before_the_deadline_is_not_started(both, service, clock):
    policy, backend = hedge("lookup", delay=2), service(1.5)
    with deadline(2):
        assert both(policy, backend)() == 1
    assert_state(policy, started=0)


def test_an_attempt_that_fits_before_the_deadline_is_started(both, service, clock):
    policy = hedge("lookup", delay=1)
    with deadline(2):
        assert both(policy, service(1.9, 0.5))() == 2
    assert_state(policy, started=1)


def test_a_failure_after_the_deadline_is_not_replaced(both, service, clock):
    policy, backend = hedge("lookup", delay=9), service(1, outcomes={1: OSError("late")})

    def call() -> object:
        with deadline(1):
            return both(policy, backend)()

    with pytest.raises((OSError, TimeoutError)):
        call()
    assert backend.began == 1


# ------------------------------------------------------------------ budget


def test_its_own_budget_is_a_tenth_of_the_calls_and_one_a_second(hedged, service, clock):
    policy, backend = hedge("lookup", delay=0.001), service(0.01)
    call = hedged(policy, backend.acall)
    for _ in range(300):
        clock.run(call())
    assert clock.monotonic() < 5
    snapshot = policy.snapshot()
    assert 300 * 0.1 <= snapshot["started"] <= 300 * 0.1 + 10
    assert snapshot["refused"] == 300 - snapshot["started"]


def test_a_budget_is_shared_with_a_retry(both, service, clock):
    from everkeel import retry

    shared = RetryBudget(ratio=0, floor=0.1)
    retrying = retry("fetch", budget=shared, backoff=0)
    with pytest.raises(OSError):
        retrying.call(service(0, outcomes={1: OSError(), 2: OSError()}).call)
    policy = hedge("lookup", delay=1, budget=shared)
    assert both(policy, service(2, 0))() == 1
    assert_state(policy, started=0, refused=1)


def test_a_budget_that_refuses_stops_the_race_not_the_call(both, service, clock):
    policy = hedge("lookup", delay=1, attempts=3, budget=RetryBudget(ratio=0, floor=0.1))
    assert both(policy, service(9, 20, 1))() == 1
    assert_state(policy, started=1, refused=1)


# ------------------------------------------------------------------ learning


def test_the_delay_is_learned_from_the_slowest_twentieth(hedged, service, clock):
    policy = hedge("lookup", budget=None)
    assert policy.snapshot()["delay"] == 0.1
    takes = [i / 1000 for i in range(1, 101)] * 5
    Random(0).shuffle(takes)
    call = hedged(policy, service(*takes).acall)
    for _ in range(450):
        clock.run(call())
    assert 0.09 <= policy.snapshot()["delay"] <= 0.1


def test_a_learned_delay_is_not_dragged_down_by_the_calls_it_hedges(hedged, service, clock):
    # Nine in ten take 10 ms, one in ten takes 50 ms. Were the hedged ones not learned from, only quick ones would be
    # seen, and the delay would creep down to theirs.
    policy = hedge("lookup", budget=None, quantile=0.9)
    call = hedged(policy, service(*([0.01] * 9 + [0.05]) * 100).acall)
    for _ in range(400):
        clock.run(call())
    assert policy.snapshot()["delay"] > 0.01


def test_threads_are_learned_from_too(clock, service):
    policy = hedge("lookup", delay=1)
    for takes in (0.5, 60):
        policy.call(service(takes, 2).call)
    assert list(policy.state.latencies._latest) == [0.5, 3.0]


# ------------------------------------------------------------------ being watched


def test_the_events_tell_who_started_and_who_won(both, service, clock, heard):
    both(hedge("lookup", delay=1, attempts=3), service(60, 60, 1))()
    assert [event for event in heard if isinstance(event, events.HedgeStarted | events.HedgeWon)] == [
        events.HedgeStarted(policy="lookup", policy_type="hedge", attempt=2),
        events.HedgeStarted(policy="lookup", policy_type="hedge", attempt=3),
        events.HedgeWon(policy="lookup", policy_type="hedge", attempt=3),
    ]
    assert len(heard.of(events.Succeeded)) == 1


def test_an_idle_hedge_tells_of_no_race(both, service, clock, heard):
    both(hedge("lookup", delay=1), service(0.5))()
    assert not heard.of(events.HedgeStarted, events.HedgeWon)


def test_the_snapshot_has_all_there_is_to_know(both, service, clock):
    policy = hedge("lookup", delay=1)
    both(policy, service(60, 1))()
    snapshot = policy.snapshot()
    snapshot["abandoned"] = 0  # a thread that lost may still be on its way out
    assert snapshot == {
        "name": "lookup",
        "type": "hedge",
        "mode": "enforce",
        "success": 1,
        "failure": 0,
        "ignored": 0,
        "rejected": 0,
        "would": {},
        "started": 1,
        "won": {2: 1},
        "refused": 0,
        "disposed": 0,
        "delay": 1.0,
        "abandoned": 0,
    }


# ------------------------------------------------------------------ shadow


def test_a_shadow_makes_one_call_and_counts_where_it_would_have_made_another(both, service, clock, heard):
    policy, backend = hedge("lookup", delay=1, mode="shadow"), service(60, 0.5)
    call = both(policy, backend)
    assert (call(), call(), backend.began) == (1, 2, 2)
    assert_state(policy, would={"hedge": 1}, started=0, success=2)
    assert len(heard.of(events.WouldHave)) == 1


def test_a_shadow_passes_the_first_failure_on(both, service, clock):
    policy = hedge("lookup", delay=1, mode="shadow")
    with pytest.raises(OSError):
        both(policy, service(0.1, outcomes={1: OSError()}))()
    assert_state(policy, would={"hedge": 1}, failure=1)


def test_a_shadow_learns_the_delay(hedged, service, clock):
    policy = hedge("lookup", mode="shadow")
    call = hedged(policy, service(0.5).acall)
    for _ in range(30):
        clock.run(call())
    assert policy.snapshot()["delay"] == 0.5


def test_off_is_a_plain_call(both, service, clock):
    policy, backend = hedge("lookup", delay=1, mode="off"), service(60)
    assert both(policy, backend)() == 1
    assert backend.began == 1
