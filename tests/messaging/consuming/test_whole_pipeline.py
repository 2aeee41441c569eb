"""The whole way of an event, with everything that can happen to it, in any order: one effect each, and nothing lost.

Two consumers share an engine and a broker. Producers may die before they commit, the relay after it has published,
consumers at every named point; copies come late and twice, time jumps, operators replay and discard. In the end all
trouble is over, and the books must balance.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from everkeel import NotRetryable
from everkeel.engines import MemoryEngine
from everkeel.engines.letters import UNRESOLVED, LetterFilter, Status
from everkeel.errors import DeadLetterError
from everkeel.messaging import Consumer, DeadLetters, Event, MemoryTransport, Message
from everkeel.messaging.rows import event_of, row_of
from everkeel.runtime import crash
from everkeel.testing import VirtualClock

CONSUMERS = ("billing", "shipping")
POINTS = [
    "consumer.after_claim", "consumer.after_effect", "consumer.before_commit", "consumer.after_commit",
    "consumer.before_ack", "consumer.after_ack", "bury.before_commit", "bury.after_commit",
]  # fmt: skip


RARELY = st.sampled_from([False, False, False, True])


class Crash(BaseException):
    """The process is gone."""


class Refused(NotRetryable):
    """A business rejection."""


class Pipeline(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.engine = MemoryEngine(clock=self.clock)
        self.transport = MemoryTransport(clock=self.clock)
        self.letters = DeadLetters(self.engine)
        self.produced: dict[str, Event] = {}
        self.order: dict[str, list[str]] = {"a": [], "b": []}
        self.effects: Counter[tuple[str, str]] = Counter()
        self.applied: dict[str, list[str]] = {name: [] for name in CONSUMERS}
        self.discarded: set[tuple[str, str]] = set()
        self.failing: dict[str, Exception] = {}

        async def subscribe() -> None:  # the groups exist before the first event
            for name in CONSUMERS:
                await self.transport.subscribe("orders", name).aclose()

        self.clock.run(subscribe)

    def consumer(self, name: str) -> Consumer:
        consumer = Consumer(
            name, self.transport, topics="orders", engine=self.engine, dead_letters=self.letters, attempts=3,
            park_followers=name == "billing",
        )  # fmt: skip

        @consumer.on("OrderCreated")
        async def handler(event, tx):
            if event.id in self.failing:
                raise self.failing[event.id]
            tx.on_commit(lambda: self.did(name, event.id))

        return consumer

    def did(self, name: str, id: str) -> None:
        self.effects[name, id] += 1
        self.applied[name].append(id)

    # ------------------------------------------------------------------ what may happen

    @rule(
        keys=st.lists(st.sampled_from("ab"), min_size=1, max_size=4),
        dies=RARELY,
        fails=st.sampled_from([None, Refused(), ConnectionError()]),
    )
    def produce(self, keys: list[str], dies: bool, fails: Exception | None) -> None:
        """A transaction with some events, of which the first may turn out to be hard to handle."""
        counts = {key: len(self.order[key]) for key in "ab"}
        events = []
        for key in keys:
            counts[key] += 1
            events.append(Event("OrderCreated", {"n": 1}, source="/orders", id=f"{key}-{counts[key]}", key=key))

        async def write() -> None:
            try:
                async with self.engine.transaction() as tx:
                    await self.engine.outbox.append([row_of(event, "orders") for event in events], tx=tx)
                    if dies:
                        raise Crash
            except Crash:
                return
            for event in events:
                self.produced[event.id] = event
                self.order[str(event.key)].append(event.id)
            if fails is not None:
                self.failing[events[0].id] = fails

        self.clock.run(write)

    async def deliver(self, *, dies: bool = False) -> None:
        for claimed in await self.engine.outbox.claim("relay", 100, 30):
            await self.transport.publish([Message(claimed.row.topic, event_of(claimed.row))])
            if dies:
                return  # published, and never marked: it comes again
            await self.engine.outbox.ack([claimed.lease])

    @rule()
    def relay_dies_after_publishing(self) -> None:
        self.clock.run(lambda: self.deliver(dies=True))

    @rule(name=st.sampled_from(CONSUMERS), seconds=st.sampled_from([0.0, 1.0, 20.0]))
    def consume(self, name: str, seconds: float) -> None:
        async def live() -> None:
            await self.deliver()
            async with self.consumer(name):
                await asyncio.sleep(seconds)
                await self.deliver()
                await asyncio.sleep(seconds)

        self.clock.run(live)

    @rule(name=st.sampled_from(CONSUMERS), point=st.sampled_from(POINTS), passes=st.integers(0, 1))
    def crash_while_consuming(self, name: str, point: str, passes: int) -> None:
        """A process that takes what it can get, and dies when it passes the point for the n-th time."""
        self.produce(keys=["a", "b"], dies=False, fails=Refused() if point.startswith("bury") else None)
        left = [passes]

        def hook(at: str) -> None:
            if at == point:
                left[0] -= 1
                if left[0] < 0:
                    raise Crash(at)

        async def live() -> None:
            await self.deliver()
            consumer = self.consumer(name)
            subscription = consumer.subscribe()
            crash.hook = hook
            try:
                for _ in range(5):
                    taking = asyncio.ensure_future(subscription.__anext__())
                    done, _ = await asyncio.wait({taking}, timeout=0.5)
                    if not done:
                        taking.cancel()
                        await asyncio.wait({taking})
                        break
                    await consumer.process(taking.result())
            except Crash:
                pass
            finally:
                crash.hook = None
            # Nothing is given back: what it held comes again when the leases end.

        self.clock.run(live)

    @rule(data=st.data())
    def duplicate(self, data: st.DataObject) -> None:
        """The broker delivers an old copy again."""
        published = list(self.transport.published["orders"])
        if published:
            copy = data.draw(st.sampled_from(published))
            self.clock.run(lambda: self.transport.publish([Message("orders", copy)]))

    @rule(seconds=st.sampled_from([1.0, 31.0, 61.0, 600.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(data=st.data(), kind=st.sampled_from(["rejected", "down"]))
    def begin_to_fail(self, data: st.DataObject, kind: str) -> None:
        ids = [f"{key}-{number}" for key in "ab" for number in range(1, len(self.order[key]) + 2)]
        self.failing[data.draw(st.sampled_from(ids))] = Refused() if kind == "rejected" else ConnectionError()

    @rule()
    def recover(self) -> None:
        self.failing.clear()

    @rule(data=st.data(), act=st.sampled_from(["replay", "replay", "discard", "crash before", "crash after"]))
    def operate(self, data: st.DataObject, act: str) -> None:
        async def change() -> None:
            letters = (await self.letters.list(LetterFilter(status=(Status.PENDING,)))).letters
            if not letters:
                return
            letter = sorted(letters, key=lambda one: one.row.position)[data.draw(st.integers(0, len(letters) - 1))]
            try:
                if act == "discard":
                    await self.letters.discard(letter.id, actor="ann", reason="no use")
                    self.discarded.add((letter.consumer, letter.row.event_id))
                    return
                if act.startswith("crash"):
                    at = "replay.before_commit" if act == "crash before" else "replay.after_commit"
                    crash.hook = lambda name: (_ for _ in ()).throw(Crash(name)) if name == at else None
                await self.letters.replay(letter.id, actor="ann", force=True)
            except (Crash, DeadLetterError):
                pass
            finally:
                crash.hook = None

        self.clock.run(change)

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def nothing_is_done_twice(self) -> None:
        assert all(count == 1 for count in self.effects.values()), self.effects

    @invariant()
    def nothing_that_was_rolled_back_is_done(self) -> None:
        assert {id for _, id in self.effects} <= set(self.produced)

    def teardown(self) -> None:
        self.failing.clear()

        async def settle() -> None:
            for _ in range(60):
                await asyncio.sleep(70)  # every lease is over
                await self.deliver()
                async with self.consumer("billing"), self.consumer("shipping"):
                    await asyncio.sleep(5)
                page = await self.letters.list(LetterFilter(status=(Status.PENDING,)), limit=1000)
                for letter in page.letters:
                    try:
                        await self.letters.replay(letter.id, actor="ann", force=True)
                    except DeadLetterError:
                        pass
                for name in CONSUMERS:
                    await self.letters.release_followers(name)
                if await self.quiet():
                    return
            raise AssertionError("it never came to rest")

        self.clock.run(settle)
        self.books_balance()

    async def quiet(self) -> bool:
        waiting = await self.letters.count(LetterFilter(status=UNRESOLVED))
        queued = sum(
            len(list(queue.pending())) for name in CONSUMERS for queue in self.transport.queues(["orders"], name)
        )
        return not (waiting or queued or (await self.engine.outbox.stats()).depth)

    def books_balance(self) -> None:
        for name in CONSUMERS:
            for id in self.produced:
                done, given_up = self.effects[name, id], (name, id) in self.discarded
                assert done == 1 or (given_up and done == 0), f"{name} and {id}: {done} effects"
        assert self.engine.inbox.sync.stats().in_progress == 0
        for key, order in self.order.items():  # billing parks followers, so that a key keeps its order
            applied = [id for id in self.applied["billing"] if id.startswith(key)]
            kept = [id for id in order if ("billing", id) not in self.discarded]
            assert [id for id in applied if ("billing", id) not in self.discarded] == kept


def test_whatever_happens_every_event_has_one_effect_and_none_is_lost() -> None:
    run_state_machine_as_test(Pipeline, settings=settings(max_examples=80, stateful_step_count=40, deadline=None))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_happens_for_longer() -> None:
    run_state_machine_as_test(Pipeline, settings=settings(max_examples=800, stateful_step_count=50, deadline=None))
