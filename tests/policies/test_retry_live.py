"""Changes while it runs: reconfiguration, modes, the process-wide switch, configuration that comes late."""

from __future__ import annotations

import asyncio

import pytest

import everkeel
from everkeel import ConfigError, events, retry
from everkeel.runtime.configured import override_with
from everkeel.testing import Flaky


def failing_calls(call, error: type[BaseException] = ConnectionError) -> None:
    with pytest.raises(error):
        call()


def test_a_reconfiguration_is_in_force_for_the_next_call(retried):
    policy, fetch = retry("fetch", backoff=0), Flaky(ConnectionError)
    call = retried(policy, fetch)
    failing_calls(call)
    policy.reconfigure(attempts=5)
    failing_calls(call)
    assert fetch.calls == 3 + 5


def test_a_reconfiguration_keeps_the_counts(retried):
    policy = retry("fetch", backoff=0)
    call = retried(policy, Flaky("answer"))
    call()
    policy.reconfigure(attempts=5)
    call()
    assert policy.snapshot()["success"] == 2


def test_a_reconfiguration_may_ask_for_what_the_woven_form_cannot_do(guarded):
    policy, fetch = retry("fetch", backoff=0), Flaky("pending", "pending", "done")
    call = guarded(policy, fetch)
    assert call() == "pending"
    policy.reconfigure(on_result=lambda result: result == "pending")
    assert call() == "done"


def test_a_call_in_flight_keeps_its_plan(retried):
    policy = retry("fetch", backoff=0, attempts=3)
    seen = []

    def fetch() -> None:
        seen.append(1)
        if len(seen) == 2:
            policy.reconfigure(attempts=9)
        raise ConnectionError

    failing_calls(retried(policy, fetch))
    assert len(seen) == 3


def test_a_call_in_flight_is_judged_by_the_settings_in_force_when_it_ends(retried):
    policy = retry("fetch", backoff=0)
    seen = []

    def fetch() -> None:
        seen.append(1)
        policy.reconfigure(ignore=ConnectionError)
        raise ConnectionError

    failing_calls(retried(policy, fetch))
    assert len(seen) == 1


def test_a_call_in_flight_does_not_run_for_ever_when_its_bound_is_taken_away(retried):
    policy, seen = retry("fetch", backoff=0), []

    def fetch() -> None:
        seen.append(1)
        assert len(seen) < 50
        if len(seen) == 1:
            policy.reconfigure(attempts=None)
        raise ConnectionError

    failing_calls(retried(policy, fetch))


def test_a_reconfiguration_is_told_with_old_and_new(clock, heard):
    retry("fetch").reconfigure(attempts=5)
    assert heard.of(events.Reconfigured)[0].changes == {"attempts": (3, 5)}


def test_a_reconfiguration_that_changes_nothing_is_not_told(clock, heard):
    retry("fetch").reconfigure(attempts=3)
    assert heard.of(events.Reconfigured) == []


def test_what_was_reconfigured_before_stays(clock):
    policy = retry("fetch")
    policy.reconfigure(attempts=5)
    policy.reconfigure(max_retry_after=9)
    assert (policy.config.attempts, policy.config.max_retry_after) == (5, 9.0)


def test_a_derived_policy_has_its_own_settings_and_counts(retried):
    policy = retry("fetch", attempts=2, backoff=0)
    derived = policy.derive("other", attempts=4)
    fetch = Flaky(ConnectionError)
    failing_calls(retried(derived, fetch))
    assert (fetch.calls, derived.name, policy.snapshot()["failure"]) == (4, "other", 0)


# ------------------------------------------------------------------ modes


def test_off_is_a_plain_call(retried):
    policy, fetch = retry("fetch", mode="off"), Flaky(ConnectionError)
    failing_calls(retried(policy, fetch))
    assert (fetch.calls, policy.snapshot()["failure"]) == (1, 0)


def test_off_needs_no_bound(retried):
    assert retried(retry("fetch", attempts=None, mode="off"), Flaky("answer"))() == "answer"


def test_a_shadow_passes_the_first_outcome_on_and_counts(retried, heard):
    policy, fetch = retry("fetch", mode="shadow"), Flaky(ConnectionError)
    failing_calls(retried(policy, fetch))
    assert fetch.calls == 1
    snapshot = policy.snapshot()
    assert (snapshot["would"], snapshot["failure"], snapshot["retries"]) == ({"retry": 1}, 1, 0)
    assert [event.action for event in heard.of(events.WouldHave)] == ["retry"]
    assert retried.clock.sleeps == []


def test_a_shadow_would_not_retry_what_the_policy_would_not(retried):
    policy = retry("fetch", mode="shadow", on=OSError)
    failing_calls(retried(policy, Flaky(ValueError)), ValueError)
    assert (policy.snapshot()["would"], policy.snapshot()["ignored"]) == ({}, 1)


def test_a_shadow_judges_results_too(retried):
    policy = retry("fetch", mode="shadow", on_result=lambda result: result == "pending")
    assert retried(policy, Flaky("pending"))() == "pending"
    assert policy.snapshot()["would"] == {"retry": 1}


def test_a_shadow_counts_successes(retried):
    policy = retry("fetch", mode="shadow")
    retried(policy, Flaky("answer"))()
    assert policy.snapshot()["success"] == 1


def test_a_shadow_with_no_bound_but_time_touches_nothing(retried):
    policy = retry("fetch", mode="shadow", attempts=None, max_duration=5)
    failing_calls(retried(policy, Flaky(ConnectionError)))
    assert policy.snapshot()["would"] == {"retry": 1}


def test_a_shadow_whose_backoff_raises_touches_nothing(retried, caplog):
    def backoff(attempt: int) -> float:
        raise RuntimeError("broken backoff")

    failing_calls(retried(retry("fetch", mode="shadow", backoff=backoff), Flaky(ConnectionError)))
    assert "the backoff function raised" in caplog.text


def test_a_shadow_learns_nothing_from_an_interruption(threaded):
    policy = retry("fetch", mode="shadow")
    failing_calls(threaded(policy, Flaky(KeyboardInterrupt)), KeyboardInterrupt)
    snapshot = policy.snapshot()
    assert (snapshot["success"], snapshot["failure"], snapshot["ignored"], snapshot["would"]) == (0, 0, 0, {})


def test_a_shadow_does_not_cut_calls_short(awaited):
    assert awaited(retry("fetch", mode="shadow", max_duration=1), Flaky("late", takes=5))() == "late"


def test_a_shadow_leaves_a_stream_alone(streamed):
    def feed():
        yield 1
        raise ConnectionError

    got: list[int] = []
    with pytest.raises(ConnectionError):
        streamed(retry("feed", mode="shadow"), feed)(into=got)
    assert got == [1]


def test_the_mode_may_change_at_run_time(retried, heard):
    policy, fetch = retry("fetch", backoff=0), Flaky(ConnectionError)
    call = retried(policy, fetch)
    counts = []
    for mode in ("enforce", "shadow", "off", "enforce"):
        policy.mode = mode
        before = fetch.calls
        failing_calls(call)
        counts.append(fetch.calls - before)
    assert counts == [3, 1, 1, 3]
    changes = [(event.before, event.mode) for event in heard.of(events.ModeChanged)]
    assert changes == [("enforce", "shadow"), ("shadow", "off"), ("off", "enforce")]


def test_a_mode_shows(clock):
    assert repr(retry("fetch")) == "<retry 'fetch'>"
    assert repr(retry("other", mode="shadow")) == "<retry 'other', shadow>"


def test_disabled_everything_is_a_plain_call_until_it_is_enabled(retried):
    fetch = Flaky(ConnectionError)
    call = retried(retry("fetch", backoff=0), fetch)
    everkeel.disable()
    failing_calls(call)
    everkeel.enable()
    failing_calls(call)
    assert fetch.calls == 1 + 3


# ------------------------------------------------------------------ configuration that comes late


def test_configuration_loaded_after_decoration_applies(retried):
    policy, fetch = retry("fetch", backoff=0), Flaky(ConnectionError)
    call = retried(policy, fetch)
    override_with(lambda kind, name: {"attempts": 5} if (kind, name) == ("retry", "fetch") else {})
    failing_calls(call)
    assert fetch.calls == 5


def test_configuration_applies_to_policies_made_after_it(clock):
    override_with(lambda kind, name: {"attempts": 5})
    assert retry("fetch").config.attempts == 5


def test_configuration_finds_a_policy_by_the_name_of_its_function(clock):
    override_with(lambda kind, name: {"attempts": 5} if name.endswith("fetch") else {})
    policy = retry()

    @policy
    def fetch() -> None: ...

    assert policy.config.attempts == 5


def test_a_live_change_wins_over_configuration(clock):
    policy = retry("fetch")
    policy.reconfigure(attempts=7)
    override_with(lambda kind, name: {"attempts": 5})
    assert policy.config.attempts == 7


def test_configuration_taken_away_gives_the_code_its_say_again(clock):
    policy = retry("fetch")
    override_with(lambda kind, name: {"attempts": 5})
    override_with(None)
    assert policy.config.attempts == 3


def test_configuration_that_is_not_allowed_leaves_the_one_before_in_force(clock):
    one, two = retry("one"), retry("two")
    override_with(lambda kind, name: {"attempts": 5})
    with pytest.raises(ConfigError, match=r"^retry 'two': attempts must be at least 1"):
        override_with(lambda kind, name: {"attempts": 0 if name == "two" else 9})
    assert (one.config.attempts, two.config.attempts) == (5, 5)


def test_an_attempt_in_flight_is_not_disturbed_by_a_listener_that_comes_and_goes(awaited):
    policy, fetch = retry("fetch", backoff=1, jitter=None), Flaky(ConnectionError, "answer", takes=1)
    call = awaited.guarded(policy, fetch.async_())

    async def main() -> object:
        task = asyncio.create_task(call())
        for _ in range(6):
            await asyncio.sleep(0.4)
            with policy.subscribe(lambda event: None):
                await asyncio.sleep(0)
        return await task

    assert awaited.clock.run(main) == "answer"


# ------------------------------------------------------------------ hooks that are awaited


def test_a_before_retry_that_is_a_coroutine_function_is_awaited(awaited):
    heard = []

    async def hook(attempt) -> None:
        await asyncio.sleep(1)
        heard.append((attempt.number, str(attempt.error)))

    call = awaited(retry("fetch", backoff=0, before_retry=hook), Flaky(ConnectionError("refused"), "answer"))
    assert call() == "answer"
    assert heard == [(2, "refused")]


def test_a_before_retry_that_is_a_coroutine_function_is_awaited_by_an_async_block(clock):
    heard = []

    async def hook(attempt) -> None:
        await asyncio.sleep(1)
        heard.append(attempt.number)

    async def main() -> None:
        async for attempt in retry("block", backoff=0, before_retry=hook).attempts():
            async with attempt:
                if attempt.number == 1:
                    raise ConnectionError

    clock.run(main)
    assert heard == [2]


def test_a_before_retry_that_is_awaited_and_raises_harms_nobody(awaited, caplog):
    async def hook(attempt) -> None:
        raise RuntimeError("broken hook")

    assert awaited(retry("fetch", backoff=0, before_retry=hook), Flaky(ConnectionError, "answer"))() == "answer"
    assert "before_retry raised" in caplog.text


def test_a_before_retry_that_is_a_coroutine_function_cannot_guard_a_sync_one(threaded):
    async def hook(attempt) -> None: ...

    with pytest.raises(ConfigError, match="must not be a coroutine function where the guarded call is sync"):
        threaded(retry("fetch", before_retry=hook), lambda: None)()


def test_a_before_retry_that_is_a_coroutine_function_cannot_guard_a_sync_block(clock):
    async def hook(attempt) -> None: ...

    with pytest.raises(ConfigError, match="must not be a coroutine function where the guarded call is sync"):
        next(iter(retry("fetch", before_retry=hook).attempts()))
