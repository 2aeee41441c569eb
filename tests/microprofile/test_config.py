"""The configuration of the process: read once, at first use."""

from __future__ import annotations

import pytest

from everkeel.microprofile import config
from everkeel.microprofile.config import Configuration
from everkeel.microprofile.exceptions import FaultToleranceDefinitionException


def _of_pay(configuration: Configuration) -> dict[str, object]:
    return configuration.overrides("Retry", level="method", class_name="shop.Orders", method="pay")


def test_without_configure_it_is_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRY_MAXRETRIES", "9")
    found = config.current().find("Retry/maxRetries")
    assert found is not None
    assert (found.text, found.source) == ("9", "environment")


def test_the_environment_is_read_at_first_use_and_not_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config.current()
    monkeypatch.setenv("RETRY_MAXRETRIES", "9")
    assert config.current().find("Retry/maxRetries") is None


def test_configured_sources_stand_beside_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEOUT_VALUE", "9")
    config.configure({"Retry/maxRetries": 2})
    texts = [config.current().find(key) for key in ("Retry/maxRetries", "Timeout/value")]
    assert [found.text for found in texts if found] == ["2", "9"]


def test_the_environment_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEOUT_VALUE", "9")
    config.configure(environment=False)
    assert config.current().find("Timeout/value") is None


def test_configuring_twice_before_the_first_use_means_the_second() -> None:
    config.configure({"Retry/maxRetries": 1}, environment=False)
    config.configure({"Retry/maxRetries": 2}, environment=False)
    found = config.current().find("Retry/maxRetries")
    assert found is not None
    assert found.text == "2"


def test_configuring_after_the_first_use_is_refused() -> None:
    config.current()
    with pytest.raises(FaultToleranceDefinitionException, match="must be called before the first guarded call"):
        config.configure({"Retry/maxRetries": 1})


def test_a_wrong_value_names_class_method_annotation_parameter_key_and_source() -> None:
    with pytest.raises(FaultToleranceDefinitionException) as caught:
        _of_pay(Configuration({"Retry/maxRetries": "many"}))
    assert str(caught.value) == (
        "shop.Orders.pay: Retry.maxRetries must be a whole number (got 'many' for Retry/maxRetries from mapping)"
    )


def test_a_wrong_switch_is_told_at_once() -> None:
    with pytest.raises(
        FaultToleranceDefinitionException, match="MP_Fault_Tolerance_Metrics_Enabled must be true or false"
    ):
        Configuration({config.METRICS: "perhaps"})


def test_blanks_around_a_value_do_not_count() -> None:
    assert _of_pay(Configuration({"Retry/maxRetries": " 2\t"})) == {"maxRetries": 2}


def test_what_is_expected_is_not_yet_settled() -> None:
    assert config.expected().find("Retry/maxRetries") is None
    config.configure({"Retry/maxRetries": 2}, environment=False)
    found = config.expected().find("Retry/maxRetries")
    assert found is not None
    assert found.text == "2"
    assert config.expected() is config.current()
