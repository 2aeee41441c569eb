"""Blocks, listeners, deadlines, clocks and the registry, as users write them. Read by type checkers, never run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal, assert_type

from everkeel import (
    CircuitBreaker,
    Clock,
    Deadline,
    Guard,
    Policy,
    Registry,
    Subscription,
    Verdict,
    bulkhead,
    circuit_breaker,
    current_cancellation,
    current_deadline,
    deadline,
    disable,
    enable,
    events,
    guard,
    policies_of,
    registry,
    retry,
    sleep,
    subscribe,
    timeout,
    use_clock,
)
from everkeel.compose import source, weave
from everkeel.runtime.cancellation import Cancellation
from everkeel.testing import VirtualClock, virtual_time

payments = circuit_breaker("payments", failure_rate=0.5, open_for=timedelta(seconds=30))

# ------------------------------------------------------------------ blocks


def blocks() -> None:
    with payments as entered:
        assert_type(entered, CircuitBreaker)
    with payments.entry() as entry:
        assert_type(entry.result(3), int)
    with payments.entry(key=("tenant", 7)):
        pass


async def ablocks() -> None:
    async with timeout(2.0), bulkhead(10):
        pass
    async with payments.entry() as entry:
        assert_type(entry.result("answer"), str)


# ------------------------------------------------------------------ listeners


def any_event(event: events.Event) -> None:
    assert_type(event.policy, str | None)
    assert_type(event.policy_type, str)


def opened(event: events.CircuitOpened) -> None:
    assert_type(event.failure_rate, float | None)


def listeners() -> None:
    assert_type(subscribe(any_event), Subscription)
    assert_type(subscribe(opened, events.CircuitOpened), Subscription)
    subscribe(any_event, events.CircuitOpened, events.CircuitClosed)
    payments.subscribe(opened, events.CircuitOpened)
    payments.subscribe(lambda event: print(event.attempt), events.Retrying)
    subscribe(opened)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    subscribe(opened, events.Retrying)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with payments.subscribe(any_event) as subscription:
        subscription.cancel()


# ------------------------------------------------------------------ time


def time() -> None:
    with deadline(2.0) as limit, deadline(timedelta(seconds=1)):
        assert_type(limit, Deadline)
        assert_type(limit.remaining(), float)
    assert_type(current_deadline(), Deadline | None)
    assert_type(current_cancellation(), Cancellation | None)
    sleep(0.5)
    deadline("2s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with use_clock(VirtualClock()) as clock:
        assert_type(clock, Clock)
        assert_type(clock.monotonic(), float)
    with virtual_time() as virtual:
        assert_type(virtual, VirtualClock)
        assert_type(virtual.sleeps, list[float])


# ------------------------------------------------------------------ live changes, and what is read back


def changes() -> None:
    assert_type(payments.mode, Literal["enforce", "shadow", "off"])
    payments.mode = "shadow"
    payments.mode = "on"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    payments.reconfigure(failure_rate=0.7)
    assert_type(payments.derive("orders", failure_rate=0.3), CircuitBreaker)
    assert_type(payments.snapshot()["success"], int)
    payments.snapshot()["sucess"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
    assert_type(payments.judge(OSError()), Verdict)
    assert_type(registry, Registry)
    assert_type(registry.get("circuit_breaker", "payments"), Policy[Any] | None)
    assert_type(iter(registry), Iterator[Policy[Any]])
    enable()
    disable()


@retry()
def fetch(url: str) -> bytes:
    return url.encode()


assert_type(policies_of(fetch), tuple[Policy[Any], ...])
assert_type(source(fetch), str)
assert_type(weave(fetch)("/"), bytes)
assert_type(guard(retry=3, timeout=2), Guard)
