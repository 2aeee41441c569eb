"""Guards that are objects: the same policies, order and defaults as the annotations', with state that is shared.

Beyond the standard. A guard has a name, which is its place in configuration (`bank/Retry/maxRetries`), in metrics and
in errors, and by which `ApplyGuard` finds it.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakValueDictionary

from everkeel.microprofile import additions, config
from everkeel.microprofile.annotations import Annotation
from everkeel.microprofile.exceptions import FaultToleranceDefinitionException
from everkeel.microprofile.extras import ApplyGuard
from everkeel.microprofile.fallbacks import Target
from everkeel.runtime.policy import AnyPolicy

A = ParamSpec("A")
T = TypeVar("T")

KEPT = ("Fallback", "Asynchronous")
"""What a method keeps of its own annotations where a guard is applied to it."""
RECORD = "__microprofile_record__"
"""Where a decorator keeps what it says."""
_NOT_OURS = ("Fallback", "ApplyGuard", "BeforeRetry", "CircuitBreakerName")

_guards: WeakValueDictionary[str, Guard] = WeakValueDictionary()
"""Weak: a guard that nobody holds and no method has used yet is gone, and its name free."""
_naming = threading.Lock()


class Guard:
    """Several policies under one name, for whatever should share their state: all calls to one bank, say.

    Args:
        name: Its identity; there is one guard of a name.
        annotations: Decorators of this package, in any order: `Retry`, `Timeout(500)`, `CircuitBreaker`. With
            `Asynchronous` its bulkhead has a queue, and only asynchronous methods can be guarded by it. A fallback
            belongs to a method, not to a guard.

    >>> from everkeel.microprofile import Guard, Retry, Timeout
    >>> bank = Guard("docs.bank", Retry(max_retries=2, jitter=0), Timeout(500))
    >>> bank.call(lambda amount: f"{amount} charged", 10)
    '10 charged'
    """

    def __init__(self, name: str, *annotations: Any) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise FaultToleranceDefinitionException("Guard", "name", "must be text without a slash", repr(name))
        self.name = name
        self.declared: dict[str, Annotation] = {}
        for one in annotations:
            record = _record_of(one, name)
            if record.name in self.declared or record.name in _NOT_OURS:
                why = "must be given once" if record.name in self.declared else "belongs to a method, not to a guard"
                raise FaultToleranceDefinitionException(f"guard {name!r}", record.name, why)
            self.declared[record.name] = record
        self._lock = threading.RLock()
        self._made: dict[str, Any] = {}
        with _naming:
            if name in _guards:
                raise FaultToleranceDefinitionException("Guard", "name", "must be given to one guard only", repr(name))
            _guards[name] = self

    def records(self, configured: config.Configuration) -> dict[str, Annotation]:
        """What is in force, after configuration has had its say, and checked."""
        found: dict[str, Annotation] = {}
        for name, record in self.declared.items():
            if configured.is_enabled(name, classes=[self.name], method=""):
                values = configured.overrides(name, level="class", class_name=self.name, method="")
                found[name] = record.overridden(values)
                found[name].check(f"guard {self.name!r}")
        additions.check_in_guard(found, self.declared, f"guard {self.name!r}")
        return found

    def once(self, annotation: str, make: Callable[[], T]) -> T:
        """What does the work of an annotation; made for the first who asks."""
        with self._lock:
            if annotation not in self._made:
                self._made[annotation] = make()
            return cast("T", self._made[annotation])

    def policy(self, annotation: str) -> AnyPolicy | None:
        """The native policy that does the work of an annotation, once there was a call: to look at, or to listen to."""
        return cast("AnyPolicy | None", self._made.get(annotation))

    def call(self, fn: Callable[A, T], /, *args: A.args, **kwargs: A.kwargs) -> T:
        """Call a function under this guard. Metrics are those of the guard."""
        from everkeel.microprofile.guarding import Guarded  # which stands on this module

        guarded = self.once("call", lambda: Guarded(self._plan(_call, "sync")))
        return cast("T", guarded.call(fn, *args, **kwargs))

    async def acall(self, fn: Callable[A, Awaitable[T]], /, *args: A.args, **kwargs: A.kwargs) -> T:
        """Await what a function returns under this guard."""
        from everkeel.microprofile.guarding import Guarded

        guarded = self.once("acall", lambda: Guarded(self._plan(_acall, "coroutine")))
        return cast("T", await guarded.acall(fn, *args, **kwargs))

    def _plan(self, fn: Callable[..., Any], kind: Any) -> Any:
        from everkeel.microprofile.assembly import Plan

        records = self.records(config.current())
        if kind == "sync" and "Asynchronous" in records:
            allowed = "must not be in a guard of plain calls: use acall, or leave it out"
            raise FaultToleranceDefinitionException(f"guard {self.name!r}", "Asynchronous", allowed)
        return Plan(Target(fn, None, self.name, kind), self.name, records, bound=False, shared=self)

    def close(self) -> None:
        """Give up its name: methods that are used for the first time from here on do not find it any more."""
        with _naming:
            if _guards.get(self.name) is self:
                del _guards[self.name]

    def forget(self) -> None:
        """As if it had never been used. For tests."""
        with self._lock:
            self._made.clear()


def _call(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


async def _acall(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return await fn(*args, **kwargs)


def _record_of(given: Any, guard: str) -> Annotation:
    decorator = given
    if not hasattr(decorator, RECORD) and getattr(given, "__module__", "").startswith(__package__ or "?"):
        decorator = given()  # written without parentheses
    record = getattr(decorator, RECORD, None)
    if not isinstance(record, Annotation):
        raise FaultToleranceDefinitionException(
            f"guard {guard!r}", "annotations", "must be decorators of everkeel.microprofile", repr(given)
        )
    return record


def applied(records: dict[str, Annotation], configured: config.Configuration) -> Guard | None:
    """The guard that a method names. Its annotations take the place of the method's own."""
    named = records.pop("ApplyGuard", None)
    if not isinstance(named, ApplyGuard):
        return None
    guard = _guards.get(named.value)
    if guard is None:
        known = ", ".join(sorted(_guards)) or "none"
        raise FaultToleranceDefinitionException(
            "ApplyGuard", "value", f"must be the name of a guard; there are: {known}", repr(named.value)
        )
    kept = {name: record for name, record in records.items() if name in KEPT}
    records.clear()
    records.update({**guard.records(configured), **kept})
    return guard


def forget() -> None:
    """As if no guard had been used. For tests."""
    for guard in list(_guards.values()):
        guard.forget()
