"""What happened, in the order it happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self, TypeVar, overload

from everkeel.runtime.events import Subscription, subscribe

if TYPE_CHECKING:
    from everkeel.events import Event

E = TypeVar("E", bound="Event")


class EventRecorder(Sequence["Event"]):
    """Hears every policy and keeps what it hears: all events, or those of the given types. A list that fills itself.

    >>> from everkeel import retry
    >>> from everkeel.events import Retrying
    >>> from everkeel.testing import Flaky
    >>> with EventRecorder() as recorded:
    ...     retry("docs.recorded", backoff=0).call(Flaky(ConnectionError, "answer"))
    'answer'
    >>> recorded.names()
    ['PolicyAdded', 'Retrying', 'RetrySucceeded', 'Succeeded']
    >>> recorded.of(Retrying)[0].attempt
    1
    """

    def __init__(self, *types: type[Event]) -> None:
        self._types = types
        self._events: list[Event] = []
        self._subscription: Subscription | None = None

    def __enter__(self) -> Self:
        self._subscription = subscribe(self._events.append, *self._types)
        return self

    def __exit__(self, *error: object) -> None:
        if self._subscription is not None:
            self._subscription.cancel()

    def of(self, *types: type[E]) -> list[E]:
        """Those of these types."""
        return [event for event in self._events if isinstance(event, types)]

    def about(self, policy: str) -> list[Event]:
        """Those of the policy of this name."""
        return [event for event in self._events if event.policy == policy]

    def names(self) -> list[str]:
        """The names of their types: what happened, at a glance."""
        return [type(event).__name__ for event in self._events]

    def clear(self) -> None:
        """Forget what was heard so far."""
        self._events.clear()

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        return self._events[index]

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __repr__(self) -> str:
        return "\n  ".join([f"<EventRecorder with {len(self)} events>", *map(repr, self._events)])


def record_events(*types: type[Event]) -> EventRecorder:
    """A block that records the events of every policy: all, or those of the given types.

    In pytest, the fixture of the same name does this for a whole test.

    >>> from everkeel import events, retry
    >>> with record_events(events.PolicyAdded) as recorded:
    ...     fetch = retry("docs.record_events")
    >>> recorded[0].policy
    'docs.record_events'
    """
    return EventRecorder(*types)
