"""What a store of sequences must do, as tests. Subclass it next to your store, as `InboxContract`."""

from __future__ import annotations

import asyncio

from everkeel.engines.sequences import Reached
from everkeel.testing.contracts.inbox import Opened, StoreContract, rolled_back

ROW = ("billing", "/orders", "order-7")


class SequencesContract(StoreContract):
    """How far a key is: forward only, one by one unless told to skip, and together with a transaction."""

    def test_a_key_goes_forward_one_by_one(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            assert await store.reached(*ROW) is None
            assert await store.advance(*ROW, 1)
            assert not await store.advance(*ROW, 1)
            assert not await store.advance(*ROW, 3)
            assert await store.advance(*ROW, 2)
            assert await store.reached(*ROW) == Reached(2)

        self.run(test)

    def test_it_may_be_told_to_skip_but_not_to_go_back(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            assert await store.advance(*ROW, 4)  # the first may be any
            assert await store.advance(*ROW, 7, skip=True)
            assert not await store.advance(*ROW, 5, skip=True)
            assert not await store.advance(*ROW, 7, skip=True)
            assert await store.reached(*ROW) == Reached(7)

        self.run(test)

    def test_consumers_sources_and_keys_do_not_know_each_other(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.advance(*ROW, 1)
            for other in (("shipping", *ROW[1:]), ("billing", "/returns", ROW[2]), (*ROW[:2], "")):
                assert await opened.store.reached(*other) is None
                assert await opened.store.advance(*other, 1)

        self.run(test)

    def test_the_lowest_that_came_early_is_known_and_since_when_the_first_waits(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.hold(*ROW, 5, 0)
            await self.let_pass(self.moment)
            await store.hold(*ROW, 3, 0)
            await store.hold(*ROW, 4, 0)
            reached = await store.reached(*ROW)
            assert (reached.number, reached.held) == (0, 3)
            assert reached.held_for > self.moment * 0.9
            assert await store.advance(*ROW, 1)
            assert await store.reached(*ROW) == Reached(1)  # it has moved: patience begins anew
            await store.hold(*ROW, 1, 0)  # too late to be early
            assert await store.reached(*ROW) == Reached(1)

        self.run(test)

    def test_while_the_missing_one_is_tried_the_waiting_begins_anew(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.tried(*ROW)
            assert await store.reached(*ROW) is None
            await store.hold(*ROW, 3, 1)
            await self.let_pass(self.moment)
            await store.tried(*ROW)
            reached = await store.reached(*ROW)
            assert (reached.number, reached.held) == (1, 3)
            assert reached.held_for < self.moment

        self.run(test)

    def test_what_is_rolled_back_was_not_reached(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.advance(*ROW, 1)
            assert await rolled_back(self.transactions(opened), lambda tx: store.advance(*ROW, 2, tx=tx))
            assert await store.reached(*ROW) == Reached(1)
            async with self.transactions(opened)() as tx:
                assert await store.advance(*ROW, 2, tx=tx)
            assert await store.reached(*ROW) == Reached(2)

        self.run(test)

    def test_of_many_at_once_one_is_next(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            answers = await asyncio.gather(*(store.advance(*ROW, 1) for _ in range(8)))
            assert sorted(answers) == [False] * 7 + [True]

        self.run(test)
