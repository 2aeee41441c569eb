"""Wrong settings fail when they are written, and say what is wrong with them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from everkeel import CircuitBreaker, ConfigError, circuit_breaker, exponential, registry
from everkeel.testing import assert_state

pytestmark = pytest.mark.usefixtures("clock")

ERRORS = "must be exception classes or predicates on an exception, not"
OPEN_FOR = (
    "must be a Backoff (constant, linear, exponential, fibonacci), seconds, a sequence of seconds, a function of the "
    "attempt, or a table from error class to one of these"
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"failure_rate": 50}, "failure_rate must be a share above 0 and up to 1, or None (no rule by share) (got 50)"),
        ({"window": 0}, "window must be at least 1 (got 0)"),
        (
            {"window_duration": 0},
            "window_duration must be more than 0 seconds, or None (the last calls count, however old) (got 0)",
        ),
        ({"minimum_calls": 0}, "minimum_calls must be at least 1 (got 0)"),
        ({"consecutive": 0}, "consecutive must be at least 1, or None (no rule by failures in a row) (got 0)"),
        ({"slow_duration": -1}, "slow_duration must be more than 0 seconds, or None (no call is slow) (got -1)"),
        ({"slow_rate": 0}, "slow_rate must be a share above 0 and up to 1 (got 0)"),
        ({"on": "ConnectionError"}, f"on {ERRORS} 'ConnectionError' (got 'ConnectionError')"),
        ({"ignore": int}, f"ignore {ERRORS} <class 'int'>, or None (nothing) (got <class 'int'>)"),
        ({"on_result": 503}, "on_result must be a function of the result, or None (every result is fine) (got 503)"),
        ({"causes": "yes"}, "causes must be True or False (got 'yes')"),
        ({"open_for": "soon"}, f"open_for {OPEN_FOR} (got 'soon')"),
        ({"probes": 0}, "probes must be at least 1 (got 0)"),
        (
            {"probe_success_rate": 1.5},
            "probe_success_rate must be a share above 0 and up to 1, or None (close when the probes' failures stay "
            "below failure_rate) (got 1.5)",
        ),
        ({"probe_lease": 0}, "probe_lease must be more than 0 seconds (got 0)"),
        ({"max_half_open": 0}, "max_half_open must be more than 0 seconds, or None (as long as it takes) (got 0)"),
        ({"lost_probe": "success"}, "lost_probe must be 'no_evidence' or 'failure' (got 'success')"),
        ({"ignored": "failure"}, "ignored must be 'no_evidence' or 'success' (got 'failure')"),
        ({"rejections": "success"}, "rejections must be 'no_evidence' or 'failure' (got 'success')"),
        (
            {"open_error": ValueError},
            "open_error must be CircuitOpenError or a class derived from it (got <class 'ValueError'>)",
        ),
        ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
        ({"key": "host"}, "key must be a function of the call's arguments (got 'host')"),
        ({"key": str, "max_keys": 0}, "max_keys must be a whole number of at least 1 (got 0)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_value_that_is_not_allowed_is_refused(settings, message):
    with pytest.raises(ConfigError) as raised:
        circuit_breaker("payments", **settings)
    assert str(raised.value) == f"circuit breaker 'payments': {message}"
    assert registry.get("circuit_breaker", "payments") is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"failure_rate": None},
            "failure_rate must be set, unless consecutive or slow_duration says when to open (got None)",
        ),
        (
            {"window": 5},
            "minimum_calls must not be more than window=5: it would never open (got 10)",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError) as raised:
        circuit_breaker("payments", **settings)
    assert str(raised.value) == f"circuit breaker 'payments': {message}"


@pytest.mark.parametrize("value", ["0.5", True, float("nan"), -0.1, 0])
def test_a_failure_rate_that_is_no_share_is_refused(value):
    with pytest.raises(ConfigError, match="failure_rate must be a share above 0 and up to 1"):
        circuit_breaker("payments", failure_rate=value)


@pytest.mark.parametrize("value", [2.5, "3", True, None])
def test_a_number_of_probes_that_is_not_whole_is_refused(value):
    with pytest.raises(ConfigError, match="probes must be a whole number of at least 1"):
        circuit_breaker("payments", probes=value)


@pytest.mark.parametrize("named", [KeyboardInterrupt, SystemExit, GeneratorExit, BaseException])
def test_what_is_never_counted_cannot_be_named(named):
    with pytest.raises(ConfigError) as raised:
        circuit_breaker("payments", on=named)
    assert str(raised.value) == (
        f"circuit breaker 'payments': on must not name {named.__name__}: it is never retried, counted or replaced "
        f"(got {named!r})"
    )


def test_a_name_that_is_no_string_is_refused():
    with pytest.raises(ConfigError) as raised:
        circuit_breaker("")
    assert str(raised.value) == "circuit breaker: name must be a non-empty string (got '')"


def test_parentheses_that_are_missing_are_noticed():
    with pytest.raises(ConfigError) as raised:

        @circuit_breaker
        def charge():
            pass

    assert str(raised.value) == "circuit breaker: is used with parentheses: @circuit_breaker()"


def test_a_second_breaker_of_the_same_name_is_refused():
    first = circuit_breaker("payments")
    with pytest.raises(ConfigError, match="payments"):
        circuit_breaker("payments")
    assert registry.get("circuit_breaker", "payments") is first


def test_a_second_breaker_may_replace_the_first():
    first = circuit_breaker("payments")
    second = circuit_breaker("payments", replace=True)
    assert registry.get("circuit_breaker", "payments") is second is not first


def test_an_unknown_setting_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match="has no setting 'failure_rates'; did you mean 'failure_rate'"):
        circuit_breaker("payments").reconfigure(failure_rates=0.5)


def test_seconds_may_be_a_timedelta():
    breaker = circuit_breaker(
        window_duration=timedelta(minutes=1),
        slow_duration=timedelta(milliseconds=500),
        open_for=timedelta(seconds=5),
        probe_lease=timedelta(minutes=2),
        max_half_open=timedelta(hours=1),
    )
    config = breaker.config
    assert (config.window_duration, config.slow_duration, config.open_for.fixed) == (60.0, 0.5, 5.0)
    assert (config.probe_lease, config.max_half_open) == (120.0, 3600.0)


def test_the_defaults_are_those_of_the_docs():
    config = circuit_breaker().config
    assert (config.failure_rate, config.window, config.minimum_calls, config.consecutive) == (0.5, 100, 10, None)
    assert (config.slow_duration, config.open_for.fixed, config.probes, config.probe_lease) == (None, 30.0, 3, 60.0)


def test_a_derived_breaker_has_its_settings_and_a_state_of_its_own():
    payments = circuit_breaker("payments", consecutive=3, open_for=exponential(1))
    payments.force_open()
    refunds = payments.derive("refunds", probes=1)
    assert isinstance(refunds, CircuitBreaker)
    assert (refunds.config.consecutive, refunds.config.probes) == (3, 1)
    assert_state(refunds, "closed")


def test_an_unnamed_breaker_takes_the_name_of_its_function():
    breaker = circuit_breaker()

    @breaker
    def charge():
        pass

    assert breaker.name == f"{charge.__module__}.{charge.__qualname__}"


@pytest.mark.parametrize(
    ("probes", "failure_rate", "probe_success_rate", "needed"),
    [
        (3, 0.5, None, 2),
        (4, 0.5, None, 3),
        (10, 0.1, None, 10),
        (10, 1.0, None, 1),
        (1, 0.01, None, 1),
        (3, None, None, 2),
        (25, 0.5, 0.28, 7),
        (3, 0.5, 1.0, 3),
        (3, 0.5, 0.01, 1),
    ],
)
def test_so_many_probes_must_succeed(probes, failure_rate, probe_success_rate, needed):
    breaker = circuit_breaker(
        probes=probes, failure_rate=failure_rate, probe_success_rate=probe_success_rate, consecutive=1
    )
    assert breaker.config.needed == needed
