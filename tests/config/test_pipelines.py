"""Pipelines that a file defines and code asks for by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from everkeel import (
    ConfigError,
    circuit_breaker,
    config,
    disable,
    enable,
    events,
    pipeline,
    policies_of,
    registry,
    retry,
)
from everkeel.compose import source

CHECKOUT = {
    "pipelines": {
        "checkout": [
            {"fallback": "unknown"},
            {"retry": {"attempts": 2, "backoff": 0}},
            "circuit_breaker",
            {"timeout": "2s"},
        ]
    }
}


def failing() -> str:
    raise ConnectionError


def names(handle: config.ConfiguredPipeline) -> list[tuple[str, str | None]]:
    return [(policy.type, policy.name) for policy in handle]


def test_a_pipeline_is_what_the_file_says() -> None:
    config.load(CHECKOUT, env={})
    checkout = config.pipeline("checkout")
    assert [policy.type for policy in checkout] == ["fallback", "retry", "circuit_breaker", "timeout"]
    assert {policy.name for policy in checkout} == {"pipelines.checkout"}
    assert len(checkout) == 4
    assert checkout.call(failing) == "unknown"
    assert registry.get("retry", "pipelines.checkout").config.attempts == 2  # type: ignore[union-attr]


def test_it_may_be_asked_for_before_the_file_is_loaded() -> None:
    @config.pipeline("checkout")
    def pay() -> str:
        raise ConnectionError

    assert "not defined" in repr(config.pipeline("checkout"))
    with pytest.raises(ConfigError, match="pipeline 'checkout': is not defined"):
        pay()
    config.load(CHECKOUT, env={})
    assert pay() == "unknown"
    assert "retry" in source(pay)
    assert [policy.type for policy in policies_of(pay)] == ["fallback", "retry", "circuit_breaker", "timeout"]
    assert "fallback 'pipelines.checkout' > retry" in repr(config.pipeline("checkout"))


async def test_async_functions_and_generators_are_guarded_too(virtual_time: object) -> None:
    checkout = config.pipeline("checkout")

    @checkout
    async def pay() -> str:
        raise ConnectionError

    @checkout
    def items() -> Iterator[int]:
        yield from (1, 2)

    @checkout
    async def aitems() -> AsyncIterator[int]:
        yield 1

    config.load({"pipelines": {"checkout": [{"fallback": "unknown"}, {"retry": {"backoff": 0}}]}}, env={})
    assert await pay() == "unknown"
    assert list(items()) == [1, 2]
    assert [item async for item in aitems()] == [1]
    assert await checkout.acall(pay) == "unknown"
    with pytest.raises(TypeError, match="pipeline 'checkout': call\\(\\) got a coroutine function"):
        config.pipeline("checkout").call(pay)


def test_a_reload_changes_the_pipeline_and_keeps_the_state_of_what_stays() -> None:
    @config.pipeline("checkout")
    def pay() -> str:
        raise ConnectionError

    config.load(CHECKOUT, env={})
    breaker = next(policy for policy in policies_of(pay) if policy.type == "circuit_breaker")
    for _ in range(4):
        pay()
    failures = breaker.snapshot()["failure"]
    assert failures == 8
    config.load({"pipelines": {"checkout": ["circuit_breaker", {"fallback": ["none"]}]}}, env={})
    assert pay() == "none"
    assert [policy.type for policy in policies_of(pay)] == ["circuit_breaker", "fallback"]
    assert policies_of(pay)[0] is breaker
    assert breaker.snapshot()["failure"] == failures


def test_a_setting_that_a_step_no_longer_has_is_the_default_again() -> None:
    config.pipeline("checkout")
    config.load({"pipelines": {"checkout": [{"retry": {"attempts": 9}}]}}, env={})
    (policy,) = config.pipeline("checkout")
    assert config.effective(policy)["attempts"] == (9, "config")
    config.load({"pipelines": {"checkout": ["retry"]}}, env={})
    assert config.effective(policy)["attempts"] == (3, "default")


def test_a_step_is_configured_like_any_policy() -> None:
    config.load(
        {"retry": {"default": {"attempts": 9, "causes": True}}, **CHECKOUT},
        env={"EVERKEEL_RETRY__PIPELINES__CHECKOUT__MAX_DURATION": "1m"},
    )
    (_, policy, *_) = config.pipeline("checkout")
    assert (policy.config.attempts, policy.config.causes, policy.config.max_duration) == (2, True, 60.0)
    config.load({"retry": {"pipelines.checkout": {"attempts": 7}}, **CHECKOUT}, env={})
    assert policy.config.attempts == 7
    config.change("retry", "pipelines.checkout", attempts=8)
    assert policy.config.attempts == 8


def test_a_step_that_needs_a_value_may_take_it_from_a_section(refused: Callable[..., list[str]]) -> None:
    assert "seconds" in refused({"pipelines": {"quick": ["timeout"]}})[0]
    config.load({"timeout": {"default": {"seconds": "1s"}}, "pipelines": {"quick": ["timeout"]}}, env={})
    assert next(iter(config.pipeline("quick"))).config.seconds == 1.0


def test_two_of_one_type_have_two_names() -> None:
    config.load({"pipelines": {"a": [{"retry": 2}, {"timeout": 5}, {"retry": 3}]}}, env={})
    assert names(config.pipeline("a")) == [
        ("retry", "pipelines.a"),
        ("timeout", "pipelines.a"),
        ("retry", "pipelines.a#2"),
    ]
    assert [one.config.attempts for one in config.pipeline("a") if one.type == "retry"] == [2, 3]


def test_a_named_step_is_the_policy_of_that_name() -> None:
    payments = circuit_breaker("payments", window=50)
    data = {"pipelines": {one: [{"circuit_breaker": {"name": "payments", "open_for": "5s"}}] for one in "ab"}}
    config.load(data, env={})
    assert list(config.pipeline("a")) == list(config.pipeline("b")) == [payments]
    assert (payments.config.window, payments.config.open_for.delay(1)) == (50, 5.0)


def test_a_named_step_that_nobody_made_is_made_once() -> None:
    config.pipeline("a")
    config.pipeline("b")
    config.load({"pipelines": {one: [{"circuit_breaker": {"name": "payments"}}] for one in "ab"}}, env={})
    (one,), (other,) = config.pipeline("a"), config.pipeline("b")
    assert one is other is registry.get("circuit_breaker", "payments")


def test_a_step_may_have_a_key_that_was_registered(refused: Callable[..., list[str]]) -> None:
    data = {"pipelines": {"a": [{"rate_limit": {"permits": 1, "per": "1h", "key": "tenant", "max_keys": 10}}]}}
    assert "nothing is registered as 'tenant'" in refused(data)[0]
    config.register("tenant", lambda tenant: tenant)
    config.load(data, env={})

    @config.pipeline("a")
    def call(tenant: str) -> str:
        return tenant

    assert [call("a"), call("b")] == ["a", "b"]
    with pytest.raises(Exception, match="rate"):
        call("a")


def test_a_fallback_may_be_a_literal_or_a_registered_function() -> None:
    config.register("cached", lambda error: f"cached after {type(error).__name__}")
    steps = {
        "literal": [{"fallback": "cached"}],
        "function": [{"fallback": {"function": "cached"}}],
        "table": [{"fallback": {"value": {"a": 1}}}],
        "whole": [{"fallback": {"alternatives": [{"by_error": {"OSError": 1}}, 2], "on": "ConnectionError"}}],
    }
    config.load({"pipelines": steps}, env={})
    answers = {name: config.pipeline(name).call(failing) for name in steps}
    assert answers == {"literal": "cached", "function": "cached after ConnectionError", "table": {"a": 1}, "whole": 1}


def test_a_misspelt_setting_of_a_fallback_is_no_literal(refused: Callable[..., list[str]]) -> None:
    assert "did you mean 'alternatives'?" in refused({"pipelines": {"a": [{"fallback": {"alternativs": 1}}]}})[0]


def test_code_may_have_a_default_for_what_no_file_defines() -> None:
    quick = config.pipeline("quick", default=pipeline(retry(attempts=2, backoff=0)))
    tries = []

    @quick
    def call() -> None:
        tries.append(1)
        raise ConnectionError

    for data, attempts in (
        (None, 2),
        ({"pipelines": {"quick": [{"retry": {"attempts": 5, "backoff": 0}}]}}, 5),
        ({}, 2),
    ):
        if data is not None:
            config.load(data, env={})
        tries.clear()
        with pytest.raises(ConnectionError):
            call()
        assert len(tries) == attempts
        assert quick.defined == (attempts == 5)


def test_a_default_may_come_later() -> None:
    @config.pipeline("quick")
    def call() -> str:
        raise ConnectionError

    from everkeel import fallback

    assert config.pipeline("quick", default=pipeline(fallback("later"))) is config.pipeline("quick")
    assert call() == "later"


def test_what_code_asks_for_must_be_defined(refused: Callable[..., list[str]]) -> None:
    config.pipeline("chekout")
    assert refused(CHECKOUT) == [
        "config: pipelines.chekout pipeline 'chekout': is asked for by code, but not defined; did you mean 'checkout'?"
    ]


def test_asking_for_what_the_file_does_not_define_fails_at_once() -> None:
    config.load(CHECKOUT, env={})
    with pytest.raises(ConfigError, match="did you mean 'checkout'"):
        config.pipeline("chekout")
    config.load({"pipelines": {**CHECKOUT["pipelines"], "chekout": ["retry"]}}, env={})
    assert len(config.pipeline("chekout")) == 1


def test_a_pipeline_that_cannot_guard_its_function_is_refused(refused: Callable[..., list[str]]) -> None:
    async def cached() -> str:
        return "cached"

    config.register("cached", cached)
    data = {"pipelines": {"a": [{"fallback": {"function": "cached"}}]}}

    @config.pipeline("a")
    def call() -> str:
        return "x"

    assert "must not be coroutine functions where the guarded call is sync" in refused(data)[0]


def test_pipelines_that_nobody_asks_for_are_checked_too(
    written: Callable[..., Path], refused: Callable[..., list[str]]
) -> None:
    path = written("pipelines:\n  a:\n    - circuit_breaker:\n        minimum_calls: 500\n")
    assert refused(path)[0].startswith(f"{path}:4: pipelines.a[0].circuit_breaker.minimum_calls must not be more than")


def test_a_step_may_wait_for_a_class_until_it_is_asked_for() -> None:
    config.load({"pipelines": {"a": [{"retry": {"on": "test_nowhere.Busy"}}]}}, env={})
    with pytest.raises(ConfigError, match="is imported"):
        config.pipeline("a")


BAD = [
    ([{"retry": False}], "must be a table of settings, or true for the defaults (got False)"),
    ([{"retry": {"name": ""}}], "must be a name (got '')"),
    ([{"retry": {"max_keys": 0}}], "must be a whole number of at least 1 (got 0)"),
    ([{"retry": 1, "timeout": 1}], "must be one policy"),
    ([{"rate_limit_chain": {"name": "nobody"}}], "cannot be made by a file"),
    ([{"rate_limit_chain": 5}], "must be a table of settings"),
    ("retry", "must be a list of policies, outermost first (got 'retry')"),
]


@pytest.mark.parametrize(("steps", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_step_is_refused(refused: Callable[..., list[str]], steps: object, message: str) -> None:
    config.pipeline("a")
    assert message in refused({"pipelines": {"a": steps}})[0]


def test_everkeel_switched_off_calls_plainly() -> None:
    @config.pipeline("nowhere")
    def call() -> str:
        return "plain"

    disable()
    try:
        assert call() == "plain"
    finally:
        enable()
    with pytest.raises(ConfigError):
        call()


def test_the_events_of_a_pipelines_policies_are_heard() -> None:
    config.load(CHECKOUT, env={})
    checkout = config.pipeline("checkout")
    heard: list[events.FellBack] = []
    with next(iter(checkout)).subscribe(heard.append, events.FellBack):
        checkout(failing)()
    assert len(heard) == 1


def test_methods_are_guarded() -> None:
    config.load(CHECKOUT, env={})

    class Client:
        @config.pipeline("checkout")
        def pay(self) -> str:
            raise ConnectionError

        @staticmethod
        @config.pipeline("checkout")
        def refund() -> str:
            raise ConnectionError

    assert (Client().pay(), Client.refund()) == ("unknown", "unknown")
