"""How the delay grows from retry to retry: exponential, Fibonacci, or by a strategy of one's own. Beyond the standard.

A backoff is asked for the delay before each retry, in seconds and before jitter. One is made for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol


class Delays(Protocol):
    """The delays of one call."""

    def next(self, failure: BaseException | None) -> float:
        """Seconds before the next retry, after this failure (None after a result that was not wanted)."""
        ...


class CustomBackoffStrategy(Protocol):
    """What `CustomBackoff` names: made without arguments for each call, told the delay of its `Retry` once.

    >>> class Doubling:
    ...     def init(self, initial_delay_in_millis):
    ...         self.delay = initial_delay_in_millis
    ...     def next_delay_in_millis(self, exception):
    ...         self.delay *= 2
    ...         return self.delay
    """

    def init(self, initial_delay_in_millis: int) -> None:
        """Told before anything else: the delay of the `Retry`."""
        ...

    def next_delay_in_millis(self, exception: BaseException | None) -> int:
        """The delay before the next retry. Negative is taken as none."""
        ...


class Growing:
    """Delays that grow by a rule, none of them longer than the longest allowed."""

    __slots__ = ("_delays", "_longest")

    def __init__(self, delays: Iterator[float], longest: float | None) -> None:
        self._delays, self._longest = delays, longest

    def next(self, failure: BaseException | None) -> float:
        delay = next(self._delays)
        return delay if self._longest is None else min(delay, self._longest)


class Asked:
    """Delays that a strategy of the user's decides."""

    __slots__ = ("_strategy",)

    def __init__(self, make: Callable[[], CustomBackoffStrategy], delay: float) -> None:
        self._strategy = make()
        self._strategy.init(round(delay * 1000))

    def next(self, failure: BaseException | None) -> float:
        return max(0.0, self._strategy.next_delay_in_millis(failure) / 1000)


def exponentially(delay: float, factor: int) -> Iterator[float]:
    """d, f·d, f²·d ... and for ever the last one that a float can hold.

    >>> from itertools import islice
    >>> list(islice(exponentially(0.5, 2), 4))
    [0.5, 1.0, 2.0, 4.0]
    """
    while True:
        yield delay
        delay = min(delay * factor, _LONGEST)


def like_fibonacci(delay: float) -> Iterator[float]:
    """d, 2d, 3d, 5d, 8d ...

    >>> from itertools import islice
    >>> list(islice(like_fibonacci(1.0), 6))
    [1.0, 2.0, 3.0, 5.0, 8.0, 13.0]
    """
    before, now = delay, delay
    while True:
        yield now
        before, now = now, min(before + now, _LONGEST)


_LONGEST = 1e9  # thirty years: growing further would only overflow
