"""Wrong settings fail when they are written, and say what is wrong, what was given and what is allowed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from everkeel import ConfigError, RateLimit, rate_limit
from everkeel.ratelimit import Rate

NAMES = "'token_bucket', 'leaky_bucket', 'fixed_window', 'sliding_window_log', 'sliding_window_counter'"


def who(user: Any) -> Any:
    return user


async def coroutine_function(*args: Any) -> bool:
    return True


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"permits": 0}, "permits must be at least 1 (got 0)"),
    ({"permits": 1.5}, "permits must be a whole number of at least 1 (got 1.5)"),
    ({"permits": True}, "permits must be a whole number of at least 1 (got True)"),
    ({"per": 0}, "per must be more than 0 seconds (got 0)"),
    ({"per": "1s"}, "per must be seconds as a number, or a timedelta (got '1s')"),
    ({"per": 1e-10}, "per must be at least a nanosecond (got 1e-10)"),
    ({"burst": 0}, "burst must be at least 1, or None (as many as permits; 1 for a leaky bucket) (got 0)"),
    (
        {"burst": 5, "algorithm": "fixed_window"},
        "burst must not be set with a fixed_window: its burst is its permits (got 5)",
    ),
    ({"algorithm": "bucket"}, f"algorithm must be {NAMES}, or a subclass of Algorithm (got 'bucket')"),
    ({"algorithm": 5}, f"algorithm must be {NAMES}, or a subclass of Algorithm (got 5)"),
    ({"algorithm": sum}, "algorithm must make an Algorithm of a rate, not 1000000020"),
    ({"cost": 0}, "cost must be a whole number of at least 1, or a function of the call's arguments (got 0)"),
    ({"cost": "x"}, "cost must be a whole number of at least 1, or a function of the call's arguments (got 'x')"),
    ({"cost": 11}, "cost must be at most 10: more can never be granted at once (got 11)"),
    (
        {"cost": 2, "algorithm": "leaky_bucket"},
        "cost must be at most 1: more can never be granted at once (got 2)",
    ),
    ({"queue": -1}, "queue must be at least 0 (got -1)"),
    ({"max_wait": -1}, "max_wait must not be negative, or None (as long as it takes) (got -1)"),
    ({"order": "random"}, "order must be 'oldest' or 'newest' (got 'random')"),
    ({"exclude": 5}, "exclude must be a function of the call's arguments, or None (nothing) (got 5)"),
    ({"on_rejected": 5}, "on_rejected must be a function of the error, or None (no hook) (got 5)"),
    ({"drain_on": 5}, "drain_on must be a function of the result, or None (never) (got 5)"),
    ({"warm_up": 0}, "warm_up must be more than 0 seconds, or None (always at full rate) (got 0)"),
    (
        {"warm_up": 5, "algorithm": "fixed_window"},
        "warm_up must not be set unless algorithm is \"token_bucket\" (got 5.0)",
    ),
    ({"warm_up": 5, "burst": 2}, "warm_up must not be set with a burst below 3 (it is 2) (got 5.0)"),
    ({"limits": 5}, "limits must be a table from key to limit, or a function of the key, or None "
     "(the same limit for every key) (got 5)"),
    ({"limits": {"ann": 2}, "warm_up": 5}, "limits must give permits, or a tuple of permits and seconds, or also a "
     "burst, with a burst of at least 3 to warm up (got 2)"),
    ({"allow": 5}, "allow must be a set of keys, or a predicate on a key, or None (nobody) (got 5)"),
    ({"deny": 5}, "deny must be a set of keys, or a predicate on a key, or None (nobody) (got 5)"),
    (
        {"retry_after_strategy": "random"},
        "retry_after_strategy must be 'fixed' or 'utilization' or 'backpressure' (got 'random')",
    ),
    ({"backpressure": 1}, "backpressure must be True or False (got 1)"),
    ({"p95_baseline": 0}, "p95_baseline must be more than 0 seconds (got 0)"),
    ({"min_latency": 0}, "min_latency must be more than 0 seconds (got 0)"),
    ({"min_retry_delay": -1}, "min_retry_delay must not be negative (got -1)"),
    ({"max_retry_penalty": -1}, "max_retry_penalty must not be negative (got -1)"),
    ({"gradient_sensitivity": 0}, "gradient_sensitivity must be at least 0.001 (got 0)"),
    ({"window_size": 0}, "window_size must be at least 1 (got 0)"),
    ({"max_keys": 0}, "max_keys must be at least 1 (got 0)"),
    ({"max_keys": 1.5}, "max_keys must be a whole number of at least 1 (got 1.5)"),
    ({"key": "user"}, "key must be a function of the call's arguments (got 'user')"),
    ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "told"), WRONG, ids=[f"{n}-{next(iter(one))}" for n, (one, _) in enumerate(WRONG)]
)
def test_a_wrong_setting_is_named_with_what_is_allowed(settings: dict[str, Any], told: str) -> None:
    more = {} if "key" in settings else {"key": who}
    with pytest.raises(ConfigError) as caught:
        rate_limit(**{"permits": 10, **more, **settings}, name="search")
    assert str(caught.value).startswith(f"rate limit 'search': {told}")


@pytest.mark.parametrize("setting", ["limits", "allow", "deny"])
def test_what_is_about_keys_must_not_be_set_without_them(setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rate_limit(10, "search", **{setting: {}})  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"rate limit 'search': {setting} must not be set without a key function, which says whose (got {{}})"
    )


def test_every_setting_has_its_wrong_values() -> None:
    settings = set(rate_limit(1).config.names()) | {"key", "max_keys"}
    assert settings == {name for wrong, _ in WRONG for name in wrong}


@pytest.mark.parametrize("hook", ["exclude", "on_rejected", "drain_on"])
def test_a_hook_that_nobody_awaits_must_not_be_a_coroutine_function(hook: str) -> None:
    with pytest.raises(ConfigError, match=f"{hook} must be a plain function"):
        rate_limit(10, **{hook: coroutine_function})  # type: ignore[arg-type]


def test_a_setting_that_does_not_exist_is_said_to() -> None:
    with pytest.raises(ConfigError) as caught:
        rate_limit(10, "search").reconfigure(permit=5)
    assert str(caught.value) == "rate limit 'search': has no setting 'permit'; did you mean 'permits'?"


def test_lengths_may_be_timedeltas() -> None:
    limiter = rate_limit(10, per=timedelta(minutes=1), max_wait=timedelta(seconds=3))
    assert (limiter.config.per, limiter.config.max_wait) == (60.0, 3.0)


def test_the_defaults_are_those_that_are_documented() -> None:
    config = rate_limit(10).config
    assert (config.per, config.algorithm, config.rate, config.queue, config.order) == (
        1.0, "token_bucket", Rate(10, 1_000_000_000, 10), 0, "oldest",
    )  # fmt: skip
    assert (config.p95_baseline, config.min_latency, config.min_retry_delay) == (0.2, 0.05, 1.0)
    assert (config.max_retry_penalty, config.gradient_sensitivity, config.window_size) == (15.0, 2.0, 100)
    assert rate_limit(10, algorithm="leaky_bucket").config.rate.burst == 1


def test_a_rate_limit_is_a_type_of_its_own() -> None:
    assert isinstance(rate_limit(10), RateLimit)
    assert repr(rate_limit(10, "search-repr", mode="shadow")) == "<rate limit 'search-repr', shadow>"
