"""Cancellation at every await: the test that finds the permit nobody gives back."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from types import coroutine
from typing import Any, Literal, TypeAlias

from everkeel.testing.deadlock import where
from everkeel.testing.running import run

Moment: TypeAlias = Literal["suspended", "resuming"]


@dataclass(frozen=True, slots=True)
class CancelledRun:
    """One run of a coroutine under `cancel_at_every_await`, and how it ended."""

    number: int | None
    """At which of its awaits it was cancelled, from 1; None for the last run, which was left alone."""
    moment: Moment | None
    """As soon as it was `suspended`; or `resuming`, when what it waited for had already happened."""
    place: str
    """File, line and function of that await."""
    value: object = None
    error: BaseException | None = None

    @property
    def cancelled(self) -> bool:
        """Did it end by being cancelled? A coroutine may also answer a cancellation with a value or another error."""
        return isinstance(self.error, asyncio.CancelledError)

    def __str__(self) -> str:
        if self.number is None:
            return "in the run that was not cancelled"
        return f"cancelled at await {self.number}, {self.moment}, {self.place}"


def cancel_at_every_await(
    make: Callable[[], Coroutine[Any, Any, object]],
    check: Callable[[CancelledRun], object],
    *,
    seed: int = 0,
    limit: int = 1000,
) -> int:
    """Run `make()` in virtual time again and again, cancelling it at its first, second, third ... await.

    Each await is tried twice: cancelled as soon as the task is suspended, and when what it waits for has happened but
    the task has not gone on yet, which is where permits get lost. After each run `check` is called (and awaited, if it
    is a coroutine function) on the same event loop; the last run is not cancelled at all. Awaits of tasks that the
    coroutine starts are not counted. Answers how many awaits there are.

    >>> held = []
    >>> async def careful():
    ...     held.append("permit")
    ...     try:
    ...         await asyncio.sleep(1)
    ...     finally:
    ...         held.pop()
    >>> def check(outcome):
    ...     assert not held, "the permit was not given back"
    >>> cancel_at_every_await(careful, check)
    1
    """
    for number in range(1, limit + 1):
        for moment in _MOMENTS:
            outcome = run(_run_once(make, check, number, moment), seed=seed)
            if outcome.number is None:
                return number - 1
    raise AssertionError(f"{make!r} does not come to an end within {limit} awaits")


_MOMENTS: tuple[Moment, ...] = ("suspended", "resuming")


async def _run_once(
    make: Callable[[], Coroutine[Any, Any, object]],
    check: Callable[[CancelledRun], object],
    number: int,
    moment: Moment,
) -> CancelledRun:
    injection = _Injection(make(), number, moment)
    task = asyncio.create_task(injection.drive())
    await asyncio.wait([task])
    error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
    value = task.result() if error is None else None
    if injection.place is None:
        outcome = CancelledRun(None, None, "", value, error)
    else:
        outcome = CancelledRun(number, moment, injection.place, value, error)
    try:
        verdict = check(outcome)
        if inspect.isawaitable(verdict):
            await verdict
    except BaseException as failed:
        failed.add_note(f"({outcome})")
        raise
    return outcome


class _Injection:
    """Counts the awaits of a coroutine, and cancels its task at one of them."""

    def __init__(self, inner: Coroutine[Any, Any, object], number: int, moment: Moment) -> None:
        self._inner, self._left, self._moment = inner, number, moment
        self.place: str | None = None

    async def drive(self) -> object:
        return await _awaits(self._inner, self._suspended)

    def _suspended(self, waited_for: Any) -> None:
        self._left -= 1
        task = asyncio.current_task()
        if self._left or task is None:
            return
        self.place = where(self._inner)
        if self._moment == "suspended":
            task.cancel()  # of a running task: takes effect at this suspension
        elif isinstance(waited_for, asyncio.Future):
            waited_for.add_done_callback(lambda _: task.cancel())  # before the task's own, which wakes it
        else:  # a bare yield, as in sleep(0): its next step is already on its way
            task.get_loop().call_soon(task.cancel)


@coroutine
def _awaits(inner: Coroutine[Any, Any, object], suspended: Callable[[Any], None]) -> Generator[Any, Any, object]:
    """Drive `inner` step by step, telling what it waits for whenever it is suspended."""
    step: Callable[[Any], Any] = inner.send
    argument: Any = None
    while True:
        try:
            waited_for = step(argument)
        except StopIteration as ended:
            return ended.value
        suspended(waited_for)
        try:
            argument = yield waited_for
            step = inner.send
        except BaseException as error:
            argument, step = error, inner.throw
