"""Variables of the environment: the names, the texts, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everkeel import cache, chaos, circuit_breaker, config, exponential, fallback, feature_toggle, retry, timeout


def test_a_policy_by_name_and_all_by_default() -> None:
    fetch, other = retry("fetch_user"), retry("other")
    config.load({}, env={"EVERKEEL_RETRY__FETCH_USER__ATTEMPTS": "5", "EVERKEEL_RETRY__DEFAULT__ATTEMPTS": "7"})
    assert (fetch.config.attempts, other.config.attempts) == (5, 7)


def test_dots_are_two_underscores() -> None:
    @retry()
    def fetch() -> None: ...

    (policy,) = __import__("everkeel").policies_of(fetch)
    path = policy.name.replace(".", "__").replace("<locals>", "LOCALS").upper()
    config.load({}, env={f"EVERKEEL_RETRY__{path}__ATTEMPTS": "9"})
    assert policy.config.attempts == 9


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    one = retry("one")
    monkeypatch.setenv("EVERKEEL_RETRY__ONE__ATTEMPTS", "5")
    loaded = config.load({})
    assert one.config.attempts == 5
    monkeypatch.setenv("EVERKEEL_RETRY__ONE__ATTEMPTS", "6")
    loaded.reload()
    assert one.config.attempts == 6
    monkeypatch.delenv("EVERKEEL_RETRY__ONE__ATTEMPTS")
    loaded.reload()
    assert one.config.attempts == 3


@pytest.mark.parametrize(
    ("make", "setting", "text", "value"),
    [
        (retry, "ATTEMPTS", "none", None),
        (retry, "ATTEMPTS", "null", None),
        (retry, "MAX_DURATION", "500ms", 0.5),
        (retry, "MAX_DURATION", "2", 2.0),
        (retry, "CAUSES", "yes", True),
        (retry, "CAUSES", "0", False),
        (retry, "ON", "ConnectionError,TimeoutError", (ConnectionError, TimeoutError)),
        (retry, "ON", "ConnectionError", ConnectionError),
        (retry, "ON", '["ConnectionError"]', (ConnectionError,)),
        (retry, "BACKOFF", '{"exponential": {"first": "1s"}}', exponential(1)),
        (retry, "JITTER", "equal", "equal"),
        (retry, "MODE", "shadow", "shadow"),
        (retry, "ENABLED", "false", "off"),
        (retry, "ENABLED", "on", "enforce"),
        (feature_toggle, "ENABLED", "false", False),
        (feature_toggle, "SALT", "5", "5"),
        (feature_toggle, "ALLOW", "ann,bob", frozenset({"ann", "bob"})),
        (circuit_breaker, "FAILURE_RATE", "0.25", 0.25),
    ],
)  # fmt: skip
def test_what_a_text_stands_for(make: Callable[..., object], setting: str, text: str, value: object) -> None:
    policy = make("one")
    config.load({}, env={f"EVERKEEL_{policy.type.upper()}__ONE__{setting}": text})  # type: ignore[attr-defined]
    shown = setting.lower()
    if shown == "enabled" and policy.type == "retry":  # type: ignore[attr-defined]
        shown = "mode"
    assert getattr(policy.config, shown) == value  # type: ignore[attr-defined]


BAD = [
    ("EVERKEEL_RETYR__ONE__ATTEMPTS", "1", "is about no type of policy; did you mean 'RETRY'? (got '1')"),
    ("EVERKEEL_RETRY__ONE__ATEMPTS", "1", "is no setting of retry; did you mean 'attempts'? (got '1')"),
    ("EVERKEEL_RETRY__ONE__ATTEMPTS", "many", "must be a whole number of at least 1, or null (got 'many')"),
    ("EVERKEEL_RETRY__ONE__ATTEMPTS", "0", "must be at least 1, or null (got '0')"),
    ("EVERKEEL_RETRY__ONE__ENABLED", "perhaps", "must be true or false (got 'perhaps')"),
    ("EVERKEEL_RETRY__ONE__CAUSES", "perhaps", "must be true or false (got 'perhaps')"),
    ("EVERKEEL_RETRY__ATTEMPTS", "5", "must be EVERKEEL_RETRY__<NAME>__<SETTING>, where NAME may be DEFAULT (got '5')"),
    ("EVERKEEL_TIMEOUT__ONE__SECONDS", "soon", "must be a duration such as 500ms"),
    ("EVERKEEL_RETRY__ONE__BACKOFF", "[" * 100_000, "must be a duration, a list of durations"),
]


@pytest.mark.parametrize(("variable", "text", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_variable_is_named(refused: Callable[..., list[str]], variable: str, text: str, message: str) -> None:
    (problem,) = refused({}, {variable: text})
    assert problem.startswith(f"environment: {variable} ")
    assert message in problem
    assert len(problem) < 1000


def test_variables_without_two_underscores_are_not_ours() -> None:
    config.load({}, env={"EVERKEEL_ENABLED": "true", "EVERKEEL_CHAOS": "x", "PATH__A__B": "x", "EVERKEEL_": "x"})


def test_all_bad_variables_are_told_at_once(refused: Callable[..., list[str]]) -> None:
    assert (
        len(refused({"retry": {"x": {"attempts": 0}}}, {name: text for name, text, _ in BAD}))
        == len({n for n, _, _ in BAD}) + 1
    )


def test_settings_that_contradict_each_other_name_the_variable(refused: Callable[..., list[str]]) -> None:
    kept = circuit_breaker("one")
    (problem,) = refused({}, {"EVERKEEL_CIRCUIT_BREAKER__ONE__MINIMUM_CALLS": "500"})
    assert "EVERKEEL_CIRCUIT_BREAKER__ONE__MINIMUM_CALLS" in problem
    assert "must not be more than window=100" in problem
    assert kept.config.minimum_calls == 10


def test_policies_of_other_types_are_not_meant() -> None:
    others = [timeout(5, "one"), cache(5, "one"), fallback(1, name="one"), chaos("one", error=OSError, mode="off")]
    before = [policy.config for policy in others]
    config.load({}, env={"EVERKEEL_RETRY__ONE__MODE": "off"})
    assert [policy.config for policy in others] == before
