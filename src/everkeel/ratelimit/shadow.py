"""A limiter that only watches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any

from everkeel.runtime.state import CallKind, State

if TYPE_CHECKING:
    from everkeel.ratelimit.policy import RateLimit
    from everkeel.ratelimit.state import Limiting


class WouldLimit(State):
    """Takes permits where there are some, counts who would have waited or been rejected, and lets everybody pass."""

    __slots__ = ("policy", "state")
    policy: RateLimit

    def __init__(self, state: Limiting) -> None:
        self.state, self.policy = state, state.policy

    def _look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.watch(self.state._key(args, kwargs), self.state._cost(args, kwargs))

    def watch(self, key: Any, cost: int) -> None:
        """Ask, and do not mind the answer."""
        with self.policy.lock:
            decision = self.state._decide(key, cost, None)
        if decision is not None and decision.allowed:
            next(self.state.ok)
        else:
            self.policy.would("queue" if self.policy.config.queue else "reject")

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._look(args, kwargs)
        return fn(*args, **kwargs)

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._look(args, kwargs)
        return await fn(*args, **kwargs)

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        self._look(args, kwargs)
        return (yield from fn(*args, **kwargs))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        self._look(args, kwargs)
        items = fn(*args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    def enter(self) -> None:
        self.watch(None, self.state._price_in_permits())

    def fragment(self, kind: CallKind) -> str | None:
        return None
