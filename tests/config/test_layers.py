"""Which value wins, against a reference that was written without looking at the code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from everkeel import config, retry
from everkeel.config.layers import in_environment, places
from everkeel.testing import fresh_everkeel

NAME = "shop.orders.Client.fetch"
PLACES = ["default", "shop", "shop.orders", "shop.orders.Client", NAME, "shop.payments", "fetch", "sho"]
SETTINGS = {"attempts": st.integers(1, 99), "max_retry_after": st.integers(0, 99), "max_abandoned": st.integers(1, 99)}
section = st.fixed_dictionaries({}, optional=SETTINGS)
layer = st.dictionaries(st.sampled_from(PLACES), section, max_size=5)


def reference(code: dict, file: dict, env: dict, live: dict, reconfigured: dict) -> dict:
    """The issue's words, one after the other."""
    effective = {"attempts": 3, "max_retry_after": 60, "max_abandoned": 64}
    effective.update(code)
    for source in (file, env, live):
        for place in ("default", "shop", "shop.orders", "shop.orders.Client", "shop.orders.Client.fetch"):
            if place in source:
                for setting in source[place]:
                    effective[setting] = source[place][setting]
    effective.update(reconfigured)
    return effective


@hypothesis_settings(max_examples=150)
@given(section, layer, layer, layer, section, st.booleans())
def test_the_effective_value_is_the_references(
    code: dict, file: dict, env: dict, live: dict, reconfigured: dict, late: bool
) -> None:
    variables = {
        f"EVERKEEL_RETRY__{place.upper().replace('.', '__')}__{setting.upper()}": str(value)
        for place, values in env.items()
        for setting, value in values.items()
    }
    with fresh_everkeel():
        if not late:
            policy = retry(NAME, **code)
        config.load({"retry": file}, env=variables)
        for place, values in live.items():
            config.change("retry", place, **values)
        if late:
            policy = retry(NAME, **code)
        policy.reconfigure(**reconfigured)
        expected = reference(code, file, env, live, reconfigured)
        assert {name: getattr(policy.config, name) for name in expected} == expected
        shown = config.effective(policy)
        assert {name: shown[name].value for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fetch", ["default", "fetch"]),
        ("a.b", ["default", "a", "a.b"]),
        ("a.b#2", ["default", "a", "a.b", "a.b#2"]),
        ("m.outer.<locals>.inner", ["default", "m", "m.outer", "m.outer.<locals>", "m.outer.<locals>.inner"]),
    ],
)
def test_the_places_of_a_name(name: str, expected: list[str]) -> None:
    assert places(name) == expected


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("fetch_user", "FETCH_USER"),
        ("fetch-user", "FETCH_USER"),
        ("shop.orders.fetch", "SHOP__ORDERS__FETCH"),
        ("shop._private.__call__", "SHOP__PRIVATE__CALL"),
        ("fetch__user", "FETCH_USER"),
        ("m.outer.<locals>.inner", "M__OUTER__LOCALS__INNER"),
        ("default", "DEFAULT"),
    ],
)
def test_how_a_variable_writes_a_name(name: str, variable: str) -> None:
    assert in_environment(name) == variable


SOURCES = [
    ({}, {}, {}, "default"),
    ({"attempts": 5}, {}, {}, "code"),
    ({"attempts": 5}, {"attempts": 6}, {}, "config"),
    ({"attempts": 5}, {"attempts": 6}, {"EVERKEEL_RETRY__ONE__ATTEMPTS": "7"}, "env EVERKEEL_RETRY__ONE__ATTEMPTS"),
]


@pytest.mark.parametrize(("code", "file", "env", "source"), SOURCES)
def test_a_setting_says_where_it_comes_from(code: dict, file: dict, env: dict, source: str) -> None:
    policy = retry("one", **code)
    config.load({"retry": {"one": file}}, env=env)
    assert config.effective(policy)["attempts"].source == source
    config.change("retry", "one", attempts=9)
    assert config.effective(policy)["attempts"] == (9, "live")


def test_what_reconfigure_set_is_live_too() -> None:
    policy = retry()
    policy.reconfigure(attempts=9)
    assert config.effective(policy)["attempts"] == (9, "live")


def test_only_policies_have_settings() -> None:
    with pytest.raises(TypeError, match="needs a policy"):
        config.effective("retry")  # type: ignore[arg-type]
