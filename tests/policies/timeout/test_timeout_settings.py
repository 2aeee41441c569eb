"""What a timeout may be set to, its modes, and what everybody sees of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import everkeel
from everkeel import ConfigError, TimeoutExceededError, deadline, events, timeout
from everkeel.testing import Flaky

pytestmark = pytest.mark.usefixtures("clock")


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seconds": 0}, "timeout 'quote': seconds must be more than 0 seconds (got 0)"),
        ({"seconds": -1}, "timeout 'quote': seconds must be more than 0 seconds (got -1)"),
        ({"seconds": "2s"}, "timeout 'quote': seconds must be seconds as a number, or a timedelta (got '2s')"),
        ({"seconds": True}, "timeout 'quote': seconds must be seconds as a number, or a timedelta (got True)"),
        ({"seconds": None}, "timeout 'quote': seconds must be seconds as a number, or a timedelta (got None)"),
        ({"seconds": float("nan")}, "timeout 'quote': seconds must be seconds as a number, or a timedelta (got nan)"),
        ({"seconds": float("inf")}, "timeout 'quote': seconds must be seconds as a number, or a timedelta (got inf)"),
        (
            {"gap": 0},
            "timeout 'quote': gap must be more than 0 seconds, or None (as long as for the first item) (got 0)",
        ),
        (
            {"gap": "1s"},
            "timeout 'quote': gap must be seconds as a number, or a timedelta, or None (as long as for the first item) "
            "(got '1s')",
        ),
        ({"runs": "thread"}, "timeout 'quote': runs must be 'worker' or 'inline' (got 'thread')"),
        ({"detached": 1}, "timeout 'quote': detached must be True or False (got 1)"),
        ({"max_abandoned": 0}, "timeout 'quote': max_abandoned must be at least 1 (got 0)"),
        ({"max_abandoned": 1.5}, "timeout 'quote': max_abandoned must be a whole number of at least 1 (got 1.5)"),
        ({"mode": "on"}, "timeout 'quote': mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
    ],
)
def test_a_wrong_setting_says_whose_it_is_what_it_got_and_what_it_allows(settings, message):
    with pytest.raises(ConfigError) as raised:
        timeout(**{"seconds": 2, "name": "quote", **settings})
    assert str(raised.value) == message


def test_a_wrong_name_says_so():
    with pytest.raises(ConfigError) as raised:
        timeout(2, "")
    assert str(raised.value) == "timeout: name must be a non-empty string (got '')"


def test_a_timeout_without_parentheses_says_so():
    with pytest.raises(ConfigError) as raised:
        timeout(forever)  # type: ignore[arg-type]
    assert str(raised.value).startswith("timeout: seconds must be seconds as a number, or a timedelta (got <function")


def test_an_unknown_setting_is_named_with_what_was_meant():
    with pytest.raises(ConfigError) as raised:
        timeout(2, "quote").reconfigure(second=3)
    assert str(raised.value) == "timeout 'quote': has no setting 'second'; did you mean 'seconds'?"


def test_a_wrong_change_changes_nothing():
    policy = timeout(2, "quote")
    with pytest.raises(ConfigError):
        policy.reconfigure(seconds=-1)
    assert policy.config.seconds == 2.0


def test_seconds_may_be_a_timedelta():
    assert timeout(timedelta(milliseconds=500)).config.seconds == 0.5


def test_a_second_timeout_of_the_same_name_is_refused_unless_it_replaces_the_first():
    first = timeout(2, "quote")
    with pytest.raises(ConfigError):
        timeout(3, "quote")
    assert timeout(3, "quote", replace=True) is not first


def test_it_takes_the_name_of_the_function_it_decorates():
    policy = timeout(2)
    policy(forever)
    assert policy.name == f"{__name__}.forever"


# ------------------------------------------------------------------ modes


def test_a_shadow_lets_an_async_call_take_its_time_and_counts(timed, clock, heard):
    policy = timeout(2, "quote", mode="shadow")
    assert clock.run(timed(policy, asyncio.sleep)(5, "late")) == "late"
    snapshot = policy.snapshot()
    assert (snapshot["would"], snapshot["success"], snapshot["expired"]) == ({"expire": 1}, 1, 0)
    assert heard.of(events.WouldHave) == [
        events.WouldHave(policy="quote", policy_type="timeout", action="expire", error=None)
    ]


def test_a_shadow_lets_a_sync_call_take_its_time_and_counts(called, clock):
    policy = timeout(2, "quote", mode="shadow")
    assert called(policy, Flaky("late", takes=5))() == "late"
    assert policy.snapshot()["would"] == {"expire": 1}


def test_a_shadow_does_not_count_what_is_in_time(timed, clock):
    policy = timeout(2, "quote", mode="shadow")
    clock.run(timed(policy, asyncio.sleep)(1))
    assert policy.snapshot()["would"] == {}


def test_a_shadow_counts_a_late_failure_and_passes_it_on(timed, clock):
    policy = timeout(2, "quote", mode="shadow")

    async def fail() -> None:
        await asyncio.sleep(5)
        raise ValueError

    with pytest.raises(ValueError):
        clock.run(timed(policy, fail)())
    snapshot = policy.snapshot()
    assert (snapshot["would"], snapshot["ignored"]) == ({"expire": 1}, 1)


def test_a_shadow_knows_of_the_deadline_that_would_have_shortened_it(timed, clock):
    policy = timeout(5, "quote", mode="shadow")

    async def main() -> None:
        with deadline(1):
            await timed(policy, asyncio.sleep)(2)

    clock.run(main)
    assert policy.snapshot()["would"] == {"expire": 1}


def test_off_does_nothing_at_all(timed, clock):
    policy = timeout(2, "quote", mode="off")
    assert clock.run(timed(policy, asyncio.sleep)(5, "late")) == "late"
    assert policy.snapshot()["success"] == 0


def test_a_mode_may_change_at_any_time(timed, clock):
    policy = timeout(2, "quote", mode="off")
    call = timed(policy, asyncio.sleep)
    clock.run(call(5))
    policy.mode = "enforce"
    with pytest.raises(TimeoutExceededError):
        clock.run(call(5))
    policy.mode = "shadow"
    clock.run(call(5))
    assert policy.snapshot()["would"] == {"expire": 1}


def test_a_disabled_everkeel_times_nothing(timed, clock):
    call = timed(timeout(2, "quote"), asyncio.sleep)
    everkeel.disable()
    assert clock.run(call(5, "late")) == "late"
    everkeel.enable()
    with pytest.raises(TimeoutExceededError):
        clock.run(call(5))


def test_start_over_forgets_what_was_counted(timed, clock):
    policy = timeout(2, "quote")
    with pytest.raises(TimeoutExceededError):
        clock.run(timed(policy, forever)())
    policy.start_over()
    assert (policy.snapshot()["expired"], policy.snapshot()["failure"]) == (0, 0)
    with pytest.raises(TimeoutExceededError):
        clock.run(timed(policy, forever)())
    assert policy.snapshot()["expired"] == 1
