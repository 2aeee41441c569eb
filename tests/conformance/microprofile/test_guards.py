"""Section 17: guards that are objects, and methods that share them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import everkeel.microprofile as mp
from everkeel import sleep
from everkeel.events import CircuitOpened
from everkeel.microprofile import config
from everkeel.microprofile.exceptions import FaultToleranceDefinitionException
from everkeel.microprofile.metrics import registry
from everkeel.testing import VirtualClock

HERE = __name__
ORDERS = "make_orders.<locals>.Orders"


class DownError(Exception):
    pass


def fail(*_: Any) -> None:
    raise DownError


@pytest.fixture
def bank() -> Iterator[mp.Guard]:
    """Used by every test under the same name."""
    guard = mp.Guard("bank", mp.Retry(maxRetries=1, jitter=0), mp.CircuitBreaker(requestVolumeThreshold=4), mp.Timeout)
    yield guard
    guard.close()


@pytest.fixture
def queueing() -> Iterator[mp.Guard]:
    """One runs, one may wait."""
    guard = mp.Guard("queueing", mp.Asynchronous, mp.Bulkhead(1, waitingTaskQueue=1))
    yield guard
    guard.close()


@pytest.mark.rule("SR-09")
def test_a_guard_calls_functions_with_the_annotations_order_and_defaults(
    bank: mp.Guard, virtual_time: VirtualClock
) -> None:
    assert bank.call(lambda item, *, urgent: (item, urgent), "a", urgent=True) == ("a", True)
    with pytest.raises(mp.TimeoutException):  # by default 1000 ms; twice, since it is retried
        bank.call(sleep, 60)
    assert virtual_time.monotonic() == 2.0
    breaker = bank.policy("CircuitBreaker")
    assert breaker is not None
    assert breaker.name == "bank"


@pytest.mark.rule("SR-09")
async def test_plain_and_awaited_calls_share_its_state(bank: mp.Guard, virtual_time: VirtualClock) -> None:
    async def afail() -> None:
        raise DownError

    with pytest.raises(DownError):
        bank.call(fail)
    with pytest.raises(DownError):
        await bank.acall(afail)
    with pytest.raises(mp.CircuitBreakerOpenException):  # four attempts, four failures
        bank.call(fail)


@pytest.mark.rule("SR-09")
def test_its_name_is_the_tag_of_its_metrics(bank: mp.Guard) -> None:
    bank.call(int)
    assert registry.value("ft.invocations.total", method="bank", result="valueReturned", fallback="notDefined") == 1


@pytest.mark.rule("SR-09")
def test_its_policies_can_be_listened_to(bank: mp.Guard) -> None:
    bank.call(int)
    heard: list[Any] = []
    breaker = bank.policy("CircuitBreaker")
    assert breaker is not None
    breaker.subscribe(heard.append, CircuitOpened)
    for _ in range(2):
        with pytest.raises((DownError, mp.CircuitBreakerOpenException)):
            bank.call(fail)
    assert [event.policy for event in heard] == ["bank"]


@pytest.mark.rule("SR-09")
async def test_with_asynchronous_its_bulkhead_has_a_queue(queueing: mp.Guard, virtual_time: VirtualClock) -> None:
    calls = [queueing.acall(asyncio.sleep, 1, "done") for _ in range(3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [one if isinstance(one, str) else type(one) for one in results] == ["done", "done", mp.BulkheadException]
    with pytest.raises(FaultToleranceDefinitionException, match="Asynchronous must not be in a guard of plain calls"):
        queueing.call(int)


@pytest.mark.rule("SR-09")
@pytest.mark.parametrize(
    ("name", "annotations", "message"),
    [
        ("", [], "Guard: name must be text without a slash"),
        ("a/b", [], "Guard: name must be text without a slash"),
        ("wrong", [mp.Fallback(fallbackMethod="x")], "Fallback belongs to a method, not to a guard"),
        ("wrong", [mp.Retry, mp.Retry()], "Retry must be given once"),
        ("wrong", [len], "annotations must be decorators of everkeel.microprofile"),
    ],
)
def test_wrong_guards_are_definition_errors(name: str, annotations: list[Any], message: str) -> None:
    with pytest.raises(FaultToleranceDefinitionException, match=message):
        mp.Guard(name, *annotations)


@pytest.mark.rule("SR-09")
def test_a_name_belongs_to_one_guard(bank: mp.Guard) -> None:
    with pytest.raises(FaultToleranceDefinitionException, match="must be given to one guard only"):
        mp.Guard("bank")


@pytest.mark.rule("SR-09")
@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ([mp.Retry(maxRetries=-7)], r"guard 'wrong': Retry\.maxRetries must be at least -1"),
        ([mp.ExponentialBackoff], "ExponentialBackoff must stand beside a Retry, in the same guard"),
    ],
)
def test_its_values_are_checked_at_first_use(annotations: list[Any], message: str) -> None:
    guard = mp.Guard("wrong", *annotations)
    guard.close()  # its name, not itself
    with pytest.raises(FaultToleranceDefinitionException, match=message):
        guard.call(int)


def make_orders() -> Any:
    """Made anew by each test: a guard that is not there is an error, also for `validate()`."""

    class Orders:
        """Both methods go to the same bank."""

        @mp.ApplyGuard("bank")
        @mp.Retry(maxRetries=7)
        def pay(self) -> None:
            raise DownError

        @mp.ApplyGuard("bank")
        @mp.Fallback(fallbackMethod="_later")
        def refund(self) -> str:
            raise DownError

        def _later(self) -> str:
            return "later"

        @mp.ApplyGuard("bank")
        async def check(self) -> str:
            return "solvent"

    return Orders()


def retries(method: str) -> int:
    return registry.value("ft.retry.retries.total", method=f"{HERE}.{ORDERS}.{method}")


@pytest.mark.rule("SR-10")
def test_methods_share_the_state_of_a_guard_and_keep_their_own_fallback_and_metrics(bank: mp.Guard) -> None:
    orders = make_orders()
    with pytest.raises(DownError):
        orders.pay()
    assert orders.refund() == "later"
    with pytest.raises(mp.CircuitBreakerOpenException):  # four attempts of both together
        orders.pay()
    assert (retries("pay"), retries("refund")) == (2, 1)  # and not seven: its own Retry is ignored
    tags = {"method": f"{HERE}.{ORDERS}.refund", "result": "valueReturned", "fallback": "applied"}
    assert registry.value("ft.invocations.total", **tags) == 1


@pytest.mark.rule("SR-10")
async def test_a_coroutine_may_share_it_too(bank: mp.Guard, virtual_time: VirtualClock) -> None:
    orders = make_orders()
    assert await orders.check() == "solvent"
    for _ in range(2):
        with pytest.raises((DownError, mp.CircuitBreakerOpenException)):
            orders.pay()
    with pytest.raises(mp.CircuitBreakerOpenException):
        await orders.check()


@pytest.mark.rule("SR-10")
@pytest.mark.parametrize(
    ("key", "expected"), [("bank/Retry/maxRetries", 2), (f"{HERE}.{ORDERS}/pay/Retry/maxRetries", 1)]
)
def test_the_name_of_the_guard_is_its_place_in_configuration(bank: mp.Guard, key: str, expected: int) -> None:
    orders = make_orders()
    config.configure({key: 2}, environment=False)
    with pytest.raises(DownError):
        orders.pay()
    assert retries("pay") == expected


@pytest.mark.rule("SR-10")
def test_a_guard_that_is_not_there_is_a_definition_error() -> None:
    orders = make_orders()
    with pytest.raises(FaultToleranceDefinitionException, match="ApplyGuard: value must be the name of a guard"):
        orders.pay()


@pytest.mark.rule("SR-10")
async def test_who_waits_in_a_shared_queue_is_counted_for_its_own_method(
    queueing: mp.Guard, virtual_time: VirtualClock
) -> None:
    class Service:
        @mp.ApplyGuard("queueing")
        async def one(self) -> None:
            await asyncio.sleep(1)

        @mp.ApplyGuard("queueing")
        async def two(self) -> None:
            await asyncio.sleep(1)

    service = Service()
    await asyncio.gather(service.one(), service.two())
    await service.two()
    name = f"{HERE}.{Service.__qualname__}"
    accepted = {
        method: registry.value("ft.bulkhead.calls.total", method=f"{name}.{method}", bulkheadResult="accepted")
        for method in ("one", "two")
    }
    assert accepted == {"one": 1, "two": 2}
    for method in ("one", "two"):
        assert registry.value("ft.bulkhead.executionsWaiting", method=f"{name}.{method}") == 0
    assert queueing.policy("Bulkhead") is not None


@pytest.mark.rule("SR-01", "SR-10")
def test_a_rate_limit_is_shared_too(virtual_time: VirtualClock) -> None:
    guard = mp.Guard("limited", mp.RateLimit(2, window=60))

    @mp.ApplyGuard("limited")
    def one() -> None: ...

    @mp.ApplyGuard("limited")
    def two() -> None: ...

    one()
    two()
    with pytest.raises(mp.RateLimitException):
        one()
    with pytest.raises(mp.RateLimitException):
        guard.call(int)
    guard.close()
