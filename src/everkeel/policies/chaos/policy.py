"""What the user holds: `chaos(...)`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, cast

from everkeel.errors import ConfigError
from everkeel.policies.chaos import permission
from everkeel.policies.chaos.config import NO_FAULT, ChaosConfig, ErrorSource
from everkeel.policies.chaos.core import Blast, Fault
from everkeel.policies.chaos.recording import Recorder, Recording, Script, script_of
from everkeel.policies.chaos.state import Faults
from everkeel.policies.fallback import Alternative
from everkeel.runtime import switch
from everkeel.runtime.classify import Classifier, ErrorMatch
from everkeel.runtime.clock import Clock
from everkeel.runtime.keyed import Keyed
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.policy import Policy, Snapshot, living
from everkeel.runtime.schedule import ScheduleLike
from everkeel.runtime.settings import Mode, Seconds
from everkeel.runtime.state import CallKind

_FAILURES = Classifier(ErrorMatch(Exception))


class ChaosSnapshot(Snapshot):
    """What a chaos policy's snapshot adds. `inactive_because` says why nothing can happen; None while it can."""

    active: bool
    inactive_because: str | None
    seed: str
    replaying: bool
    injected: dict[str, int]
    calls: int


class Chaos(Policy[ChaosConfig]):
    """A chaos policy; make one with `chaos(...)`."""

    __slots__ = ("_active", "_began", "_blast", "_recorder", "_stopped", "script")
    type = "chaos"

    def __init__(self, name: str | None, config: ChaosConfig, **rest: Any) -> None:
        self.script: Script | None = None  # what is being replayed, in place of what the seed says
        self._active, self._began = False, 0.0
        self._stopped: str | None = None
        self._recorder, self._blast = Recorder(), None
        super().__init__(name, config, **rest)
        if not permission.on and self.mode != "off":
            permission.say_inert(self.label)

    _blast: Blast | None

    def make_state(self, key: Hashable = None) -> Faults:
        return Faults(self, key)

    # ------------------------------------------------------------------ is it on?

    @property
    def inactive_because(self) -> str | None:
        """Why nothing can happen; None while it can."""
        if self.mode == "off":
            return "its mode is off"
        if not switch.on:
            return "Everkeel is disabled"
        if not permission.on:
            return "chaos is not enabled for this process"
        return None if self._stopped is None else f"stopped: {self._stopped}"

    def _compose(self) -> None:
        active = self.inactive_because is None
        if active and not self._active:
            self._began = self.clock.monotonic()
        self._active = active
        if active:
            super()._compose()
        else:
            self._layers = ()  # inert: a call does not even pass here

    def age(self) -> float:
        """Seconds since it became active."""
        return self.clock.monotonic() - self._began

    def stop(self, reason: str = "by hand") -> None:
        """No more faults, at once, until `resume()`. For listeners: stop when something of yours goes wrong."""
        with self.lock:
            if self._stopped is not None:
                return
            self._stopped = reason
        self.refresh()
        if self.heard():
            from everkeel.events import ChaosStopped

            self.emit(ChaosStopped(policy=self.name, policy_type=self.type, reason=reason))

    def resume(self) -> None:
        """Go on after a stop: calls keep their numbers, failures are counted anew."""
        with self.lock:
            self._stopped, self._blast = None, None
        self.refresh()

    # ------------------------------------------------------------------ again, the same

    def record(self) -> Recording:
        """What was injected at which call since the start, as plain data that JSON takes; the last 10,000 faults.

        >>> from everkeel import chaos, disable_chaos, enable_chaos
        >>> enable_chaos()
        >>> faults = chaos(rate=0.5, result="fault", seed=7)
        >>> first = [faults.call(lambda: "fine") for _ in range(8)]
        >>> [entry["call"] for entry in faults.record()["faults"]]
        [1, 4, 5, 7]
        >>> again = chaos(rate=0.0, result="fault")
        >>> again.replay(faults.record())
        >>> [again.call(lambda: "fine") for _ in range(8)] == first
        True
        >>> disable_chaos()
        """
        with self.lock:
            return self._recorder.data(self.config.seed)

    def replay(self, recording: Recording | None) -> None:
        """Start over, and let exactly these faults happen at these calls, whatever rate, seed, window and tags say.

        The policy must have the errors, the result and the behavior that the recording speaks of; what was recorded as
        the second error is the second error of this policy. None: start over with what the seed says.
        """
        self._start(None if recording is None else script_of(self.label, self.config, recording))

    def start_over(self) -> None:
        """Number calls from 1 again, and forget what was recorded, replayed, counted and stopped."""
        self._start(None)

    def _start(self, script: Script | None) -> None:
        with self.lock:
            self.script, self._stopped, self._blast, self._active = script, None, None, False
            self._recorder = Recorder()
        super().start_over()  # a new state, with numbers from 1 and this script

    # ------------------------------------------------------------------ what happened

    def injected(self, fault: Fault, error: Exception | None, key: Hashable) -> None:
        """A call is hit."""
        for kind in fault.kinds:
            self.counts.tick(f"injected_{kind}")
        with self.lock:
            self._recorder.add(fault, self.age(), None if error is None else type(error).__name__)
        if self.heard():
            from everkeel.events import ChaosInjected

            self.emit(
                ChaosInjected(
                    policy=self.name,
                    policy_type=self.type,
                    kinds=fault.kinds,
                    call=fault.call,
                    latency=fault.latency,
                    error=error,
                    key=key,
                )
            )

    def survived(self) -> None:
        """A call ended well."""
        if self.config.bounded:
            now = self.clock.monotonic()
            with self.lock:
                self._reach(now).success(now)

    def failed(self, error: Exception) -> None:
        """A call failed, by our doing or not. Too many of them, and it is enough."""
        if not self.config.bounded or _FAILURES.of_error(error) is not Verdict.FAILURE:
            return
        now = self.clock.monotonic()
        with self.lock:
            enough = self._reach(now).failure(self.config, now)
        if enough is not None:
            self.stop(enough)

    def _reach(self, now: float) -> Blast:
        if self._blast is None:
            self._blast = Blast(self.config, now)
        return self._blast

    def _apply(self, live: dict[str, Any]) -> None:
        before = self.config.failure_window
        super()._apply(live)
        if self.config.failure_window != before:
            self._blast = None  # another window: what the old one saw cannot be carried over

    # ------------------------------------------------------------------ where it can work

    def may_guard(self, kind: CallKind) -> None:
        if kind in ("sync", "generator"):
            self.must_be_sync()

    def must_be_sync(self) -> None:
        """A sync call cannot await a behavior or a result: say so before it is needed."""
        rules = self.config
        for parameter, given in (("behavior", rules.behavior), ("result", rules.result)):
            if isinstance(given, Alternative) and given.awaited:
                raise ConfigError(
                    self.label, parameter, "must not be a coroutine function where the guarded call is sync", "one"
                )

    def _may_be_a_block(self, *, awaited: bool = False) -> None:
        if self.config.result is not NO_FAULT:
            raise TypeError(
                f"{self.label} cannot be a block: it injects a result, and a block has no value to replace; "
                "decorate a function, or use call() or acall()"
            )

    # ------------------------------------------------------------------ being watched

    def about(self) -> dict[str, Any]:
        """What a snapshot shows of the policy as a whole."""
        counts, because = self.counts.read(), self.inactive_because
        return {
            "active": because is None,
            "inactive_because": because,
            "seed": self.config.seed,
            "replaying": self.script is not None,
            "injected": {name[9:]: many for name, many in counts.items() if name.startswith("injected_")},
        }

    def over_keys(self, keyed: Keyed) -> dict[str, Any]:
        return {**self.about(), "calls": sum(cast("Faults", state).calls() for state in keyed.everyone())}

    def snapshot(self) -> ChaosSnapshot:
        return cast("ChaosSnapshot", super().snapshot())

    def __repr__(self) -> str:
        because = self.inactive_because
        return super().__repr__() if because is None else f"<{self.label}, inert: {because}>"


def _permission_changed() -> None:
    for policy in list(living):
        if isinstance(policy, Chaos):
            policy.refresh()


permission.on_change.append(_permission_changed)


def chaos(
    name: str | None = None,
    *,
    rate: float = 0.001,
    latency: Seconds | tuple[Seconds, Seconds] | None = None,
    error: ErrorSource | list[ErrorSource] | None = None,
    result: Any = NO_FAULT,
    behavior: Callable[..., Any] | None = None,
    window: tuple[Seconds, Seconds | None] | None = None,
    schedule: ScheduleLike | None = None,
    keys: Iterable[Hashable] | None = None,
    tags: Iterable[str] | None = None,
    seed: int | str = 0,
    max_failures: int | None = None,
    max_failure_rate: float | None = None,
    failure_window: Seconds = 60.0,
    minimum_calls: int = 20,
    key: Callable[..., Hashable] | None = None,
    max_keys: int = 10_000,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> Chaos:
    """Inject latency, errors, results or any behavior into some calls, to see whether the rest of you survives it.

    Nothing happens, and nothing is paid, unless chaos is enabled for the process, by `everkeel.enable_chaos()` or
    EVERKEEL_CHAOS=true: a policy in a process where it is not is inert, says so once in the log (not with
    EVERKEEL_CHAOS=false) and in its snapshot, and wakes up as soon as chaos is enabled.

    What happens is no matter of luck. Calls are numbered as they come, those of each key on their own, and what the
    n-th call of a key gets follows from the seed, the key and n. So the same seed and as many calls of the same keys
    give the same faults at the same numbers, however threads and tasks interleave; *which* caller has a number is a
    matter of who comes first, unless `key` tells them apart. Every call has a number while the policy is active, also
    one that window, schedule, keys or tags spare; those are then spared by what they are, so for the same faults they
    must come at the same time and carry the same tags. A higher rate adds faults and takes none away.

    Innermost is where it belongs: there its faults look like those of the dependency to every other policy.

    Args:
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        rate: The share of calls that is hit. One in a thousand, so that a policy nobody has tuned does little harm.
        latency: Seconds added before the call, or (from, to) for a length in between. It can be cancelled.
        error: Raised in place of the call: an exception class, an exception (a copy of it is raised), a function that
            makes one, or a list of those, of which one is chosen.
        result: Returned in place of the call: a value, or a function of the call's arguments. Not beside `error`.
        behavior: A function of the call's arguments, called before everything else: anything you like.
        window: (from, until) in seconds since it became active; until may be None.
        schedule: `(from, until)` on the wall: datetimes or times of day, with a timezone, or a list of such pairs.
        keys: Only calls of these keys are hit; needs `key`.
        tags: Only calls that carry one of these words are hit; see `chaos_tags`.
        seed: What decides which calls are hit. 0, so that it is the same on every run. Policies with the same seed hit
            the same numbers.
        max_failures: When so many calls have failed within `failure_window`, injected or not, it stops by itself.
        max_failure_rate: When this share of the calls within `failure_window` has failed, it stops by itself.
        failure_window: Over how many seconds that is counted.
        minimum_calls: No share is taken of fewer calls than that; 20 keeps one early failure from being 100 %.
        key: A function of the call's arguments: each answer numbers its calls on its own, in bounded memory.
        max_keys: How many keys have numbers of their own; further ones share theirs.
        mode: "enforce", "shadow" (counts who would have been hit) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import chaos, disable_chaos, enable_chaos
    >>> @chaos(rate=0.25, error=ConnectionError, seed=1)
    ... def fetch(number: int) -> str:
    ...     return "ok"
    >>> def attempt(number: int) -> str:
    ...     try:
    ...         return fetch(number)
    ...     except ConnectionError:
    ...         return "fault"
    >>> enable_chaos()
    >>> [attempt(number) for number in range(8)]
    ['ok', 'ok', 'fault', 'ok', 'fault', 'ok', 'ok', 'ok']
    >>> disable_chaos()
    """
    values = {
        "rate": rate,
        "latency": latency,
        "error": error,
        "result": result,
        "behavior": behavior,
        "window": window,
        "schedule": schedule,
        "keys": keys,
        "tags": tags,
        "seed": seed,
        "max_failures": max_failures,
        "max_failure_rate": max_failure_rate,
        "failure_window": failure_window,
        "minimum_calls": minimum_calls,
        "mode": mode,
    }
    config = ChaosConfig.make(name, values)
    if config.keys is not None and key is None:
        raise ConfigError(
            f"chaos {name!r}" if name else "chaos", "keys", "needs key, a function of the call's arguments", None
        )
    return Chaos(name, config, clock=clock, replace=replace, key=key, max_keys=max_keys)
