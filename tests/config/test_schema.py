"""The schema that editors use takes what the loader takes, and refuses what it refuses."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from everkeel import RetryBudget, config
from everkeel.config.files import Document
from everkeel.config.sections import read_sections
from everkeel.config.steps import read_pipelines
from everkeel.config.types import HOMES, PARTS, SHORTHAND, settings_class
from everkeel.config.yaml_files import read_yaml
from everkeel.errors import CircuitOpenError

VALIDATOR = Draft202012Validator(config.schema())
RELATIONS = (
    "must begin before it ends", "(from, to) in seconds", "the shares must not exceed 1", "must be a moment there is",
    "must have a timezone", "must have two different times", "or a class derived from it",
)  # fmt: skip
"""What depends on more than one value, on a calendar, or on code: no schema can say it."""


class AnyNames:
    """Every name stands for something: whether it does is not for a schema to know."""

    def error(self, name: str) -> Any:
        return CircuitOpenError

    def function(self, name: str) -> Any:
        return lambda *args: None

    def instance(self, name: str, cls: type) -> Any:
        return RetryBudget()


def loader_says(data: dict[str, Any]) -> list[str]:
    document = Document("test", data)
    layer = read_sections(document, AnyNames())
    read_pipelines(document, layer, AnyNames())
    return [str(problem) for problem in document.problems]


def agree(data: dict[str, Any]) -> None:
    problems = loader_says(data)
    errors = [error.message for error in VALIDATOR.iter_errors(json.loads(json.dumps(data)))]
    if problems and all(any(relation in problem for relation in RELATIONS) for problem in problems):
        return
    assert bool(problems) == bool(errors), (problems, errors)


SCALARS: list[Any] = [
    None, True, False, 0, 1, 2, 5, -1, 0.5, 1.0, 2.5, 1.5, -0.5, 100, "", "x", "full", "worker", "inline", "off",
    "shadow", "500ms", "2s", "0s", "0.0ms", "PT1.5S", "PT0S", "1h30m", "-1s", "5x", "1s\n", "ConnectionError",
    "shop.errors.Busy", "not a name", "a.b.", "vegas", "token_bucket", "oldest", "each", "09:00", "UTC",
    "2026-12-01T00:00:00Z",
]  # fmt: skip
TABLES: list[Any] = [
    [], {}, ["ConnectionError", "TimeoutError"], ["1s", "2s"], [0, None], ["a", 5], [[1]], [None],
    {"function": "f"}, {"value": 1}, {"by_error": {"OSError": "1s"}}, {"constant": "1s"},
    {"exponential": {"first": "1s", "factor": 2, "max": None}}, {"exponential": {"initial": 1}},
    {"linear": {"first": 1, "step": "1s", "max": 5}}, {"fibonacci": {"first": "1s"}}, {"ratio": 0.1, "floor": 3},
    {"acme": 5, "evil": {"permits": 1, "per": "1s", "burst": 3}}, {"acme": [1, None, 5]}, {"high": 0.5, "low": 0.25},
    {"from": "2026-12-01T00:00:00Z", "until": None}, [{"from": "09:00", "until": "17:00", "timezone": "UTC"}],
    {"attempts": 3}, {"enabled": False}, {"mode": "off"}, {"mode": "off", "enabled": True}, {"name": "x", "key": "f"},
    {"max_keys": 5},
]  # fmt: skip
KINDS = sorted({*HOMES, *PARTS})
PAIRS = [(kind, name) for kind in KINDS for name in [*settings_class(kind).may_be_set(), "enabled", "atempts"]]


def mutated(value: Any, seed: int) -> Any:
    """The value with something inside it replaced, removed or added."""
    chance = random.Random(seed)
    value = copy.deepcopy(value)
    spots: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            keys = list(one) if isinstance(one, dict) else list(range(len(one)))
            spots += [(one, key) for key in keys]
            waiting += [one[key] for key in keys]
    if not spots:
        return chance.choice([*SCALARS, *TABLES])
    where, key = chance.choice(spots)
    act = chance.randrange(3)
    if act == 0:
        where[key] = copy.deepcopy(chance.choice([*SCALARS, *TABLES]))
    elif act == 1:
        del where[key]
    elif isinstance(where, dict):
        where[chance.choice(["first", "initial", "x", "max", "function", "per", "enabled"])] = chance.choice(SCALARS)
    else:
        where.append(chance.choice(SCALARS))
    return value


candidates = st.one_of(
    st.sampled_from(SCALARS),
    st.sampled_from(TABLES),
    st.builds(mutated, st.sampled_from(TABLES), st.integers(0, 10**6)),
)


@hypothesis_settings(max_examples=500)
@given(st.sampled_from(PAIRS), candidates)
@example(("retry", "attempts"), 5.0)
@example(("fallback", "alternatives"), None)
@example(("rate_limit", "limits"), {"function": 5})
def test_they_agree_about_settings(pair: tuple[str, str], value: Any) -> None:
    policy_type, setting = pair
    agree({policy_type: {"one": {setting: value}}})


@hypothesis_settings(max_examples=500)
@given(st.sampled_from([*KINDS, "rety"]), candidates, st.booleans())
@example("fallback", {"function": "f"}, False)
@example("fallback", {}, False)
@example("retry", {"name": "x", "key": "f", "max_keys": 3}, False)
@example("cache", {"key": "f", "max_keys": 3}, False)
def test_they_agree_about_steps(policy_type: str, value: Any, shorthand: bool) -> None:
    if shorthand and policy_type in SHORTHAND:
        value = {SHORTHAND[policy_type]: value}
    agree({"pipelines": {"one": [{policy_type: value}]}})


SHAPES = [None, {}, [], 5, "x", {"": {}}, {"a": None}, {"a": {}}, {"a": []}, {"a": ["retry"]}, {"a": [5]}]


@hypothesis_settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(["retry", "timeout", "pipelines", "$schema", "retyr", ""]),
        st.sampled_from(
            [None, {}, [], 5, "x", {"": {}}, {"a": None}, {"a": {}}, {"a": []}, {"a": ["retry"]}, {"a": [5]}]
        ),
        max_size=3,
    )
)
@example({"retry": {"a": None}})
@example({"timeout": None})
def test_they_agree_about_the_shape_of_a_file(data: dict[str, Any]) -> None:
    if not isinstance(data.get("$schema", ""), str):
        return  # for editors alone; the loader does not look at it
    agree(data)


@pytest.mark.parametrize("policy_type", KINDS)
def test_every_setting_is_in_the_schema_with_its_default(policy_type: str) -> None:
    properties = config.schema()["$defs"][policy_type]["properties"]
    assert set(properties) == {*settings_class(policy_type).may_be_set(), "enabled"}
    for name, rules in properties.items():
        if "default" in rules:
            assert VALIDATOR.is_valid({policy_type: {"one": {name: rules["default"]}}})


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(config.schema())
    json.dumps(config.schema())


def test_the_example_file_is_valid(request: pytest.FixtureRequest) -> None:
    data, _ = read_yaml(Path(request.config.rootpath, "examples", "everkeel.yaml").read_text())
    assert [error.message for error in VALIDATOR.iter_errors(data)] == []
