"""What has settings that configuration may change: policies, and parts that guard no call (outboxes, consumers).

Told by whom: code, when it is made; configuration, by type and name, perhaps long afterwards; whoever calls
`reconfigure`. It answers with `config`, one frozen object that is swapped whole.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from everkeel.runtime import events as hub
from everkeel.runtime import settings
from everkeel.runtime.registry import registry
from everkeel.runtime.settings import Settings, label

C = TypeVar("C", bound=Settings)


class _Lock:
    """One live change at a time: two of them at once could leave a policy with the settings of one and the layers of
    the other. A call never takes it."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._held = threading.RLock()

    def __enter__(self) -> None:
        self._held.acquire()

    def __exit__(self, *error: object) -> None:
        self._held.release()


changing = _Lock()


class Configured(Generic[C]):
    """A type, a name, and settings in layers: those of the code, what configuration says, live changes."""

    __slots__ = ("__weakref__", "_code", "_live", "config", "name", "settled", "subscriptions")

    type: ClassVar[str]

    name: Any
    """A string, or for a policy that has not guarded anything yet perhaps None."""
    config: C
    _code: C
    _live: dict[str, Any]
    settled: bool
    """True: configuration from outside does not apply, whatever it says of the name or of all of the type."""
    subscriptions: tuple[hub.Subscription, ...]

    @property
    def label(self) -> str:
        """How it is called in messages: `retry 'fetch'`."""
        return label(self.type, self.name)

    def _begin_with(self, name: str | None, config: C) -> None:
        """What the code says."""
        self.name, self._code, self.config = name, config, config
        self._live = {}
        self.settled = False
        self.subscriptions = ()

    def reconfigure(self, **changes: Any) -> None:
        """Change settings while it works. Validated as a whole, swapped at once, state is kept.

        A call in flight keeps its permit and its plan; its result is judged by the config in force when it ends.
        """
        with changing:
            before = self.config
            self._apply({**self._live, **changes})
            after = self.config
        self._announce(before, after)

    def bind(self) -> None:
        """Let configuration that was loaded from outside apply, under what was changed live."""
        with changing:
            before = self.config
            self._apply(self._live)
            after = self.config
        self._announce(before, after)

    def _apply(self, live: dict[str, Any]) -> None:
        new = self._under(settings.overrides, live)
        self._live = live
        self._take(new)

    def _under(self, overrides: settings.Overrides, live: dict[str, Any], code: C | None = None) -> C:
        code = self._code if code is None else code
        outside = {} if self.name is None or self.settled else overrides(self.type, self.name)
        return code.changed(self.name, {**outside, **live}) if outside or live else code

    def _take(self, new: C) -> None:
        """Work with these settings from now on."""
        self.config = new

    def _announce(self, old: C, new: C) -> None:
        if new == old or not (self.subscriptions or hub.everywhere):
            return
        from everkeel.events import ModeChanged, Reconfigured

        names = [name for name in new.names() if getattr(old, name) != getattr(new, name)]
        if "mode" in names:
            said = ModeChanged(policy=self.name, policy_type=self.type, before=old.mode, mode=new.mode)
            hub.tell(said, self.subscriptions)
        changes = {name: (getattr(old, name), getattr(new, name)) for name in names}
        hub.tell(Reconfigured(policy=self.name, policy_type=self.type, changes=changes), self.subscriptions)


AnyConfigured: TypeAlias = Configured[Any]


class Part(Configured[C]):
    """What configuration reaches and is no policy: it guards no call and is in no pipeline.

    Several of one type and name may live beside each other, as relays do that share the work: what is said about the
    name holds for all of them.
    """

    name: str

    def __init__(self, name: str, config: C) -> None:
        self._begin_with(name, config)
        with changing:  # configuration that is loaded in this very moment reaches it before, or after
            self._apply(self._live)  # what is wrong must not leave it in the list, half made
            _parts.add(self)


_parts: weakref.WeakSet[Part[Any]] = weakref.WeakSet()


def parts() -> list[Part[Any]]:
    """Every part there is, by type and name."""
    with changing:
        there = list(_parts)
    return sorted(there, key=lambda part: (part.type, part.name))


def everything() -> list[AnyConfigured]:
    """All that configuration may be about: the named policies in the order they came, then the parts."""
    return [*registry, *parts()]


@contextmanager
def no_parts() -> Generator[None]:
    """As if there were none, for the time of a test."""
    global _parts
    kept, _parts = _parts, weakref.WeakSet()
    try:
        yield
    finally:
        _parts = kept


class Rebound(NamedTuple):
    """Something whose settings changed when configuration did."""

    policy: AnyConfigured
    before: Settings
    after: Settings


def override_with(source: settings.Overrides | None) -> None:
    """Let `source(type, name)` answer what configuration says about all that has a name, what there is included.

    All of them, or none: a value that is not allowed leaves the configuration before it in force.
    """
    announce(rebind(source))


def rebind(
    source: settings.Overrides | None,
    *,
    code: Mapping[Any, Settings] = MappingProxyType({}),
    live: Mapping[Any, dict[str, Any]] = MappingProxyType({}),
) -> list[Rebound]:
    """The same without a word to listeners, which `announce` has. Answers what changed.

    `code` and `live` replace the settings that they were made with, and their live changes, in the same step.
    """
    overrides = source or settings.no_overrides
    with changing:
        # All are asked for before the first one is changed: what raises, raises here.
        those = everything()
        new = [one._under(overrides, live.get(one, one._live), code.get(one)) for one in those]
        old = [one.config for one in those]
        settings.overrides = overrides
        for one, config in zip(those, new, strict=True):
            one._code = code.get(one, one._code)
            one._live = live.get(one, one._live)
            one._take(config)
    return [Rebound(*one) for one in zip(those, old, new, strict=True) if one[1] != one[2]]


def announce(rebound: Sequence[Rebound]) -> None:
    """Tell those who listen; never under a lock."""
    for one, before, after in rebound:
        one._announce(before, after)


if hasattr(os, "register_at_fork"):
    # The thread that held it in the parent does not exist in the child.
    os.register_at_fork(after_in_child=changing.renew)
