"""The same call twice: as most code makes it, and guarded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from everkeel import CircuitBreaker, bulkhead, circuit_breaker, exponential, fallback, guard, retry, timeout
from everkeel.demo.bad_day.provider import Provider

LATER = "accepted, to be charged later"


@dataclass(frozen=True, slots=True)
class Client:
    """Somebody who pays."""

    title: str
    provider: Provider
    pay: Callable[[int], Awaitable[str]]
    breaker: CircuitBreaker | None = None


def bare(provider: Provider) -> Client:
    """Calls the provider and hopes for the best."""

    async def pay(order: int) -> str:
        return await provider.charge(order)

    return Client("without Everkeel", provider, pay)


def guarded(provider: Provider, pace: float) -> Client:
    """The same, with a timeout, a few retries, a breaker, a bulkhead, and an answer for when nothing helps."""
    breaker = circuit_breaker("payments", window=40, open_for=1.5 * pace)

    @guard(
        timeout=timeout(0.6 * pace, "payments"),
        retry=retry("payments", on=(ConnectionError, TimeoutError), backoff=exponential(0.05 * pace)),
        circuit_breaker=breaker,
        bulkhead=bulkhead(20, "payments"),
        fallback=fallback(LATER, name="payments"),
    )
    async def pay(order: int) -> str:
        return await provider.charge(order)

    return Client("with Everkeel", provider, pay, breaker)
