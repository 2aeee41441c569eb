"""What can be injected, into which calls, and that nothing can where nobody has enabled it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import everkeel
from everkeel import (
    ConfigError,
    TimeoutExceededError,
    chaos,
    chaos_tags,
    deadline,
    disable_chaos,
    enable_chaos,
    explain,
    pipeline,
    retry,
    timeout,
)
from everkeel.compose import source
from everkeel.policies.chaos import permission
from everkeel.testing import Flaky, cancel_at_every_await

# ------------------------------------------------------------------ what is injected


def test_an_error_is_raised_in_place_of_the_call(guarded, chaotic):
    fetch = Flaky("ok")
    with pytest.raises(ConnectionError, match="injected by chaos"):
        guarded(chaos("faults", rate=1.0, error=ConnectionError), fetch)()
    assert fetch.calls == 0


def test_an_injected_error_says_that_it_is_one(guarded, chaotic):
    with pytest.raises(TimeoutError) as raised:
        guarded(chaos("faults", rate=1.0, error=TimeoutError), Flaky("ok"))()
    assert raised.value.__notes__ == ["injected by chaos 'faults', call 1"]
    (decision,) = explain(raised.value).decisions
    assert str(decision) == "chaos 'faults' injected: an error at call 1"


def test_an_exception_is_copied_so_that_it_does_not_grow(guarded, chaotic):
    given = OSError(28, "no space left")
    call = guarded(chaos("faults", rate=1.0, error=given), Flaky("ok"))
    seen = []
    for _ in range(2):
        with pytest.raises(OSError, match="no space left") as raised:
            call()
        seen.append(raised.value)
    assert seen[0] is not seen[1]
    assert given not in seen
    assert (given.__traceback__, hasattr(given, "__notes__")) == (None, False)


def test_a_function_makes_the_error(guarded, chaotic):
    call = guarded(chaos("faults", rate=1.0, error=lambda: KeyError("id")), Flaky("ok"))
    with pytest.raises(KeyError, match="id"):
        call()


def test_a_function_that_makes_no_error_says_so(guarded, chaotic):
    call = guarded(chaos("faults", rate=1.0, error=lambda: "oops"), Flaky("ok"))  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="a function as error= must return an exception, not 'oops'"):
        call()


def test_of_several_errors_one_is_chosen(guarded, chaotic, ended):
    call = guarded(chaos("faults", rate=1.0, error=[KeyError, ConnectionError, TimeoutError]), Flaky("ok"))
    assert set(ended(call, 50)) == {"KeyError", "ConnectionError", "TimeoutError"}


def test_a_result_is_returned_in_place_of_the_call(guarded, chaotic):
    fetch = Flaky("ok")
    assert guarded(chaos("faults", rate=1.0, result=None), fetch)() is None
    assert fetch.calls == 0


def test_a_result_may_be_a_function_of_the_arguments(guarded, chaotic):
    policy = chaos("faults", rate=1.0, result=lambda user: f"stale {user}")
    assert guarded(policy, Flaky("ok"))("alice") == "stale alice"


def test_latency_comes_before_the_call(guarded, chaotic):
    assert guarded(chaos("faults", rate=1.0, latency=2.5), Flaky("ok"))() == "ok"
    assert (chaotic.monotonic(), chaotic.sleeps) == (2.5, [2.5])


def test_latency_may_lie_between_two_lengths(guarded, chaotic, ended):
    ended(guarded(chaos("faults", rate=1.0, latency=(1, timedelta(seconds=3))), Flaky("ok")), 50)
    assert all(1 <= slept < 3 for slept in chaotic.sleeps)
    assert len(set(chaotic.sleeps)) == 50


def test_a_behavior_happens_first_and_gets_the_arguments(guarded, chaotic):
    seen: list[Any] = []

    def behave(user: str) -> None:
        seen.append((user, chaotic.monotonic()))

    policy = chaos("faults", rate=1.0, behavior=behave, latency=1, error=ConnectionError)
    with pytest.raises(ConnectionError):
        guarded(policy, Flaky("ok"))("alice")
    assert (seen, chaotic.monotonic()) == ([("alice", 0.0)], 1.0)


def test_an_async_behavior_and_result_are_awaited(awaited, chaotic):
    async def behave() -> None:
        await asyncio.sleep(1)

    async def answer() -> str:
        await asyncio.sleep(1)
        return "fault"

    policy = chaos("faults", rate=1.0, behavior=behave, result=answer)
    assert chaotic.run(awaited.guarded(policy, Flaky("ok").async_())()) == "fault"
    assert chaotic.monotonic() == 2


@pytest.mark.parametrize("parameter", ["behavior", "result"])
def test_an_async_one_cannot_be_injected_into_a_sync_call(chaotic, parameter):
    async def fault() -> None: ...

    policy = chaos("faults", **{parameter: fault})
    acts: list[Any] = [lambda: policy(Flaky("ok")), lambda: policy.call(str)]
    if parameter == "behavior":
        acts.append(policy.__enter__)
    for act in acts:
        with pytest.raises(ConfigError) as raised:
            act()
        assert str(raised.value) == (
            f"chaos 'faults': {parameter} must not be a coroutine function where the guarded call is sync (got one)"
        )


def test_a_behavior_that_raises_is_the_call_s_error(guarded, chaotic):
    with pytest.raises(ZeroDivisionError):
        guarded(chaos("faults", rate=1.0, behavior=Flaky(ZeroDivisionError)), Flaky("ok"))()


def test_a_call_that_is_not_hit_is_left_alone(guarded, chaotic, ended):
    policy = chaos("faults", rate=0.0, error=ConnectionError)
    assert ended(guarded(policy, Flaky("ok", KeyError("own"))), 2) == ["ok", "KeyError"]
    assert policy.snapshot()["success"] == 1


def test_streams_are_hit_before_their_first_item(streamed, chaotic):
    def rows() -> Any:
        yield from ["a", "b"]

    assert streamed(chaos("slow", rate=1.0, latency=2), rows)() == ["a", "b"]
    assert chaotic.monotonic() == 2
    assert streamed(chaos("result", rate=1.0, result=["x"]), rows)() == ["x"]
    with pytest.raises(ConnectionError):
        streamed(chaos("error", rate=1.0, error=ConnectionError), rows)()


# ------------------------------------------------------------------ into which calls


def test_only_within_its_window(guarded, chaotic, ended):
    call = guarded(chaos("faults", rate=1.0, result="fault", window=(10, 20)), Flaky("ok"))
    seen = []
    for _ in range(4):
        seen += ended(call, 1)
        chaotic.advance(9.5)
    assert seen == ["ok", "ok", "fault", "ok"]


def test_a_window_counts_from_when_it_became_active(guarded, chaotic, ended):
    disable_chaos()
    call = guarded(chaos("faults", rate=1.0, result="fault", window=(10, None)), Flaky("ok"))
    chaotic.advance(100)
    enable_chaos()
    assert ended(call, 1) == ["ok"]
    chaotic.advance(10)
    assert ended(call, 1) == ["fault"]


def test_only_by_its_schedule(guarded, chaotic, ended):
    begins = datetime(2026, 1, 1, 1, tzinfo=UTC)
    call = guarded(chaos("faults", rate=1.0, result="fault", schedule=(begins, None)), Flaky("ok"))
    assert ended(call, 1) == ["ok"]
    chaotic.advance(3600)
    assert ended(call, 1) == ["fault"]


def test_only_the_keys_that_are_named(guarded, chaotic, ended):
    policy = chaos("faults", rate=1.0, result="fault", keys={"blue", 7}, key=lambda tenant: tenant)
    call = guarded(policy, Flaky("ok"))
    assert [*ended(call, 1, "blue"), *ended(call, 1, "red"), *ended(call, 1, 7)] == ["fault", "ok", "fault"]


def test_only_calls_that_carry_a_tag(guarded, chaotic, ended):
    call = guarded(chaos("faults", rate=1.0, result="fault", tags={"load test", "canary"}), Flaky("ok"))
    assert ended(call, 1) == ["ok"]
    with chaos_tags("nightly"):
        assert ended(call, 1) == ["ok"]
        with chaos_tags("canary"):
            assert ended(call, 1) == ["fault"]
        assert ended(call, 1) == ["ok"]


def test_about_the_share_is_hit_that_was_asked_for(chaotic, ended):
    policy = chaos("faults", rate=0.1, result="fault")
    assert 900 < ended(lambda: policy.call(str), 10_000).count("fault") < 1100


# ------------------------------------------------------------------ only where it is enabled


def test_where_nobody_enabled_it_nothing_happens_and_nothing_is_paid(guarded, clock, ended):
    policy = chaos("faults", rate=1.0, error=ConnectionError, mode="enforce")
    assert ended(guarded(policy, Flaky("ok")), 3) == ["ok"] * 3
    snapshot = policy.snapshot()
    assert (snapshot["active"], snapshot["calls"], policy.layers()) == (False, 0, ())
    assert snapshot["inactive_because"] == "chaos is not enabled for this process"
    assert repr(policy) == "<chaos 'faults', inert: chaos is not enabled for this process>"

    @policy
    def fetch(url: str) -> str:
        return url

    fetch("/")
    assert source(fetch) == "def fetch(url):\n    result = fn(url)\n    return result\n"


def test_it_wakes_up_when_chaos_is_enabled_and_sleeps_when_it_is_disabled(guarded, clock, ended):
    call = guarded(chaos("faults", rate=1.0, result="fault"), Flaky("ok"))
    seen = ended(call, 1)
    enable_chaos()
    seen += ended(call, 1)
    disable_chaos()
    seen += ended(call, 1)
    assert seen == ["ok", "fault", "ok"]


def test_it_says_once_in_the_log_why_nothing_happens(clock, caplog, monkeypatch):
    monkeypatch.setattr(permission, "_quiet", False)
    chaos("off", mode="off", latency=1)
    chaos("one", latency=1)
    chaos("two", latency=1)
    assert [record.getMessage() for record in caplog.records] == [
        "chaos 'one' is inert: chaos is not enabled for this process (everkeel.enable_chaos(), or EVERKEEL_CHAOS=true; "
        "EVERKEEL_CHAOS=false to not be told)"
    ]


@pytest.mark.parametrize(("value", "says"), [("true", "fault "), ("1", "fault "), ("false", "ok "), ("", "ok told")])
def test_the_environment_enables_it(value, says):
    program = (
        "import logging; from everkeel import chaos\n"
        "told = []; logging.getLogger('everkeel').addFilter(lambda record: told.append('told'))\n"
        "print(chaos(rate=1.0, result='fault').call(lambda: 'ok'), *told)"
    )
    environment = {**os.environ, "EVERKEEL_CHAOS": value}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == says.strip()


def test_a_fresh_everkeel_takes_back_that_chaos_was_enabled(clock):
    from everkeel.testing import fresh_everkeel

    with fresh_everkeel():
        enable_chaos()
    assert not permission.on


def test_a_disabled_everkeel_has_no_chaos(guarded, chaotic, ended):
    policy = chaos("faults", rate=1.0, result="fault")
    call = guarded(policy, Flaky("ok"))
    everkeel.disable()
    assert ended(call, 1) == ["ok"]
    assert policy.snapshot()["inactive_because"] == "Everkeel is disabled"


# ------------------------------------------------------------------ with others, and cancelled


def test_other_policies_take_its_faults_for_those_of_the_dependency(guarded, chaotic):
    policy, fetch = chaos("faults", rate=0.5, error=ConnectionError, seed=3), Flaky("ok")
    call = guarded(pipeline(retry("r", attempts=10, backoff=0, on=ConnectionError), policy), fetch)
    assert [call() for _ in range(20)] == ["ok"] * 20
    assert policy.snapshot()["injected"]["error"] > 0


def test_a_timeout_outside_ends_the_latency(awaited, chaotic):
    policy = pipeline(timeout(1, "t"), chaos("faults", rate=1.0, latency=60))
    with pytest.raises(TimeoutExceededError):
        chaotic.run(awaited.guarded(policy, Flaky("ok").async_())())
    assert chaotic.monotonic() == 1


def test_sync_latency_heeds_the_deadline(threaded, chaotic):
    with pytest.raises(TimeoutExceededError), deadline(1):
        threaded(chaos("faults", rate=1.0, latency=60), Flaky("ok"))()
    assert chaotic.monotonic() == 1


def test_a_policy_with_a_clock_of_its_own_waits_on_it(threaded, chaotic):
    from everkeel.testing import VirtualClock

    own = VirtualClock()
    threaded(chaos("faults", rate=1.0, latency=60, clock=own), Flaky("ok"))()
    assert (own.monotonic(), chaotic.monotonic()) == (60.0, 0.0)


def test_whoever_is_cancelled_in_a_fault_has_neither_failed_nor_succeeded(awaited, chaotic):
    policies: list[Any] = []

    async def behave() -> None:
        await asyncio.sleep(1)

    async def work() -> str:
        await asyncio.sleep(1)
        return "ok"

    async def make() -> str:
        policies[:] = [chaos(rate=1.0, behavior=behave, latency=1, max_failures=1)]
        return await awaited.guarded(policies[0], work)()

    def check(run: Any) -> None:
        (policy,) = policies
        snapshot = policy.snapshot()
        assert run.cancelled == (run.number is not None)
        assert snapshot["active"]  # no bound was reached: a cancelled call is no failure
        assert snapshot["success"] == (run.number is None)

    assert cancel_at_every_await(make, check) == 3
