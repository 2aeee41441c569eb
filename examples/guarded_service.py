"""An async service that stays useful while something it depends on is down, and recovers by itself.

python examples/guarded_service.py
"""

import asyncio

from everkeel import CircuitBreaker, circuit_breaker, events, guard, retry


class Recommendations:
    """A dependency, simulated: it answers, then is down for a while, then answers again."""

    def __init__(self) -> None:
        self.down = False
        self.requests = 0

    async def for_user(self, user: str) -> list[str]:
        """What this user may like."""
        self.requests += 1
        await asyncio.sleep(0.005)
        if self.down:
            raise ConnectionError("no route to host")
        return [f"something for {user}"]


class Shop:
    """The service. Each dependency has one breaker, shared by everything that calls it."""

    def __init__(self, recommendations: Recommendations) -> None:
        self.breaker: CircuitBreaker = circuit_breaker("recommendations", minimum_calls=6, open_for=0.3)
        self.recommend = guard(
            fallback=["what everybody buys"],
            retry=retry("recommendations", on=ConnectionError, attempts=2, backoff=0.01),
            circuit_breaker=self.breaker,
            timeout=0.5,
            bulkhead=10,
        )(recommendations.for_user)

    async def page(self, user: str) -> str:
        """The page is always there; how good it is depends."""
        return f"{user}: {', '.join(await self.recommend(user))}"


def tell(event: events.Event) -> None:
    """What an operator would see in a log."""
    print(f"    [{type(event).__name__}]")


async def visits(shop: Shop, recommendations: Recommendations, title: str) -> None:
    """Ten visits, one after the other."""
    before = recommendations.requests
    pages = [await shop.page(f"user {number}") for number in range(10)]
    asked = recommendations.requests - before
    print(f"{title}: the last of 10 pages is {pages[-1]!r}; {asked} requests reached the dependency")


async def main() -> None:
    """A day in the life."""
    recommendations = Recommendations()
    shop = Shop(recommendations)
    shop.breaker.subscribe(tell, events.CircuitOpened, events.CircuitHalfOpened, events.CircuitClosed)

    await visits(shop, recommendations, "all is well")
    recommendations.down = True
    await visits(shop, recommendations, "it goes down")
    await visits(shop, recommendations, "still down")
    recommendations.down = False
    await asyncio.sleep(0.35)  # longer than the breaker stays open
    await visits(shop, recommendations, "it is back")

    numbers = shop.breaker.snapshot()
    print(f"the breaker is {numbers['state']}; it rejected {numbers['rejected']} calls")


if __name__ == "__main__":
    asyncio.run(main())
