"""A bulkhead whose number of places moves. One call in four is measured, of very short ones hardly any."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, repeat
from typing import TYPE_CHECKING, Any

from everkeel.errors import BulkheadFullError, RejectedError, ShedError
from everkeel.policies.bulkhead.state import Places
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.state import CallKind, State

if TYPE_CHECKING:
    from everkeel.policies.concurrency.policy import ConcurrencyLimit

# As in the bulkhead: `entered` is true before the token is taken, and giving it back is an inline C call. The loop
# takes one step of an iterator, as `next` would, for less than a call costs.
_PLACE = """\
entered = True
began = 0.0
try:
    try:
        tokens.pop()
    except IndexError:
        entered = False
    if not entered:
        AWAIT limiter.PLACE()
        entered = True
    for skipped in limiter.turn:
        break
    else:
        began = limiter.begins()
    INNER
except Exception as error:
    if entered:
        limiter.troubled(error)
    raise
finally:
    if entered:
        tokens.append(None)
        if limiter.attention:
            limiter.attend()
if began:
    limiter.sampled(began)
tick(ok)"""


_SHORT = 0.00002  # seconds: a call shorter than that would notice being measured


class Adaptive(Places):
    """The places, and the control that says how many there are."""

    __slots__ = ("_skips", "control", "now_at", "short", "turn")
    word = "limiter"
    policy: ConcurrencyLimit  # type: ignore[assignment]  # a bulkhead in all that its places ask of it

    def __init__(self, policy: ConcurrencyLimit, key: Any = None) -> None:
        self.control = policy.config.control()
        self.now_at = int(self.control.limit)
        self._skips = cycle((2, 4, 3))  # one in four; without a period that traffic may have as well
        self.short = False
        self.turn = repeat(False, 0)  # those that are not measured; the next one after them is
        super().__init__(policy, key)  # type: ignore[arg-type]

    def limit(self) -> int:
        return self.now_at

    # ------------------------------------------------------------------ learning

    def begins(self) -> float:
        """A call that is to be measured begins now."""
        self.turn = repeat(False, 499 if self.short else next(self._skips))
        return self.policy.clock.monotonic()

    def may_begin(self) -> float:
        """When this call began, if it is to be measured; otherwise 0."""
        return self.begins() if next(self.turn, True) else 0.0

    def sampled(self, began: float) -> None:
        """A call that began then was answered now, and has left already."""
        policy = self.policy
        now = policy.clock.monotonic()
        self.short = now - began < _SHORT
        with policy.lock:
            limit = self.control.sample(now - began, self.running() + 1, now)
        self._move(limit)

    def troubled(self, error: Exception) -> None:
        """A call raised: was it because of too much?"""
        policy = self.policy
        if policy.config.classifier.of_error(error) is Verdict.FAILURE:
            policy.counts.tick("failure")
            with policy.lock:
                limit = self.control.overload()
            self._move(limit)
        else:
            policy.counts.tick("ignored")

    def _move(self, limit: int) -> None:
        if limit == self.now_at:
            return
        policy = self.policy
        with policy.lock:
            before, self.now_at = self.now_at, limit
        self._resize(limit - before)
        if policy.heard() and limit != before:
            from everkeel.events import LimitChanged

            policy.emit(
                LimitChanged(policy=policy.name, policy_type=policy.type, before=before, limit=limit, key=self.key)
            )

    def adapt(self, old: Any, new: Any) -> None:
        self.inherit(self)

    def inherit(self, other: Adaptive) -> None:
        """What another one has learned holds here too, within the bounds of the config in force."""
        with self.policy.lock:
            control = self.policy.config.control()
            control.bound(other.control.limit)
            control.baseline = other.control.baseline
            self.control = control
        self._move(int(control.limit))

    def _full(self) -> BulkheadFullError:
        return self.shed(None)  # type: ignore[return-value]  # a rejection, of this policy's own kind

    def shed(self, priority: str | None) -> RejectedError:
        """Count and tell that a call is turned away; the error for its caller."""
        policy = self.policy
        next(policy.rejections)
        error = ShedError(policy.name, None, self.now_at, priority)
        if policy.heard():
            from everkeel.events import CallRejected

            policy.emit(CallRejected(policy=policy.name, policy_type=policy.type, error=error, key=self.key))
        return error

    # ------------------------------------------------------------------ the drivers

    def place(self) -> None:
        """A place, when there is none to be had at once."""
        Places.enter(self)

    async def aplace(self) -> None:
        """The same for a coroutine."""
        await Places.aenter(self)

    def enter(self) -> Any:
        self.place()
        return self.may_begin()

    async def aenter(self) -> Any:
        await self.aplace()
        return self.may_begin()

    def done(self, permit: Any, result: Any) -> None:
        self._give_back()
        if permit:
            self.sampled(permit)
        next(self.ok)

    def failed(self, permit: Any, error: BaseException) -> None:
        self._give_back()
        if isinstance(error, Exception):
            self.troubled(error)

    dropped = failed

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        tokens, entered, began = self.tokens, True, 0.0
        try:
            try:
                tokens.pop()
            except IndexError:
                entered = False
            if not entered:
                self.place()
                entered = True
            began = self.may_begin()
            result = fn(*args, **kwargs)
        except Exception as error:
            if entered:
                self.troubled(error)
            raise
        finally:
            if entered:
                tokens.append(None)
                if self.attention:
                    self.attend()
        if began:
            self.sampled(began)
        next(self.ok)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        tokens, entered, began = self.tokens, True, 0.0
        try:
            try:
                tokens.pop()
            except IndexError:
                entered = False
            if not entered:
                await self.aplace()
                entered = True
            began = self.may_begin()
            result = await fn(*args, **kwargs)
        except Exception as error:
            if entered:
                self.troubled(error)
            raise
        finally:
            if entered:
                tokens.append(None)
                if self.attention:
                    self.attend()
        if began:
            self.sampled(began)
        next(self.ok)
        return result

    stream = State.stream  # by the permit protocol: a bulkhead's own measures nothing
    astream = State.astream

    def fragment(self, kind: CallKind) -> str | None:
        return _PLACE

    def names(self, kind: CallKind) -> dict[str, object]:
        return {"tick": next}

    # ------------------------------------------------------------------ live changes, being watched

    def forgettable(self) -> bool:
        # Starting over must not let more in than now: a limit that came down is not forgotten.
        return self.now_at >= self.policy.config.initial and self.running() == 0 and not self.attention

    def shadow(self) -> State:
        return WouldShed(self)

    def details(self) -> dict[str, Any]:
        return {**super().details(), "baseline": self.control.baseline}


class WouldShed(State):
    """Lets everybody in, learns, and counts those who would have waited or been shed."""

    __slots__ = ("policy", "state")
    policy: ConcurrencyLimit

    def __init__(self, state: Adaptive) -> None:
        self.state, self.policy = state, state.policy

    def enter(self) -> tuple[bool, float]:
        placed = self.state._take()
        if not placed:
            self.policy.would_not_enter()
        return placed, self.state.may_begin()

    def done(self, permit: tuple[bool, float], result: Any) -> None:
        self._leave(permit)
        if permit[1]:
            self.state.sampled(permit[1])
        next(self.state.ok)

    def failed(self, permit: tuple[bool, float], error: BaseException) -> None:
        self._leave(permit)
        if isinstance(error, Exception):
            self.state.troubled(error)

    dropped = failed

    def _leave(self, permit: tuple[bool, float]) -> None:
        if permit[0]:
            self.state._give_back()
        else:
            self.policy.left_after_all()
