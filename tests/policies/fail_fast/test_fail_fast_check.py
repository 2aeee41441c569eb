"""The health check: who asks it, how often, and what its answers do."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from everkeel import ConfigError, FailFastError, fail_fast
from everkeel.testing import Flaky, VirtualClock, cancel_at_every_await

REFUSED = ConnectionError("refused")


class Health:
    """A check whose answer a test sets; counts how often it was asked."""

    def __init__(self, answer: Any = True) -> None:
        self.answer, self.asked = answer, 0

    def __call__(self, *key: object) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def awaited(self, *key: object) -> Any:
        await asyncio.sleep(0)
        return self(*key)


@pytest.fixture
def checked(guarded) -> Any:
    """A check as the form needs it: sync or, for coroutines, async."""
    return lambda health: health.awaited if guarded.awaited else health


def test_a_check_that_fails_opens_it_before_the_call_is_made(guarded, checked):
    fetch = Flaky("ok")
    call = guarded(fail_fast("ledger", check=checked(Health(False))), fetch)
    with pytest.raises(FailFastError) as raised:
        call()
    assert str(raised.value) == "fail fast 'ledger' is open (its check failed); try again in 5 s"
    assert fetch.calls == 0


def test_a_check_that_raises_is_bad_news_too(guarded, checked):
    call = guarded(fail_fast("ledger", check=checked(Health(OSError("disk full")))), Flaky("ok"))
    with pytest.raises(FailFastError) as raised:
        call()
    assert raised.value.reason == "its check raised OSError: disk full"


def test_a_check_that_passes_closes_what_it_has_opened(guarded, checked, clock):
    health = Health(False)
    call = guarded(fail_fast("ledger", check=checked(health)), Flaky("ok"))
    with pytest.raises(FailFastError):
        call()
    health.answer = True
    clock.advance(5)
    assert call() == "ok"


def test_a_check_that_passes_closes_what_failures_have_opened(guarded, checked, clock):
    policy = fail_fast("ledger", failures=1, check=checked(Health(True)))
    call = guarded(policy, Flaky(REFUSED, "ok"))
    with pytest.raises(ConnectionError):
        call()
    with pytest.raises(FailFastError) as raised:
        call()
    assert raised.value.retry_after == 5
    clock.advance(5)
    assert call() == "ok"


def test_no_check_closes_what_a_hand_has_opened(guarded, checked, clock):
    policy = fail_fast("ledger", check=checked(Health(True)))
    call = guarded(policy, Flaky("ok"))
    policy.force_open()
    clock.advance(100)
    with pytest.raises(FailFastError) as raised:
        call()
    assert raised.value.retry_after is None


def test_time_does_not_close_what_a_check_has_opened(guarded, checked, clock):
    policy = fail_fast("ledger", check=checked(Health(False)), check_every=100, open_for=1)
    call = guarded(policy, Flaky("ok"))
    for _ in range(2):
        with pytest.raises(FailFastError) as raised:
            call()
        clock.advance(50)
    assert raised.value.retry_after == 50


def test_without_its_check_time_closes_it_after_all(guarded, checked, clock):
    policy = fail_fast("ledger", check=checked(Health(False)), open_for=10)
    call = guarded(policy, Flaky("ok"))
    with pytest.raises(FailFastError):
        call()
    policy.reconfigure(check=None)
    with pytest.raises(FailFastError):
        call()
    clock.advance(10)
    assert call() == "ok"


@pytest.mark.parametrize("answer", [True, False])
def test_it_is_asked_no_more_often_than_it_may_be(guarded, checked, clock, answer):
    health = Health(answer)
    call = guarded(fail_fast("ledger", check=checked(health), check_every=10), Flaky("ok"))
    for _ in range(30):  # 30 calls in 29 seconds
        try:
            call()
        except FailFastError:
            pass
        clock.advance(1)
    assert health.asked == 3


def test_it_is_not_asked_without_calls(guarded, checked, clock):
    health = Health(True)
    guarded(fail_fast("ledger", check=checked(health)), Flaky("ok"))
    clock.advance(1000)
    assert health.asked == 0


def test_with_a_check_alone_failures_do_not_open_it(guarded, checked):
    policy = fail_fast("ledger", failures=None, check=checked(Health(True)))
    call = guarded(policy, Flaky(REFUSED))
    for _ in range(10):
        with pytest.raises(ConnectionError):
            call()
    assert policy.snapshot()["state"] == "closed"


def test_a_keyed_check_gets_the_key(guarded, checked):
    def check(tenant: str) -> bool:
        return tenant != "bad"

    async def acheck(tenant: str) -> bool:
        return check(tenant)

    policy = fail_fast("ledger", check=acheck if guarded.awaited else check, key=lambda tenant: tenant)
    call = guarded(policy, lambda tenant: tenant)
    assert call("good") == "good"
    with pytest.raises(FailFastError):
        call("bad")


def test_a_sync_check_serves_async_calls_too(awaited, clock):
    health = Health(False)
    policy = fail_fast("ledger", check=health)
    with pytest.raises(FailFastError):
        clock.run(awaited.guarded(policy, Flaky("ok").async_())())
    assert health.asked == 1


MESSAGE = "fail fast 'ledger': check must not be a coroutine function where the guarded call is sync (got one)"


def test_an_async_check_cannot_serve_a_sync_function(clock):
    policy = fail_fast("ledger", check=Health().awaited)
    with pytest.raises(ConfigError) as raised:
        policy(lambda: "ok")
    assert str(raised.value) == MESSAGE


def test_an_async_check_cannot_serve_a_sync_call_or_block(clock):
    policy = fail_fast("ledger", check=Health().awaited)
    for act in (lambda: policy.call(str), policy.__enter__):
        with pytest.raises(ConfigError) as raised:
            act()
        assert str(raised.value) == MESSAGE


def test_while_one_task_asks_the_others_go_by_what_is_known(awaited, clock):
    asked = []

    async def slow() -> bool:
        asked.append(1)
        await asyncio.sleep(1)
        return False

    policy = fail_fast("ledger", check=slow)
    call = awaited.guarded(policy, Flaky("ok").async_())

    async def main() -> list[Any]:
        return await asyncio.gather(*(call() for _ in range(5)), return_exceptions=True)

    first, *others = clock.run(main)
    assert isinstance(first, FailFastError)
    assert (others, asked) == (["ok"] * 4, [1])


def test_threads_that_come_together_ask_once(threaded):
    clock, health, barrier = VirtualClock(), Health(True), threading.Barrier(8)
    call = threaded.guarded(fail_fast("ledger", check=health, clock=clock), lambda: "ok")
    answers = []

    def one() -> None:
        barrier.wait(30)
        answers.append(call())

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (answers, health.asked) == (["ok"] * 8, 1)


def test_a_check_that_never_answers_is_asked_again_by_somebody_else(awaited, clock):
    asked = []

    async def hang() -> bool:
        asked.append(1)
        if len(asked) == 1:
            await asyncio.get_running_loop().create_future()
        return True

    call = awaited.guarded(fail_fast("ledger", check=hang, check_every=10), Flaky("ok").async_())

    async def main() -> None:
        stuck = asyncio.create_task(call())
        await asyncio.sleep(5)
        assert await call() == "ok"
        assert len(asked) == 1
        await asyncio.sleep(5)
        assert await call() == "ok"
        assert len(asked) == 2
        stuck.cancel()
        await asyncio.wait([stuck])

    clock.run(main)


def test_whoever_is_cancelled_while_asking_has_learned_nothing_and_lets_the_next_ask(awaited, clock):
    asked: list[int] = []
    policies: list[Any] = []

    async def check() -> bool:
        asked.append(1)
        await asyncio.sleep(1)
        return True

    async def work() -> str:
        await asyncio.sleep(1)
        return "ok"

    async def make() -> str:
        asked.clear()
        policies[:] = [fail_fast(failures=1, check=check)]
        return await awaited.guarded(policies[0], work)()

    async def then(run: Any) -> None:
        (policy,) = policies
        snapshot = policy.snapshot()
        assert (snapshot["state"], snapshot["failure"]) == ("closed", 0)
        cancelled_while_asking = run.number == 1 and run.moment == "suspended"
        before = len(asked)
        await policy.acall(work)
        if cancelled_while_asking:
            assert len(asked) == before + 1

    assert cancel_at_every_await(make, then) == 2


def test_an_interrupted_check_is_asked_again_at_once(clock):
    asked = Flaky(KeyboardInterrupt, True)
    policy = fail_fast("ledger", check=asked)
    with pytest.raises(KeyboardInterrupt):
        policy.call(lambda: "ok")
    assert policy.call(lambda: "ok") == "ok"
    assert asked.calls == 2
