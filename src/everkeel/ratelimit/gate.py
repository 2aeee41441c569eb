"""The quick way in: all that a woven function needs to decide by itself, where the limiter is a bucket.

Without keys the bucket is one number that whoever needs it takes in hand and puts back. Taking a number out of a deque
and putting one in are single C calls: who has it in hand decides alone, so the count is exact without a lock, for a
third of a lock's price. Who finds the hand empty takes the slow way. With keys it is a dict of such numbers, under the
limiter's lock.

A gate is never changed but replaced, with another hand: a call that is under way with the gate before finds that one's
hand empty (or its dict, which is under the lock), and takes the slow way too. So two rates are never mixed up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import Any

from everkeel.ratelimit.buckets import TokenBucket

_PATIENCE = 1000  # looks, most of them a millisecond apart
_pause = threading.Event()


class Gate:
    """A bucket and what one call costs there. All methods are called under the limiter's lock."""

    __slots__ = ("hand", "interval", "latest", "permits", "price", "room", "scale", "states")

    def __init__(self, bucket: TokenBucket, cost: int, states: dict[Hashable, Any]) -> None:
        self.hand: deque[int] = deque(maxlen=1)
        self.states = states
        self.price, self.room = cost * bucket.interval, bucket.room
        self.scale, self.interval, self.permits = bucket.scale, bucket.interval, bucket.rate.permits
        self.latest = 0
        """The greatest `then` of a call that was turned away by its key's bucket."""

    def take(self, if_lost: int) -> int:
        """The number in hand, waiting for whoever has it; it must be put back.

        It is away for a tenth of a microsecond, unless its thread is suspended there. Ctrl-C may hit a thread between
        taking it and putting it back: then it never comes, and `if_lost` is what to assume.
        """
        for look in range(_PATIENCE):
            try:
                return self.hand.pop()
            except IndexError:
                _pause.wait(1e-6 if look < 100 else 1e-3)
        return if_lost


def closed() -> Gate:
    """A gate through which nobody passes."""
    from everkeel.ratelimit.algorithm import Rate

    gate = Gate(TokenBucket(Rate(1, 1, 1)), 1, {})
    gate.room = -1
    return gate


CLOSED = closed()
