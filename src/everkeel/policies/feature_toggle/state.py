"""The way a call takes: to the feature, or to the alternative, or to an error."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from everkeel.errors import ConfigError, FeatureDisabledError
from everkeel.policies.fallback import Alternative
from everkeel.policies.feature_toggle.core import Reason, why_not
from everkeel.runtime.stable import text_of
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.stream import each
from everkeel.runtime.tally import read, tally
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.policies.feature_toggle.policy import FeatureToggle

_ON = """\
INNER
tick(ok)"""

_DECIDED = """\
refusal = toggle.refusal(ARGS)
if refusal is None:
    INNER
    tick(ok)
else:
    RESULT = AWAIT toggle.INSTEAD(refusal, ARGS)"""


class Refusal(NamedTuple):
    """Why a call may not have the feature. No error yet: a frame that names one would be kept alive by it."""

    reason: Reason
    key: Hashable
    retry_after: float | None

    def error(self, policy: str | None) -> FeatureDisabledError:
        """The error that says so."""
        return FeatureDisabledError(policy, self.retry_after, self.reason, self.key)


class Switch(State):
    """Asks the rules about every call."""

    __slots__ = ("ok", "policy")
    word = "toggle"
    parts = ("ok",)
    policy: FeatureToggle

    def __init__(self, policy: FeatureToggle) -> None:
        self.policy, self.ok = policy, tally()

    # ------------------------------------------------------------------ deciding

    def refusal(self, /, *args: Any, **kwargs: Any) -> Refusal | None:
        """Why a call with these arguments may not have the feature; None when it may."""
        rules = self.policy.config
        if rules.plain:
            return None
        key = None
        if rules.key is not None:
            key = rules.key(*args, **kwargs)
        else:
            self.policy.must_have_key()
        return self.refused(key, args, kwargs)

    def refused(
        self, key: Hashable, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Refusal | None:
        """Why this key may not have the feature; None when it may."""
        policy = self.policy
        rules = policy.config
        salt = rules.salt if rules.salt is not None else policy.name or ""
        reason = why_not(rules, salt, self._text(key), policy.clock.time, self._fits, args, kwargs or {})
        if reason is None:
            return None
        opens = rules.schedule.opens_in(policy.clock.time()) if reason == "schedule" and rules.schedule else None
        return Refusal(reason, key, opens)

    def _fits(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        predicate = self.policy.config.predicate
        try:
            return predicate is None or bool(predicate(*args, **kwargs))
        except Exception as error:
            # A feature that is being tried out fails closed: the old way is the one that is known to work.
            report(f"{self.policy.label}: its predicate raised; the feature is off for this call", error)
            return False

    def _text(self, key: Hashable) -> str | None:
        if key is None:
            return None
        try:
            return text_of(key)
        except ValueError as error:
            raise ConfigError(
                self.policy.label, "key", str(error).replace("must be", "must return"), repr(key)
            ) from None

    # ------------------------------------------------------------------ counting, telling

    def denied(self, refusal: Refusal) -> None:
        """A call does not get the feature."""
        policy = self.policy
        policy.counts.tick(f"denied_{refusal.reason}")
        if policy.heard():
            from everkeel.events import FeatureDenied

            name, kind = policy.name, policy.type
            policy.emit(FeatureDenied(policy=name, policy_type=kind, reason=refusal.reason, key=refusal.key))

    def _answer(self, refusal: Refusal, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.denied(refusal)
        alternative = self.policy.config.alternative
        if not isinstance(alternative, Alternative):
            next(self.policy.rejections)
            raise refusal.error(self.policy.name)
        self.policy.counts.tick("alternative")
        return alternative.answer(refusal.error(self.policy.name), args, kwargs)

    # ------------------------------------------------------------------ the drivers

    def instead(self, refusal: Refusal, /, *args: Any, **kwargs: Any) -> Any:
        """What a call gets that does not get the feature."""
        return self._answer(refusal, args, kwargs)

    async def ainstead(self, refusal: Refusal, /, *args: Any, **kwargs: Any) -> Any:
        answer = self._answer(refusal, args, kwargs)
        if self.policy.config.alternative.is_function and inspect.isawaitable(answer):
            return await answer
        return answer

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.policy.must_be_sync()
        refusal = self.refusal(*args, **kwargs)
        if refusal is not None:
            return self.instead(refusal, *args, **kwargs)
        result = fn(*args, **kwargs)
        next(self.ok)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        refusal = self.refusal(*args, **kwargs)
        if refusal is not None:
            return await self.ainstead(refusal, *args, **kwargs)
        result = await fn(*args, **kwargs)
        next(self.ok)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        """Decided when the first item is asked for; the alternative gives the items."""
        self.policy.must_be_sync()
        refusal = self.refusal(*args, **kwargs)
        if refusal is not None:
            return (yield from self.instead(refusal, *args, **kwargs))
        result = yield from fn(*args, **kwargs)
        next(self.ok)
        return result

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        refusal = self.refusal(*args, **kwargs)
        if refusal is not None:
            async for item in each(await self.ainstead(refusal, *args, **kwargs)):
                yield item
            return
        items = fn(*args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()
        next(self.ok)

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        return _ON if self.policy.config.plain else _DECIDED

    def names(self, kind: CallKind) -> dict[str, object]:
        return {"tick": next}

    # ------------------------------------------------------------------ blocks, shadow, being watched

    def of_key(self, key: Hashable) -> State:
        """The state of a block that is about this key."""
        return BlockSwitch(self, key)

    def shadow(self) -> State:
        return WouldReject(self)

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        policy = self.policy
        counts = policy.counts.read()
        return {
            "enabled": policy.config.enabled,
            "share": policy.config.share,
            "denied": {name[7:]: count for name, count in counts.items() if name.startswith("denied_")},
            "alternative": counts.get("alternative", 0),
        }


class BlockSwitch(State):
    """A block has no arguments: its key is told. It either begins or it does not."""

    __slots__ = ("_key", "_switch", "policy")

    def __init__(self, switch: Switch, key: Hashable) -> None:
        self._switch, self._key, self.policy = switch, key, switch.policy

    def enter(self) -> None:
        refusal = self._switch.refused(self._key)
        if refusal is not None:
            self._switch.denied(refusal)
            next(self.policy.rejections)
            raise refusal.error(self.policy.name)

    def done(self, permit: None, result: Any) -> None:
        next(self._switch.ok)


class WouldReject(Switch):
    """Asks the rules, counts, and lets every call have the feature."""

    __slots__ = ("_switch",)

    def __init__(self, switch: Switch) -> None:
        self._switch, self.policy, self.ok = switch, switch.policy, switch.ok

    def refusal(self, /, *args: Any, **kwargs: Any) -> Refusal | None:
        self._counted(self._switch.refusal(*args, **kwargs))
        return None

    def refused(
        self, key: Hashable, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Refusal | None:
        self._counted(self._switch.refused(key, args, kwargs))
        return None

    def _counted(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self.policy.would("reject", refusal.error(self.policy.name))
