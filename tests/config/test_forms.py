"""How configuration writes settings: what each form takes, what it refuses, and that it reads what it shows."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from everkeel import RetryBudget, config, constant, errors, exponential, fibonacci, linear
from everkeel.config.forms import parse
from everkeel.config.names import ProcessNames
from everkeel.config.types import HOMES, PARTS, settings_class
from everkeel.policies.fallback import Alternative, Alternatives
from everkeel.runtime.schedule import as_schedule


def chosen(attempt: int) -> float:
    return attempt * 2.0


def tenant(*args: object) -> str:
    return "acme"


class Rate:
    pass


@pytest.fixture(autouse=True)
def _registered(_fresh: None) -> None:
    config.register("chosen", chosen)
    config.register("tenant", tenant)
    config.register("shared", RetryBudget(ratio=0.5))


def read(path: str, value: Any) -> Any:
    policy_type, name = path.split(".")
    return parse(settings_class(policy_type).may_be_set()[name].metadata["kind"], value, ProcessNames())


GOOD = [
    ("retry.attempts", 5, 5),
    ("retry.attempts", 5.0, 5),
    ("retry.max_duration", "1m", 60.0),
    ("retry.causes", True, True),
    ("retry.on", "ConnectionError", ConnectionError),
    ("retry.on", ["ConnectionError", "TimeoutError"], (ConnectionError, TimeoutError)),
    ("retry.on", "CircuitOpenError", errors.CircuitOpenError),
    ("retry.on", "everkeel.CircuitOpenError", errors.CircuitOpenError),
    ("retry.on", "everkeel.errors.CircuitOpenError", errors.CircuitOpenError),
    ("retry.on", "tenant", tenant),
    ("retry.on", ["OSError", {"function": "tenant"}], (OSError, tenant)),
    ("retry.backoff", 0, constant(0)),
    ("retry.backoff", "200ms", constant(0.2)),
    ("retry.backoff", {"constant": "1s"}, constant(1)),
    ("retry.backoff", {"linear": {"first": "1s", "step": "500ms", "max": "5s"}}, linear(1, 0.5, max=5)),
    ("retry.backoff", {"linear": {"first": 1, "step": None}}, linear(1)),
    ("retry.backoff", {"exponential": {"initial": "200ms", "factor": 2, "max": "30s"}}, exponential(0.2)),
    ("retry.backoff", {"exponential": {"first": "200ms", "max": None}}, exponential(0.2, max=None)),
    ("retry.backoff", {"fibonacci": {"first": 1}}, fibonacci(1)),
    ("retry.jitter", "equal", "equal"),
    ("retry.jitter", "50ms", 0.05),
    ("retry.on_result", "tenant", tenant),
    ("retry.on_result", {"function": "tenant"}, tenant),
    ("circuit_breaker.open_for", "5s", constant(5)),
    ("circuit_breaker.open_error", "CircuitOpenError", errors.CircuitOpenError),
    ("hedge.delay", "50ms", 0.05),
    ("hedge.delay", {"function": "chosen"}, chosen),
    ("chaos.latency", "100ms", (0.1, 0.1)),
    ("chaos.latency", ["100ms", "1s"], (0.1, 1.0)),
    ("chaos.error", ["OSError", "TimeoutError"], (OSError, TimeoutError)),
    ("chaos.window", ["10s", None], (10.0, float("inf"))),
    ("chaos.keys", ["acme", 7], frozenset({"acme", "7"})),
    ("chaos.seed", 7.0, "7"),
    ("feature_toggle.allow", ["ann"], frozenset({"ann"})),
    (
        "feature_toggle.schedule",
        {"from": "2026-12-01T00:00:00Z", "until": None},
        as_schedule((datetime(2026, 12, 1, tzinfo=UTC), None)),
    ),
    (
        "feature_toggle.schedule",
        [{"from": "09:00", "until": "17:30", "timezone": "Europe/Berlin"}],
        as_schedule((time(9, tzinfo=ZoneInfo("Europe/Berlin")), time(17, 30, tzinfo=ZoneInfo("Europe/Berlin")))),
    ),
    ("rate_limit.algorithm", "sliding_window_log", "sliding_window_log"),
    ("rate_limit.cost", 2, 2),
    ("rate_limit.cost", {"function": "tenant"}, tenant),
    ("rate_limit.limits", {"acme": 10, "evil": {"permits": 1, "per": "1m"}}, {"acme": 10, "evil": (1, 60.0)}),
    ("rate_limit.limits", {"acme": {"permits": 5, "per": "1s", "burst": 9}}, {"acme": (5, 1.0, 9)}),
    ("rate_limit.allow", ["ann"], frozenset({"ann"})),
    ("rate_limit.deny", {"function": "tenant"}, tenant),
    ("concurrency_limit.priorities", {"high": 0.5, "low": 0.1}, {"high": 0.5, "low": 0.1}),
    ("concurrency_limit.priority", "low", "low"),
    ("concurrency_limit.priority", {"function": "tenant"}, tenant),
    ("timeout.runs", "inline", "inline"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "expected"), GOOD)
def test_what_a_form_reads(path: str, value: Any, expected: Any) -> None:
    assert read(path, value) == expected


BAD = [
    ("retry.attempts", "5", "must be a whole number"),
    ("retry.attempts", 0, "must be at least 1"),
    ("retry.attempts", True, "must be a whole number"),
    ("retry.attempts", 2.5, "must be a whole number"),
    ("retry.max_duration", "soon", "must be a duration such as 500ms"),
    ("retry.max_duration", 0, "must be more than 0 seconds"),
    ("retry.max_duration", 10**400, "must be a duration"),
    ("retry.max_retry_after", -1, "must not be negative"),
    ("retry.causes", "yes", "must be True or False"),
    ("retry.nested", "both", "must be 'each' or 'outermost'"),
    ("retry.on", [], "must be the name of an exception class"),
    ("retry.on", 5, "must be the name of an exception class"),
    ("retry.on", "not a name", "must be the name of an exception class"),
    ("retry.on", "KeyboardInterrupt", "must not name KeyboardInterrupt"),
    ("retry.on", "int", "there is no int"),
    ("retry.on", "datetime.datetime", "is a class, but none of those"),
    ("retry.on", "sys.path", "sys.path is none"),
    ("retry.on", "ConectionError", "did you mean ConnectionError?"),
    ("retry.backoff", [], "must be a duration, a list of durations"),
    ("retry.backoff", ["1s", "x"], "must be a duration"),
    ("retry.backoff", {}, "must be a duration, a list of durations"),
    ("retry.backoff", {"exp": {}}, "it has no 'exp'"),
    ("retry.backoff", {"exponential": 5}, "must be a table"),
    ("retry.backoff", {"exponential": {"factor": 2}}, "must have first"),
    ("retry.backoff", {"exponential": {"first": 1, "initial": 1}}, "must have first"),
    ("retry.backoff", {"exponential": {"first": 1, "factor": 0.5}}, "factor must be a number of at least 1"),
    ("retry.backoff", {"exponential": {"first": 1, "step": 1}}, "it has no 'step'"),
    ("retry.backoff", {"by_error": {}}, "must be a table from the name of an exception class"),
    ("retry.backoff", {"function": "nobody"}, "nothing is registered as 'nobody'"),
    ("retry.jitter", "some", 'must be "full", "equal", "decorrelated"'),
    ("retry.jitter", -1, 'must be "full"'),
    ("retry.budget", {"share": 1}, "it has no 'share'"),
    ("retry.budget", {"ratio": 2}, "ratio must be a share from 0 to 1"),
    ("retry.budget", "tenant", "must be a RetryBudget"),
    ("retry.budget", 5, "must be a table with ratio and floor"),
    ("retry.on_result", "nobody", "must be a registered function"),
    ("retry.on_result", "shared", "must be a function"),
    ("retry.on_result", 5, "must be the name of a registered function"),
    ("circuit_breaker.failure_rate", 1.5, "must be a share"),
    ("circuit_breaker.open_error", "OSError", "must be CircuitOpenError or a class derived from it"),
    ("circuit_breaker.open_error", 5, "must be the name of an exception class"),
    ("adaptive_throttle.multiplier", 0.5, "must be at least 1"),
    ("adaptive_throttle.multiplier", 10**400, "must be a number"),
    ("fallback.alternatives", [], "must be an alternative"),
    ("fallback.alternatives", {"function": "nobody"}, "nothing is registered as 'nobody'"),
    ("chaos.latency", ["1s"], "must be a duration, or a list of two"),
    ("chaos.window", "1s", "must be a list of two durations"),
    ("chaos.window", ["5s", "1s"], "must begin before it ends"),
    ("chaos.keys", "acme", "must be a list of strings or whole numbers"),
    ("chaos.seed", [], "must be a whole number or a string"),
    ("feature_toggle.schedule", [], "must be {from"),
    ("feature_toggle.schedule", {"from": "2026-12-01T00:00:00"}, "must be {from"),
    ("feature_toggle.schedule", {"from": "2026-13-01T00:00:00Z"}, "must be a moment there is"),
    ("feature_toggle.schedule", {"from": "9", "until": "10:00", "timezone": "UTC"}, "must be {from"),
    ("feature_toggle.schedule", {"from": "09:00", "until": "10:00", "timezone": "Mars"}, "must have a timezone"),
    ("feature_toggle.schedule", {"begin": 1}, "it has no 'begin'"),
    ("feature_toggle.salt", 5, "must be a string"),
    ("rate_limit.algorithm", "magic", "must be token_bucket"),
    ("rate_limit.cost", 0, "must be at least 1"),
    ("rate_limit.limits", 5, "must be a table from key to limit"),
    ("rate_limit.limits", {"a": {"per": 1}}, "permits is missing"),
    ("rate_limit.limits", {"a": {"permits": 1, "x": 1}}, "it has no 'x'"),
    ("concurrency_limit.priorities", {}, "must be a table"),
    ("concurrency_limit.priorities", {"a": 0.9, "b": 0.9}, "the shares must not exceed 1"),
    ("concurrency_limit.priority", 5, "must be the name of a priority"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "message"), BAD)
def test_what_a_form_refuses(path: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(path, value)
    assert message in str(caught.value)


def test_a_backoff_may_be_a_function_or_a_table_by_error() -> None:
    assert read("retry.backoff", {"function": "chosen"}).delay(3) == 6.0
    by_error = read("retry.backoff", {"by_error": {"TimeoutError": "2s", "OSError": [1, 5]}})
    assert "TimeoutError: constant(2.0)" in repr(by_error)


def test_a_budget_may_be_made_or_named() -> None:
    made = read("retry.budget", {"ratio": 0.1})
    assert (made.ratio, made.floor) == (0.1, 3.0)
    assert read("retry.budget", "shared").ratio == 0.5


def test_an_alternative_is_a_literal_unless_it_says_that_it_is_a_function() -> None:
    assert read("fallback.alternatives", "tenant").rows[0][1].given == "tenant"
    assert read("fallback.alternatives", {"function": "tenant"}).rows[0][1].given is tenant
    assert read("fallback.alternatives", {"value": {"function": "x"}}).rows[0][1].given == {"function": "x"}
    assert read("fallback.alternatives", [None]).rows[0][1].given is None
    rows = read("fallback.alternatives", [{"by_error": {"TimeoutError": 1}}, 2]).rows
    assert [(cls, one.given) for cls, one in rows] == [(TimeoutError, 1), (None, 2)]
    assert read("feature_toggle.alternative", {"a": 1}).given == {"a": 1}


@pytest.mark.parametrize(("path", "value", "expected"), [row for row in GOOD if row[2] is not chosen])
def test_what_is_shown_can_be_read_again(path: str, value: Any, expected: Any) -> None:
    kept = read(path, value)
    assert read(path, config.render(kept)) == kept


@pytest.mark.parametrize("policy_type", sorted({*HOMES, *PARTS}))
def test_every_default_can_be_shown_as_json(policy_type: str) -> None:
    import json

    for field in settings_class(policy_type).may_be_set().values():
        json.dumps(config.render(field.default if field.default is not field.default_factory else None))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("inf"), None),
        (Alternatives((1, {TimeoutError: tenant})), [1, {"by_error": {"TimeoutError": {"function": "tenant"}}}]),
        (Alternative({"a": (1, 2)}), {"a": [1, 2]}),
        (RetryBudget(ratio=0.1), {"ratio": 0.1, "floor": 3.0}),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({1: "x"}, {"1": "x"}),
        (object(), None),
        (test_every_default_can_be_shown_as_json, {"function": f"{__name__}.test_every_default_can_be_shown_as_json"}),
        (errors.ShedError, "everkeel.errors.ShedError"),
    ],
)
def test_what_is_shown(value: Any, shown: Any) -> None:
    assert config.render(value) == shown
