"""The one deadline that travels with a call: a context variable that every policy respects.

Retry does not start a sleep that does not fit, a queue wait is bounded by it, a timeout is never longer than it. It can
only become earlier on the way in: a block inside another never outlasts it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from textwrap import indent

from everkeel.errors import ConfigError, TimeoutExceededError
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.settings import Duration, Seconds


class _InUse:
    """Is there, or was there ever, a deadline in this process? Until then woven functions need not look for one."""

    __slots__ = ("on_begin", "yes")

    def __init__(self) -> None:
        self.yes = False
        self.on_begin: list[Callable[[], object]] = []

    def begin(self) -> None:
        """The first deadline: from now on functions look."""
        self.yes = True
        for act in self.on_begin:
            act()


in_use = _InUse()


def unless_under_deadline(word: str, fragment: str) -> str:
    """A fragment for calls without a deadline; where there is one, the plain path of the state `word` does the work."""
    if not in_use.yes:
        return fragment
    return f"if ambient() is not None:\n    RESULT = AWAIT {word}.CALL(REST, ARGS)\nelse:\n{indent(fragment, '    ')}"


class Deadline:
    """A moment after which an answer is of no use any more."""

    __slots__ = ("at", "clock", "length")

    def __init__(self, at: float, *, length: float | None = None, clock: Clock = DEFAULT) -> None:
        if not in_use.yes:
            in_use.begin()
        self.at, self.clock = at, clock
        self.length = at - clock.monotonic() if length is None else length  # for messages: "no answer within 2 s"

    def remaining(self) -> float:
        """Seconds left; negative when it has passed."""
        return self.at - self.clock.monotonic()

    @property
    def expired(self) -> bool:
        """Has it passed?"""
        return self.remaining() <= 0

    def error(self) -> TimeoutExceededError:
        """What a call raises that this deadline ends."""
        return TimeoutExceededError(None, self.length, "deadline")

    def __repr__(self) -> str:
        return f"<Deadline of {self.length:g} s, {self.remaining():.3f} s left>"


AMBIENT: ContextVar[Deadline | None] = ContextVar("everkeel.deadline", default=None)


def current_deadline() -> Deadline | None:
    """The deadline of the call in progress, or None.

    >>> current_deadline() is None
    True
    """
    return AMBIENT.get()


class deadline:
    """Everything in this block shares one deadline: its retries, waits and timeouts fit into so many seconds.

    It bounds what policies do; it does not interrupt code that no policy guards (`timeout` does that).

    >>> with deadline(2.0) as limit:
    ...     0 < limit.remaining() <= 2.0
    True
    """

    __slots__ = ("_clock", "_seconds", "_token")

    def __init__(self, seconds: Seconds, *, clock: Clock = DEFAULT) -> None:
        try:
            self._seconds: float = Duration(zero=True).check(seconds)
        except ValueError as error:
            raise ConfigError("deadline", "seconds", str(error), repr(seconds)) from None
        self._clock = clock
        self._token: Token[Deadline | None] | None = None

    def __enter__(self) -> Deadline:
        if self._token is not None:
            raise RuntimeError("this deadline block is already in use: make a new one with deadline(...)")
        outer = AMBIENT.get()
        mine = Deadline(self._clock.monotonic() + self._seconds, length=self._seconds, clock=self._clock)
        if outer is not None and outer.at <= mine.at:
            mine = outer
        self._token = AMBIENT.set(mine)
        return mine

    def __exit__(self, *error: object) -> None:
        if self._token is not None:
            AMBIENT.reset(self._token)
            self._token = None

    async def __aenter__(self) -> Deadline:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)


def remaining() -> float | None:
    """Seconds left before the ambient deadline; None when there is none."""
    limit = AMBIENT.get()
    return None if limit is None else limit.remaining()
