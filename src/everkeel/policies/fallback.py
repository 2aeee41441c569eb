"""Fallback: an alternative answer when everything inside has failed."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from everkeel.errors import ConfigError
from everkeel.runtime.classify import Classifier, ErrorMatch, Errors, ResultPredicate, as_errors
from everkeel.runtime.clock import Clock
from everkeel.runtime.explain import Decision, attach
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.settings import Converted, Flag, Function, Mode, Settings, setting
from everkeel.runtime.signature import kind_of
from everkeel.runtime.state import CallKind, Shadow, State
from everkeel.runtime.stream import abegin, begin, each, resume
from everkeel.runtime.tally import read, tally

_ERROR_NAMES = frozenset({"error", "exception", "exc", "err"})


class Alternative:
    """What answers in place of a failed call: a value, or a function that is given the call's arguments.

    A function gets the exception too if it has a parameter named `error` (or `exception`, `exc`, `err`); one that has
    no other parameter is called with nothing else.
    """

    __slots__ = ("_error_name", "_takes_arguments", "awaited", "given", "is_function")

    def __init__(self, given: Any) -> None:
        self.given = given
        self.is_function = callable(given)
        self.awaited = self.is_function and kind_of(given) in ("async", "async generator")
        self._error_name: str | None = None
        self._takes_arguments = True
        if self.is_function:
            try:
                parameters = list(inspect.signature(given).parameters)
            except (TypeError, ValueError):
                return  # a builtin that does not say: it gets the arguments
            self._error_name = next((name for name in parameters if name in _ERROR_NAMES), None)
            self._takes_arguments = any(name != self._error_name for name in parameters)

    def answer(self, error: BaseException | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The alternative answer; an awaitable where the function is a coroutine function."""
        if not self.is_function:
            return self.given
        if not self._takes_arguments:
            args, kwargs = (), {}
        if self._error_name is not None:
            kwargs = {**kwargs, self._error_name: error}
        return self.given(*args, **kwargs)


class Alternatives:
    """The decision core: which alternatives to try, in which order, for an error."""

    __slots__ = ("awaited", "given", "rows")

    def __init__(self, given: tuple[Any, ...]) -> None:
        if not given:
            raise ValueError("must be at least one: a value, a function, or a table from error class to either")
        self.given = given
        self.rows: list[tuple[type[BaseException] | None, Alternative]] = []
        for part in given:
            if isinstance(part, Mapping) and part and all(_is_error_class(key) for key in part):
                self.rows += [(cls, Alternative(value)) for cls, value in part.items()]
            else:
                self.rows.append((None, Alternative(part)))
        self.awaited = any(alternative.awaited for _, alternative in self.rows)

    def covers(self, error: BaseException | None) -> bool:
        """Is there an alternative for this error? (None: a result that counts as a failure.)"""
        return any(True for _ in self.after(error, 0))

    def after(self, error: BaseException | None, index: int) -> list[tuple[int, Alternative]]:
        """The alternatives for this error from `index` on, with their positions."""
        rows = enumerate(self.rows)
        return [(i, one) for i, (cls, one) in rows if i >= index and (cls is None or isinstance(error, cls))]


def _is_error_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


@dataclass(frozen=True, kw_only=True, slots=True)
class FallbackConfig(Settings):
    """The settings of a fallback; `everkeel.fallback` says what each is for."""

    policy_type: ClassVar[str] = "fallback"

    alternatives: Alternatives = setting(
        Converted(lambda value: value if isinstance(value, Alternatives) else Alternatives(value), "alternatives")
    )
    on: Errors = setting(Converted(as_errors, "errors"), default=Exception)
    ignore: Errors | None = setting(Converted(as_errors, "errors"), default=None, none="nothing")
    on_result: ResultPredicate | None = setting(Function("of the result"), default=None, none="every result is fine")
    causes: bool = setting(Flag(), default=False)

    classifier: Classifier = field(init=False, repr=False, compare=False)

    def check_together(self) -> None:
        match = ErrorMatch(self.on, causes=self.causes)
        ignore = None if self.ignore is None else ErrorMatch(self.ignore, causes=self.causes)
        object.__setattr__(self, "classifier", Classifier(match, ignore, self.on_result, rejections=True))


_RESCUE = """\
try:
    INNER
except Exception as error:
    if not fallback.handles(error):
        raise
    RESULT = AWAIT fallback.RESCUE(error, ARGS)
else:
    tick(ok)"""

_RESCUE_RESULT = """\
    if fallback.dislikes(RESULT):
        RESULT = AWAIT fallback.REPLACE(RESULT, ARGS)
    else:
        tick(ok)"""


class Rescue(State):
    """Tries the alternatives, inside the handler of the original error, which so stays reachable as their context."""

    __slots__ = ("ok", "policy")
    word = "fallback"
    parts = ("ok",)
    policy: Fallback

    def __init__(self, policy: Fallback) -> None:
        self.policy, self.ok = policy, tally()

    # ------------------------------------------------------------------ deciding, counting, telling

    def handles(self, error: Exception) -> bool:
        """Does an alternative answer in place of this error?"""
        policy = self.policy
        rules = policy.config
        if rules.classifier.of_error(error) is Verdict.FAILURE and rules.alternatives.covers(error):
            policy.counts.tick("failure")
            return True
        policy.counts.tick("ignored")
        return False

    def dislikes(self, result: object) -> bool:
        """Does an alternative answer in place of this result?"""
        policy = self.policy
        rules = policy.config
        if rules.classifier.of_result(result) is Verdict.FAILURE and rules.alternatives.covers(None):
            policy.counts.tick("failure")
            return True
        return False

    def _fell_back(self, error: Exception | None, result: object) -> None:
        policy = self.policy
        policy.counts.tick("used")
        if policy.heard():
            from everkeel.events import FellBack

            policy.emit(FellBack(policy=policy.name, policy_type=policy.type, error=error, result=result))

    def _next(self, index: int, error: Exception, original: Exception | None) -> bool:
        """An alternative failed with `error`: is there another one for it? The last error leaves otherwise."""
        rules = self.policy.config
        if rules.classifier.of_error(error) is Verdict.FAILURE and rules.alternatives.after(error, index + 1):
            return True
        self.policy.counts.tick("exhausted")
        attach(error, Decision(self.policy.name, "fallback", "gave_up", "its alternatives failed too"))
        return False

    # ------------------------------------------------------------------ the drivers

    def rescue(self, error: Exception, /, *args: Any, **kwargs: Any) -> Any:
        """The answer of the first alternative that has one."""
        return self._first(error, None, args, kwargs)

    async def arescue(self, error: Exception, /, *args: Any, **kwargs: Any) -> Any:
        return await self._afirst(error, None, args, kwargs)

    def replace(self, result: object, /, *args: Any, **kwargs: Any) -> Any:
        """The same for a result that counts as a failure."""
        return self._first(None, result, args, kwargs)

    async def areplace(self, result: object, /, *args: Any, **kwargs: Any) -> Any:
        return await self._afirst(None, result, args, kwargs)

    def _first(self, error: Exception | None, result: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cause, index = error, 0
        while True:
            index, alternative = self.policy.config.alternatives.after(cause, index)[0]
            try:
                answer = alternative.answer(cause, args, kwargs)
            except Exception as failed:
                if not self._next(index, failed, error):
                    raise
                cause, index = failed, index + 1
            else:
                self._fell_back(error, result)
                return answer

    async def _afirst(
        self, error: Exception | None, result: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        cause, index = error, 0
        while True:
            index, alternative = self.policy.config.alternatives.after(cause, index)[0]
            try:
                answer = alternative.answer(cause, args, kwargs)
                if alternative.is_function and inspect.isawaitable(answer):
                    answer = await answer
            except Exception as failed:
                if not self._next(index, failed, error):
                    raise
                cause, index = failed, index + 1
            else:
                self._fell_back(error, result)
                return answer

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.policy.must_be_sync()
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            if not self.handles(error):
                raise
            return self.rescue(error, *args, **kwargs)
        if self.dislikes(result):
            return self.replace(result, *args, **kwargs)
        next(self.ok)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            result = await fn(*args, **kwargs)
        except Exception as error:
            if not self.handles(error):
                raise
            return await self.arescue(error, *args, **kwargs)
        if self.dislikes(result):
            return await self.areplace(result, *args, **kwargs)
        next(self.ok)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        """Falls back until the first item is there; the alternative gives the items. After that, errors pass."""
        self.policy.must_be_sync()
        try:
            first, items = begin(fn, args, kwargs)
        except Exception as error:
            if not self.handles(error):
                raise
            return (yield from self.rescue(error, *args, **kwargs))
        next(self.ok)
        return first if items is None else (yield from resume(first, items))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        try:
            first, items = await abegin(fn, args, kwargs)
        except Exception as error:
            if not self.handles(error):
                raise
            async for item in each(await self.arescue(error, *args, **kwargs)):
                yield item
            return
        next(self.ok)
        if items is None:
            return
        try:
            yield first
            async for item in items:
                yield item
        finally:
            await items.aclose()

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        if self.policy.config.on_result is None:
            return _RESCUE
        return _RESCUE.replace("    tick(ok)", _RESCUE_RESULT)

    def names(self, kind: CallKind) -> dict[str, object]:
        return {"tick": next}

    def shadow(self) -> State:
        return WouldFallBack(self)

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        return {"used": self.policy.counts["used"], "exhausted": self.policy.counts["exhausted"]}


class WouldFallBack(Shadow):
    """Passes every outcome on, and counts where an alternative would have answered."""

    __slots__ = ()
    state: Rescue

    def enter(self) -> None:
        return None

    def done(self, permit: None, result: Any) -> None:
        if self.state.dislikes(result):
            self.state.policy.would("fall_back")
        else:
            next(self.state.ok)

    def failed(self, permit: None, error: Exception) -> None:
        if self.state.handles(error):
            self.state.policy.would("fall_back", error)

    def dropped(self, permit: None, error: BaseException) -> None:
        return None


class FallbackSnapshot(Snapshot):
    """What a fallback's snapshot adds."""

    used: int
    exhausted: int


class Fallback(Policy[FallbackConfig]):
    """A fallback policy; make one with `fallback(...)`."""

    __slots__ = ()
    type = "fallback"
    no_block = "a block has no value to replace; decorate a function, or use call() or acall()"

    def make_state(self, key: Hashable = None) -> Rescue:
        return Rescue(self)

    def may_guard(self, kind: CallKind) -> None:
        if kind in ("sync", "generator"):
            self.must_be_sync()

    def must_be_sync(self) -> None:
        """A sync call cannot await its alternative: say so before it is needed."""
        if self.config.alternatives.awaited:
            raise ConfigError(
                self.label, "alternatives", "must not be coroutine functions where the guarded call is sync", "one"
            )

    def judge(self, error: BaseException) -> Verdict:
        return self.config.classifier.of_error(error)

    def snapshot(self) -> FallbackSnapshot:
        return cast("FallbackSnapshot", super().snapshot())


def fallback(
    *alternatives: Any,
    name: str | None = None,
    on: Errors = Exception,
    ignore: Errors | None = None,
    on_result: ResultPredicate | None = None,
    causes: bool = False,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> Fallback:
    """Answer with an alternative when the call fails: a default, a cached value, another source.

    It sees what is left after everything inside it, so it belongs outermost. Unlike other policies it takes a rejection
    (an open circuit, a full bulkhead) for a failure: that is when an alternative is wanted most. Not for hiding errors
    that somebody should see: every use is counted and told as `FellBack`.

    Args:
        alternatives: A value; a function, sync or (for async calls) async, that gets the call's arguments, and the
            exception in a parameter named `error` if it has one; or a table from exception class to either. Several are
            a chain: where one raises, the next is asked. The original error stays reachable as context.
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        on: What counts as a failure: exception classes, predicates on the exception, or a tuple of both.
        ignore: Wins over `on`.
        on_result: A predicate: True for results that an alternative should replace.
        causes: Let `on` and `ignore` look along the chain of causes too.
        mode: "enforce", "shadow" (counts where it would have fallen back) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import fallback
    >>> @fallback(lambda city, error: f"no forecast for {city} ({error})", on=OSError)
    ... def forecast(city: str) -> str:
    ...     raise ConnectionError("service is down")
    >>> forecast("Oslo")
    'no forecast for Oslo (service is down)'
    """
    values = {
        "alternatives": alternatives,
        "on": on,
        "ignore": ignore,
        "on_result": on_result,
        "causes": causes,
        "mode": mode,
    }
    return Fallback(name, FallbackConfig.make(name, values), clock=clock, replace=replace)
