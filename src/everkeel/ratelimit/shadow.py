"""A limiter that only watches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from typing import TYPE_CHECKING, Any

from everkeel.errors import RateLimitedError
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.ratelimit.policy import RateLimit
    from everkeel.ratelimit.state import Limiting


class WouldLimit(State):
    """Takes permits where there are some, counts who would have waited or been rejected, and lets everybody pass."""

    __slots__ = ("policy", "state")
    policy: RateLimit

    def __init__(self, state: Limiting) -> None:
        self.state, self.policy = state, state.policy

    def _watch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """Ask, and do not mind the answer: not even that the question was wrong. Answers the key."""
        try:
            key = self.state.key_for(args, kwargs)
            self.watch(key, self.state.cost_of(args, kwargs), args, kwargs)
        except Exception as error:
            report(f"{self.policy.label}: would have raised", error)
            return None
        return key

    def watch(
        self, key: Hashable, cost: int, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> int | None:
        """Answers what it took; None where it would have said no, or does not limit."""
        answer = self.state.look(key, cost, args, kwargs)
        if not isinstance(answer, RateLimitedError):
            return answer
        self.policy.would("queue" if self.policy.config.queue and answer.retry_after is not None else "reject", answer)
        return None

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        key, began = self._watch(args, kwargs), self.state.begin()
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            self.state.failed(began, error)
            raise
        self.state.answered(began, result, key)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        key, began = self._watch(args, kwargs), self.state.begin()
        try:
            result = await fn(*args, **kwargs)
        except Exception as error:
            self.state.failed(began, error)
            raise
        self.state.answered(began, result, key)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        self._watch(args, kwargs)
        return (yield from fn(*args, **kwargs))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        self._watch(args, kwargs)
        items = fn(*args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    def enter(self) -> float | None:
        self.watch(None, self.policy.constant_cost())
        return self.state.begin()

    def done(self, permit: float | None, result: Any) -> None:
        self.state.done(permit, result)

    def failed(self, permit: float | None, error: Exception) -> None:
        self.state.failed(permit, error)

    def fragment(self, kind: CallKind) -> str | None:
        return None
