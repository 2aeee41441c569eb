"""Wrong settings fail when they are written, with the policy, the parameter, the value and what is allowed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from everkeel import Cache, ConfigError, cache
from everkeel.policies.cache.config import CacheConfig

SECONDS = "must be seconds as a number, or a timedelta"
MORE = "must be more than 0 seconds"
ERRORS = "must be exception classes or predicates on an exception"


async def afunction(value: object) -> None: ...


WRONG = [
    ({"ttl": 0}, f"ttl {MORE} (got 0)"),
    ({"ttl": "60s"}, f"ttl {SECONDS} (got '60s')"),
    ({"ttl": None}, f"ttl {SECONDS} (got None)"),
    ({"max_size": 0}, "max_size must be at least 1 (got 0)"),
    ({"max_size": None}, "max_size must be a whole number of at least 1 (got None)"),
    (
        {"key": "id"},
        "key must be a function of the call's arguments, or None (the function and all its arguments) (got 'id')",
    ),
    ({"single_flight": 1}, "single_flight must be True or False (got 1)"),
    ({"stale_for": 0}, f"stale_for {MORE}, or None (nothing stale is served) (got 0)"),
    ({"stale_if_error": -1}, f"stale_if_error {MORE}, or None (errors leave) (got -1)"),
    (
        {"refresh_ahead": 0},
        "refresh_ahead must be a share above 0 and up to 1, or None (not before it expires) (got 0)",
    ),
    (
        {"refresh_ahead": 80},
        "refresh_ahead must be a share above 0 and up to 1, or None (not before it expires) (got 80)",
    ),
    ({"jitter": "full"}, f"jitter {SECONDS}, or None (every answer lives as long as ttl says) (got 'full')"),
    ({"jitter": 60}, "jitter must be less than ttl, which is 60 seconds (got 60.0)"),
    ({"negative_ttl": 0}, f"negative_ttl {MORE}, or None (failures are not kept) (got 0)"),
    ({"on": "OSError"}, f"on {ERRORS}, not 'OSError' (got 'OSError')"),
    ({"ignore": 3}, f"ignore {ERRORS}, not 3, or None (nothing) (got 3)"),
    ({"on_result": "x"}, "on_result must be a function of the result, or None (every result is fine) (got 'x')"),
    ({"causes": 1}, "causes must be True or False (got 1)"),
    ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_setting_is_named_with_what_is_allowed(given, message):
    with pytest.raises(ConfigError) as caught:
        cache(**{"ttl": 60, "name": "c", **given})
    assert str(caught.value) == f"cache 'c': {message}"


def test_every_setting_has_a_wrong_value_here():
    assert {name for given, _ in WRONG for name in given} == set(CacheConfig.names())


def test_a_key_function_must_not_be_a_coroutine_function():
    with pytest.raises(
        ConfigError, match="key must be a plain function of the call's arguments, which nobody needs to"
    ):
        cache(60, key=afunction)


def test_a_store_must_have_the_methods_of_one():
    with pytest.raises(ConfigError) as caught:
        cache(60, "c", store={})  # type: ignore[arg-type]
    assert str(caught.value) == "cache 'c': store must have the methods get, set, delete and clear (got {})"


def test_ttl_is_required():
    with pytest.raises(TypeError, match="ttl"):
        cache()  # type: ignore[call-arg]


def test_a_cache_without_parentheses_says_what_is_missing():
    def load() -> None: ...

    with pytest.raises(ConfigError, match="ttl must be seconds"):
        cache(load)  # type: ignore[arg-type]


def test_a_wrong_change_leaves_the_settings_as_they_were(clock):
    policy = cache(60, "c", jitter=10)
    with pytest.raises(ConfigError, match=r"cache 'c': jitter must be less than ttl, which is 5 seconds \(got 10.0\)"):
        policy.reconfigure(ttl=5)
    assert policy.config.ttl == 60


def test_durations_are_seconds_or_timedeltas(clock):
    policy = cache(timedelta(minutes=1), "c", stale_for=timedelta(seconds=5))
    assert isinstance(policy, Cache)
    assert (policy.config.ttl, policy.config.stale_for) == (60.0, 5.0)
