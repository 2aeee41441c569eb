"""What a chaos policy may be set to, its bounds, modes, blocks, and what everybody sees of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everkeel import ConfigError, NotRetryable, chaos, circuit_breaker, events, guard, pipeline, policies_of
from everkeel.compose import source
from everkeel.testing import Flaky

pytestmark = pytest.mark.usefixtures("chaotic")

ERRORS = "must be an exception, an exception class, a function that makes one, or a list of those"


class PickyError(Exception):
    def __init__(self, one: int, two: int) -> None: ...


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 2}, "rate must be a share from 0 to 1 (got 2)"),
        ({"latency": 0}, "latency must be more than 0 seconds, or (from, to) in seconds, or None (no latency) (got 0)"),
        (
            {"latency": (2, 1)},
            "latency must be more than 0 seconds, or (from, to) in seconds, or None (no latency) (got (2, 1))",
        ),
        (
            {"latency": "1s"},
            "latency must be seconds as a number, or a timedelta, or None (no latency) (got '1s')",
        ),
        ({"error": int}, f"error {ERRORS}, or None (no error) (got <class 'int'>)"),
        (
            {"error": []},
            "error must be at least one exception, exception class, or function that makes one, or None (no error) "
            "(got [])",
        ),
        (
            {"error": KeyboardInterrupt},
            "error must not be KeyboardInterrupt: that is for the interpreter to raise, or None (no error) "
            "(got <class 'KeyboardInterrupt'>)",
        ),
        (
            {"error": PickyError},
            "error must be a function that makes one, since PickyError needs arguments, or None (no error) "
            f"(got {PickyError!r})",
        ),
        (
            {"error": None},
            "error must be set, unless latency, result or behavior is: there is nothing to inject (got None)",
        ),
        ({"result": 1}, "result must not be set together with error: use two policies (got 1)"),
        ({"behavior": 1}, "behavior must be a function of the call's arguments, or None (no behavior) (got 1)"),
        ({"window": 10}, "window must be (from, until) in seconds; until may be None, or None (at any time) (got 10)"),
        ({"window": (10, 5)}, "window must begin before it ends, or None (at any time) (got (10, 5))"),
        (
            {"schedule": "always"},
            "schedule must be (from, until) as datetimes or as times of day, with a timezone, or a list of such pairs, "
            "or None (at any time) (got 'always')",
        ),
        ({"keys": "blue"}, "keys must be several words, such as a set of strings, or None (every key) (got 'blue')"),
        ({"keys": {"blue"}}, "keys needs key, a function of the call's arguments"),
        ({"tags": 1}, "tags must be several words, such as a set of strings, or None (tags do not matter) (got 1)"),
        ({"seed": 1.5}, "seed must be a whole number or a string (got 1.5)"),
        ({"max_failures": 0}, "max_failures must be at least 1, or None (no bound on their number) (got 0)"),
        (
            {"max_failure_rate": 0},
            "max_failure_rate must be a share above 0 and up to 1, or None (no bound on their share) (got 0)",
        ),
        ({"failure_window": 0}, "failure_window must be more than 0 seconds (got 0)"),
        ({"minimum_calls": 0}, "minimum_calls must be at least 1 (got 0)"),
        ({"key": 1}, "key must be a function of the call's arguments (got 1)"),
        ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
    ],
)
def test_a_wrong_setting_says_whose_it_is_what_it_got_and_what_it_allows(settings, message):
    with pytest.raises(ConfigError) as raised:
        chaos("faults", **{"error": KeyError, **settings})
    assert str(raised.value) == f"chaos 'faults': {message}"


def test_a_key_without_a_text_of_its_own_is_refused(guarded):
    call = guarded(chaos("faults", latency=1, key=lambda key: 1.5), Flaky("ok"))
    with pytest.raises(ConfigError) as raised:
        call("x")
    assert str(raised.value) == (
        "chaos 'faults': key must return a string, an int, bytes, a UUID, or a tuple of those (got 1.5)"
    )


def test_one_in_a_thousand_is_hit_unless_told_otherwise(ended):
    policy = chaos("faults", result="fault")
    assert 0 < ended(lambda: policy.call(str), 10_000).count("fault") < 30


# ------------------------------------------------------------------ enough is enough


def test_too_many_failures_stop_it(guarded, ended, heard):
    policy = chaos("faults", rate=1.0, error=ConnectionError, max_failures=3)
    call = guarded(policy, Flaky("ok"))
    assert ended(call, 6) == ["ConnectionError"] * 3 + ["ok"] * 3
    snapshot = policy.snapshot()
    assert (snapshot["active"], snapshot["inactive_because"]) == (False, "stopped: 3 calls failed within 60 s")
    assert heard.of(events.ChaosStopped) == [
        events.ChaosStopped(policy="faults", policy_type="chaos", reason="3 calls failed within 60 s")
    ]


def test_failures_that_were_not_injected_count_too(guarded, ended):
    policy = chaos("faults", rate=0.0, error=ConnectionError, max_failures=2)
    ended(guarded(policy, Flaky(OSError)), 2)
    assert not policy.snapshot()["active"]


def test_what_says_nothing_about_health_does_not_count(guarded, ended):
    policy = chaos("faults", rate=0.0, error=ConnectionError, max_failures=1)
    ended(guarded(policy, Flaky(NotRetryable("out of stock"))), 5)
    assert policy.snapshot()["active"]


def test_failures_long_ago_do_not_count(guarded, chaotic, ended):
    policy = chaos("faults", rate=1.0, error=ConnectionError, max_failures=2, failure_window=10)
    call = guarded(policy, Flaky("ok"))
    for _ in range(5):
        assert ended(call, 1) == ["ConnectionError"]
        chaotic.advance(11)
    assert ended(call, 3) == ["ConnectionError", "ConnectionError", "ok"]


def test_too_large_a_share_of_failures_stops_it(guarded, ended):
    policy = chaos("faults", rate=0.0, error=ConnectionError, max_failure_rate=0.5, minimum_calls=4)
    ended(guarded(policy, Flaky("ok", OSError, "ok", OSError)), 3)
    assert policy.snapshot()["active"]
    ended(guarded(policy, Flaky(OSError)), 1)
    assert policy.snapshot()["inactive_because"] == "stopped: 50% of 4 calls failed within 60 s"


def test_it_goes_on_when_it_is_resumed_with_the_numbers_it_had(guarded, ended):
    policy = chaos("faults", rate=1.0, error=ConnectionError, max_failures=2)
    call = guarded(policy, Flaky("ok"))
    ended(call, 5)
    policy.resume()
    assert ended(call, 3) == ["ConnectionError", "ConnectionError", "ok"]
    assert [entry["call"] for entry in policy.record()["faults"]] == [1, 2, 3, 4]


def test_a_listener_may_stop_it(guarded, ended):
    policy = chaos("faults", rate=1.0, error=ConnectionError)
    payments = circuit_breaker("payments", minimum_calls=2)
    payments.subscribe(lambda event: policy.stop("the circuit opened"), events.CircuitOpened)
    ended(guarded(pipeline(payments, policy), Flaky("ok")), 5)
    assert policy.snapshot()["inactive_because"] == "stopped: the circuit opened"


def test_a_second_stop_changes_nothing(heard):
    policy = chaos("faults", latency=1)
    policy.stop("one")
    policy.stop("two")
    assert [event.reason for event in heard.of(events.ChaosStopped)] == ["one"]


def test_bounds_may_be_set_and_changed_while_it_works(guarded, ended):
    policy = chaos("faults", rate=1.0, error=ConnectionError)
    call = guarded(policy, Flaky("ok"))
    ended(call, 3)
    policy.reconfigure(max_failures=2, failure_window=30)
    assert ended(call, 3) == ["ConnectionError", "ConnectionError", "ok"]


# ------------------------------------------------------------------ modes, live changes, keys


def test_a_shadow_counts_who_would_have_been_hit(guarded, ended, heard):
    policy = chaos("faults", rate=0.5, error=ConnectionError, mode="shadow")
    call = guarded(policy, Flaky("ok"))
    assert ended(call, 20) == ["ok"] * 20
    twin = chaos("twin", rate=0.5, error=ConnectionError)
    hit = ended(lambda: twin.call(str), 20).count("ConnectionError")
    snapshot = policy.snapshot()
    assert (snapshot["would"], snapshot["injected"], snapshot["success"]) == ({"inject": hit}, {}, 20)
    assert [event.action for event in heard.of(events.WouldHave)] == ["inject"] * hit


def test_a_shadow_knows_the_keys(guarded, ended):
    policy = chaos("faults", rate=1.0, latency=1, mode="shadow", keys={"blue"}, key=lambda key: key)
    call = guarded(policy, Flaky("ok", OSError))
    assert [*ended(call, 1, "blue"), *ended(call, 1, "red")] == ["ok", "OSError"]
    assert policy.snapshot()["would"] == {"inject": 1}


def test_off_does_nothing_at_all(guarded, ended):
    policy = chaos("faults", rate=1.0, error=ConnectionError, mode="off")
    assert ended(guarded(policy, Flaky("ok")), 2) == ["ok", "ok"]
    assert policy.snapshot()["inactive_because"] == "its mode is off"


def test_a_change_keeps_the_numbers(guarded, ended):
    policy = chaos("faults", rate=0.0, result="fault", seed=7)
    call = guarded(policy, Flaky("ok"))
    ended(call, 10)
    policy.reconfigure(rate=0.5)
    twin = chaos("twin", rate=0.5, result="fault", seed=7)
    expected = ended(lambda: twin.call(lambda: "ok"), 20)[10:]
    assert ended(call, 10) == expected


def test_keys_beyond_the_cap_share_their_numbers(guarded, ended):
    policy = chaos("faults", rate=1.0, result="fault", key=lambda key: key, max_keys=1)
    call = guarded(policy, Flaky("ok"))
    for key in ("a", "b", "c"):
        ended(call, 1, key)
    assert [(entry["key"], entry["call"]) for entry in policy.record()["faults"]] == [("", 1), ("", 2), ("a", 1)]
    assert policy.snapshot()["calls"] == 3


# ------------------------------------------------------------------ blocks


def test_a_block_may_not_begin(chaotic):
    policy = chaos("faults", rate=1.0, latency=1, error=ConnectionError, max_failures=2)
    with pytest.raises(ConnectionError), policy:
        pytest.fail("the block was entered")

    async def main() -> None:
        with pytest.raises(ConnectionError):
            async with policy:
                pytest.fail("the block was entered")

    chaotic.run(main)
    assert chaotic.monotonic() == 2
    assert not policy.snapshot()["active"]
    with policy:
        pass


def test_a_block_that_fails_counts():
    policy = chaos("faults", rate=0.0, latency=1, max_failures=1)
    with policy:
        pass
    assert policy.snapshot()["success"] == 1
    with pytest.raises(OSError), policy:
        raise OSError
    assert not policy.snapshot()["active"]


def test_an_entry_is_about_its_key():
    policy = chaos("faults", rate=1.0, error=ConnectionError, keys={"blue"}, key=lambda key: key)
    with policy.entry(key="red"):
        pass
    with pytest.raises(ConnectionError), policy.entry(key="blue"):
        pytest.fail("the block was entered")


def test_a_block_has_no_result_to_replace():
    with pytest.raises(TypeError) as raised, chaos("faults", result=1):
        pytest.fail("the block was entered")
    assert str(raised.value) == (
        "chaos 'faults' cannot be a block: it injects a result, and a block has no value to replace; "
        "decorate a function, or use call() or acall()"
    )


# ------------------------------------------------------------------ being seen


def test_its_snapshot_says_everything(guarded, ended):
    policy = chaos("faults", rate=1.0, latency=1, error=ConnectionError, seed="storm")
    ended(guarded(policy, Flaky("ok")), 2)
    assert policy.snapshot() == {
        "name": "faults",
        "type": "chaos",
        "mode": "enforce",
        "success": 0,
        "failure": 0,
        "ignored": 0,
        "rejected": 0,
        "would": {},
        "active": True,
        "inactive_because": None,
        "seed": "storm",
        "replaying": False,
        "injected": {"latency": 2, "error": 2},
        "calls": 2,
    }


def test_each_fault_is_told(guarded, heard):
    policy = chaos("faults", rate=1.0, behavior=lambda key: None, latency=2, error=TimeoutError, key=lambda key: key)
    with pytest.raises(TimeoutError) as raised:
        guarded(policy, Flaky("ok"))("blue")
    assert heard.of(events.ChaosInjected) == [
        events.ChaosInjected(
            policy="faults",
            policy_type="chaos",
            kinds=("behavior", "latency", "error"),
            call=1,
            latency=2.0,
            error=raised.value,
            key="blue",
        )
    ]


def test_guard_puts_it_innermost():
    @guard(chaos=0.25, bulkhead=5, timeout=1)
    async def fetch() -> None: ...

    policies = policies_of(fetch)
    assert [policy.type for policy in policies] == ["timeout", "bulkhead", "chaos"]
    assert (policies[2].config.rate, policies[2].config.error) == (0.25, (ConnectionError,))

    @guard(chaos=True)
    def other() -> None: ...

    assert policies_of(other)[0].config.rate == 0.001


def test_woven_it_draws_and_ticks():
    @chaos(latency=1, rate=0.0)
    async def fetch(url: str) -> str:
        return url

    asyncio.run(fetch("/"))
    assert source(fetch) == (
        "async def fetch(url):\n"
        "    fault = chaos.draw()\n"
        "    if fault is None:\n"
        "        result = await fn(url)\n"
        "    else:\n"
        "        result = await chaos.ainject(fault, REST, url)\n"
        "    tick(ok)\n"
        "    return result\n"
    )


def test_an_injected_error_leaves_no_cycle_behind():
    import gc
    import weakref

    class FaultError(Exception):
        """One that can be referred to weakly."""

    policy = chaos("faults", rate=1.0, error=FaultError)
    gone: list[Any] = []

    def hit() -> None:
        try:
            policy.call(str)
        except FaultError as error:
            gone.append(weakref.ref(error))

    gc.disable()
    try:
        hit()
        assert gone[0]() is None
    finally:
        gc.enable()
