"""What the user holds: `hedge(...)`, and `operation`, by which a function says that it must not be repeated."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from inspect import iscoroutinefunction
from typing import Any, cast

from everkeel.errors import ConfigError, HedgeTimeoutError, RejectedError
from everkeel.policies.hedge.config import HedgeConfig
from everkeel.policies.hedge.state import Hedging
from everkeel.policies.retry.budget import RetryBudget
from everkeel.runtime.classify import Errors
from everkeel.runtime.clock import Clock
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.policy import Policy, Snapshot, policies_of
from everkeel.runtime.settings import Mode, Seconds
from everkeel.runtime.state import CallKind
from everkeel.runtime.weave import F

_MARK = "__everkeel_idempotent__"
_OWN: Any = object()


def operation(*, idempotent: bool) -> Callable[[F], F]:
    """Declare whether a function may be repeated. A hedge, which repeats as a rule, refuses one that may not.

    >>> from everkeel import ConfigError, hedge, operation
    >>> @operation(idempotent=False)
    ... async def charge(card: str) -> None: ...
    >>> try:
    ...     hedge()(charge)
    ... except ConfigError as error:
    ...     print(error)
    hedge: cannot guard charge: it is declared idempotent=False, and a hedge makes calls twice
    """

    def mark(fn: F) -> F:
        setattr(fn, _MARK, idempotent)
        for policy in policies_of(fn):  # already decorated: whoever decorated it could not know
            policy.may_guard_function(fn)
        return fn

    return mark


class HedgeSnapshot(Snapshot):
    """What a hedge's snapshot adds."""

    started: int
    won: dict[int, int]
    refused: int
    disposed: int
    delay: float
    abandoned: int


class Hedge(Policy[HedgeConfig]):
    """A hedge policy; make one with `hedge(...)`."""

    __slots__ = ()
    type = "hedge"
    no_block = "a block cannot run twice beside itself; decorate a function, or use call() or acall()"

    def make_state(self, key: Hashable = None) -> Hedging:
        return Hedging(self)

    def may_guard_function(self, fn: Callable[..., Any]) -> None:
        if getattr(fn, _MARK, True) is False:
            name = getattr(fn, "__qualname__", repr(fn))
            raise ConfigError(
                self.label,
                None,
                f"cannot guard {name}: it is declared idempotent=False, and a hedge makes calls twice",
                None,
            )

    def may_guard(self, kind: CallKind) -> None:
        if kind == "sync" and iscoroutinefunction(self.config.dispose):
            raise ConfigError(
                self.label, "dispose", "must be a plain function to guard a sync one", repr(self.config.dispose)
            )

    def judge(self, error: BaseException) -> Verdict:
        if isinstance(error, HedgeTimeoutError) and error.policy == self.name:
            return Verdict.FAILURE
        if isinstance(error, ExceptionGroup) and all(
            self.judge(one) is Verdict.FAILURE or isinstance(one, RejectedError) for one in error.exceptions
        ):
            return Verdict.FAILURE  # all attempts failed
        return self.config.classifier.of_error(error)

    def snapshot(self) -> HedgeSnapshot:
        return cast("HedgeSnapshot", super().snapshot())


def hedge(
    name: str | None = None,
    *,
    attempts: int = 2,
    delay: Seconds | Callable[[int], Seconds] | None = None,
    quantile: float = 0.95,
    initial_delay: Seconds = 0.1,
    max_duration: Seconds | None = None,
    budget: RetryBudget | None = _OWN,
    on: Errors = Exception,
    ignore: Errors | None = None,
    causes: bool = False,
    dispose: Callable[[Any], Any] | None = None,
    idempotent: bool = True,
    max_abandoned: int = 64,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> Hedge:
    """Start a second attempt beside the first when that one takes longer than usual; the first to succeed wins.

    For reads with a long tail of slow answers: the slowest twentieth gets a second chance, at the price of a few per
    cent more calls. Only for operations that may happen twice. An attempt that fails is replaced at once. When all have
    failed, an `ExceptionGroup` has all their errors; where there was only one attempt, its error is raised itself.
    Losers are cancelled and awaited; sync calls run in worker threads, whose losers are asked to stop and counted until
    they do. A generator is hedged up to its first item.

    Args:
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        attempts: How many at most, the first included.
        delay: Seconds before the next attempt starts, or a function of the number of the attempt that is under way.
            None: learned, so long as `quantile` of the latest calls take.
        quantile: Which share of the calls is not slow.
        initial_delay: The delay until enough calls were seen to learn from.
        max_duration: The end of the whole call (for generators: of the wait for the first item), with
            `HedgeTimeoutError`.
        budget: How many extra attempts the traffic may afford; share one with the retries of the same dependency. One
            tenth of the calls by default, plus one a second. None: no bound.
        on: What counts as a failure that another attempt may mend; any other exception is an answer.
        ignore: Wins over `on`.
        causes: Let `on` and `ignore` look along the chain of causes too.
        dispose: Called with the result of a loser that had one, to give back what it holds. May be a coroutine function
            where the guarded function is one.
        idempotent: False is refused: say what the operation is where it is defined, with `operation`.
        max_abandoned: How many losing threads may go on before no second attempt is started.
        mode: "enforce", "shadow" (counts where it would have started another) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> import asyncio
    >>> from everkeel import hedge
    >>> waits = iter([60, 0])
    >>> @hedge(delay=0.01)
    ... async def lookup(name: str) -> str:
    ...     await asyncio.sleep(next(waits))
    ...     return f"address of {name}"
    >>> asyncio.run(lookup("example.com"))
    'address of example.com'
    """
    if not idempotent:
        raise ConfigError(
            "hedge" if name is None else f"hedge {name!r}",
            "idempotent",
            "must be True: a hedge makes calls twice",
            "False",
        )
    values = {
        "attempts": attempts,
        "delay": delay,
        "quantile": quantile,
        "initial_delay": initial_delay,
        "max_duration": max_duration,
        "budget": RetryBudget(ratio=0.1, floor=1) if budget is _OWN else budget,
        "on": on,
        "ignore": ignore,
        "causes": causes,
        "dispose": dispose,
        "max_abandoned": max_abandoned,
        "mode": mode,
    }
    return Hedge(name, HedgeConfig.make(name, values), clock=clock, replace=replace)
