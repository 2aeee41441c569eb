"""Shadow mode: every call is made, and what would have been served is counted and compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from inspect import isawaitable
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any

from everkeel.policies.cache.core import MISS, Entry, look
from everkeel.runtime.outcome import FAILURE
from everkeel.runtime.state import CallKind, Shadow

if TYPE_CHECKING:
    from everkeel.policies.cache.policy import Cache
    from everkeel.policies.cache.state import Shelf


class WouldHit(Shadow):
    """Makes every call, keeps what it answers, and counts and compares what would have been served."""

    __slots__ = ()
    state: Shelf
    policy: Cache

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        key, entry = self._look(fn, args, kwargs)
        try:
            value = fn(*args, **kwargs)
        except Exception as error:
            self._raised(error)
            raise
        self._returned(key, entry, value)
        return value

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        key, entry = self._look(fn, args, kwargs)
        try:
            value = await fn(*args, **kwargs)
        except Exception as error:
            self._raised(error)
            raise
        self._returned(key, entry, value)
        return value

    def fragment(self, kind: CallKind) -> str | None:
        return None

    def _look(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Entry | None]:
        """The key, and what would have been served. No key: the arguments would have been refused."""
        try:
            key = self.state.key_of(fn, args, kwargs)
        except Exception as error:
            self.policy.would("refuse", error)
            return None, None
        entry = self.state.store.get(key)
        if look(self.policy.config, entry, self.policy.clock.monotonic()) is MISS:
            return (key,), None
        self.policy.would("hit")
        return (key,), entry

    def _raised(self, error: Exception) -> None:
        failure = self.policy.config.classifier.of_error(error) is FAILURE
        self.policy.counts.tick("failure" if failure else "ignored")

    def _returned(self, key: Any, entry: Entry | None, value: Any) -> None:
        if entry is not None:
            next(self.state.ok)
            if entry.error is not None or _differ(entry.value, value):
                self.policy.would("differ")
        elif key is None or isawaitable(value) or isinstance(value, GeneratorType | AsyncGeneratorType):
            next(self.state.ok)
        else:
            self.state.loaded(key[0], None, value)


def _differ(one: object, other: object) -> bool:
    try:
        return not (one is other or one == other)
    except Exception:
        return False  # things that cannot be compared are not evidence
