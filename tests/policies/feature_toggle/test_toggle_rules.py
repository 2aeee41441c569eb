"""Who gets the feature: each rule, and which one wins."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, time, timedelta, timezone
from enum import Enum
from typing import Any

import pytest

from everkeel import ConfigError, FeatureDisabledError, feature_toggle
from everkeel.testing import Flaky, cancel_at_every_await

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)  # when virtual time begins


def feature(user: str = "anybody") -> str:
    return "new"


def refused(call: Any, *args: Any) -> FeatureDisabledError:
    with pytest.raises(FeatureDisabledError) as raised:
        call(*args)
    return raised.value


def test_it_is_on_unless_told_otherwise(guarded):
    assert guarded(feature_toggle("search"), feature)() == "new"


def test_switched_off_it_raises_and_the_feature_is_not_called(guarded):
    search = Flaky("new")
    error = refused(guarded(feature_toggle("search", enabled=False), search))
    assert str(error) == "feature 'search' is off (switched off)"
    assert (error.policy, error.reason, error.key, error.retry_after) == ("search", "disabled", None, None)
    assert search.calls == 0


def test_it_can_be_switched_while_it_runs(guarded):
    policy = feature_toggle("search")
    call = guarded(policy, feature)
    policy.disable()
    refused(call)
    policy.enable()
    assert call() == "new"


def test_who_is_denied_does_not_get_it(guarded, user_of):
    call = guarded(feature_toggle("search", deny={"bob"}, key=user_of), feature)
    assert call("alice") == "new"
    assert str(refused(call, "bob")) == "feature 'search' is off for 'bob' (on its deny list)"


def test_who_is_allowed_gets_it_although_nobody_else_does(guarded, user_of):
    call = guarded(feature_toggle("search", allow={"alice"}, share=0.0, key=user_of), feature)
    assert call("alice") == "new"
    assert str(refused(call, "bob")) == "feature 'search' is off for 'bob' (not in its share)"


def test_a_predicate_sees_the_arguments(guarded):
    def order(item: str, *, amount: int) -> str:
        return f"{amount} {item}"

    policy = feature_toggle("bulk", predicate=lambda item, *, amount: amount >= 100)
    call = guarded(policy, order)
    assert call("pens", amount=100) == "100 pens"
    with pytest.raises(FeatureDisabledError) as raised:
        call("pens", amount=99)
    assert str(raised.value) == "feature 'bulk' is off (its predicate says no)"


def test_a_predicate_that_raises_says_no_and_is_logged(guarded, caplog):
    def broken(user: str) -> bool:
        raise KeyError("plan")

    assert refused(guarded(feature_toggle("search", predicate=broken), feature), "alice").reason == "predicate"
    assert "feature toggle 'search': its predicate raised; the feature is off for this call" in caplog.text


# ------------------------------------------------------------------ which rule wins


def test_switched_off_wins_over_the_allow_list(guarded, user_of):
    call = guarded(feature_toggle("search", enabled=False, allow={"alice"}, key=user_of), feature)
    assert refused(call, "alice").reason == "disabled"


def test_deny_wins_over_allow(guarded, user_of):
    call = guarded(feature_toggle("search", deny={"bob"}, allow={"bob"}, key=user_of), feature)
    assert refused(call, "bob").reason == "denied"


def test_allow_wins_over_schedule_predicate_and_share(guarded, user_of):
    policy = feature_toggle(
        "search",
        allow={"alice"},
        schedule=(MIDNIGHT + timedelta(days=1), None),
        predicate=lambda user: False,
        share=0.0,
        key=user_of,
    )
    call = guarded(policy, feature)
    assert call("alice") == "new"
    assert refused(call, "bob").reason == "schedule"
    policy.reconfigure(schedule=None)
    assert refused(call, "bob").reason == "predicate"
    policy.reconfigure(predicate=None)
    assert refused(call, "bob").reason == "share"


# ------------------------------------------------------------------ schedules


def test_it_is_on_from_one_moment_up_to_another(guarded, clock):
    begins = MIDNIGHT + timedelta(hours=1)
    call = guarded(feature_toggle("sale", schedule=(begins, begins + timedelta(hours=1))), feature)
    error = refused(call)
    assert (error.reason, error.retry_after) == ("schedule", 3600.0)
    assert str(error) == "feature 'sale' is off (outside of its schedule); on again in 3.6e+03 s"
    clock.advance(3600)
    assert call() == "new"
    clock.advance(3599)
    assert call() == "new"
    clock.advance(1)
    assert refused(call).retry_after is None


def test_either_end_may_be_open(guarded, clock):
    before = guarded(feature_toggle("before", schedule=(None, MIDNIGHT + timedelta(seconds=1))), feature)
    after = guarded(feature_toggle("after", schedule=(MIDNIGHT + timedelta(seconds=1), None)), feature)
    assert before() == "new"
    refused(after)
    clock.advance(1)
    refused(before)
    assert after() == "new"


def test_it_is_on_every_day_between_two_times_of_the_place(guarded, clock):
    east = timezone(timedelta(hours=2))
    call = guarded(feature_toggle("office", schedule=(time(9, tzinfo=east), time(17, tzinfo=east))), feature)
    for _ in range(3):
        assert refused(call).retry_after == 7 * 3600
        clock.advance(7 * 3600)  # 07:00 UTC is 09:00 there
        assert call() == "new"
        clock.advance(8 * 3600)
        refused(call)
        clock.advance(9 * 3600)


def test_a_night_goes_past_midnight(guarded, clock):
    call = guarded(feature_toggle("batch", schedule=(time(22, tzinfo=UTC), time(2, tzinfo=UTC))), feature)
    assert call() == "new"
    clock.advance(2 * 3600)
    assert refused(call).retry_after == 20 * 3600
    clock.advance(20 * 3600)
    assert call() == "new"


def test_a_schedule_may_have_several_windows(guarded, clock):
    windows = [(time(1, tzinfo=UTC), time(2, tzinfo=UTC)), (time(3, tzinfo=UTC), time(4, tzinfo=UTC))]
    call = guarded(feature_toggle("batch", schedule=windows), feature)
    seen = []
    for _ in range(5):
        try:
            seen.append(call())
        except FeatureDisabledError:
            seen.append("off")
        clock.advance(3600)
    assert seen == ["off", "new", "off", "new", "off"]


# ------------------------------------------------------------------ alternatives


def test_a_value_answers_where_the_feature_is_off(guarded):
    assert guarded(feature_toggle("search", enabled=False, alternative=None), feature)() is None


def test_a_function_answers_with_the_arguments_and_may_know_why(guarded):
    def old(user: str, error: FeatureDisabledError) -> str:
        return f"old for {user}: {error.reason}"

    call = guarded(feature_toggle("search", enabled=False, alternative=old), feature)
    assert call("bob") == "old for bob: disabled"


def test_an_async_function_answers_async_calls(awaited, clock):
    async def old(user: str) -> str:
        return f"old for {user}"

    policy = feature_toggle("search", enabled=False, alternative=old)

    async def new(user: str) -> str:
        return "new"

    assert clock.run(awaited.guarded(policy, new)("bob")) == "old for bob"


def test_an_error_of_the_alternative_is_the_call_s_error(guarded):
    call = guarded(feature_toggle("search", enabled=False, alternative=Flaky(OSError("old is down"))), feature)
    with pytest.raises(OSError, match="old is down"):
        call("bob")


def test_an_async_alternative_cannot_answer_a_sync_call(clock):
    async def old() -> str:
        return "old"

    policy = feature_toggle("search", enabled=False, alternative=old)
    for act in (lambda: policy(feature), lambda: policy.call(feature)):
        with pytest.raises(ConfigError) as raised:
            act()
        assert str(raised.value) == (
            "feature toggle 'search': alternative must not be a coroutine function where the guarded call is sync "
            "(got one)"
        )


def test_streams_begin_or_come_from_the_alternative(streamed):
    def rows(user: str) -> Any:
        yield "new"

    def old(user: str) -> Any:
        yield from ["old", user]

    on = feature_toggle("on", predicate=lambda user: True)
    assert streamed(on, rows)("alice") == ["new"]
    assert on.snapshot()["success"] == 1
    assert streamed(feature_toggle("off", enabled=False, alternative=old), rows)("bob") == ["old", "bob"]
    with pytest.raises(FeatureDisabledError):
        streamed(feature_toggle("error", enabled=False), rows)("bob")


# ------------------------------------------------------------------ the share


def test_the_place_of_a_key_never_changes(known_places):
    from everkeel.runtime.stable import digest, fraction, text_of

    assert {(salt, key): fraction(digest(salt, text_of(key))) for salt, key in known_places} == known_places


def test_the_same_keys_are_in_a_share_as_ever(guarded):
    policy = feature_toggle("search", share=0.25, key=lambda user: user, alternative="old")
    call = guarded(policy, feature)
    assert [number for number in range(20) if call(number) == "new"] == KNOWN_QUARTER


KNOWN_QUARTER = [8, 11, 12, 13, 14]


def test_a_share_has_about_that_many_keys():
    policy = feature_toggle("search", share=0.3, key=lambda user: user)
    on = sum(policy.is_enabled(f"user-{number}") for number in range(10_000))
    assert 2900 < on < 3100


def test_features_choose_different_keys_unless_they_share_a_salt():
    users = [f"user-{number}" for number in range(200)]

    def chosen(name: str, salt: str | None = None) -> list[bool]:
        toggle = feature_toggle(name, share=0.5, salt=salt)
        return [toggle.is_enabled(user) for user in users]

    assert chosen("search") != chosen("checkout")
    assert chosen("one", salt="wave-1") == chosen("two", salt="wave-1")


def test_without_a_key_a_call_is_in_no_share_but_the_whole(guarded):
    policy = feature_toggle("search", share=0.999999, key=lambda user: None, alternative="old")
    call = guarded(policy, feature)
    assert call("anonymous") == "old"
    policy.reconfigure(share=1.0)
    assert call("anonymous") == "new"


class Plan(str, Enum):  # noqa: UP042 - what `str()` makes of it depends on the version of Python
    GOLD = "gold"


def test_keys_that_look_the_same_are_the_same():
    policy = feature_toggle("search", allow={7, "gold", b"raw", "00000000-0000-0000-0000-000000000001"}, share=0.0)
    for key in ("7", 7, Plan.GOLD, "raw", uuid.UUID(int=1)):
        assert policy.is_enabled(key)
    assert not policy.is_enabled(("7",) * 2)


@pytest.mark.parametrize("key", [1.5, object, ["list"]], ids=str)
def test_a_key_without_a_text_of_its_own_is_refused(guarded, key):
    call = guarded(feature_toggle("search", share=0.5, key=lambda user: key), feature)
    with pytest.raises(ConfigError) as raised:
        call("alice")
    assert str(raised.value) == (
        f"feature toggle 'search': key must return a string, an int, bytes, a UUID, or a tuple of those (got {key!r})"
    )


# ------------------------------------------------------------------ cancelled


@pytest.mark.parametrize("enabled", [True, False])
def test_whoever_is_cancelled_counts_as_nothing_but_what_was_decided(awaited, clock, enabled):
    policies: list[Any] = []

    async def slow() -> str:
        await asyncio.sleep(1)
        return "answer"

    async def make() -> str:
        policies[:] = [feature_toggle(predicate=lambda: enabled, alternative=slow)]
        return await awaited.guarded(policies[0], slow)()

    def check(run: Any) -> None:
        snapshot = policies[0].snapshot()
        assert run.cancelled == (run.number is not None)
        assert snapshot["success"] == (enabled and run.number is None)
        assert snapshot["alternative"] == (not enabled)

    assert cancel_at_every_await(make, check) == 1
