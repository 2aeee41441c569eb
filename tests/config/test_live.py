"""Live changes: checked, versioned, undone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from everkeel import ConfigError, circuit_breaker, config, constant, events, retry, subscribe, timeout
from everkeel.config.configuration import KEPT
from everkeel.errors import InvalidConfigurationError


def test_a_change_is_a_version_and_an_event_with_the_difference() -> None:
    one = retry("one")
    heard: list[events.ConfigChanged] = []
    with subscribe(heard.append, events.ConfigChanged):
        changes = config.change("retry", "one", attempts=5, max_duration="500ms")
    assert changes == (
        ("retry", "one", "attempts", 3, 5, "live"),
        ("retry", "one", "max_duration", None, 0.5, "live"),
    )
    assert (heard[0].version, heard[0].cause, heard[0].changes) == (1, "change", changes)
    assert config.current().version == 1
    assert one.config.max_duration == 0.5


@pytest.mark.parametrize(
    ("setting", "given", "kept"),
    [
        ("max_duration", timedelta(seconds=2), 2.0),
        ("on", (OSError, TimeoutError), (OSError, TimeoutError)),
        ("on", OSError, OSError),
        ("on", ["OSError"], (OSError,)),
        ("backoff", constant(5), constant(5)),
        ("on_result", callable, callable),
        ("attempts", None, None),
    ],
)
def test_values_may_be_what_a_file_or_what_code_would_say(setting: str, given: object, kept: object) -> None:
    one = retry("one")
    config.change("retry", "one", **{setting: given})
    assert getattr(one.config, setting) == kept


def test_enabled_is_understood() -> None:
    one = retry("one")
    config.change("retry", "one", enabled=False)
    assert one.mode == "off"


def test_changes_of_one_policy_add_up() -> None:
    one = retry("one")
    config.change("retry", "one", attempts=5)
    config.change("retry", "one", causes=True)
    assert (one.config.attempts, one.config.causes) == (5, True)


def test_a_policy_that_comes_later_is_changed_too() -> None:
    config.change("retry", "late", attempts=5)
    assert retry("late").config.attempts == 5


@pytest.mark.parametrize(
    ("policy_type", "name", "settings", "message"),
    [
        ("retyr", "one", {"attempts": 1}, "live: retyr is no type of policy; did you mean 'retry'?"),
        ("retry", "one", {"atempts": 1}, "live: retry.one.atempts is no setting of retry; did you mean 'attempts'?"),
        ("retry", "one", {"attempts": 0}, "live: retry.one.attempts must be at least 1, or null (got 0)"),
        ("retry", "one", {"on": 5}, "live: retry.one.on must be the name of an exception class"),
        ("retry", "one", {"on": object()}, "live: retry.one.on must be the name of an exception class"),
        ("retry", "", {"attempts": 1}, "live: retry must have the name of a policy, or 'default' (got '')"),
        ("circuit_breaker", "one", {"minimum_calls": 500}, "circuit_breaker.one.minimum_calls must not be more than"),
    ],
)
def test_a_wrong_change_changes_nothing(policy_type: str, name: str, settings: dict, message: str) -> None:
    policies = retry("one"), circuit_breaker("one")
    before = [policy.config for policy in policies]
    heard: list[events.ConfigRejected] = []
    with subscribe(heard.append, events.ConfigRejected), pytest.raises(InvalidConfigurationError) as caught:
        config.change(policy_type, name, **settings)
    assert message in str(caught.value)
    assert [policy.config for policy in policies] == before
    assert (heard[0].cause, config.current().version) == ("change", 0)


def test_a_change_of_several_settings_is_all_or_nothing() -> None:
    one = retry("one")
    with pytest.raises(InvalidConfigurationError) as caught:
        config.change("retry", "one", attempts=0, max_duration="soon", causes=True)
    assert len(caught.value.problems) == 2
    assert one.config.causes is False


def test_the_last_of_change_and_reconfigure_wins() -> None:
    one = retry("one")
    one.reconfigure(attempts=5, causes=True)
    config.change("retry", "one", attempts=6)
    assert (one.config.attempts, one.config.causes) == (6, True)
    one.reconfigure(attempts=7)
    assert one.config.attempts == 7


def test_a_change_of_all_does_not_undo_what_one_was_told() -> None:
    one = retry("one")
    one.reconfigure(attempts=5)
    config.change("retry", "default", attempts=6)
    assert one.config.attempts == 5


def test_live_changes_outlive_a_reload_and_another_load(written: Callable[..., Path]) -> None:
    one = retry("one")
    path = written("retry: {one: {attempts: 5}}\n")
    loaded = config.load(path, env={})
    config.change("retry", "one", attempts=6)
    path.write_text("retry: {one: {attempts: 7}}\n")
    loaded.reload()
    config.load({"retry": {"one": {"attempts": 8}}}, env={})
    assert one.config.attempts == 6


def test_a_rollback_returns_to_the_version_before() -> None:
    one = retry("one")
    loaded = config.load({"retry": {"one": {"attempts": 5}}}, env={})
    config.change("retry", "one", attempts=6)
    heard: list[events.ConfigChanged] = []
    with subscribe(heard.append, events.ConfigChanged):
        assert loaded.rollback() == (("retry", "one", "attempts", 6, 5, "config"),)
    assert one.config.attempts == 5
    assert (heard[0].version, heard[0].cause) == (3, "rollback to 1")
    assert [(one.number, one.cause) for one in loaded.history()] == [(1, "load"), (2, "change"), (3, "rollback to 1")]
    loaded.rollback()
    assert one.config.attempts == 6


def test_a_rollback_may_go_far_back() -> None:
    one, two = retry("one"), timeout(5, "two")
    first = config.load({"retry": {"one": {"attempts": 5}}}, env={})
    config.load({"timeout": {"two": {"seconds": 1}}}, env={})
    config.change("timeout", "two", seconds=2)
    config.current().rollback(1)
    assert (one.config.attempts, two.config.seconds) == (5, 5.0)
    assert config.current() is not first


def test_a_rollback_brings_back_what_reconfigure_had_set() -> None:
    one = retry("one")
    loaded = config.load({}, env={})
    one.reconfigure(attempts=5)
    config.change("retry", "one", attempts=6)
    one.reconfigure(causes=True)
    loaded.rollback()
    assert (one.config.attempts, one.config.causes) == (5, False)
    loaded.rollback()
    assert (one.config.attempts, one.config.causes) == (6, True)


def test_a_rollback_brings_back_the_pipelines_too() -> None:
    @config.pipeline("a")
    def call() -> str:
        raise ConnectionError

    loaded = config.load({"pipelines": {"a": [{"fallback": "one"}]}}, env={})
    config.load({"pipelines": {"a": [{"fallback": "two"}]}}, env={})
    assert call() == "two"
    config.current().rollback()
    assert call() == "one"
    assert loaded.version == 3


def test_a_rollback_needs_somewhere_to_go() -> None:
    loaded = config.load({}, env={})
    with pytest.raises(ConfigError, match="there is no earlier one"):
        loaded.rollback()
    config.change("retry", "one", attempts=5)
    with pytest.raises(ConfigError, match=r"version must be one of 1 \(got 7\)"):
        loaded.rollback(7)
    with pytest.raises(ConfigError, match=r"version must be one of 1 \(got 2\)"):
        loaded.rollback(2)


def test_a_rollback_that_no_longer_fits_is_refused() -> None:
    loaded = config.load({"circuit_breaker": {"default": {"minimum_calls": 50}}}, env={})
    config.load({}, env={})
    small = circuit_breaker("small", window=20)
    with pytest.raises(InvalidConfigurationError, match="must not be more than window=20"):
        config.current().rollback(1)
    assert small.config.minimum_calls == 10
    assert loaded.version == 2


def test_history_is_bounded() -> None:
    one = retry("one")
    for attempts in range(1, KEPT + 20):
        config.change("retry", "one", attempts=attempts)
    history = config.current().history()
    assert len(history) == KEPT
    assert history[-1].number == KEPT + 19
    config.current().rollback(history[0].number)
    assert one.config.attempts == 20
    assert len(config.current()._reconfigured) <= KEPT + 1


def test_a_version_says_when_and_why(written: Callable[..., Path]) -> None:
    path = written("retry: {}\n")
    (version,) = config.load(path, env={}).history()
    assert (version.number, version.cause, version.source, version.changes) == (1, "load", str(path), ())
    assert version.at.tzinfo is not None


def test_a_listener_may_change_the_configuration_from_another_thread() -> None:
    """Nobody is told under the lock: this would hang otherwise."""
    one = retry("one")

    def react(event: events.ConfigChanged) -> None:
        if event.version == 1:
            thread = threading.Thread(target=config.change, args=("retry", "one"), kwargs={"attempts": 9})
            thread.start()
            thread.join()

    def react_to_policy(event: events.Reconfigured) -> None:
        thread = threading.Thread(target=config.current)
        thread.start()
        thread.join()

    with subscribe(react, events.ConfigChanged), one.subscribe(react_to_policy, events.Reconfigured):
        config.change("retry", "one", attempts=5)
    assert one.config.attempts == 9


def test_a_configuration_describes_itself(written: Callable[..., Path]) -> None:
    assert repr(config.current()) == "<configuration without a file, version 0>"
    path = written("retry: {}\n")
    with config.load(path, env={}) as loaded:
        assert repr(loaded) == f"<configuration {path}, version 1>"
        assert (loaded.loaded, loaded.watching) == (True, False)


def test_a_change_made_while_another_configuration_is_being_loaded_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from everkeel.config import configuration

    one = retry("one")
    config.load({}, env={})
    real = configuration.Configuration.begin

    def begin(self: config.Configuration, *arguments: object) -> object:
        config.change("retry", "one", attempts=9)  # after `load` was called, before it has begun
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(configuration.Configuration, "begin", begin)
    config.load({"retry": {"one": {"attempts": 5}}}, env={})
    assert one.config.attempts == 9
    assert config.current().version == 3
