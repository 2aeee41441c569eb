"""The faults happening. Each call gets a number when it comes; what its number gets is decided by the core."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from itertools import count
from typing import TYPE_CHECKING, Any

from everkeel.errors import ConfigError
from everkeel.policies.chaos.config import make_error
from everkeel.policies.chaos.core import Fault, fault_of
from everkeel.policies.chaos.tags import CARRIED
from everkeel.policies.fallback import Alternative
from everkeel.runtime import cancellation
from everkeel.runtime.clock import DEFAULT
from everkeel.runtime.explain import Decision, attach
from everkeel.runtime.stable import text_of
from everkeel.runtime.state import CallKind, Shadow, State
from everkeel.runtime.stream import each
from everkeel.runtime.tally import read, tally

if TYPE_CHECKING:
    from everkeel.policies.chaos.policy import Chaos

_DRAWN = """\
fault = chaos.draw()
if fault is None:
    INNER
else:
    RESULT = AWAIT chaos.INJECT(fault, REST, ARGS)
tick(ok)"""


class Faults(State):
    """The faults of one policy, or of one key."""

    __slots__ = ("_numbers", "key", "ok", "policy", "script", "text")
    word = "chaos"
    parts = ("ok",)
    policy: Chaos

    def __init__(self, policy: Chaos, key: Hashable = None) -> None:
        self.policy, self.key, self.ok = policy, key, tally()
        self._numbers = count(1)
        self.script = policy.script  # with the numbers: no call gets a fault of one script for a number of another
        try:
            self.text = "" if key is None else text_of(key)
        except ValueError as error:
            allowed = str(error).replace("must be", "must return")
            raise ConfigError(policy.label, "key", allowed, repr(key)) from None

    # ------------------------------------------------------------------ deciding

    def draw(self) -> Fault | None:
        """The fault of the call that comes now. Every call has a number, also those that cannot be hit."""
        number = next(self._numbers)  # one C call: no two calls have the same
        if self.script is not None:
            return self.script.get((self.text, number))
        return fault_of(self.policy.config, self.text, number) if self._may_be_hit() else None

    def _may_be_hit(self) -> bool:
        policy = self.policy
        rules = policy.config
        if rules.keys is not None and self.text not in rules.keys:
            return False
        if rules.tags is not None and not rules.tags & CARRIED.get():
            return False
        if rules.window is not None:
            start, end = rules.window
            if not start <= policy.age() < end:
                return False
        return rules.schedule is None or rules.schedule.covers(policy.clock.time())

    # ------------------------------------------------------------------ letting it happen

    def inject(self, fault: Fault, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """What a call gets that is hit."""
        self.strike(fault, args, kwargs)
        result = self.policy.config.result
        if fault.result and isinstance(result, Alternative):
            return result.answer(None, args, kwargs)
        return fn(*args, **kwargs)

    async def ainject(self, fault: Fault, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await self.astrike(fault, args, kwargs)
        result = self.policy.config.result
        if not fault.result or not isinstance(result, Alternative):
            return await fn(*args, **kwargs)
        answer = result.answer(None, args, kwargs)
        return await answer if result.is_function and inspect.isawaitable(answer) else answer

    def strike(self, fault: Fault, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Everything but the result."""
        error = self._told(fault)
        behavior = self.policy.config.behavior
        if fault.behavior and behavior is not None:
            behavior.answer(None, args, kwargs)
        if fault.latency:
            if self.policy.clock is DEFAULT:
                cancellation.sleep(fault.latency)  # a timeout that waits for this thread wakes it
            else:
                self.policy.clock.sleep(fault.latency)
        if error is not None:
            try:
                raise error
            finally:
                del error  # a frame that names an error is kept alive by it

    async def astrike(self, fault: Fault, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        error = self._told(fault)
        behavior = self.policy.config.behavior
        if fault.behavior and behavior is not None:
            did = behavior.answer(None, args, kwargs)
            if inspect.isawaitable(did):
                await did
        if fault.latency:
            await self.policy.clock.asleep(fault.latency)
        if error is not None:
            try:
                raise error
            finally:
                del error

    def _told(self, fault: Fault) -> Exception | None:
        """Count it, record it, tell it; answers the error it ends in."""
        policy = self.policy
        sources = policy.config.error
        error = None
        if fault.error is not None and sources is not None:
            error = make_error(sources[fault.error % len(sources)])
            whose = f" of {fault.key!r}" if fault.key else ""
            error.add_note(f"injected by {policy.label}, call {fault.call}{whose}")
            attach(error, Decision(policy.name, "chaos", "injected", f"an error at call {fault.call}{whose}"))
        policy.injected(fault, error, self.key)
        return error

    # ------------------------------------------------------------------ the permit protocol, for blocks

    def enter(self) -> None:
        self.policy.must_be_sync()
        fault = self.draw()
        if fault is not None:
            try:
                self.strike(fault, (), {})
            except Exception as error:
                self.policy.failed(error)
                raise

    async def aenter(self) -> None:
        fault = self.draw()
        if fault is not None:
            try:
                await self.astrike(fault, (), {})
            except Exception as error:
                self.policy.failed(error)
                raise

    def done(self, permit: None, result: Any) -> None:
        next(self.ok)
        self.policy.survived()

    def failed(self, permit: None, error: Exception) -> None:
        self.policy.failed(error)

    # ------------------------------------------------------------------ the drivers

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.policy.must_be_sync()
        fault = self.draw()
        try:
            result = fn(*args, **kwargs) if fault is None else self.inject(fault, fn, *args, **kwargs)
        except Exception as error:
            self.policy.failed(error)
            raise
        self.done(None, result)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        fault = self.draw()
        try:
            result = await (fn(*args, **kwargs) if fault is None else self.ainject(fault, fn, *args, **kwargs))
        except Exception as error:
            self.policy.failed(error)
            raise
        self.done(None, result)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        """Faults come before the first item; a result gives the items."""
        self.policy.must_be_sync()
        fault = self.draw()
        try:
            items = fn(*args, **kwargs) if fault is None else self.inject(fault, fn, *args, **kwargs)
            result = yield from items
        except Exception as error:
            self.policy.failed(error)
            raise
        self.done(None, result)
        return result

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        fault = self.draw()
        try:
            if fault is not None:
                await self.astrike(fault, args, kwargs)
            result = self.policy.config.result
            if fault is not None and fault.result and isinstance(result, Alternative):
                items: Any = each(result.answer(None, args, kwargs))
            else:
                items = fn(*args, **kwargs)
            try:
                async for item in items:
                    yield item
            finally:
                await items.aclose()
        except Exception as error:
            self.policy.failed(error)
            raise
        self.done(None, None)

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        return None if self.policy.config.bounded else _DRAWN  # failures are counted on the plain path

    def names(self, kind: CallKind) -> dict[str, object]:
        return {"tick": next}

    # ------------------------------------------------------------------ shadow, being watched

    def shadow(self) -> State:
        return WouldInject(self)

    def calls(self) -> int:
        """How many calls have come."""
        return int(repr(self._numbers)[6:-1]) - 1  # `count(18)`: looking at it must not move it

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        return {**self.policy.about(), "calls": self.calls()}


class WouldInject(Shadow):
    """Numbers the calls, counts who would have been hit, and leaves everybody alone."""

    __slots__ = ()
    state: Faults

    def enter(self) -> None:
        if self.state.draw() is not None:
            self.policy.would("inject")

    def done(self, permit: None, result: Any) -> None:
        next(self.state.ok)

    def failed(self, permit: None, error: Exception) -> None:
        return None

    def dropped(self, permit: None, error: BaseException) -> None:
        return None
