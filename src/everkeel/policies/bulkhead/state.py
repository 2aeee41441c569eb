"""The places: tokens in a deque. Taking one and giving it back are single C calls, the same for threads and tasks.

Ctrl-C must not lose a place. CPython delivers an interrupt after a C call, and at the first instruction of a Python
function. So `entered` is true *before* the token is taken, taking it is inside the `try`, and giving it back is an
inline C call, not a method: in the fragment and in the plain path alike. (A `with` block has the same small window as
those of the standard library: between its `__enter__` and its body.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from typing import TYPE_CHECKING, Any

from everkeel.errors import BulkheadFullError
from everkeel.runtime.deadline import remaining
from everkeel.runtime.state import CallKind, Shadow, State
from everkeel.runtime.tally import read, tally
from everkeel.runtime.waiting import TaskWaiter, ThreadWaiter

if TYPE_CHECKING:
    from everkeel.policies.bulkhead.config import BulkheadConfig
    from everkeel.policies.bulkhead.policy import Bulkhead

_PLACE = """\
entered = True
try:
    try:
        tokens.pop()
    except IndexError:
        entered = False
    if not entered:
        AWAIT bulkhead.ENTER()
        entered = True
    INNER
finally:
    if entered:
        tokens.append(None)
        if bulkhead.attention:
            bulkhead.attend()
tick(ok)"""


class Places(State):
    """The places of one bulkhead, or of one key."""

    __slots__ = ("attention", "debt", "key", "ok", "over", "places", "policy", "tokens", "waiters")
    word = "bulkhead"
    parts = ("tokens", "ok")
    policy: Bulkhead

    def __init__(self, policy: Bulkhead, key: Hashable = None) -> None:
        self.policy, self.key, self.ok = policy, key, tally()
        self.tokens: deque[None] = deque([None] * self.limit())
        self.waiters: deque[ThreadWaiter | TaskWaiter] = deque()
        self.places = len(self.tokens)  # how many there are, whatever a config says that has yet to reach us
        self.over = 0  # in shadow mode: how many are running beyond the limit
        self.debt = 0  # places that a lowered limit has yet to take away
        self.attention = False  # somebody waits, or there is a debt: whoever gives a place back must look

    # ------------------------------------------------------------------ taking a place

    def enter(self) -> None:
        if self._take():
            return
        self._needs_room()
        waiter = ThreadWaiter()
        try:  # around all of it: an interrupt leaves neither a waiter in the queue nor a place with one that is gone
            self._queue_up(waiter)
            began = self.policy.clock.monotonic()
            waiter.wait(self.policy.clock, self._patience())
            self._waited(waiter, began)
        except BaseException:
            self._give_up(waiter)
            raise

    async def aenter(self) -> None:
        if self._take():
            return
        self._needs_room()
        from asyncio import get_running_loop

        waiter = TaskWaiter(self.policy.clock, get_running_loop())
        try:
            self._queue_up(waiter)
            began = self.policy.clock.monotonic()
            await waiter.wait(self.policy.clock, self._patience())
            self._waited(waiter, began)
        except BaseException:
            self._give_up(waiter)
            raise

    def try_enter(self) -> None:
        if not self._take():
            raise self._full()

    def _take(self) -> bool:
        try:
            self.tokens.pop()
        except IndexError:
            return False
        except BaseException:  # an interrupt delivered by pop() itself: it comes after the token is gone
            self._give_back()
            raise
        return True

    def _needs_room(self) -> None:
        """Whoever finds the queue full is told at once, before anything is made or locked for waiting."""
        if len(self.waiters) >= self.policy.config.queue:
            raise self._full()

    def _queue_up(self, waiter: ThreadWaiter | TaskWaiter) -> None:
        # Announce, then look again: who gives a place back gives first, and then looks for who announced itself.
        with self.policy.lock:
            room = len(self.waiters) < self.policy.config.queue
            if room:
                self.waiters.append(waiter)
                self.attention = True
        if not room:
            raise self._full()
        self.policy.counts.tick("queued")
        if self.policy.heard():
            from everkeel.events import CallQueued

            name, kind = self.policy.name, self.policy.type
            self.policy.emit(CallQueued(policy=name, policy_type=kind, waiting=len(self.waiters), key=self.key))
        self.attend()

    def _patience(self) -> float | None:
        """How long it may wait: `max_wait`, but never past the deadline that travels with the call."""
        bounds = [bound for bound in (self.policy.config.max_wait, remaining()) if bound is not None]
        return max(0.0, min(bounds)) if bounds else None

    def _waited(self, waiter: ThreadWaiter | TaskWaiter, began: float) -> None:
        """The wait is over. Without a place, that was too long."""
        policy = self.policy
        with policy.lock:
            seconds = policy.clock.monotonic() - began
            policy.waited += seconds
            if not waiter.granted:
                self.waiters.remove(waiter)
                self._look()
        if policy.heard():
            from everkeel.events import WaitEnded

            name, kind, granted = policy.name, policy.type, waiter.granted
            policy.emit(WaitEnded(policy=name, policy_type=kind, seconds=seconds, granted=granted, key=self.key))
        if not waiter.granted:
            raise self._full()

    def _give_up(self, waiter: ThreadWaiter | TaskWaiter) -> None:
        """Leave the queue, if still there, and hand on the place that was granted in the meantime."""
        with self.policy.lock:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
                self._look()
        if waiter.granted:
            self._give_back()

    def _full(self) -> BulkheadFullError:
        policy = self.policy
        next(policy.rejections)
        error = policy.config.full_error(policy.name, None, self.running(), len(self.waiters))
        if policy.heard():
            from everkeel.events import CallRejected

            policy.emit(CallRejected(policy=policy.name, policy_type=policy.type, error=error, key=self.key))
        return error

    # ------------------------------------------------------------------ giving it back

    def attend(self) -> None:
        """Free places go to whoever waits; the debt of a lowered limit comes first."""
        try:
            self._hand_out()
        except BaseException:
            self._hand_out()  # an interrupt in the middle: whoever was granted a place must hear of it
            raise

    def _hand_out(self) -> None:
        waiters = self.waiters
        with self.policy.lock:
            while waiters or self.debt:
                newest = self.policy.config.order == "newest" and not (waiters and waiters[0].granted)
                waiter = waiters[-1 if newest else 0] if waiters else None
                if self.debt or waiter is None or not waiter.granted:
                    held = True  # as in `call`: true before it is, so that an interrupt loses no place
                    try:
                        try:
                            self.tokens.pop()
                        except IndexError:
                            held = False
                            break
                        if self.debt or waiter is None:
                            self.debt, held = self.debt - 1, False
                            continue
                        waiter.granted, held = True, False
                    finally:
                        if held:
                            self.tokens.append(None)
                waiter.wake()
                waiters.remove(waiter)
            self._look()

    def _look(self) -> None:
        self.attention = bool(self.waiters or self.debt)

    def _give_back(self) -> None:
        self.tokens.append(None)
        if self.attention:
            self.attend()

    def done(self, permit: None, result: Any) -> None:
        self._give_back()
        next(self.ok)

    def failed(self, permit: None, error: BaseException) -> None:
        self._give_back()

    dropped = failed

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        tokens, entered = self.tokens, True
        try:
            try:
                tokens.pop()
            except IndexError:
                entered = False
            if not entered:
                self.enter()
                entered = True
            result = fn(*args, **kwargs)
        finally:
            if entered:
                tokens.append(None)
                if self.attention:
                    self.attend()
        next(self.ok)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        tokens, entered = self.tokens, True
        try:
            try:
                tokens.pop()
            except IndexError:
                entered = False
            if not entered:
                await self.aenter()
                entered = True
            result = await fn(*args, **kwargs)
        finally:
            if entered:
                tokens.append(None)
                if self.attention:
                    self.attend()
        next(self.ok)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        tokens, entered = self.tokens, True
        try:
            try:
                tokens.pop()
            except IndexError:
                entered = False
            if not entered:
                self.enter()
                entered = True
            result = yield from fn(*args, **kwargs)
        finally:
            if entered:
                tokens.append(None)
                if self.attention:
                    self.attend()
        next(self.ok)
        return result

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        tokens, entered = self.tokens, True
        try:
            try:
                tokens.pop()
            except IndexError:
                entered = False
            if not entered:
                await self.aenter()
                entered = True
            items = fn(*args, **kwargs)
            try:
                async for item in items:
                    yield item
            finally:
                await items.aclose()  # before the place is given back: the work is not over until it is closed
        finally:
            if entered:
                tokens.append(None)
                if self.attention:
                    self.attend()
        next(self.ok)

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        return _PLACE

    def names(self, kind: CallKind) -> dict[str, object]:
        return {"tick": next}

    # ------------------------------------------------------------------ live changes, being watched

    def shadow(self) -> State:
        return WouldQueue(self)

    def adapt(self, old: BulkheadConfig, new: BulkheadConfig) -> None:
        # Not from `old`: the places of a key that was first seen a moment ago are as many as `new` says already.
        change, self.places = new.limit - self.places, new.limit
        self._resize(change)

    def _resize(self, change: int) -> None:
        """So many places more, or fewer: those that are taken go when they are given back."""
        with self.policy.lock:
            paid = min(self.debt, max(0, change))
            self.debt += max(0, -change) - paid
            self.tokens.extend([None] * (max(0, change) - paid))
            self._look()
        self.attend()

    def forgettable(self) -> bool:
        # A call that has found this state but not yet taken its token is missed: for a moment there may be one too many
        return len(self.tokens) == self.limit() and not self.attention

    def after_fork(self) -> None:
        self.tokens.clear()  # the same deque: woven functions have it by name
        self.tokens.extend([None] * self.limit())
        self.waiters.clear()
        self.places, self.over, self.debt, self.attention = len(self.tokens), 0, 0, False

    def limit(self) -> int:
        """How many places there are."""
        return self.policy.config.limit

    def running(self) -> int:
        """How many calls are running. May be off by one for a moment: nothing is locked to take a place."""
        return max(0, self.limit() + self.debt - len(self.tokens))

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        return {
            "running": self.running(),
            "waiting": len(self.waiters),
            "limit": self.limit(),
            "queued": self.policy.counts["queued"],
            "waited": self.policy.waited,
        }


class WouldQueue(Shadow):
    """Lets everybody in, and counts those who would have had to wait or been turned away."""

    __slots__ = ()
    state: Places

    def enter(self) -> bool:
        if self.state._take():
            return True
        policy = self.policy
        with policy.lock:
            self.state.over += 1
            queued = self.state.over <= policy.config.queue
        policy.would("queue" if queued else "reject")
        return False

    def done(self, permit: bool, result: Any) -> None:
        self._leave(permit)
        next(self.state.ok)

    def failed(self, permit: bool, error: BaseException) -> None:
        self._leave(permit)

    dropped = failed

    def _leave(self, permit: bool) -> None:
        if permit:
            self.state._give_back()
        else:
            with self.policy.lock:
                self.state.over -= 1
