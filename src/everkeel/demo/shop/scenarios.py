"""What happens to the shop, one thing after another. Each scenario says what it shows and what must come of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everkeel.demo.shop.stage import Stage
from everkeel.runtime.clock import DEFAULT

if TYPE_CHECKING:  # the command line lists the scenarios also where httpx2 is not installed
    from everkeel.demo.shop.customers import Customers

SETTLED_WITHIN = 45.0
STATES = {"placed": "under way", "confirmed": "confirmed", "cancelled": "cancelled"}
"""How an order stands, in words."""


@dataclass
class Outcome:
    """What came of a scenario."""

    name: str
    title: str
    orders: int = 0
    confirmed: int = 0
    cancelled: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: str = ""
    """Why it was not played."""

    def must(self, holds: bool, what: str) -> None:
        """Note what should have been so."""
        if not holds:
            self.problems.append(what)

    @classmethod
    def of_all(cls, title: str, outcomes: Sequence[Outcome]) -> Outcome:
        """Several as one: what they add up to."""
        whole = cls("", title, skipped=outcomes[-1].skipped if len({one.name for one in outcomes}) == 1 else "")
        for one in outcomes:
            whole.orders, whole.seconds = whole.orders + one.orders, whole.seconds + one.seconds
            whole.confirmed, whole.cancelled = whole.confirmed + one.confirmed, whole.cancelled + one.cancelled
            whole.problems += one.problems
        return whole


def counted(number: int, what: str) -> str:
    """`1 order`, `2 orders`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@dataclass
class Scene:
    """What a scenario may use."""

    stage: Stage
    customers: Customers
    orders: int
    outcome: Outcome
    show: Callable[[str], None]
    watched: bool = False
    """Does anybody see what is shown?"""

    async def buy(self, how_many: int | None = None, **how: Any) -> list[str]:
        """Customers buy; in the books of this scenario."""
        placed = await self.customers.buy(self.outcome.name, how_many or self.orders, **how)
        self.outcome.orders += len(placed)
        return placed

    async def settled(self, placed: list[str]) -> Counter[str]:
        """Wait until these orders are confirmed or cancelled; answers how many of each."""
        give_up = DEFAULT.monotonic() + SETTLED_WITHIN
        values = {f"id{number}": id for number, id in enumerate(placed)}
        wanted = f"SELECT status FROM orders WHERE id IN ({', '.join(f':{name}' for name in values)})"
        while placed:
            found = Counter(str(row[0]) for row in await self.stage.books["orders"].rows(wanted, **values))
            if self.watched:
                states = ((found[status], word) for status, word in STATES.items() if found[status])
                self.show(", ".join(f"{count} {word}" for count, word in states) + await self.circuits())
            if found["placed"] == 0 and found.total() == len(placed):
                self.outcome.confirmed += found["confirmed"]
                self.outcome.cancelled += found["cancelled"]
                return found
            if DEFAULT.monotonic() > give_up:
                self.outcome.problems.append(f"{found['placed']} orders are still open after {SETTLED_WITHIN:g} s")
                return found
            await DEFAULT.asleep(0.1)
        return Counter()

    async def too_slow(self, placed: list[str], found: Counter[str]) -> int:
        """How many of these orders were given up for lack of time: a busy machine may do that to any."""
        late = 0
        for id in placed if found["cancelled"] else ():
            saga = await self.ask("orders", "GET", f"/sagas/{id}")
            cut_off = any(error in (saga["error"] or "") for error in ("TimeoutExceededError", "CircuitOpenError"))
            late += saga["state"] in ("compensating", "compensated") and (saga["timed_out"] or cut_off)
        if late:
            self.outcome.notes.append(f"{counted(late, 'order')} took longer than allowed: this machine is busy")
        return late

    async def provider(self, **settings: Any) -> None:
        """Give the payment provider a good day or a bad one."""
        import httpx2

        async with httpx2.AsyncClient() as client:
            (await client.post(f"{self.stage.world.url('payments')}/provider", json=settings)).raise_for_status()

    async def restock(self, item: str, count: int) -> None:
        """Fill the shelf."""
        import httpx2

        async with httpx2.AsyncClient() as client:
            url = f"{self.stage.world.url('inventory')}/stock"
            (await client.post(url, json={"item": item, "count": count})).raise_for_status()
        self.stage.stocked += count

    async def ask(self, service: str, method: str, path: str, **more: Any) -> Any:
        """Ask a service's control plane, as an operator would."""
        import httpx2

        headers = {"Authorization": f"Bearer {self.stage.world.token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=10.0) as client:
            answer = await client.request(method, f"{self.stage.world.url(service)}/everkeel{path}", **more)
            answer.raise_for_status()
            return answer.json()

    async def circuits(self) -> str:
        """Which circuits are not closed now, where services can be asked: `; circuit shop.charge is open`."""
        import httpx2

        shut: list[str] = []
        for service in ("orders", "payments"):
            with suppress(httpx2.HTTPError):
                page = await self.ask(service, "GET", "/policies", params={"type": "circuit_breaker"})
                shut += [
                    f"{one['name']} is {one['state'].replace('_', ' ')}"
                    for one in page["policies"]
                    if one["state"] not in (None, "closed")
                ]
        return f"; circuit {', '.join(dict.fromkeys(shut))}" if shut else ""

    async def count_of(self, service: str, metric: str, **labels: str) -> int:
        """A number that a service exports for Prometheus: what all of its rows with these labels add up to."""
        import httpx2
        from prometheus_client.parser import text_string_to_metric_families

        async with httpx2.AsyncClient() as client:
            text = (await client.get(f"{self.stage.world.url(service)}/metrics")).raise_for_status().text
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return int(sum(one.value for one in samples if one.name == metric and labels.items() <= one.labels.items()))

    async def suppressed(self, at_least: int = 0) -> int:
        """How many events the inventory has recognised so far as ones it had handled; waits for so many, for a while.

        Or was handling at that moment: then the copy comes again, and is recognised later.
        """
        found, ours = 0, {"everkeel_policy_name": "inventory", "outcome": "duplicates"}
        for _ in range(100):
            found = await self.count_of("inventory", "everkeel_consumer_events_total", **ours)
            if found >= at_least:
                break
            await DEFAULT.asleep(0.1)
        return found

    async def cut_off(self) -> int:
        """How many charges were given up so far because they took too long."""
        return int((await self.ask("orders", "GET", "/metrics/timeout/shop.charge"))["metrics"]["expired"])

    async def opened(self, service: str, breaker: str) -> int:
        """How often a circuit has opened so far."""
        metrics = (await self.ask(service, "GET", f"/metrics/circuit_breaker/{breaker}"))["metrics"]
        return sum(count for change, count in metrics["transitions"].items() if change.endswith("_to_open"))


async def happy(scene: Scene) -> None:
    """Half of the orders are orchestrated: one service asks the others. Half are choreographed: events do it all."""
    placed = await scene.buy()
    found = await scene.settled(placed)
    scene.outcome.must(found["cancelled"] == await scene.too_slow(placed, found), "orders were cancelled on a good day")


async def slow_provider(scene: Scene) -> None:
    """Charges that take too long are cut off and tried again; nobody pays twice. Some orders are given up."""
    before = await scene.cut_off()
    await scene.provider(mode="slow")
    placed = await scene.buy(max(4, scene.orders // 2))
    await DEFAULT.asleep(2.0)
    await scene.provider(mode="fine")
    await scene.settled(placed)
    scene.outcome.notes.append(f"{counted(await scene.cut_off() - before, 'charge')} took too long and were cut off")


async def provider_down(scene: Scene) -> None:
    """Circuits open, goods that were reserved are released, and orders are cancelled."""
    before = await scene.opened("orders", "shop.charge")
    await scene.provider(mode="down")
    # So many at least, that there is something to conclude from: half of the circuit's window.
    placed = await scene.buy(max(8, scene.orders))
    found = await scene.settled(placed)
    opened = await scene.opened("orders", "shop.charge") - before
    scene.outcome.notes.append(f"the circuit around the charge step opened {counted(opened, 'time')}")
    scene.outcome.must(opened > 0, "the circuit did not open in an outage")
    scene.outcome.must(found["confirmed"] == 0, "orders were confirmed without being paid for")
    await scene.provider(mode="fine")


async def chaos(scene: Scene) -> None:
    """An operator makes every fourth charge fail, to see whether the retries are any good, and ends it again."""
    rate = "/config/chaos/shop.charge"
    await scene.ask("orders", "PUT", rate, json={"rate": 0.25})
    try:
        found = await scene.settled(await scene.buy(style="orchestrated"))
    finally:
        await scene.ask("orders", "PUT", rate, json={"rate": 0.0})
    metrics = (await scene.ask("orders", "GET", "/metrics/chaos/shop.charge"))["metrics"]
    injected = metrics["injected"].get("error", 0)
    scene.outcome.notes.append(f"{counted(injected, 'charge')} failed on purpose")
    scene.outcome.must(found["confirmed"] > 0, "no order survived a little chaos")


async def out_of_stock(scene: Scene) -> None:
    """That is an answer, not an outage: orders are cancelled at once, and no circuit opens."""
    before = await scene.opened("orders", "shop.reserve")
    found = await scene.settled(await scene.buy(item="sextant"))
    scene.outcome.must(found["confirmed"] == 0, "something that was not there was sold")
    opened = await scene.opened("orders", "shop.reserve") - before
    scene.outcome.must(opened == 0, "a circuit opened because of a business answer")


async def duplicates(scene: Scene) -> None:
    """The broker delivers everything several times; nothing is done twice."""
    from everkeel.demo.shop.choreography import CHOREOGRAPHY
    from everkeel.messaging import Event, Message

    transport = scene.stage.world.transport_of("director")
    before = await scene.suppressed()
    placed = await scene.buy(style="choreographed")
    for id in placed:
        order = scene.customers.accepted[id]
        copy = CHOREOGRAPHY.mark(Event("OrderPlaced", order, source="/orders", id=id))
        await transport.publish([Message("shop", copy), Message("shop", copy)])
    found = await scene.settled(placed)
    scene.outcome.must(found["cancelled"] == await scene.too_slow(placed, found), "a copy of an event did harm")
    copies = await scene.suppressed(at_least=before + 2 * len(placed)) - before
    scene.outcome.notes.append(f"the inventory recognised {counted(copies, 'event')} it had seen before")
    scene.outcome.must(copies >= 2 * len(placed), f"of {2 * len(placed)} copies only {copies} were recognised")
    if not scene.stage.in_one_process:
        await transport.close()


async def killed(scene: Scene) -> None:
    """kill -9 for the orders service in the middle of its sagas; then a new one, which carries them on."""
    if scene.stage.in_one_process:
        scene.outcome.skipped = "all services are in this process, and there is nothing to kill"
        return
    await scene.provider(mode="slow")
    placed = await scene.buy()
    await scene.stage.kill("orders")
    active = sum(stats.active for stats in (await scene.stage.books["orders"].engine.sagas.stats()).values())
    scene.outcome.notes.append(f"{counted(active, 'saga')} under way when it was killed")
    scene.show("the orders service is dead")
    await scene.provider(mode="fine")
    await scene.stage.start("orders")
    await scene.settled(placed)


async def dead_letter(scene: Scene) -> None:
    """What the payments service cannot handle becomes dead letters: they say why, are kept, and are replayed."""
    await scene.provider(broken=True)
    placed = await scene.buy(3, style="choreographed")
    letters: list[Any] = []
    ours: set[str] = set()
    for _ in range(200):
        letters = (await scene.ask("payments", "GET", "/dlq", params={"status": "pending"}))["letters"]
        scene.show(counted(len(letters), "dead letter"))
        # What the scenario before left behind may be among them: an order that was given up while its event waited.
        ours = {letter["correlation_id"] for letter in letters} & set(placed)
        if len(ours) == len(placed):
            break
        await DEFAULT.asleep(0.1)
    scene.outcome.must(len(ours) == len(placed), f"only {len(ours)} of {len(placed)} orders are dead letters")
    if letters:
        error = letters[0]["untrusted"]["error"]
        scene.outcome.notes.append(f"the dead letters of {counted(len(ours), 'order')} say: {error}")
    await scene.provider(broken=False)
    for letter in letters:
        await scene.ask("payments", "POST", f"/dlq/{letter['id']}/replay", json={"reason": "the bug is fixed"})
    await scene.settled(placed)


async def load_spike(scene: Scene) -> None:
    """Those the shop cannot serve are told so at once: the patient come back later, the others do not."""
    shed = scene.customers.told["shed"]
    impatient = scene.buy(scene.orders * 10, at_once=100, patient=False)
    patient = scene.buy(scene.orders, at_once=20)
    placed = [id for some in await asyncio.gather(impatient, patient) for id in some]
    sent_away = scene.customers.told["shed"] - shed
    few = "" if sent_away else "; with more --orders, some would be"
    scene.outcome.notes.append(f"{counted(sent_away, 'customer')} sent away at once, with a time to come back{few}")
    await scene.settled(placed)


Play = Callable[[Scene], Awaitable[None]]

SCENARIOS: dict[str, tuple[str, Play]] = {
    "happy": ("Everything works", happy),
    "chaos": ("Chaos, on purpose", chaos),
    "slow": ("The payment provider is slow", slow_provider),
    "down": ("The payment provider is down", provider_down),
    "stock": ("Out of stock", out_of_stock),
    "duplicates": ("Every event arrives three times", duplicates),
    "killed": ("A service is killed in the middle", killed),
    "dead-letter": ("A bug, dead letters, a replay", dead_letter),
    "spike": ("Ten times as many customers", load_spike),
}
