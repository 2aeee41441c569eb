"""What an asynchronous call returns: a future that can be waited for in threads and awaited in coroutines."""

from __future__ import annotations

import threading
from asyncio import CancelledError as AwaitCancelledError
from asyncio import wrap_future
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

T = TypeVar("T")


class AsyncResult(Future[T]):
    """The result of a call of a method marked `Asynchronous`, there when all its policies have done their work.

    It is a `concurrent.futures.Future`: `result()`, `add_done_callback()`, `concurrent.futures.wait()` all work. In a
    coroutine, `await` it. The execution goes on whether or not anybody asks for the result.

    Unlike a plain future it can be cancelled while the body runs: it is then cancelled at once and stays so, while
    the body goes on to its end. `cancel(interrupt=True)` also asks the body to stop, which it hears of from
    `everkeel.current_cancellation()` and `everkeel.sleep()`. Whoever awaits it and is cancelled cancels it in this way.
    """

    def __init__(self, on_cancel: Callable[[bool], object] | None = None) -> None:
        super().__init__()
        self._on_cancel = on_cancel
        self._giving_up = threading.RLock()
        self._inner: Any = None

    def cancel(self, interrupt: bool = False) -> bool:
        """Give up on it: True unless it is done already. `interrupt`: tell the body to stop."""
        with self._giving_up:
            first = not self.done() and super().cancel()
            if first:
                self.set_running_or_notify_cancel()  # nobody else will: those who wait for several at once must hear
        if self.cancelled() and (first or interrupt):
            if self._on_cancel is not None:
                self._on_cancel(interrupt)
            if self._inner is not None:
                self._inner.cancel()
        return self.cancelled()

    def running(self) -> bool:
        """Is the result outstanding?"""
        return not self.done()

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        try:
            return await wrap_future(self)
        except AwaitCancelledError:
            if not self.done() or self.cancelled():
                self.cancel(interrupt=True)
            raise

    # ------------------------------------------------------------------ told by the execution

    def succeed(self, value: T) -> None:
        """This is the result, unless it was cancelled meanwhile."""
        try:
            self.set_result(value)
        except InvalidStateError:
            pass

    def fail(self, error: BaseException) -> None:
        """This is the error, unless it was cancelled meanwhile."""
        try:
            self.set_exception(error)
        except InvalidStateError:
            pass

    def follow(self, inner: Future[T]) -> None:
        """Become what another future becomes."""
        self._inner = inner
        if self.cancelled():
            inner.cancel()
        inner.add_done_callback(self.take)

    def take(self, inner: Any) -> None:
        """Take over the outcome of a future that is done, by its own methods: it may have its own idea of them."""
        if inner.cancelled():
            self.cancel()
            return
        try:
            value = inner.result()
        except BaseException as error:
            self.fail(error)
        else:
            self.succeed(value)


def completed(value: T) -> Future[T]:
    """A future that is done already: what a method of future kind returns when it has its answer.

    >>> completed(42).result()
    42
    """
    future: Future[T] = Future()
    future.set_result(value)
    return future


def failed(error: BaseException) -> Future[Any]:
    """A future that has failed already.

    >>> failed(ValueError("no")).exception()
    ValueError('no')
    """
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
