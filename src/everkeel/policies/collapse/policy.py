"""What the user holds: `collapse(...)`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, TypeVar, cast, overload

from everkeel.errors import ConfigError
from everkeel.policies.collapse.config import CollapseConfig
from everkeel.policies.collapse.state import Alone, Collecting
from everkeel.runtime import switch
from everkeel.runtime.clock import Clock
from everkeel.runtime.policy import Policy, Snapshot, guard_with
from everkeel.runtime.settings import Mode, Seconds
from everkeel.runtime.state import CallKind, State, fold

A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S")


class CollapseSnapshot(Snapshot):
    """What a collapse's snapshot adds. `calls` and `batches` were sent: `calls / batches` is the size of a batch."""

    batches: int
    calls: int
    largest: int
    waiting: int
    running: int


class Collapse(Policy[CollapseConfig]):
    """A collapse policy; make one with `collapse(...)`."""

    __slots__ = ("_alone",)
    type = "collapse"
    no_block = "a block has no argument to collect; decorate a function, or use call() or acall()"

    def make_state(self, key: Hashable = None) -> Collecting:
        return Collecting(self)

    def may_guard(self, kind: CallKind) -> None:
        if kind in ("generator", "async generator"):
            raise ConfigError(
                self.label, None, f"needs a function that returns a list; a {kind} function does not", None
            )

    # The function takes a list, and its callers give one of its items: not the type it had.

    @overload  # type: ignore[override]  # every other policy leaves the type of a function as it is
    def __call__(
        self, fn: Callable[[list[A]], Awaitable[Mapping[A, R | Exception]]], /
    ) -> Callable[[A], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[A]], Awaitable[Sequence[R | Exception]]], /
    ) -> Callable[[A], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, fn: Callable[[S, list[A]], Awaitable[Mapping[A, R | Exception]]], /
    ) -> Callable[[S, A], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, fn: Callable[[S, list[A]], Awaitable[Sequence[R | Exception]]], /
    ) -> Callable[[S, A], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], Mapping[A, R | Exception]], /) -> Callable[[A], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], Sequence[R | Exception]], /) -> Callable[[A], R]: ...
    @overload
    def __call__(self, fn: Callable[[S, list[A]], Mapping[A, R | Exception]], /) -> Callable[[S, A], R]: ...
    @overload
    def __call__(self, fn: Callable[[S, list[A]], Sequence[R | Exception]], /) -> Callable[[S, A], R]: ...
    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, fn: Callable[..., Any], /
    ) -> Callable[..., Any]:
        """Decorate a function that takes a list and returns a list, or a mapping; its callers give one item."""
        return guard_with(fn, (self,), self.label)

    @overload  # type: ignore[override]
    def call(self, fn: Callable[[list[A]], Mapping[A, R | Exception]], item: A, /) -> R: ...
    @overload
    def call(self, fn: Callable[[list[A]], Sequence[R | Exception]], item: A, /) -> R: ...
    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`fn([item, ...])` for this item and all others that come within the window; answers this one's result."""
        return fold(self.layers(), "sync", fn)(*args, **kwargs)

    @overload  # type: ignore[override]
    async def acall(self, fn: Callable[[list[A]], Awaitable[Mapping[A, R | Exception]]], item: A, /) -> R: ...
    @overload
    async def acall(self, fn: Callable[[list[A]], Awaitable[Sequence[R | Exception]]], item: A, /) -> R: ...
    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The same for a coroutine function."""
        return await fold(self.layers(), "async", fn)(*args, **kwargs)

    # Off, it still stands between callers with one item and a function that takes a list.

    def layers(self) -> tuple[State, ...]:
        return self._layers if switch.on else (self._alone,)

    def _compose(self) -> None:
        self._alone = Alone(cast("Collecting", self.state))
        super()._compose()
        if self.config.mode == "off":
            self._layers = (self._alone,)

    def snapshot(self) -> CollapseSnapshot:
        return cast("CollapseSnapshot", super().snapshot())


def collapse(
    window: Seconds = 0.005,
    name: str | None = None,
    *,
    max_size: int = 100,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> Collapse:
    """Make one call of many: calls that come within a few milliseconds become one batch.

    The decorated function takes a list and returns a list of results in the same order, or a mapping from item to
    result; its callers give one item and get one result. For lookups that a database or a service can answer for many
    at once. Every call waits up to `window` for company: not for calls that seldom come together.

    An exception *in* the list fails its own caller; one that the function raises fails all in the batch. A caller that
    is cancelled harms no other, and one that is gone before the batch is sent is not in it. Batches are made per event
    loop, and one for all threads that call a sync function, which then runs in a worker thread.

    Where the function has other parameters (`self`, a region), calls in one batch have them in common. The list is the
    last positional parameter without a default.

    Args:
        window: How long the first call of a batch waits for others. 5 ms: little next to a call over a network. 0 takes
            what comes in the same turn of the event loop. A call whose deadline is nearer is not kept waiting.
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        max_size: How many calls make a batch that is sent at once. 100: a list of bind parameters most databases take.
        mode: "enforce", "shadow" (every call in a batch of one; counts `collapse` where it would have gone with an
            earlier one) or "off" (the same without counting).
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> import asyncio
    >>> from everkeel import collapse
    >>> @collapse()
    ... async def user_name(numbers: list[int]) -> list[str]:
    ...     print("select ... where id in", numbers)
    ...     return [f"user {number}" for number in numbers]
    >>> async def main() -> None:
    ...     print(await asyncio.gather(user_name(1), user_name(2), user_name(3)))
    >>> asyncio.run(main())
    select ... where id in [1, 2, 3]
    ['user 1', 'user 2', 'user 3']
    """
    config = CollapseConfig.make(name, {"window": window, "max_size": max_size, "mode": mode})
    return Collapse(name, config, clock=clock, replace=replace)
