"""The loop, sync and async. Everything it decides is in `core`; everything it counts and tells is here, once."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from everkeel.errors import ConfigError, RetryExhaustedError, TimeoutExceededError
from everkeel.policies.retry import attempt as marks
from everkeel.policies.retry import record
from everkeel.policies.retry.attempt import CURRENT, Attempt
from everkeel.policies.retry.config import RetryConfig
from everkeel.policies.retry.core import Run
from everkeel.policies.retry.nesting import marked_outer, outer_on_the_stack
from everkeel.runtime import events as hub
from everkeel.runtime.deadline import AMBIENT, Deadline, unless_under_deadline
from everkeel.runtime.expiry import SyncBounds, call_within
from everkeel.runtime.outcome import FAILURE, Outcome, Verdict
from everkeel.runtime.state import CallKind, Shadow, State
from everkeel.runtime.stream import Begun, abegin, begin, each, resume
from everkeel.runtime.tally import read, tally
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.policies.retry.policy import Retry

# The wait and the next attempt are outside the handler: nothing of a failed attempt is kept alive or chained on.
_LOOP = """\
run = None
while True:
    try:
        INNER
        break
    except Exception as error:
        run = retry.failed(run, error)
        if run.over:
            raise
    except BaseException:
        retry.dropped(run, None)
        raise
    if run.delay:
        AWAIT sleep(run.delay)
    if run.marked:
        retry.again(run)
if run is None:
    tick(ok)
else:
    retry.recovered(run)"""


_new = object.__new__


class Retrying(State):
    """What the calls of one retry share: its counts. Each call has its own `Run`."""

    __slots__ = ("__weakref__", "_bounds", "ok", "policy", "recoveries", "retries")
    word = "retry"
    parts = ("ok",)
    policy: Retry

    def __init__(self, policy: Retry) -> None:
        self.policy = policy
        self.ok, self.retries, self.recoveries = tally(), tally(), tally()
        self._bounds: SyncBounds | None = None
        if policy.config.budget is not None:
            policy.config.budget.watch(self)

    # ------------------------------------------------------------------ after an attempt

    def failed(self, run: Run | None, error: Exception) -> Run:  # type: ignore[override]  # a run is what `enter` lacks
        """A woven attempt raised `error`: the run, saying what follows.

        Where another attempt follows at once, and nobody else has a say in it or listens, `decide` would come to the
        same decision in three times the time; it is asked about everything else.
        """
        policy = self.policy
        if run is None:
            run = _new(Run)  # written out, because calling an __init__ costs as much as all of this method
            run.attempts, run.policy, run.rules, run.began = 0, policy, policy.config, policy.clock.monotonic()
            run.delay, run.over, run.reason, run.history = 0.0, False, "", None
            run.outer, run.marked, run.before, run.error = None, False, None, None
        rules = run.rules
        if (
            type(error) in rules.at_once
            and run.attempts + 1 < (rules.attempts or 0)
            and rules is policy.config
            and getattr(error, "retry_after", None) is None
            and not (policy.subscriptions or hub.everywhere)
        ):
            run.attempts += 1
            run.delay = 0.0  # the attempt before may have been told to wait
            run.history = (type(error), error.args, 0.0, run.history)
            next(self.retries)
            if marks.wanted and not run.marked:
                run.marked, run.before = True, CURRENT.get()
                run.outer = marked_outer(run.before)
            return run
        return self.decide(run, error)

    def decide(
        self,
        run: Run | None,
        error: Exception | None,
        value: object = None,
        limit: Deadline | None = None,
        retryable: bool | None = None,
    ) -> Run:
        """An attempt raised `error`, or returned a `value` that counts as a failure: the run, saying what follows."""
        policy = self.policy
        clock = policy.clock
        if run is None:
            run = Run(clock.monotonic(), policy.config, policy)
        rules = run.rules
        if not run.marked:
            run.marked, run.before = True, CURRENT.get()
            run.outer = marked_outer(run.before)
        if retryable is None:
            retryable = error is None or policy.config.classifier.of_error(error) is FAILURE
        if limit is None:
            limit = AMBIENT.get()
        try:
            run.failed(error, value, retryable, None if limit is None else limit.remaining(), clock.random)
        except Exception as broken:  # a backoff function of the user's
            report(f"{policy.label}: the backoff function raised; giving up", broken)
            run.give_up("not_retryable")
        if not run.over:
            if rules.nested == "outermost" and self._is_inside_another(run, sys._getframe(1)):
                run.give_up("nested")
            elif rules.budget is not None and not rules.budget.may_retry(clock.monotonic()):
                run.give_up("budget")
        elif run.reason == "duration" and limit is AMBIENT.get():
            run.reason = "deadline"
        CURRENT.set(run.before)
        if run.over:
            record.gave_up(policy, run, error, value)
            return run
        if error is None:
            run.history = (None, (), run.delay, run.history)
        else:
            run.history = (type(error), error.args, run.delay, run.history)
            rules.at_once.learn(type(error))
        next(self.retries)
        if policy.subscriptions or hub.everywhere:
            marks.wanted = True  # events tell of retries around: from now on all of them are marked
            record.retrying(policy, run, error, value)
        if rules.before_retry is not None and not rules.awaits_hook:
            self._before_retry(run, error)
        if error is not None and (rules.bounded or rules.awaits_hook or limit is not None):
            # Last: hooks and listeners may want to see where it came from. So may whoever gets it after all.
            run.error = record.without_frames(error) if rules.cut_short else error
        return run

    def again(self, run: Run) -> None:
        """Another attempt begins: mark the context, so that the operation can read which one it is."""
        CURRENT.set((self.policy, run.attempts + 1, run.rules.attempts))

    def recovered(self, run: Run) -> None:
        """An attempt after the first succeeded."""
        if run.marked:
            CURRENT.set(run.before)
        next(self.ok)
        next(self.recoveries)
        policy = self.policy
        if policy.subscriptions or hub.everywhere:
            record.succeeded(policy, run)

    def dropped(self, permit: Run | None, error: BaseException | None) -> None:
        """Cancelled or interrupted: no attempt follows, nothing is counted."""
        if permit is not None and permit.marked:
            CURRENT.set(permit.before)

    def _is_inside_another(self, run: Run, frame: FrameType) -> bool:
        if run.outer is None and run.attempts == 1:  # what was not around the first attempt is not around the second
            run.outer = outer_on_the_stack(self, frame, DRIVERS)
        return run.outer is not None

    def _before_retry(self, run: Run, error: Exception | None) -> None:
        policy, hook = self.policy, run.rules.before_retry
        if hook is not None:
            try:
                hook(Attempt(policy.name, run.attempts + 1, run.rules.attempts, error))
            except Exception as broken:
                report(f"{policy.label}: before_retry raised", broken)

    async def _abefore_retry(self, run: Run) -> None:
        """The same for a hook that must be awaited, outside the handler of the error."""
        policy = self.policy
        hook = policy.config.before_retry
        if hook is not None:
            try:
                await hook(Attempt(policy.name, run.attempts + 1, policy.config.attempts, run.error))
            except Exception as broken:
                report(f"{policy.label}: before_retry raised", broken)

    def accepts(self, result: object) -> bool:
        """Is this result, as far as `on_result` knows, a success?"""
        rules = self.policy.config
        if rules.on_result is None or type(result) is Begun:
            return True
        return rules.classifier.of_result(result) is Verdict.SUCCESS

    def maps(self, run: Run) -> bool:
        """Does `exhausted` make the answer? Only where retrying was tried: an error not to retry on leaves as it is."""
        return self.policy.config.exhausted is not None and run.reason not in ("not_retryable", "nested")

    def exhausted(self, run: Run, error: Exception | None, value: object) -> Any:
        """No further attempt and no error to raise: what the caller gets instead, or `RetryExhaustedError`."""
        policy = self.policy
        mapper = policy.config.exhausted
        if mapper is not None and self.maps(run):
            return mapper(Outcome(value, error, run.attempts))
        gave_up = RetryExhaustedError(policy.name, run.attempts, value)
        record.explain_by(gave_up, policy, run)
        raise gave_up

    # ------------------------------------------------------------------ time limits

    def _limit(self) -> Deadline | None:
        """The end of the whole call: the ambient deadline or `max_duration`, whichever is first."""
        policy = self.policy
        rules, clock, ambient = policy.config, policy.clock, AMBIENT.get()
        if rules.max_duration is None:
            if rules.attempts is None and ambient is None:
                raise ConfigError(
                    policy.label, "attempts", "None needs max_duration, or a call under a deadline", "neither"
                )
            limit = ambient
        else:
            at = clock.monotonic() + rules.max_duration
            own = Deadline(at, length=rules.max_duration, clock=clock)
            limit = own if ambient is None or at < ambient.at else ambient
        if limit is not None and limit.expired:
            raise self._expired(None, limit, begun=False)
        return limit

    def _end_of_attempts(self, limit: Deadline | None) -> Deadline | None:
        """What ends an attempt in progress: the end of the whole call, unless it only keeps others from beginning."""
        return limit if self.policy.config.cut_short else AMBIENT.get()

    def _overslept(self, run: Run, limit: Deadline) -> bool:
        """Did the wait, which takes a little longer than asked for, go past the end? Then nothing may begin."""
        return not run.rules.cut_short and limit.expired

    def _not_again(self, run: Run) -> Any:
        """There was to be another attempt, and now there is not: the last one's outcome is the call's."""
        run.give_up("duration")
        error = run.error if isinstance(run.error, Exception) else None
        record.gave_up(self.policy, run, error, None)
        if error is None or self.maps(run):
            return self.exhausted(run, error, None)
        raise error

    def _expired(self, run: Run | None, limit: Deadline, *, begun: bool = True) -> TimeoutExceededError:
        """The whole call's time ran out in the middle of an attempt, or before the first was begun."""
        policy = self.policy
        policy.counts.tick("failure")
        own = limit is not AMBIENT.get()
        reason = "duration" if own else "deadline"
        policy.counts.tick(f"gave_up_{reason}")
        error = TimeoutExceededError(policy.name, limit.length, "retry" if own else "deadline")
        if run is not None:
            self.dropped(run, None)
            error.__context__ = run.error
        attempts = (0 if run is None else run.attempts) + begun
        record.cut_short(policy, run, attempts, error, reason)
        return error

    def _attempt_bound(self, limit: Deadline | None) -> tuple[float | None, bool]:
        """Seconds the next attempt may take, and whether it is the whole call's end that bounds it."""
        alone = self.policy.config.attempt_timeout
        left = None if limit is None else max(0.0, limit.remaining())
        if alone is None or (left is not None and left <= alone):
            return left, True
        return alone, False

    def _attempt_expired(self, seconds: float) -> TimeoutExceededError:
        self.policy.counts.tick("attempt_expired")
        return TimeoutExceededError(self.policy.name, seconds, "attempt of retry")

    # ------------------------------------------------------------------ the plain path

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        rules, sleep = self.policy.config, self.policy.clock.sleep
        if rules.awaits_hook:
            self.policy.may_guard("sync")
        limit = self._limit() if rules.timed or AMBIENT.get() is not None else None
        if rules.bounded:
            fn = partial(self._bounded_attempt, self._end_of_attempts(limit), fn)
        run: Run | None = None
        result: Any
        expired = False
        while True:
            try:
                result = fn(*args, **kwargs)
            except _CallExpired:
                expired = True
            except Exception as error:
                run = self.decide(run, error, None, limit, self._own_expiry(error))
                if run.over:
                    if not self.maps(run):
                        raise
                    return self.exhausted(run, error, None)
            except BaseException:
                self.dropped(run, None)
                raise
            else:
                if self.accepts(result):
                    break
                run = self.decide(run, None, result, limit)
                if run.over:
                    return self.exhausted(run, None, result)
                del result
            if expired or run is None:
                # Outside of the handler, so that the last attempt's error is its context, and not our signal.
                assert limit is not None
                raise self._expired(run, limit)
            if run.delay:
                sleep(run.delay)
                if limit is not None and self._overslept(run, limit):
                    return self._not_again(run)
            self.again(run)
        if run is None:
            next(self.ok)
        else:
            self.recovered(run)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        rules, sleep = self.policy.config, self.policy.clock.asleep
        limit = self._limit() if rules.timed or AMBIENT.get() is not None else None
        end = self._end_of_attempts(limit)
        if rules.bounded or end is not None:
            fn = partial(self._abounded_attempt, end, fn)
        run: Run | None = None
        result: Any
        expired = False
        while True:
            try:
                result = await fn(*args, **kwargs)
            except _CallExpired:
                expired = True
            except Exception as error:
                run = self.decide(run, error, None, limit, self._own_expiry(error))
                if run.over:
                    if not self.maps(run):
                        raise
                    return self.exhausted(run, error, None)
            except BaseException:
                self.dropped(run, None)
                raise
            else:
                if self.accepts(result):
                    break
                run = self.decide(run, None, result, limit)
                if run.over:
                    return self.exhausted(run, None, result)
                del result
            if expired or run is None:
                # Outside of the handler, so that the last attempt's error is its context, and not our signal.
                assert limit is not None
                raise self._expired(run, limit)
            if rules.awaits_hook:
                await self._abefore_retry(run)
            if run.delay:
                await sleep(run.delay)
                if limit is not None and self._overslept(run, limit):
                    return self._not_again(run)
            self.again(run)
        if run is None:
            next(self.ok)
        else:
            self.recovered(run)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        """Retried until the first item is there; after that its consumer has seen something, and errors pass."""
        begun = self.call(begin, fn, args, kwargs)
        if type(begun) is not Begun:
            return (yield from begun)  # the answer of `exhausted` gives the items
        if begun.items is None:
            return begun.first
        return (yield from resume(*begun))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        begun = await self.acall(abegin, fn, args, kwargs)
        if type(begun) is not Begun:
            async for item in each(begun):
                yield item
        elif begun.items is not None:
            try:
                yield begun.first
                async for item in begun.items:
                    yield item
            finally:
                await begun.items.aclose()

    def _bounded_attempt(self, limit: Deadline | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        rules = self.policy.config
        seconds, whole = self._attempt_bound(limit)
        if seconds is None:
            return fn(*args, **kwargs)
        if self._bounds is None:
            self._bounds = SyncBounds(self.policy)
        expire = _CallExpired if whole else partial(self._attempt_expired, seconds)
        return self._bounds.call(rules.runs, seconds, rules.max_abandoned, expire, fn, args, kwargs)

    async def _abounded_attempt(
        self, limit: Deadline | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        seconds, whole = self._attempt_bound(limit)
        if seconds is None:
            return await fn(*args, **kwargs)
        expire = _CallExpired if whole else partial(self._attempt_expired, seconds)
        clock = self.policy.clock
        ambient = limit if whole else Deadline(clock.monotonic() + seconds, length=seconds, clock=clock)
        token = AMBIENT.set(ambient)
        try:
            return await call_within(clock, seconds, expire, fn, args, kwargs)
        finally:
            AMBIENT.reset(token)

    def _own_expiry(self, error: Exception) -> bool | None:
        """The expiry of `attempt_timeout` is retried whatever `on` says, unless `ignore` names it."""
        if (
            self.policy.config.attempt_timeout is not None
            and isinstance(error, TimeoutExceededError)
            and error.limit == "attempt of retry"
            and error.policy == self.policy.name
        ):
            return self.policy.config.classifier.of_error(error) is not Verdict.NO_EVIDENCE
        return None

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        rules = self.policy.config
        plain = rules.timed or rules.on_result is not None or rules.exhausted is not None
        return None if plain or rules.awaits_hook else unless_under_deadline("retry", _LOOP)

    def names(self, kind: CallKind) -> dict[str, object]:
        clock = self.policy.clock
        return {"ambient": AMBIENT.get, "tick": next, "sleep": clock.asleep if kind == "async" else clock.sleep}

    # ------------------------------------------------------------------ being watched

    def shadow(self) -> State:
        return WouldRetry(self)

    def adapt(self, old: RetryConfig, new: RetryConfig) -> None:
        if new.budget is not None and new.budget is not old.budget:
            new.budget.watch(self)

    def successes(self) -> int:
        return read(self.ok)

    def calls(self) -> int:
        """How many calls have ended: what a budget takes for the traffic."""
        counts = self.policy.counts
        return read(self.ok) + counts["failure"] + counts["ignored"]

    def details(self) -> dict[str, Any]:
        counts = self.policy.counts.read()
        return {
            "retries": read(self.retries),
            "recovered": read(self.recoveries),
            "gave_up": {name[8:]: n for name, n in counts.items() if name.startswith("gave_up_")},
            "attempt_expired": counts.get("attempt_expired", 0),
            "abandoned": 0 if self._bounds is None else self._bounds.abandoned,
        }


class _CallExpired(TimeoutExceededError):  # noqa: N818 - a signal between two functions
    """On its way from the attempt that was cut short to the loop; never leaves it."""

    def __init__(self) -> None:
        super().__init__(None, 0.0)


class WouldRetry(Shadow):
    """Passes the first outcome on, and counts where it would have tried again."""

    __slots__ = ()
    state: Retrying

    def enter(self) -> None:
        return None

    def done(self, permit: None, result: Any) -> None:
        rules = self.state.policy.config
        if rules.classifier.of_result(result) is Verdict.FAILURE:
            self._judge(None, result)
        else:
            next(self.state.ok)

    def failed(self, permit: None, error: Exception) -> None:
        self._judge(error, None)

    def dropped(self, permit: None, error: BaseException) -> None:
        return None

    def _judge(self, error: Exception | None, value: object) -> None:
        policy = self.state.policy
        retryable = error is None or policy.config.classifier.of_error(error) is Verdict.FAILURE
        policy.counts.tick("failure" if retryable else "ignored")
        run = Run(0.0, policy.config)
        limit = AMBIENT.get()
        room = policy.config.max_duration if limit is None else limit.remaining()
        try:
            run.failed(error, value, retryable, room, policy.clock.random)
        except Exception as broken:  # a backoff function of the user's
            report(f"{policy.label}: the backoff function raised", broken)
            return
        if not run.over:
            policy.would("retry", error)


DRIVERS = frozenset({Retrying.call.__code__, Retrying.acall.__code__, Retrying.failed.__code__})
