"""Events as records of the standard library's logging, at levels that leave a healthy service silent.

One logger per type of policy (`everkeel.retry`, `everkeel.circuit_breaker`, ...). What happened is in the message, and
again in fields of the record whose names begin with `everkeel_`: plain values that JSON takes, so that structlog's
`ExtraAdder` and every JSON formatter show them as they are. Results of calls and keys are in neither: they are data.
"""

from __future__ import annotations

import logging
import threading
from typing import TypeAlias

from everkeel import events
from everkeel.errors import ConfigError
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.events import Subscription, subscribe
from everkeel.runtime.settings import label
from everkeel.telemetry.fields import event_name, plain, values_of

_PREFIX = "everkeel_"
_SECONDS = {"age", "delay", "duration", "late_by", "seconds"}
Identity: TypeAlias = tuple[type[events.Event], str, str | None]

_TELLING: dict[type[events.Event], tuple[int, str]] = {
    events.Retrying: (logging.WARNING, "attempt {attempt} failed, the next one in {delay}: {error}"),
    events.RetrySucceeded: (logging.INFO, "succeeded at attempt {attempts}"),
    events.RetryGaveUp: (logging.ERROR, "gave up at attempt {attempts} ({reason}): {error}"),
    events.CircuitOpened: (logging.WARNING, "opened {open_for}: {reason}, {failure_rate} of the calls"),
    events.CircuitHalfOpened: (logging.INFO, "half open: a few probes may pass"),
    events.CircuitClosed: (logging.INFO, "closed"),
    events.CircuitForced: (logging.WARNING, "set to {state} by hand"),
    events.CircuitReset: (logging.INFO, "reset by hand"),
    events.TimedOut: (logging.WARNING, "no answer within {seconds}"),
    events.LateCompletion: (logging.INFO, "a call that had timed out ended {late_by} late"),
    events.Drained: (logging.WARNING, "drained: nothing passes for {seconds}"),
    events.FellBack: (logging.WARNING, "an alternative answered in place of {error}"),
    events.FailFastOpened: (logging.WARNING, "opened {open_for}: {reason}"),
    events.FailFastClosed: (logging.INFO, "closed ({reason})"),
    events.ChaosInjected: (logging.INFO, "hit call {call} on purpose: {kinds}"),
    events.ChaosStopped: (logging.WARNING, "stopped: {reason}"),
    events.Reconfigured: (logging.INFO, "reconfigured: {changes}"),
    # Events on their way. What consumers do themselves is in their own records (`everkeel.consumer`), always.
    events.EventWritten: (logging.DEBUG, "{event_type} {event_id} written for {topic}"),
    events.EventDelivered: (logging.DEBUG, "{event_type} {event_id} delivered to {topic} after {age}"),
    events.DeliveryFailed: (
        logging.INFO,
        "attempt {attempt} to deliver {event_type} {event_id} failed, the next one in {delay}: {error}",
    ),
    events.LeaseLost: (logging.INFO, "{event_type} {event_id} was taken over by another relay"),
    events.DeadLettered: (
        logging.WARNING,
        "{event_type} {event_id} dead-lettered ({reason}) as {letter} after {attempts} attempts: {error}",
    ),
    events.Replayed: (logging.INFO, "{letter} ({event_type} {event_id}) replayed by {actor}"),
    events.Resolved: (logging.INFO, "{event_type} {event_id} was handled after all, its dead letter was {before}"),
    events.Reopened: (logging.INFO, "{letter} ({event_type} {event_id}) reopened by {actor}: {reason}"),
    events.Discarded: (logging.INFO, "{letter} ({event_type} {event_id}) discarded by {actor}: {reason}"),
    # Sagas.
    events.SagaStarted: (logging.DEBUG, "{saga_id} started"),
    events.StepCompleted: (logging.DEBUG, "{saga_id}: {step} done at attempt {attempt}"),
    events.StepRejected: (logging.INFO, "{saga_id}: {step} rejected: {reason}"),
    events.Compensating: (logging.INFO, "{saga_id} turns back ({cause})"),
    events.StepUndone: (logging.DEBUG, "{saga_id}: {step} undone at attempt {attempt}"),
    events.SagaCompleted: (logging.DEBUG, "{saga_id} completed after {duration}"),
    events.SagaCompensated: (logging.INFO, "{saga_id} undone ({cause}) after {duration}"),
    events.SagaTimedOut: (logging.WARNING, "{saga_id} timed out"),
    events.SagaFailed: (logging.WARNING, "{saga_id} was given up by {actor}: {reason}"),
    events.SagaParked: (logging.ERROR, "{saga_id} cannot go on by itself and needs an operator ({cause}): {reason}"),
    events.CompensationBlocked: (
        logging.ERROR,
        "{saga_id}: {step} cannot be undone, and an operator is needed: {reason}",
    ),
}
"""What is told, at which level. The message is the policy's label and this text, with the event's fields filled in."""

_COUNTED: dict[type[events.Event], tuple[int, str]] = {
    events.CallRejected: (logging.WARNING, "rejected"),
    events.WouldHave: (logging.INFO, "would have acted on"),
}
"""What comes in floods and is summarised."""

_QUIET_REASONS = {"not_retryable", "nested"}  # an answer, and somebody else's to retry: no trouble of this policy's


class _Flood:
    """What one policy has turned away since its last record, which was written at `since`; None: never yet."""

    __slots__ = ("count", "last", "since")

    def __init__(self, since: float | None) -> None:
        self.count, self.since = 0, since
        self.last: BaseException | None = None


class EventLog:
    """A running log of events; `log_events(...)` makes one. `cancel()` ends it, also at the end of a `with` block."""

    def __init__(self, logger: str, interval: float, clock: Clock) -> None:
        self._root, self._interval, self._clock = logger, interval, clock
        self._loggers: dict[str, logging.Logger] = {}
        self._floods: dict[Identity, _Flood] = {}
        self._lock = threading.Lock()
        self._subscription: Subscription = subscribe(self._hear, *_TELLING, *_COUNTED)

    def cancel(self) -> None:
        """Write what is still to be summarised, and log no more."""
        self._subscription.cancel()
        self.flush()

    def flush(self) -> None:
        """Write a summary of everything that has been counted and not been written yet."""
        self._write_summaries(self._clock.monotonic(), all_of_them=True)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    # ------------------------------------------------------------------ one event

    def _hear(self, event: events.Event) -> None:
        now = self._clock.monotonic()
        if type(event) in _COUNTED:
            self._count(event)
        # There is no timer: a summary that is due is written when the next event comes by, whosoever it is.
        if self._floods:
            self._write_summaries(now)
        if type(event) in _TELLING:
            self._tell(event)

    def _tell(self, event: events.Event) -> None:
        level, text = _TELLING[type(event)]
        if isinstance(event, events.RetryGaveUp) and event.reason in _QUIET_REASONS:
            level = logging.INFO
        if isinstance(event, events.DeadLettered) and event.policy_type == "consumer":
            return  # it writes a record of its own, whether or not anybody asked for these
        logger = self._logger(event.policy_type)
        if logger.isEnabledFor(level):
            values = values_of(event)
            words = {name: _shown(name, value) for name, value in values.items()}
            if isinstance(event, events.DeliveryFailed | events.DeadLettered) and event.error is None:
                words["error"] = "no reason given"
            message = text.format_map(words)
            extra = _identity(event.policy_type, event.policy, type(event))
            for name, value in values.items():
                extra |= _fields(name, value)
            logger.log(level, "%s: %s", label(event.policy_type, event.policy), message, extra=extra)

    # ------------------------------------------------------------------ floods

    def _count(self, event: events.Event) -> None:
        identity = (type(event), event.policy_type, event.policy)
        with self._lock:
            flood = self._floods.get(identity)
            if flood is None:
                flood = self._floods[identity] = _Flood(None)  # the first one after a silence is told at once
            flood.count += 1
            flood.last = getattr(event, "error", None)

    def _write_summaries(self, now: float, *, all_of_them: bool = False) -> None:
        written: list[tuple[Identity, _Flood]] = []
        with self._lock:
            for identity, flood in list(self._floods.items()):
                if flood.since is not None and now - flood.since < self._interval and not all_of_them:
                    continue
                if flood.count:
                    written.append((identity, flood))
                    self._floods[identity] = _Flood(now)
                else:
                    del self._floods[identity]  # a whole interval of silence
        for identity, flood in written:  # without the lock: a handler may do anything
            self._summarise(identity, flood, 0.0 if flood.since is None else now - flood.since)

    def _summarise(self, identity: Identity, flood: _Flood, seconds: float) -> None:
        kind, policy_type, policy = identity
        level, verb = _COUNTED[kind]
        logger = self._logger(policy_type)
        if logger.isEnabledFor(level):
            calls = "a call" if flood.count == 1 else f"{flood.count} calls in {seconds:.3g} s"
            extra: dict[str, object] = {
                **_identity(policy_type, policy, kind),
                f"{_PREFIX}count": flood.count,
                f"{_PREFIX}seconds": seconds,
            }
            because = ""
            if flood.last is not None:
                because = f": {_shown('error', flood.last)}"
                extra |= _fields("error", flood.last)
            logger.log(level, "%s %s %s%s", label(policy_type, policy), verb, calls, because, extra=extra)

    def _logger(self, policy_type: str) -> logging.Logger:
        logger = self._loggers.get(policy_type)
        if logger is None:
            logger = self._loggers[policy_type] = logging.getLogger(f"{self._root}.{policy_type}")
        return logger


def log_events(*, logger: str = "everkeel", summary_every: float = 10.0, clock: Clock | None = None) -> EventLog:
    """Write what policies do to the standard library's logging, until the answer is cancelled.

    Retrying, opening, timing out, falling back and dead letters are warnings; giving up and sagas that need an
    operator are errors; recovering and closing are informational, and events and sagas that go well are for debugging.
    Calls that go well are not told, and cost nothing. Configuring handlers is left to the application.

    Rejections come in floods. The first one is written at once; after that, each policy writes at most one record per
    `summary_every` seconds, with how many there were. Nothing runs in the background: a summary is written when the
    next event of any policy comes by after its time, or with `flush()` and `cancel()`.

    Args:
        logger: The parent of the loggers, which are named after the types of policies below it.
        summary_every: Seconds between two records about the rejections of one policy. 10 keeps an outage readable.
        clock: Where the time of summaries comes from, in place of the default.

    >>> from everkeel import retry
    >>> with log_events():
    ...     retry("docs.quiet").call(len, "nothing is written about this")
    29
    """
    if not isinstance(logger, str) or not logger:
        raise ConfigError("log_events", "logger", "must be a non-empty string", repr(logger))
    if isinstance(summary_every, bool) or not isinstance(summary_every, int | float) or not summary_every > 0:
        raise ConfigError("log_events", "summary_every", "must be a positive number of seconds", repr(summary_every))
    return EventLog(logger, float(summary_every), clock or DEFAULT)


# ------------------------------------------------------------------ fields and words


def _identity(policy_type: str, policy: str | None, kind: type[events.Event]) -> dict[str, object]:
    named = {"event": event_name(kind), "policy": policy, "policy_type": policy_type}
    return {f"{_PREFIX}{name}": value for name, value in named.items()}


def _fields(name: str, value: object) -> dict[str, object]:
    """The fields of a record for one field of an event."""
    return {f"{_PREFIX}{key}": one for key, one in plain(name, value).items()}


def _shown(name: str, value: object) -> str:
    """The same in a message."""
    if name == "error":
        return "a result that counts as a failure" if value is None else f"{type(value).__name__}: {value}"
    if name == "open_for":
        return "until told otherwise" if value is None else f"for {value:.3g} s"
    if name == "reason":
        return "failures" if value is None else str(value)
    if name in _SECONDS:
        return "an unknown time" if value is None else f"{value:.3g} s"
    if name == "failure_rate":
        return "an unknown share" if value is None else f"{value:.0%}"
    if name == "changes" and isinstance(value, dict):
        return ", ".join(f"{setting} from {old!r} to {new!r}" for setting, (old, new) in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
