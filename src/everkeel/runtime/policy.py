"""What the user holds: a name, a config, a state, and the forms in which it guards a call.

A concrete policy names its `type`, its `Config` and its `State`; all forms of calling, live changes, shadow mode, keys,
events and snapshots follow from here. Read `policies/bulkhead/` to see one whole.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Hashable, Sequence
from types import CoroutineType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NoReturn,
    ParamSpec,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
    overload,
)

from everkeel.errors import ConfigError
from everkeel.runtime import block, settings, switch
from everkeel.runtime import events as hub
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.configured import C, Configured, changing
from everkeel.runtime.keyed import Keyed
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.registry import registry
from everkeel.runtime.settings import Mode, label
from everkeel.runtime.signature import kind_of
from everkeel.runtime.state import CallKind, State, fold
from everkeel.runtime.tally import Tallies, read, tally
from everkeel.runtime.tap import Tap
from everkeel.runtime.weave import F, Weaving, Woven, weaving_of, woven

if TYPE_CHECKING:
    from everkeel.events import Event

P = ParamSpec("P")
T = TypeVar("T")
EventType: TypeAlias = "type[Event]"
TypeOf: TypeAlias = "type[hub.E]"  # a policy has a `type` of its own, which hides the builtin

living: weakref.WeakSet[AnyPolicy] = weakref.WeakSet()
"""Every policy there is, named or not."""


class Snapshot(TypedDict):
    """The numbers and the state of a policy; each type of policy adds its own."""

    name: str | None
    type: str
    mode: Mode
    success: int
    failure: int
    ignored: int
    rejected: int
    would: dict[str, int]


class Policy(Configured[C]):
    """One way of guarding calls. Use it as a decorator, with `call` / `acall`, in a pipeline, and where it says so as a
    block. State belongs to this object and is safe across threads and event loops."""

    __slots__ = (
        "_functions", "_key", "_layers", "_tap", "_watching", "clock", "counts", "lock", "rejections", "state",
    )  # fmt: skip

    type: ClassVar[str] = "policy"
    no_block: ClassVar[str | None] = None
    """Why this policy cannot be a block, and what to write instead; None where a block works."""

    name: str | None

    def __init__(
        self,
        name: str | None,
        config: C,
        *,
        clock: Clock | None = None,
        replace: bool = False,
        key: Callable[..., Hashable] | None = None,
        max_keys: int = 10_000,
    ) -> None:
        if callable(name):
            raise ConfigError(label(self.type, None), None, f"is used with parentheses: @{self.type}()", None)
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigError(label(self.type, None), "name", "must be a non-empty string", repr(name))
        self._begin_with(name, config)
        self.clock: Clock = clock or DEFAULT
        self.lock = threading.Lock()
        self.counts = Tallies()
        self.rejections = tally()  # apart from the other counts: during an outage this is the hot one
        self._functions: weakref.WeakSet[Weaving] | None = None
        self._key = None if key is None else (key, max_keys)
        if key is not None:
            if not callable(key):
                raise ConfigError(self.label, "key", "must be a function of the call's arguments", repr(key))
            if isinstance(max_keys, bool) or not isinstance(max_keys, int) or max_keys < 1:
                raise ConfigError(self.label, "max_keys", "must be a whole number of at least 1", repr(max_keys))
        self.state: State = self._fresh_state()
        self._layers: tuple[State, ...] = ()
        self._tap = Tap(self)
        self._watching: tuple[State, State] | None = None
        self._compose()
        if name is not None:
            self._under(settings.overrides, self._live)  # what is wrong must not leave it registered, half made
            registry.add(self, name, replace=replace)
            self.bind()
        with changing:
            living.add(self)

    def make_state(self, key: Hashable = None) -> State:
        """A state for this policy, or for one of its keys."""
        raise TypeError(f"{type(self).__name__} does not say what its state is")  # pragma: no cover

    def _fresh_state(self) -> State:
        if self._key is None:
            return self.make_state()
        key, cap = self._key
        return Keyed(self, self.make_state, key, cap)

    def __repr__(self) -> str:
        return f"<{self.label}{'' if self.mode == 'enforce' else ', ' + self.mode}>"

    # ------------------------------------------------------------------ guarding a call

    def __call__(self, fn: F) -> F:
        """Decorate a function, method, coroutine function or generator function. Its type stays exactly as it is."""
        return guard_with(fn, (self,), self.label)

    def may_guard(self, kind: CallKind) -> None:
        """Raise where a function of this kind cannot be guarded by this policy as it is configured."""

    def may_guard_function(self, fn: Callable[..., Any]) -> None:
        """Raise where this very function must not be guarded by this policy."""

    def adopt(self, fn: Callable[..., Any]) -> None:
        """Take the name of the first function decorated, where none was given."""
        if self.name is None:
            fn = getattr(fn, "__func__", fn)
            qualname = getattr(fn, "__qualname__", type(fn).__qualname__)
            self.name = registry.adopt(self, f"{getattr(fn, '__module__', None) or '__main__'}.{qualname}")
            try:
                self.bind()
            except ConfigError:
                registry.remove(self.type, self.name)
                self.name = None
                raise

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `fn(*args, **kwargs)` under this policy."""
        result = fold(self.layers(), "sync", fn)(*args, **kwargs)
        if type(result) is CoroutineType:
            refuse_coroutine(self.label, result)
        return cast("T", result)

    async def acall(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `fn(*args, **kwargs)` under this policy."""
        return cast("T", await fold(self.layers(), "async", fn)(*args, **kwargs))

    def entry(self, *, key: Hashable = None) -> block.Entry:
        """A block that reports its result: `with policy.entry() as entry: entry.result(work())`."""
        self._may_be_a_block()
        layers = self.layers()
        if isinstance(self.state, Keyed):
            layers = tuple(layer.at(key) if isinstance(layer, Keyed) else layer for layer in layers)
        return block.Entry(layers)

    def __enter__(self) -> Self:
        self._may_be_a_block()
        self._needs_no_key()
        block.push(self.entry().__enter__())
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        block.pop().__exit__(kind, error, traceback)

    async def __aenter__(self) -> Self:
        self._may_be_a_block(awaited=True)
        self._needs_no_key()
        block.push(await self.entry().__aenter__())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        block.pop().__exit__(kind, error, traceback)

    def _may_be_a_block(self, *, awaited: bool = False) -> None:
        if self.no_block is not None:
            raise TypeError(f"{self.label} cannot be a block: {self.no_block}")

    def _needs_no_key(self) -> None:
        if self._key is not None:
            raise TypeError(f"{self.label} has a key function: use entry(key=...) instead of the policy as a block")

    # ------------------------------------------------------------------ what the weaver asks

    def layers(self) -> tuple[State, ...]:
        """The states a call passes through now, outermost first; none when the policy or Everkeel is switched off."""
        return self._layers if switch.on else ()

    def woven_into(self, weaving: Weaving) -> None:
        """Remember a function to refresh when the layers change."""
        with changing:
            if self._functions is None:
                self._functions = weakref.WeakSet()
            self._functions.add(weaving)

    def _compose(self) -> None:
        mode = self.config.mode
        if mode == "off":
            self._layers = ()
            return
        core = self.state if mode == "enforce" else self._shadow()
        layers = (self._tap, core) if self._endings_are_heard() else (core,)
        self._layers = layers if _traced is None else _traced(self, layers)

    def _shadow(self) -> State:
        """The state that only watches; the same one as long as the state is, so that its woven name is too."""
        if self._watching is None or self._watching[0] is not self.state:
            self._watching = (self.state, self.state.shadow())
        return self._watching[1]

    def refresh(self) -> None:
        """Something changed that decorated functions have bound: let them look again."""
        with changing:
            self._compose()
            for weaving in list(self._functions or ()):
                weaving.refresh()

    # ------------------------------------------------------------------ live changes

    @property
    def mode(self) -> Mode:
        """`enforce`, `shadow` (decides and counts, touches nothing) or `off`. Assign to change it at run time."""
        return self.config.mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self.reconfigure(mode=mode)

    def _take(self, new: C) -> None:
        old = self.config
        if new != old:
            self.config = new
            self.state.adapt(old, new)
            self.refresh()

    def derive(self, name: str | None = None, **changes: Any) -> Self:
        """A new policy with this one's settings, some of them changed, and a state of its own."""
        config = self.config.changed(name, changes)
        key, cap = self._key or (None, 10_000)
        return type(self)(name, config, clock=None if self.clock is DEFAULT else self.clock, key=key, max_keys=cap)

    def start_over(self) -> None:
        """Forget everything that was learned and counted."""
        with changing:
            self.counts = Tallies()
            self.rejections = tally()
            self.state = self._fresh_state()
            self.refresh()

    # ------------------------------------------------------------------ being watched

    @overload
    def subscribe(self, listener: hub.Listener) -> hub.Subscription: ...
    @overload
    def subscribe(
        self, listener: Callable[[hub.E], object], event_type: TypeOf[hub.E], /, *types: TypeOf[hub.E]
    ) -> hub.Subscription: ...
    def subscribe(self, listener: Callable[[Any], object], *types: EventType) -> hub.Subscription:
        """Hear this policy's events: all, or those of the given types. Answers a subscription to cancel."""
        subscription = hub.Subscription(listener, types, self._unsubscribe)
        with changing:
            self.subscriptions = (*self.subscriptions, subscription)
            self.refresh()
        return subscription

    def _unsubscribe(self, subscription: hub.Subscription) -> None:
        with changing:
            if subscription in self.subscriptions:
                self.subscriptions = tuple(other for other in self.subscriptions if other is not subscription)
                self.refresh()

    def heard(self) -> bool:
        """Does anybody listen? Asked before an event is made."""
        return bool(self.subscriptions or hub.everywhere)

    def _endings_are_heard(self) -> bool:
        if not self.heard():
            return False
        from everkeel.events import Failed, Ignored, Succeeded

        listening = (*self.subscriptions, *hub.everywhere)
        return any(one.wants(kind) for one in listening for kind in (Succeeded, Failed, Ignored))

    def emit(self, event: Event) -> None:
        """Tell everybody who listens. Never called under a lock."""
        hub.tell(event, self.subscriptions)

    def would(self, action: str, error: BaseException | None = None) -> None:
        """Count what would have been done, were this policy not a shadow."""
        self.counts.tick(f"would_{action}")
        if self.heard():
            from everkeel.events import WouldHave

            self.emit(WouldHave(policy=self.name, policy_type=self.type, action=action, error=error))

    def judge(self, error: BaseException) -> Verdict:
        """What this policy makes of an exception."""
        return Verdict.FAILURE if isinstance(error, Exception) else Verdict.NO_EVIDENCE

    def snapshot(self) -> Snapshot:
        """The numbers and the state, as plain values."""
        counts = self.counts.read()
        common: Snapshot = {
            "name": self.name,
            "type": self.type,
            "mode": self.mode,
            "success": self.state.successes(),
            "failure": counts.get("failure", 0),
            "ignored": counts.get("ignored", 0),
            "rejected": read(self.rejections),
            "would": {name[6:]: n for name, n in counts.items() if name.startswith("would_")},
        }
        return cast("Snapshot", {**common, **self.state.details()})

    def over_keys(self, keyed: Keyed) -> dict[str, Any]:
        """What a snapshot shows of a keyed policy, beyond how many keys there are."""
        return {}

    def after_fork(self) -> None:
        """In a forked child: new locks, and nothing in flight."""
        self.lock = threading.Lock()
        self.state.after_fork()


AnyPolicy: TypeAlias = Policy[Any]


def guard_with(fn: F, policies: Sequence[AnyPolicy], owner: str, *, before: Sequence[Woven] = ()) -> F:
    """`fn` decorated by `policies`, outermost first; errors name the `owner`. `before`: what comes before them all."""
    try:
        guarded = woven(fn, (*before, *policies))
    except ConfigError as error:
        error.args = (owner, *error.args[1:])
        raise
    kind = kind_of(getattr(fn, "__func__", fn))
    for policy in policies:
        policy.may_guard(kind)
        policy.may_guard_function(getattr(fn, "__func__", fn))
        policy.adopt(fn)
    return guarded


def policies_of(fn: Callable[..., Any]) -> tuple[AnyPolicy, ...]:
    """The policies of a decorated function, outermost first; empty for one that is not decorated.

    >>> from everkeel import policies_of, retry
    >>> @retry(attempts=5)
    ... def fetch() -> None: ...
    >>> policies_of(fetch)[0].config.attempts
    5
    """
    weaving = weaving_of(fn)
    if weaving is None:
        return ()
    # A pipeline that configuration defines stands there as one, and may have other policies tomorrow.
    flat = [(one,) if isinstance(one, Policy) else getattr(one, "policies", ()) for one in weaving.policies]
    return tuple(policy for several in flat for policy in several)


def refuse_coroutine(owner: str, result: CoroutineType[Any, Any, Any]) -> NoReturn:
    """A coroutine that nobody guards is the bug that hides best: a sync call must not hand one out."""
    result.close()
    raise TypeError(f"{owner}: call() got a coroutine function, which it cannot guard; use acall()")


Traced: TypeAlias = Callable[[AnyPolicy, tuple[State, ...]], tuple[State, ...]]
_traced: Traced | None = None


def trace_with(traced: Traced | None) -> None:
    """Let `traced(policy, layers)` add to the layers of every policy; None ends it, and nothing of it is left."""
    global _traced
    with changing:
        _traced = traced
        _refresh_everyone()


def _refresh_everyone() -> None:
    with changing:
        for policy in list(living):
            policy.refresh()


def _after_fork() -> None:
    for policy in list(living):
        policy.after_fork()


switch.on_change.append(_refresh_everyone)
hub.on_everywhere_changed.append(_refresh_everyone)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
