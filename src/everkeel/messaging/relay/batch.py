"""One batch of one topic: published, and what became of it written down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from everkeel.engines.letters import OUTBOX
from everkeel.engines.rows import Claimed, ErrorInfo, Retry
from everkeel.messaging.dead_letters.telling import resolved
from everkeel.messaging.relay.core import TopicHealth, Verdict, deadly, deaths, judge, leases
from everkeel.messaging.rows import event_of
from everkeel.messaging.tracing import sending
from everkeel.messaging.transports.protocol import CONFIRMED, Message, Published, unknown
from everkeel.runtime.crash import crash_point
from everkeel.runtime.trouble import warn

if TYPE_CHECKING:
    from everkeel.messaging.relay.relay import Relay


class Batch:
    """The rows of one topic that one claim brought."""

    def __init__(self, relay: Relay, rows: list[Claimed], health: TopicHealth) -> None:
        self._relay, self._rows, self._health = relay, rows, health  # `rows` shrinks: it is what we still hold
        self._store, self._counters = relay.store, relay.counters
        self._topic = rows[0].row.topic

    async def deliver(self) -> None:
        """Publish and settle everything, in as many parts as the topic's health asks for."""
        while self._rows:
            part = self._rows[: self._health.window or len(self._rows)]
            part, messages = await self._messages(part)
            if messages:
                began = self._relay.clock.monotonic()
                system = getattr(self._relay.transport, "name", "everkeel")
                with sending(messages, system=system) as told:
                    answers = await self._publish(part, messages)
                    for answer in answers:
                        if answer.result is not CONFIRMED:
                            told.failed(answer.error or answer.result.value)
                            break
                self._answered(answers, self._relay.clock.monotonic() - began)
                verdict = judge(part, answers, self._relay.config.attempts, self._relay.pacing.delay_after)
                await self._settle(verdict)
                if verdict.out:
                    await self._fell(verdict)
                    return
                self._health.worked(self._relay.config.batch)

    async def _messages(self, part: Sequence[Claimed]) -> tuple[list[Claimed], list[Message]]:
        """What is to be sent. A row that holds no event, or one that kills its relays, is a dead letter, and nobody's
        trouble but its key's."""
        sendable: list[Claimed] = []
        messages: list[Message] = []
        poison: dict[str | None, tuple[Claimed, str, Exception]] = {}
        behind: list[Claimed] = []
        for claimed in part:
            key = claimed.row.key
            if key is not None and key in poison:
                behind.append(claimed)
                continue
            mark = key if key is not None else claimed.row.id
            if deadly(claimed, self._relay.config.attempts):
                died = RuntimeError(f"{deaths(claimed)} relays took it and none lived to say what became of it")
                poison[mark] = (claimed, "attempts", died)
                continue
            try:
                messages.append(Message(claimed.row.topic, event_of(claimed.row)))
                sendable.append(claimed)
            except Exception as error:
                poison[mark] = (claimed, "poison", error)
        if behind:
            await self._store.release(leases(behind))
            self._gone(behind)
        for claimed, reason, why in poison.values():
            await self._bury(claimed, reason, why)
        return sendable, messages

    # ------------------------------------------------------------------ publishing

    async def _publish(self, part: Sequence[Claimed], messages: Sequence[Message]) -> Sequence[Published]:
        """Ask the transport, and hold on to the leases while it takes its time."""
        relay = self._relay
        transport = relay.transport
        if transport is None:
            return [unknown(RuntimeError("there is no transport"))] * len(part)
        crash_point("relay.before_publish")
        loop = asyncio.get_running_loop()
        ends = loop.time() + relay.config.publish_timeout
        publishing = asyncio.ensure_future(transport.publish(messages))
        try:
            while not publishing.done():
                left = ends - loop.time()
                if left <= 0:
                    raise TimeoutError(f"no answer within {relay.config.publish_timeout:g} s")
                done, _ = await asyncio.wait({publishing}, timeout=min(relay.config.lease / 3, left))
                if not done:
                    await self._store.extend(leases(self._rows), relay.config.lease)
            answers = publishing.result()
        except Exception as error:
            answers = [unknown(error)] * len(part)  # nobody knows what got there: send it again
        finally:
            publishing.cancel()
        crash_point("relay.after_publish")
        if len(answers) != len(part):
            wrong = RuntimeError(f"the transport gave {len(answers)} answers for {len(part)} messages")
            return [unknown(wrong)] * len(part)
        return answers

    async def _fell(self, verdict: Verdict) -> None:
        """The topic is away: give back the rest, and leave it alone for a while."""
        relay, health = self._relay, self._health
        if self._rows:
            await self._store.release(leases(self._rows))
            self._rows.clear()
        delay = relay.pacing.outage_delay(health)
        if health.outages == 0:
            self._counters.outages += 1
            warn(
                "relay %r cannot publish (%s); events wait in the outbox until it works again",
                relay.name, verdict.outage or "no reason given",
            )  # fmt: skip
        health.fell(relay.clock.monotonic(), delay * (0.75 + 0.25 * relay.clock.random()))

    # ------------------------------------------------------------------ writing it down

    async def _settle(self, verdict: Verdict) -> None:
        if verdict.delivered:
            await self._resolve(verdict.delivered)  # first: who dies after the acknowledgement has nobody to do it
            crash_point("relay.before_ack")
            kept = await self._store.ack(leases(verdict.delivered))
            crash_point("relay.after_ack")
            self._lost(verdict.delivered, kept)
            self._gone(verdict.delivered)
            self._relay.pacing.arrived(verdict.delivered)
            self._counters.delivered += len(kept)
            self._delivered(claimed for claimed in verdict.delivered if claimed.lease.seq in kept)
        if verdict.away:
            await self._step_aside(verdict.away)
        if verdict.released:
            self._lost(verdict.released, await self._store.release(leases(verdict.released)))
            self._gone(verdict.released)
        if verdict.retried:
            retried = [claimed for claimed, _, _ in verdict.retried]
            self._lost(retried, await self._store.retry([retry for _, retry, _ in verdict.retried]))
            self._gone(retried)
            self._counters.failed += len(retried)
            for claimed, retry, error in verdict.retried:
                self._relay.pacing.due_in(retry.delay)
                self._failed(claimed, retry.delay, error)
        for claimed, reason, error in verdict.buried:
            await self._bury(claimed, reason, error)

    async def _step_aside(self, away: Sequence[tuple[Claimed, BaseException | None]]) -> None:
        delay = self._relay.pacing.outage_delay(self._health)
        retries = [
            Retry(claimed.lease, max(delay, self._relay.pacing.away_again(claimed)), ErrorInfo.of(error), counted=False)
            for claimed, error in away
        ]
        rows = [claimed for claimed, _ in away]
        self._lost(rows, await self._store.retry(retries))
        self._gone(rows)
        for retry in retries:
            self._relay.pacing.due_in(retry.delay)

    async def _bury(self, claimed: Claimed, reason: str, error: BaseException | None) -> None:
        crash_point("relay.before_bury")
        letter = await self._store.bury(claimed.lease, ErrorInfo.of(error), reason=reason, park=self._relay.config.park)
        crash_point("relay.after_bury")
        self._gone([claimed])
        if letter is None:
            self._lost([claimed], frozenset())
            return
        self._counters.dead_lettered += 1
        outbox, row = self._relay.outbox, claimed.row
        if outbox.heard:
            from everkeel.events import DeadLettered

            outbox.tell(DeadLettered(
                policy=outbox.name, policy_type=outbox.type, letter=letter, event_id=row.id, event_type=row.type,
                reason=reason, attempts=claimed.lease.attempt, error=error, epoch=row.epoch,
            ))  # fmt: skip

    async def _resolve(self, delivered: Sequence[Claimed]) -> None:
        """A dead letter of ours that was replayed has arrived."""
        letters = getattr(self._relay.outbox.engine, "dead_letters", None)
        for claimed in delivered:
            row = claimed.row
            if row.epoch and letters is not None:
                resolved(OUTBOX, row.id, row.type, await letters.settle(OUTBOX, row.source, row.id, row.topic))

    def _gone(self, rows: Sequence[Claimed]) -> None:
        """No longer ours to give back."""
        gone = {claimed.lease.seq for claimed in rows}
        self._rows[:] = [claimed for claimed in self._rows if claimed.lease.seq not in gone]

    def _lost(self, rows: Sequence[Claimed], kept: frozenset[int]) -> None:
        lost = [claimed for claimed in rows if claimed.lease.seq not in kept]
        self._counters.lease_lost += len(lost)
        if lost and self._relay.outbox.heard:
            from everkeel.events import LeaseLost

            for claimed in lost:
                self._relay.outbox.tell(LeaseLost(**self._about(claimed)))

    def _delivered(self, rows: Iterable[Claimed]) -> None:
        if not self._relay.outbox.heard:
            return
        from everkeel.events import EventDelivered

        for claimed in rows:
            self._relay.outbox.tell(
                EventDelivered(**self._about(claimed), attempt=claimed.lease.attempt, age=claimed.age)
            )

    def _answered(self, answers: Sequence[Published], duration: float) -> None:
        outbox = self._relay.outbox
        if not outbox.heard:
            return
        from everkeel.events import BatchPublished

        outbox.tell(BatchPublished(
            policy=outbox.name, policy_type=outbox.type, topic=self._topic, size=len(answers), duration=duration,
            confirmed=sum(answer.result is CONFIRMED for answer in answers),
        ))  # fmt: skip

    def _failed(self, claimed: Claimed, delay: float | None, error: BaseException | None) -> None:
        if not self._relay.outbox.heard:
            return
        from everkeel.events import DeliveryFailed

        self._relay.outbox.tell(
            DeliveryFailed(**self._about(claimed), attempt=claimed.lease.attempt, delay=delay, error=error)
        )

    def _about(self, claimed: Claimed) -> dict[str, str]:
        outbox, row = self._relay.outbox, claimed.row
        return {
            "policy": outbox.name,
            "policy_type": outbox.type,
            "event_id": row.id,
            "event_type": row.type,
            "topic": row.topic,
        }
