"""Who hears what happened. The events themselves are in `everkeel.events`, imported when the first of them is made."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.events import Event

E = TypeVar("E", bound="Event")
Listener: TypeAlias = "Callable[[Event], object]"


class Subscription:
    """A listener that hears events until it is cancelled. Also a context manager.

    >>> from everkeel import retry
    >>> with retry(attempts=2).subscribe(print) as subscription:
    ...     pass
    """

    __slots__ = ("_on_cancel", "listener", "types")

    def __init__(self, listener: Listener, types: tuple[type[Event], ...], on_cancel: Callable[[Subscription], None]):
        self.listener, self.types, self._on_cancel = listener, types, on_cancel

    def cancel(self) -> None:
        """Hear no more; a second time does nothing."""
        self._on_cancel(self)

    def wants(self, event_type: type[Event]) -> bool:
        """Does it hear events of this type?"""
        return not self.types or issubclass(event_type, self.types)

    def hear(self, event: Event) -> None:
        """Tell the listener. One that raises harms nobody."""
        if self.wants(type(event)):
            try:
                self.listener(event)
            except Exception as error:
                report(f"a listener raised on {type(event).__name__}", error)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()


everywhere: tuple[Subscription, ...] = ()
"""Those who hear every policy."""
on_everywhere_changed: list[Callable[[], object]] = []
_changing = threading.Lock()  # held for the swap of a tuple, so that two at once do not lose one


@overload
def subscribe(listener: Listener) -> Subscription: ...
@overload
def subscribe(listener: Callable[[E], object], event_type: type[E], /, *types: type[E]) -> Subscription: ...
def subscribe(listener: Callable[[Any], object], *types: type[Event]) -> Subscription:
    """Hear the events of every policy: all of them, or those of the given types.

    A listener runs in the caller's thread or task, so it must be quick. Listening for `Succeeded`, or for everything,
    adds a little to every call; listening for trouble costs nothing until there is some.

    >>> from everkeel import events, retry
    >>> heard = []
    >>> subscription = subscribe(heard.append, events.Retrying)
    >>> tries = iter([ConnectionError("reset"), "answer"])
    >>> def fetch():
    ...     if isinstance(step := next(tries), Exception):
    ...         raise step
    ...     return step
    >>> retry(backoff=0).call(fetch)
    'answer'
    >>> heard[0].attempt
    1
    >>> subscription.cancel()
    """
    global everywhere
    subscription = Subscription(listener, types, _unsubscribe)
    with _changing:
        everywhere = (*everywhere, subscription)
    for act in on_everywhere_changed:
        act()
    return subscription


def _unsubscribe(subscription: Subscription) -> None:
    global everywhere
    with _changing:
        if subscription not in everywhere:
            return
        everywhere = tuple(other for other in everywhere if other is not subscription)
    for act in on_everywhere_changed:
        act()


def tell(event: Event, subscriptions: tuple[Subscription, ...]) -> None:
    """Tell those who listen to one policy, then those who listen to all."""
    for subscription in subscriptions:
        subscription.hear(event)
    for subscription in everywhere:
        subscription.hear(event)


def _new_lock() -> None:
    global _changing
    _changing = threading.Lock()  # the thread that held it in the parent does not exist here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)
