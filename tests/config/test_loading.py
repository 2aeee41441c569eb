"""Loading: late binding, everything wrong at once, one configuration at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from everkeel import (
    ConfigError,
    circuit_breaker,
    config,
    events,
    feature_toggle,
    policies_of,
    rate_limit,
    retry,
    subscribe,
    timeout,
)
from everkeel.errors import InvalidConfigurationError


class Client:
    @retry(attempts=2)
    def fetch(self) -> None: ...


def test_it_applies_to_functions_decorated_before() -> None:
    tries = []

    @retry(attempts=2, backoff=0)
    def fetch() -> None:
        tries.append(1)
        raise ConnectionError

    for attempts in (2, 5):
        tries.clear()
        with pytest.raises(ConnectionError):
            fetch()
        assert len(tries) == attempts
        config.load({"retry": {"default": {"attempts": 5}}}, env={})


@pytest.mark.parametrize("place", ["default", __name__, f"{__name__}.Client", f"{__name__}.Client.fetch"])
def test_module_class_and_method_are_places(place: str) -> None:
    class Sub(Client):
        @retry()
        def fetch(self) -> None: ...

    (policy,) = policies_of(Sub.fetch)
    policy_of_method = retry(f"{__name__}.Client.fetch")
    config.load({"retry": {place: {"attempts": 9}}}, env={})
    assert policy_of_method.config.attempts == 9
    assert policy.config.attempts == (9 if place in ("default", __name__) else 3)


def test_enabled_false_is_mode_off_except_for_a_feature() -> None:
    breaker, feature = circuit_breaker("one"), feature_toggle("one")
    config.load({"circuit_breaker": {"one": {"enabled": False}}, "feature_toggle": {"one": {"enabled": False}}}, env={})
    assert (breaker.mode, feature.mode, feature.config.enabled) == ("off", "enforce", False)
    config.load({"circuit_breaker": {"one": {"enabled": True}}, "feature_toggle": {"one": {"mode": "off"}}}, env={})
    assert (breaker.mode, feature.mode, feature.config.enabled) == ("enforce", "off", True)


def test_every_problem_is_told_at_once_with_its_line(
    written: Callable[..., Path], refused: Callable[..., list[str]]
) -> None:
    path = written(
        "retyr: {}\n"
        "retry:\n"
        "  fetch:\n"
        "    atempts: 5\n"
        "    attempts: 0\n"
        "    on: Conection\n"
        "    enabled: maybe\n"
        "    mode: loud\n"
        "  other: 5\n"
        "  '': {}\n"
        "timeout:\n"
        "  - 5\n"
        "circuit_breaker:\n"
        "  shop.orders:\n"
        "    failure_rate: 50\n"
        "pipelines:\n"
        "  checkout: []\n"
        "  pay:\n"
        "    - rety: 3\n"
        "    - retry: {attempt: 3}\n"
        "    - 5\n"
    )
    assert [problem.removeprefix(f"{path}:") for problem in refused(path)] == [
        "1: retyr is no type of policy; did you mean 'retry'?",
        "2: retry must have names that are not empty",
        "4: retry.fetch.atempts is no setting of retry; did you mean 'attempts'?",
        "5: retry.fetch.attempts must be at least 1, or null (got 0)",
        "6: retry.fetch.on must name exception classes; there is no Conection (did you mean ConnectionError?): "
        "write module.Conection, or register it (got 'Conection')",
        "7: retry.fetch.enabled must not stand beside mode: enabled: false is mode: off",
        "7: retry.fetch.enabled must be true or false (got 'maybe')",
        "8: retry.fetch.mode must be 'enforce' or 'shadow' or 'off' (got 'loud')",
        "9: retry.other must be a table of settings (got 5)",
        "11: timeout must be a table from the names of policies (got [5])",
        '15: circuit_breaker."shop.orders".failure_rate must be a share above 0 and up to 1, or null (got 50)',
        "17: pipelines.checkout must be a list of policies, outermost first (got [])",
        "19: pipelines.pay[0].rety is no type of policy; did you mean 'retry'?",
        "20: pipelines.pay[1].retry.attempt is no setting of retry; did you mean 'attempts'?",
        "21: pipelines.pay[2] must be one policy, such as retry: {attempts: 3} (got 5)",
    ]


def test_a_name_with_dots_that_is_not_quoted_is_explained(
    written: Callable[..., Path], refused: Callable[..., list[str]]
) -> None:
    path = written("[retry.shop.orders]\nattempts = 5\n", "everkeel.toml")
    assert refused(path) == [
        f"{path}:1: retry.shop.orders is no setting of retry; a name with dots in it stands in quotes"
    ]


def test_the_error_has_the_problems_as_data(written: Callable[..., Path]) -> None:
    path = written("retry:\n  one: {attempts: 0}\n")
    with pytest.raises(InvalidConfigurationError) as caught:
        config.load(path, env={})
    (problem,) = caught.value.problems
    assert problem == config.Problem(str(path), 2, "retry.one.attempts", "must be at least 1, or null", "0")
    assert str(caught.value) == f"{path}:2: retry.one.attempts must be at least 1, or null (got 0)"
    assert isinstance(caught.value, ConfigError)


def test_what_is_wrong_leaves_what_was_in_force_in_force(caplog: pytest.LogCaptureFixture) -> None:
    one, two = retry("one"), retry("two")
    first = config.load({"retry": {"one": {"attempts": 5}}}, env={})
    heard: list[events.ConfigRejected] = []
    with subscribe(heard.append, events.ConfigRejected), caplog.at_level(logging.ERROR, "everkeel.config"):
        with pytest.raises(InvalidConfigurationError):
            config.load({"retry": {"one": {"attempts": 7}, "two": {"attempts": 0}}}, env={})
    assert (one.config.attempts, two.config.attempts) == (5, 3)
    assert config.current() is first
    assert (heard[0].version, heard[0].cause) == (1, "load")
    assert "retry.two.attempts must be at least 1" in heard[0].problems[0]
    assert "version 1 stays: config: retry.two.attempts must be at least 1" in caplog.text


def test_settings_that_contradict_each_other_are_found_for_the_policies_there_are(
    refused: Callable[..., list[str]],
) -> None:
    kept = circuit_breaker("small", window=20), circuit_breaker("large", window=500)
    (problem,) = refused({"circuit_breaker": {"default": {"minimum_calls": 100}}})
    assert problem == (
        "config: circuit_breaker.default.minimum_calls must not be more than window=20: it would never open, "
        "for circuit breaker 'small' (got 100)"
    )
    assert [policy.config.minimum_calls for policy in kept] == [10, 10]


def test_a_policy_made_later_is_refused_where_it_does_not_fit() -> None:
    config.load({"circuit_breaker": {"default": {"minimum_calls": 100}}}, env={})
    circuit_breaker("large", window=500)
    with pytest.raises(ConfigError, match="must not be more than window=20"):
        circuit_breaker("small", window=20)
    with pytest.raises(ConfigError, match="must not be more than window=20"):

        @circuit_breaker(window=20)
        def call() -> None: ...

    config.load({}, env={})
    circuit_breaker("small", window=20)  # its name is not taken by the one that failed


def test_the_changes_are_an_event() -> None:
    kept = retry("one", attempts=2), timeout(5, "two")
    heard: list[events.ConfigChanged] = []
    with subscribe(heard.append, events.ConfigChanged):
        config.load({"retry": {"one": {"attempts": 5}}, "timeout": {"two": {"seconds": "1s"}}}, env={})
    (event,) = heard
    assert len(event.changes) == len(kept)
    assert (event.policy, event.policy_type, event.version, event.cause) == (None, "config", 1, "load")
    assert event.changes == (
        ("retry", "one", "attempts", 2, 5, "config"),
        ("timeout", "two", "seconds", 5.0, 1.0, "config"),
    )


def test_each_policy_says_that_it_was_reconfigured() -> None:
    one = retry("one")
    heard: list[events.Reconfigured] = []
    with one.subscribe(heard.append, events.Reconfigured):
        config.load({"retry": {"one": {"attempts": 5}}}, env={})
        config.load({"retry": {"one": {"attempts": 5}}}, env={})
    assert [event.changes for event in heard] == [{"attempts": (3, 5)}]


def test_saying_the_same_again_changes_nothing() -> None:
    one = retry("one")
    data = {
        "retry": {"one": {"backoff": {"exponential": {"first": "1s"}}, "budget": {"ratio": 0.1}, "on": ["OSError"]}}
    }
    config.load(data, env={})
    budget = one.config.budget
    loaded = config.load(data, env={})
    assert loaded.history()[-1].changes == ()
    assert one.config.budget is budget


def test_policies_that_take_a_budget_from_one_line_share_it() -> None:
    one, two = retry("one"), retry("two")
    config.load({"retry": {"default": {"budget": {"ratio": 0.1}}}}, env={})
    assert one.config.budget is two.config.budget is not None


def test_what_a_file_no_longer_says_is_the_codes_again() -> None:
    one = retry("one", attempts=2)
    config.load({"retry": {"one": {"attempts": 5}}}, env={})
    config.load({}, env={})
    assert one.config.attempts == 2


def test_a_second_load_takes_the_place_of_the_first() -> None:
    first = config.load({}, env={})
    second = config.load({"retry": {}}, env={})
    assert config.current() is second
    assert second.version == 2
    with pytest.raises(ConfigError, match="has been replaced"):
        first.reload()


@pytest.mark.parametrize("source", [5, ["everkeel.yaml"], b"everkeel.yaml"])
def test_a_source_is_a_path_or_a_mapping(source: object) -> None:
    with pytest.raises(ConfigError, match="must be a path or a mapping"):
        config.load(source, env={})  # type: ignore[arg-type]


def test_without_a_file_there_is_nothing_to_watch() -> None:
    with pytest.raises(ConfigError, match="there is no file to watch"):
        config.load({}, env={}, watch=True)


def test_a_rate_limits_own_limits_need_a_key(refused: Callable[..., list[str]]) -> None:
    keyed = rate_limit(5, name="keyed", key=lambda tenant: tenant)
    config.load({"rate_limit": {"keyed": {"limits": {"acme": {"permits": 1, "per": "1h"}}}}}, env={})

    @keyed
    def call(tenant: str) -> str:
        return tenant

    assert call("acme") == "acme"
    with pytest.raises(Exception, match="keyed"):
        call("acme")


def test_sections_that_nobody_has_are_listed(written: Callable[..., Path]) -> None:
    kept = retry("fetch_user")
    path = written("retry:\n  default: {attempts: 2}\n  fetch_usr: {attempts: 5}\n")
    loaded = config.load(path, env={"EVERKEEL_RETRY__OTHER__ATTEMPTS": "5"})
    assert [str(problem) for problem in loaded.unused()] == [
        f"{path}:3: retry.fetch_usr is the name of no retry there is; did you mean 'fetch_user'?",
        "env EVERKEEL_RETRY__OTHER__ATTEMPTS: retry.OTHER is the name of no retry there is",
    ]
    assert kept.config.attempts == 2


def test_checking_puts_nothing_in_force(written: Callable[..., Path]) -> None:
    one = retry("one")
    assert config.check(written("retry: {one: {attempts: 9}}\n")) == []
    assert one.config.attempts == 3
    assert config.current().version == 0


def test_checking_an_application_that_is_not_imported_trusts_in_what_it_may_register(
    written: Callable[..., Path],
) -> None:
    path = written("retry:\n  one: {on_result: is_pending, on: shop.errors.Busy}\n")
    assert config.check(path) == []
    assert ["nothing is registered as 'is_pending'" in str(one) for one in config.check(path, complete=True)] == [True]


def test_checking_finds_what_contradicts_the_policies_there_are(written: Callable[..., Path]) -> None:
    kept = circuit_breaker("one", window=5, minimum_calls=5)
    path = written("circuit_breaker:\n  one:\n    minimum_calls: 50\n")
    (problem,) = config.check(path, env={})
    assert kept.config.minimum_calls == 5
    assert (problem.line, problem.path) == (3, "circuit_breaker.one.minimum_calls")


def test_everkeel_has_config_without_importing_it() -> None:
    import everkeel

    assert everkeel.config is config  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'lod'"):
        _ = config.lod  # type: ignore[attr-defined]
