"""A fresh Everkeel has no configuration, and leaves none behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from everkeel import config, retry
from everkeel.testing import fresh_everkeel


def test_nothing_of_the_configuration_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "everkeel.yaml"
    path.write_text("retry: {default: {attempts: 9}}\npipelines: {a: [retry]}\n")
    with fresh_everkeel():
        config.load(path, env={}, watch=True)
        config.pipeline("a")
        config.register("thing", object())
        config.change("retry", "default", causes=True)
    assert config.current().version == 0
    assert retry("one").config.attempts == 3
    assert "thing" not in config.registered
    assert "not defined" in repr(config.pipeline("a"))
    assert "everkeel-config" not in [thread.name for thread in threading.enumerate()]


def test_what_was_in_force_is_in_force_again() -> None:
    outside = retry("outside")
    loaded = config.load({"retry": {"default": {"attempts": 9}}}, env={})
    config.register("thing", object())
    with fresh_everkeel():
        assert retry("inside").config.attempts == 3
        assert dict(config.registered) == {}
        config.load({"retry": {"default": {"attempts": 7}}}, env={})
        assert retry("inside too").config.attempts == 7
    assert config.current() is loaded
    assert outside.config.attempts == 9
    assert retry("later").config.attempts == 9
    assert "thing" in config.registered


@pytest.mark.parametrize("turn", [1, 2])
def test_one_test_does_not_see_the_other(turn: int) -> None:
    assert config.current().version == 0
    config.change("retry", "default", attempts=turn + 5)
    assert retry("one").config.attempts == turn + 5
