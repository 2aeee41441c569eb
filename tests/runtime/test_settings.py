"""What may be set, and what is said about anything else."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import ClassVar

import pytest

from everkeel import ConfigError
from everkeel.runtime.settings import (
    Choice,
    Converted,
    Count,
    Duration,
    Flag,
    Function,
    Instance,
    Kind,
    Number,
    Settings,
    Share,
    label,
    setting,
)

NAN, INFINITY = float("nan"), float("inf")


async def coroutine_function(value: object) -> object:
    return value


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DoorConfig(Settings):
    policy_type: ClassVar[str] = "revolving_door"

    wings: int = setting(Count(at_least=2), default=4)
    turn: float = setting(Duration())
    pause: float | None = setting(Duration(zero=True), default=None, none="never")
    area: float = dataclasses.field(init=False, compare=False)

    def check_together(self) -> None:
        if self.pause is not None and self.pause > self.turn:
            raise self.wrong("pause", self.pause, "must not be longer than turn")
        object.__setattr__(self, "area", self.wings * self.turn)


# ------------------------------------------------------------------ the kinds


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        (Count(at_least=1), 1, 1),
        (Duration(), 2, 2.0),
        (Duration(), timedelta(milliseconds=1500), 1.5),
        (Duration(zero=True), 0, 0.0),
        (Share(), 1, 1.0),
        (Share(zero=True), 0, 0.0),
        (Number(at_least=0.5), 0.5, 0.5),
        (Choice("enforce", "shadow"), "shadow", "shadow"),
        (Flag(), False, False),
        (Function("of the result"), len, len),
        (Function("of the result", awaited=True), coroutine_function, coroutine_function),
        (Instance(bytes, "bytes"), b"", b""),
        (Converted(sorted), (2, 1), [1, 2]),
    ],
)
def test_a_value_that_is_allowed_is_kept_in_one_form(kind: Kind, given: object, kept: object) -> None:
    assert kind.check(given) == kept
    assert type(kind.check(given)) is type(kept)


@pytest.mark.parametrize(
    ("kind", "given", "allowed"),
    [
        (Count(at_least=1), 0, "must be at least 1"),
        (Count(at_least=1), 1.0, "must be a whole number of at least 1"),
        (Count(at_least=1), True, "must be a whole number of at least 1"),
        (Count(at_least=1), "3", "must be a whole number of at least 1"),
        (Duration(), 0, "must be more than 0 seconds"),
        (Duration(), -1, "must be more than 0 seconds"),
        (Duration(zero=True), -1, "must not be negative"),
        (Duration(), "500ms", "must be seconds as a number, or a timedelta"),
        (Duration(), True, "must be seconds as a number, or a timedelta"),
        (Duration(), NAN, "must be seconds as a number, or a timedelta"),
        (Duration(), INFINITY, "must be seconds as a number, or a timedelta"),
        (Share(), 0, "must be a share above 0 and up to 1"),
        (Share(), 50, "must be a share above 0 and up to 1"),
        (Share(zero=True), -0.1, "must be a share from 0 to 1"),
        (Share(zero=True), NAN, "must be a share from 0 to 1"),
        (Share(zero=True), False, "must be a share from 0 to 1"),
        (Number(at_least=1), 0.5, "must be at least 1"),
        (Number(at_least=1), INFINITY, "must be a number of at least 1"),
        (Choice("enforce", "off"), "on", "must be 'enforce' or 'off'"),
        (Choice("enforce", "off"), None, "must be 'enforce' or 'off'"),
        (Flag(), 1, "must be True or False"),
        (Function("of the result"), "len", "must be a function of the result"),
        (Function("of the result"), bool, "must be a function of the result"),
        (Function("of it"), coroutine_function, "must be a plain function of it, which nobody needs to await"),
        (Instance(bytes, "bytes"), "text", "must be bytes"),
    ],
)
def test_a_value_that_is_not_allowed_is_told_what_is(kind: Kind, given: object, allowed: str) -> None:
    with pytest.raises(ValueError) as raised:
        kind.check(given)
    assert str(raised.value) == allowed


# ------------------------------------------------------------------ a whole config


def test_the_error_names_policy_parameter_value_and_what_is_allowed() -> None:
    with pytest.raises(ConfigError) as raised:
        DoorConfig.make("lobby", {"turn": 3, "wings": 1})
    assert str(raised.value) == "revolving door 'lobby': wings must be at least 2 (got 1)"
    assert (raised.value.policy, raised.value.parameter) == ("revolving door 'lobby'", "wings")
    assert raised.value.allowed == "must be at least 2"


def test_the_error_of_a_policy_without_a_name_says_its_type() -> None:
    with pytest.raises(ConfigError, match=r"^revolving door: wings must be at least 2 \(got 0\)$"):
        DoorConfig.make(None, {"turn": 3, "wings": 0})


def test_where_none_is_allowed_the_error_says_what_it_means() -> None:
    with pytest.raises(ConfigError, match=r"pause must not be negative, or None \(never\) \(got -1\)"):
        DoorConfig.make("lobby", {"turn": 3, "pause": -1})


def test_none_is_not_allowed_where_it_means_nothing() -> None:
    with pytest.raises(ConfigError, match="turn must be seconds as a number, or a timedelta"):
        DoorConfig.make("lobby", {"turn": None})


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^revolving door 'lobby': pause must not be longer than turn \(got 5.0\)$"):
        DoorConfig.make("lobby", {"turn": 3, "pause": 5})


def test_a_config_made_directly_validates_itself_too() -> None:
    with pytest.raises(ConfigError, match="wings must be at least 2"):
        DoorConfig(turn=3, wings=1)


def test_a_config_error_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        DoorConfig(turn=-1)


def test_a_misspelt_setting_is_told_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"^revolving door 'lobby': has no setting 'wing'; did you mean 'wings'\?$"):
        DoorConfig.make("lobby", {"turn": 3, "wing": 3})


def test_an_unknown_setting_is_told_all_there_are() -> None:
    with pytest.raises(ConfigError, match="has no setting 'colour'; it has mode, pause, turn, wings"):
        DoorConfig.make("lobby", {"turn": 3, "colour": "red"})


def test_what_is_derived_cannot_be_set() -> None:
    with pytest.raises(ConfigError, match="has no setting 'area'"):
        DoorConfig.make("lobby", {"turn": 3, "area": 3})


def test_a_config_never_changes() -> None:
    config = DoorConfig(turn=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.turn = 4  # type: ignore[misc]


def test_a_changed_config_is_a_new_one_validated_as_a_whole() -> None:
    config = DoorConfig(turn=3, pause=1)
    changed = config.changed("lobby", {"turn": timedelta(seconds=2)})
    assert (changed.turn, changed.pause, changed.area, config.turn) == (2.0, 1.0, 8.0, 3.0)
    with pytest.raises(ConfigError, match="pause must not be longer than turn"):
        config.changed("lobby", {"turn": 0.5})


@pytest.mark.parametrize("mode", ["enforce", "shadow", "off"])
def test_every_config_has_a_mode(mode: str) -> None:
    assert DoorConfig.make("lobby", {"turn": 3, "mode": mode}).mode == mode


def test_a_policy_is_called_by_its_type_in_words_and_its_name() -> None:
    assert label("revolving_door", "lobby") == "revolving door 'lobby'"
    assert label("revolving_door", None) == "revolving door"
