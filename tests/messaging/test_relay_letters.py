"""A relay that dies while it delivers a replayed dead letter leaves none that waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from everkeel.engines import MemoryEngine
from everkeel.messaging import DeadLetters, Event, MemoryTransport, Outbox, Published, Result, Status
from everkeel.testing import Crashed, crash_at


class RefusesOnce(MemoryTransport):
    async def publish(self, messages):
        if any(not message.event.replay_epoch for message in messages):
            return [Published(Result.FATAL, ValueError("too large"))] * len(messages)
        return await super().publish(messages)


@pytest.mark.parametrize("point", ["relay.after_publish", "relay.before_ack", "relay.after_ack"])
async def test_wherever_the_relay_dies_a_replayed_letter_is_resolved_in_the_end(virtual_time, point):
    async with MemoryEngine() as engine:
        outbox = Outbox(engine, transport=RefusesOnce())
        await outbox.write(Event("tested", source="/tests", id="1", key="k"))
        await outbox.relay().flush()
        letters = DeadLetters(engine)
        (letter,) = (await letters.list()).letters
        await letters.replay(letter.id, actor="ann")
        dying = outbox.relay()
        with crash_at(point):
            await dying._claim()
            (batch,) = dying._batches
            with pytest.raises(Crashed):
                await batch
        await asyncio.sleep(31)  # the lease of the dead
        await outbox.relay().flush()
        assert (await letters.get(letter.id)).status is Status.RESOLVED
        assert (await outbox.stats()).depth == 0


async def test_a_relay_purges_the_letters_of_its_outbox_by_the_settings_it_is_given(virtual_time):
    async with MemoryEngine() as engine:
        outbox = Outbox(engine, transport=RefusesOnce())
        await outbox.write([Event("tested", source="/tests", id=id, key="k") for id in ("1", "2")])
        await outbox.relay().flush()
        letters = DeadLetters(engine, retain=30 * 86_400)
        (letter,) = (await letters.list()).letters
        others = await letters.bury(Event("tested", source="/t"), consumer="billing", topic="t", reason="rejected")
        await asyncio.sleep(8 * 86_400)
        await outbox.relay(dead_letters=letters).maintain()
        assert (await letters.get(letter.id)).status is Status.PENDING
        await outbox.relay().maintain()
        assert (await letters.get(letter.id)).status is Status.DISCARDED
        assert (await letters.get(others.id)).status is Status.PENDING
        assert (await outbox.stats()).depth == 1  # the one behind it may go
