"""Doing something once per key: as a block, or around a function; with an event loop, or without.

A claim is a lease: while the work runs a heartbeat extends it at a third of its length, so that slow work is not
taken for dead, and work that is dead is taken over when the lease ends.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial, wraps
from inspect import iscoroutinefunction
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from everkeel.errors import (
    ClaimLostError,
    ConfigError,
    IdempotencyInProgressError,
    IdempotencyMismatchError,
)
from everkeel.idempotency import core
from everkeel.idempotency.memory import MemoryIdempotencyStore
from everkeel.idempotency.records import Begin, Fresh, InProgress, Mismatch, Token
from everkeel.idempotency.store import IdempotencyStore, SyncIdempotencyStore
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.settings import Seconds
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    import asyncio

F = TypeVar("F", bound=Callable[..., Any])


class Claim:
    """What a block is told: whether the work is its to do, and if not, what was kept when it was done."""

    __slots__ = ("_result", "answer", "lost")

    def __init__(self, answer: Begin) -> None:
        self.answer = answer
        self.lost = False
        """The lease was lost while the work ran: somebody else may be doing it. Work that can stop should."""
        self._result = getattr(answer, "result", None)

    @property
    def fresh(self) -> bool:
        """Is the work to be done?"""
        return self.answer.fresh

    @property
    def attempt(self) -> int:
        """Which try this is, from 1; 0 where there is nothing to do."""
        return self.answer.attempt if isinstance(self.answer, Fresh) else 0

    @property
    def token(self) -> Token | None:
        """The claim's token, whose `fence` a system may use that refuses the smaller of two; None: nothing to do."""
        return self.answer.token if isinstance(self.answer, Fresh) else None

    @property
    def result(self) -> bytes | None:
        """What was kept: by whoever did the work before, or by this block."""
        return self._result

    def keep(self, result: bytes) -> None:
        """Keep this for those who come later with the same key."""
        if not self.fresh:
            raise RuntimeError("this work was done before; what was kept then stays")
        if not isinstance(result, bytes):
            raise TypeError(f"the result to keep must be bytes, not {type(result).__name__}")
        self._result = result

    def __repr__(self) -> str:
        return f"<Claim: {self.answer!r}>"


class Once:
    """A block that runs its work at most once per key; `Idempotency.once` makes one. `with` and `async with`.

    It claims on the way in, completes on the way out, and fails (releases the key) when the body raises or is
    cancelled. While somebody else is at it, entering raises `IdempotencyInProgressError`.
    """

    __slots__ = ("_beat", "_begin", "_claim", "_guard", "_key", "_stop")

    def __init__(self, guard: Idempotency, key: str, fingerprint: bytes | None, epoch: int) -> None:
        self._guard, self._key = guard, key
        self._begin: dict[str, Any] = {
            "fingerprint": fingerprint,
            "epoch": epoch,
            "lease": guard.lease,
            "retain": guard.retain,
        }
        self._claim: Claim | None = None
        self._beat: asyncio.Task[None] | None = None
        self._stop: threading.Event | None = None

    # ------------------------------------------------------------------ what both forms decide

    def _entered(self, answer: Begin) -> Claim:
        scope = self._guard.scope
        if isinstance(answer, InProgress):
            raise IdempotencyInProgressError(scope, answer.retry_after, self._key)
        if isinstance(answer, Mismatch):
            raise IdempotencyMismatchError(scope, self._key)
        self._claim = Claim(answer)
        return self._claim

    def ended(self) -> None:
        """The claim was completed in another way: there is nothing left to do at the end of the block."""
        self._claim = None

    def _unused(self) -> None:
        if self._claim is not None:
            raise RuntimeError("this block is already in use: make a new one with once(...)")

    def _ending(self, error: BaseException | None) -> tuple[Token, bytes | None] | None:
        """What is left to do: nothing, or to end this claim."""
        claim, self._claim = self._claim, None
        if claim is None or claim.token is None:
            return None
        return claim.token, claim.result

    def _lost(self) -> ClaimLostError:
        return ClaimLostError(self._guard.scope, self._key)

    # ------------------------------------------------------------------ with an event loop

    async def __aenter__(self) -> Claim:
        self._unused()
        claim = self._entered(await self._guard.store.begin(self._guard.scope, self._key, **self._begin))
        if claim.token is not None and self._guard.heartbeat:
            from asyncio import create_task

            self._beat = create_task(self._abeats(claim, claim.token), name=f"everkeel heartbeat of {self._key}")
        return claim

    async def _abeats(self, claim: Claim, token: Token) -> None:
        while not claim.lost:
            await self._guard.clock.asleep(self._guard.lease / 3)
            try:
                claim.lost = not await self._guard.store.extend(token, self._guard.lease)
            except Exception as error:  # the next beat may work, and if none does the lease ends
                report(f"could not extend the lease on {self._key!r}", error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.cancel()
        ending = self._ending(error)
        if ending is None:
            return
        token, result = ending
        if error is None:
            if not await self._guard.store.complete(token, result):
                raise self._lost()
            return
        try:
            await self._guard.store.fail(token)
        except Exception as trouble:  # the body's own error is what the caller must see; the lease ends by itself
            report(f"could not release {self._key!r}; it is free when its lease ends", trouble)

    # ------------------------------------------------------------------ without one

    def __enter__(self) -> Claim:
        self._unused()
        claim = self._entered(self._guard.sync_store.begin(self._guard.scope, self._key, **self._begin))
        if claim.token is not None and self._guard.heartbeat:
            from contextvars import copy_context

            self._stop = threading.Event()
            beat = partial(copy_context().run, self._beats, claim, claim.token, self._stop)
            threading.Thread(target=beat, name="everkeel-heartbeat", daemon=True).start()
        return claim

    def _beats(self, claim: Claim, token: Token, stop: threading.Event) -> None:
        while not claim.lost and not self._guard.clock.wait(stop, self._guard.lease / 3):
            try:
                claim.lost = not self._guard.sync_store.extend(token, self._guard.lease)
            except Exception as error:
                report(f"could not extend the lease on {self._key!r}", error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._stop is not None:
            self._stop.set()
        ending = self._ending(error)
        if ending is None:
            return
        token, result = ending
        if error is None:
            if not self._guard.sync_store.complete(token, result):
                raise self._lost()
            return
        try:
            self._guard.sync_store.fail(token)
        except Exception as trouble:
            report(f"could not release {self._key!r}; it is free when its lease ends", trouble)


class Idempotency:
    """Work that is done once per key, however often it is asked for, by however many at once.

    `scope` keeps the keys of one purpose apart from those of others. A crash frees the key when its `lease` (60 s)
    ends, a failure at once; only completed work suppresses, for `retain` (8 days).

    What this can and cannot promise: two at once never both run, and completed work is not repeated. Work whose process
    dies after its effect and before `complete` runs again, unless the effect and the record are in one transaction
    (`everkeel.messaging.Inbox` on a database does that).

    >>> payments = Idempotency("payments")
    >>> with payments.once("order-7") as claim:
    ...     if claim.fresh:
    ...         claim.keep(b"receipt 1")
    >>> with payments.once("order-7") as claim:
    ...     claim.fresh, claim.result
    (False, b'receipt 1')
    """

    def __init__(
        self,
        scope: str,
        store: IdempotencyStore | None = None,
        *,
        lease: Seconds = core.LEASE,
        retain: Seconds = core.RETAIN,
        heartbeat: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """`heartbeat=False`: the lease is all the time there is; for work that is surely shorter."""
        if not isinstance(scope, str) or not scope:
            raise ConfigError("idempotency", "scope", "must be a non-empty string", repr(scope))
        self.scope, self.heartbeat, self.clock = scope, heartbeat, clock or DEFAULT
        self.store: IdempotencyStore = MemoryIdempotencyStore(clock=clock) if store is None else store
        self.lease, self.retain = core.length("lease", lease), core.length("retain", retain)

    @property
    def sync_store(self) -> SyncIdempotencyStore:
        """The store as code without an event loop uses it."""
        sync = getattr(self.store, "sync", None)
        if sync is None:
            raise TypeError(f"{type(self.store).__name__} works with an event loop only: use `async with`")
        return cast("SyncIdempotencyStore", sync)

    def once(self, key: str, *, fingerprint: bytes | None = None, epoch: int = 0) -> Once:
        """A block for the work of one key: `async with guard.once(key) as claim: if claim.fresh: ...`.

        `fingerprint`: a digest of what is asked for; the same key with another one is an `IdempotencyMismatchError`.
        """
        return Once(self, key, fingerprint, epoch)

    def __call__(
        self,
        key: Callable[..., str],
        *,
        fingerprint: Callable[..., bytes] | None = None,
        encode: Callable[[Any], bytes] = lambda result: json.dumps(result).encode(),
        decode: Callable[[bytes], Any] = json.loads,
    ) -> Callable[[F], F]:
        """Decorate a function: `key` makes the key of its arguments, and repeated calls answer what the first one did.

        The result is kept as JSON unless `encode` and `decode` say otherwise.

        >>> payments = Idempotency("payments")
        >>> @payments(key=lambda order: f"charge-{order}")
        ... def charge(order: int) -> str:
        ...     print("charging", order)
        ...     return "paid"
        >>> charge(7), charge(7)
        charging 7
        ('paid', 'paid')
        """
        if not callable(key):
            raise ConfigError("idempotency", "key", "must be a function of the call's arguments", repr(key))

        def block(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Once:
            mark = None if fingerprint is None else fingerprint(*args, **kwargs)
            return self.once(key(*args, **kwargs), fingerprint=mark)

        def kept(claim: Claim) -> Any:
            return None if claim.result is None else decode(claim.result)

        def decorate(fn: F) -> F:
            if iscoroutinefunction(fn):

                @wraps(fn)
                async def acalled(*args: Any, **kwargs: Any) -> Any:
                    async with block(args, kwargs) as claim:
                        if not claim.fresh:
                            return kept(claim)
                        result = await fn(*args, **kwargs)
                        claim.keep(encode(result))
                        return result

                return cast("F", acalled)

            @wraps(fn)
            def called(*args: Any, **kwargs: Any) -> Any:
                with block(args, kwargs) as claim:
                    if not claim.fresh:
                        return kept(claim)
                    result = fn(*args, **kwargs)
                    claim.keep(encode(result))
                    return result

            return cast("F", called)

        return decorate
