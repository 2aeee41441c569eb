"""Every type of policy can be configured: none can be forgotten."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import everkeel
from everkeel import config
from everkeel.config.forms import FORMS, form_of
from everkeel.config.types import HOMES, SHORTHAND, known_types, policy_class, settings_class
from everkeel.runtime.policy import Policy
from everkeel.runtime.settings import Converted, Count, Settings, setting
from everkeel.runtime.state import State

MAKE = {
    "adaptive_throttle": lambda name: everkeel.adaptive_throttle(name),
    "bulkhead": lambda name: everkeel.bulkhead(5, name),
    "cache": lambda name: everkeel.cache(5, name),
    "chaos": lambda name: everkeel.chaos(name, error=OSError, mode="off"),
    "circuit_breaker": lambda name: everkeel.circuit_breaker(name),
    "collapse": lambda name: everkeel.collapse(0.01, name),
    "concurrency_limit": lambda name: everkeel.concurrency_limit(name),
    "fail_fast": lambda name: everkeel.fail_fast(name),
    "fallback": lambda name: everkeel.fallback(1, name=name),
    "feature_toggle": lambda name: everkeel.feature_toggle(name),
    "hedge": lambda name: everkeel.hedge(name),
    "rate_limit": lambda name: everkeel.rate_limit(5, name=name),
    "rate_limit_chain": lambda name: everkeel.rate_limit_chain(name=name, a=everkeel.rate_limit(5)),
    "retry": lambda name: everkeel.retry(name),
    "timeout": lambda name: everkeel.timeout(5, name),
}


def _every_policy() -> set[type[Policy[Any]]]:
    """Every policy class of Everkeel, wherever it is defined."""
    for module in pkgutil.walk_packages(everkeel.__path__, "everkeel."):
        if module.name.split(".")[1] in ("policies", "ratelimit", "compose", "idempotency", "runtime"):
            importlib.import_module(module.name)
    found, waiting = set[type[Policy[Any]]](), list(Policy.__subclasses__())
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__module__.startswith("everkeel."):
            found.add(cls)
    return found


def test_every_type_of_policy_is_known_to_configuration() -> None:
    assert {cls.type for cls in _every_policy()} == set(HOMES) == set(MAKE)


@pytest.mark.parametrize("policy_type", sorted(HOMES))
def test_a_type_is_configured_by_name_and_by_default(policy_type: str) -> None:
    policy = MAKE[policy_type]("one")
    assert type(policy.config) is settings_class(policy_type)
    config.load({policy_type: {"one": {"mode": "shadow"}}}, env={})
    assert policy.mode == "shadow"
    config.load({policy_type: {"default": {"mode": "off"}}}, env={})
    assert policy.mode == "off"
    config.load(
        {policy_type: {"default": {"mode": "off"}}}, env={f"EVERKEEL_{policy_type.upper()}__ONE__MODE": "shadow"}
    )
    assert policy.mode == "shadow"
    config.change(policy_type, "one", mode="enforce")
    assert policy.mode == "enforce"


SETTINGS = [(kind, name) for kind in sorted(HOMES) for name in settings_class(kind).may_be_set()]


@pytest.mark.parametrize(("policy_type", "name"), SETTINGS)
def test_every_setting_has_a_form_in_configuration(policy_type: str, name: str) -> None:
    kind = settings_class(policy_type).may_be_set()[name].metadata["kind"]
    assert not isinstance(kind, Converted) or kind.form in FORMS
    assert form_of(kind).schema() not in ({}, {"not": {}})


def test_the_shorthand_of_a_step_is_a_setting_there_is() -> None:
    for policy_type, name in SHORTHAND.items():
        assert name in settings_class(policy_type).may_be_set()
    assert set(HOMES) - set(SHORTHAND) == {"rate_limit_chain"}  # its limiters can only be given by code


@dataclass(frozen=True, kw_only=True, slots=True)
class EchoConfig(Settings):
    policy_type: ClassVar[str] = "test_echo"
    times: int = setting(Count(at_least=1), default=1)


class Echoing(State):
    __slots__ = ("policy",)

    def __init__(self, policy: Echo) -> None:
        self.policy = policy


class Echo(Policy[EchoConfig]):
    __slots__ = ()
    type = "test_echo"

    def make_state(self, key: object = None) -> Any:
        return Echoing(self)


def test_a_policy_of_the_applications_own_is_configured_like_any_other() -> None:
    echo = Echo("one", EchoConfig())
    config.load({"test_echo": {"one": {"times": 7}}}, env={"EVERKEEL_TEST_ECHO__ONE__MODE": "off"})
    assert (echo.config.times, echo.mode) == (7, "off")
    assert "test_echo" in known_types()
    assert "test_echo" in config.schema()["properties"]
    assert policy_class("test_echo") is Echo
