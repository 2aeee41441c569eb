"""The annotated example in `examples/everkeel.yaml` is loaded, and shows every type of policy."""

from __future__ import annotations

from pathlib import Path

import pytest

import everkeel
from everkeel import config
from everkeel.config.types import HOMES, PARTS
from everkeel.config.yaml_files import read_yaml


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.rootpath, "examples", "everkeel.yaml")


def test_the_example_configures_what_it_names(example: Path) -> None:
    fetch = everkeel.retry("shop.orders.Client.fetch")
    other = everkeel.retry("shop.orders.other")
    payments, legacy = everkeel.circuit_breaker("payments"), everkeel.circuit_breaker("legacy")
    tenants = everkeel.rate_limit(5, name="tenants", key=lambda tenant: tenant)
    toggle = everkeel.feature_toggle("new_checkout", key=lambda user: user)
    config.load(example, env={})
    assert (fetch.config.attempts, fetch.config.max_duration) == (2, 10.0)
    assert (other.config.attempts, other.config.on) == (4, (ConnectionError, TimeoutError))
    assert fetch.config.budget is other.config.budget is not None
    assert payments.config.open_for == everkeel.exponential(5, max=300)
    assert (legacy.mode, toggle.mode, toggle.config.share) == ("off", "enforce", 0.1)
    assert tenants.config.limits == {"acme": (500, 60.0), "trial": 5}
    assert [policy.type for policy in config.pipeline("checkout")] == [
        "fallback", "retry", "circuit_breaker", "timeout", "bulkhead",
    ]  # fmt: skip
    assert payments in list(config.pipeline("checkout"))


def test_the_example_shows_every_type_of_policy(example: Path) -> None:
    data, _ = read_yaml(example.read_text())
    assert set(data) == {*HOMES, *PARTS, "pipelines"}


def test_every_named_policy_of_the_example_can_be_made(example: Path) -> None:
    """No section contradicts itself: each is tried on a policy of its name."""
    data, _ = read_yaml(example.read_text())
    config.load(example, env={})
    make = {
        "bulkhead": lambda name: everkeel.bulkhead(1, name),
        "cache": lambda name: everkeel.cache(1, name),
        "chaos": lambda name: everkeel.chaos(name, error=OSError),
        "collapse": lambda name: everkeel.collapse(1, name),
        "fallback": lambda name: everkeel.fallback(1, name=name),
        "rate_limit": lambda name: everkeel.rate_limit(1, name=name, key=len),
        "rate_limit_chain": lambda name: everkeel.rate_limit_chain(name=name, a=everkeel.rate_limit(5)),
        "timeout": lambda name: everkeel.timeout(1, name),
    }
    for policy_type in HOMES:
        for name in set(data[policy_type]) - {"default"}:
            policy = make.get(policy_type, getattr(everkeel, policy_type))(name)
            sources = {source for _, source in config.effective(policy).values()}
            assert any("everkeel.yaml:" in source for source in sources), (policy_type, name)
