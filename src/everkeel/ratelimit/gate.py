"""The quick way in: all that a woven function needs to decide by itself, where the limiter is a bucket.

Without keys the bucket is one number, with keys a dict of numbers, and whoever needs it takes it in hand and puts it
back. Taking something out of a deque and putting it in are single C calls: who has it in hand decides alone, so the
count is exact without a lock, for a quarter of a lock's price. Who finds the hand empty takes the slow way, which has a
lock and waits. The slow way takes it in hand too, for as long as it decides.

A gate is never changed but replaced, with another hand: a call that is under way with the gate before finds that one's
hand empty, and takes the slow way too. So two rates are never mixed up.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from everkeel.ratelimit.algorithm import Rate
from everkeel.ratelimit.buckets import TokenBucket

_PATIENCE = 1000  # looks, most of them a millisecond apart
_pause = threading.Event()


class Gate:
    """A bucket, and what one call costs there."""

    __slots__ = ("hand", "interval", "latest", "permits", "price", "scale", "slack")

    def __init__(self, bucket: TokenBucket, cost: int) -> None:
        self.hand: deque[Any] = deque(maxlen=1)
        self.price = cost * bucket.interval
        self.slack = bucket.room - self.price
        """How far away the moment may be at which the bucket is full again, for the call to pass."""
        self.scale, self.interval, self.permits = bucket.scale, bucket.interval, bucket.rate.permits
        self.latest = 0
        """The latest such moment because of which a call was turned away."""

    def promised(self) -> int:
        """The latest moment at which somebody turned away here was told to come back, in nanoseconds."""
        return -(-(self.latest - self.slack) // self.scale) if self.latest else 0

    def take(self, if_lost: Any) -> Any:
        """What is in hand, waiting for whoever has it; it must be put back.

        It is away for a tenth of a microsecond, unless its thread is suspended there. Ctrl-C may hit a thread between
        taking it and putting it back: then it never comes, and `if_lost` is the answer.
        """
        for look in range(_PATIENCE):
            try:
                return self.hand.pop()
            except IndexError:
                _pause.wait(1e-6 if look < 100 else 1e-3)
        return if_lost


CLOSED = Gate(TokenBucket(Rate(1, 1, 1)), 1)
"""A gate with nothing in hand: nobody passes."""
