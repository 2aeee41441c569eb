"""The exceptions of Everkeel.

    EverkeelError
    ├── ConfigError                 a setting is wrong (also a ValueError)
    │   └── InvalidConfigurationError   a whole configuration was not taken; has all that is wrong with it
    ├── RejectedError               a policy said no before the call was made
    │   ├── CircuitOpenError            the circuit is open
    │   ├── BulkheadFullError           no place free, and none in the queue
    │   ├── RateLimitedError            too many in too short a time
    │   ├── ShedError                   more at once than the service can take
    │   ├── ThrottledError              the backend rejects so much that we do not ask
    │   ├── FeatureDisabledError        the feature is off for this call
    │   ├── FailFastError               known to be bad, until somebody or something says otherwise
    │   ├── WorkersExhaustedError       too many timed-out calls still occupy their threads
    │   ├── IdempotencyInProgressError  the same work is being done at this moment
    │   ├── IdempotencyFullError        no room to remember that this was done
    │   └── TooEarlyError               an event came before something it depends on
    ├── IdempotencyMismatchError    one key for two different things (also NotRetryable)
    ├── ClaimLostError              it took so long that somebody else has the work now (also NotRetryable)
    ├── DeadLetterError             a dead letter cannot be changed like this
    │   ├── DeadLetterNotFoundError     there is none of this id (also a LookupError)
    │   ├── DeadLetterStateError        from where it is, no way leads there
    │   ├── DeadLetterConflictError     somebody else was faster
    │   └── ReplayLimitError            it was replayed as often as is allowed
    ├── DeadLettersFullError        no room for another dead letter, and none is finished
    ├── SagaError                   about one saga; has its type and id
    │   ├── SagaNotFoundError           there is none of this id (also a LookupError)
    │   ├── UnknownSagaError            nobody here has a definition of this type and version (also a LookupError)
    │   ├── SagaStateError              from where it is, that cannot be done
    │   ├── SagaConflictError           its id belongs to another saga already
    │   ├── SagaCompensatedError        it turned back, and everything it did is undone
    │   └── SagaStoppedError            it cannot go on without an operator, or was given up on
    ├── TimeoutExceededError        no answer in time (also a TimeoutError)
    │   └── HedgeTimeoutError           none of several attempts answered in time
    ├── CollapseError               a batch gave no result for a call
    ├── HTTPStatusError             a server answered with a status that counts as a failure
    ├── EventError                  no id, no type, data that is no JSON, too large (also a ValueError)
    ├── PublishError                a transport did not confirm an event that was published directly
    └── RetryExhaustedError         the last attempt gave a result that counts as a failure

    NotRetryable                    a mixin for *your* errors that trying again cannot help

Every error carries `policy`, the name of the policy that raised it, and `retry_after`, the seconds after which it is
worth coming back, where that is known. Fields live in `args` and are read by properties: that makes a rejection
cheap (no `__init__` in Python runs) and lets it survive pickling and copying.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast


class EverkeelError(Exception):
    """The root of every error that Everkeel raises on its own behalf.

    >>> isinstance(RejectedError("payments", 1.5), EverkeelError)
    True
    """

    @property
    def policy(self) -> str | None:
        """The name of the policy that raised this, or None if it has none."""
        return cast("str | None", self.args[0]) if self.args else None

    @property
    def retry_after(self) -> float | None:
        """Seconds after which it is worth coming back; None when that is not known."""
        return None


class ConfigError(EverkeelError, ValueError):
    """A setting is wrong; raised when it is written, so that it cannot surface later, in the middle of a call.

    >>> raise ConfigError("retry 'fetch'", "attempts", "must be at least 1", "0")
    Traceback (most recent call last):
    everkeel.errors.ConfigError: retry 'fetch': attempts must be at least 1 (got 0)
    """

    def __str__(self) -> str:
        owner, parameter, allowed, got = (*self.args, None, None, None, None)[:4]
        where = f"{owner}: {parameter} " if parameter else f"{owner}: " if owner else ""
        return f"{where}{allowed}" + (f" (got {got})" if got is not None else "")

    @property
    def policy(self) -> str | None:
        """Which policy, as `retry 'fetch'`, or the kind of thing that was being configured."""
        return cast("str | None", self.args[0])

    @property
    def parameter(self) -> str | None:
        """The parameter whose value is wrong."""
        return cast("str | None", self.args[1])

    @property
    def allowed(self) -> str:
        """What the parameter must be."""
        return cast("str", self.args[2])


class InvalidConfigurationError(ConfigError):
    """A configuration was not taken; `problems` has everything that is wrong with it, not only the first thing.

    >>> print(InvalidConfigurationError("everkeel.yaml", None, "a\\nb", None, ("a", "b")))
    everkeel.yaml: has 2 problems:
      a
      b
    """

    @property
    def problems(self) -> tuple[object, ...]:
        """Each is an `everkeel.config.Problem`: source, line, path, message and value."""
        return cast("tuple[object, ...]", self.args[4])

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        return f"{self.args[0]}: has {len(self.problems)} problems:\n" + "\n".join(f"  {one}" for one in self.problems)


class RejectedError(EverkeelError):
    """A policy said no before the call was made. Retry and breaker take it as no evidence unless `on` names it.

    >>> RejectedError("payments", 1.5).retry_after
    1.5
    """

    policy_type: ClassVar[str] = "policy"
    """The type of the policies that raise this: `circuit_breaker`, ..."""

    @property
    def retry_after(self) -> float | None:
        """Seconds after which it is worth coming back; None when that is not known."""
        return cast("float | None", self.args[1]) if len(self.args) > 1 else None

    def __str__(self) -> str:
        return f"rejected by {self.policy!r}"


class CircuitOpenError(RejectedError):
    """The circuit is open, or half open with all its probes under way.

    >>> print(CircuitOpenError("payments", 3.2, 0.52, 100))
    circuit 'payments' is open (52% of the last 100 calls failed); next probe in 3.2 s
    """

    policy_type = "circuit_breaker"

    @property
    def failure_rate(self) -> float | None:
        """The share of failures that opened the circuit; None when it was opened by hand."""
        return cast("float | None", self.args[2])

    @property
    def calls(self) -> int:
        """How many calls that share was taken over."""
        return cast("int", self.args[3])

    @property
    def reason(self) -> str | None:
        """Why it is open when it was not failures: `forced`, `isolated`, `slow`; otherwise None."""
        return cast("str | None", self.args[4]) if len(self.args) > 4 else None

    @property
    def half_open(self) -> bool:
        """Are its probes under way? They decide soon; `retry_after` is how long they have at most."""
        return self.reason is not None and self.reason.startswith("half open")

    def __str__(self) -> str:
        if self.reason == "slow" and self.failure_rate is not None:
            why = f" ({self.failure_rate:.0%} of the last {self.calls} calls were slow)"
        elif self.reason is not None:
            why = f" ({self.reason})"
        elif self.failure_rate is None:
            why = ""
        else:
            why = f" ({self.failure_rate:.0%} of the last {self.calls} calls failed)"
        when = "" if self.retry_after is None else f"; next probe in {self.retry_after:.1f} s"
        return f"circuit {self.policy!r} is open{why}{when}"


class BulkheadFullError(RejectedError):
    """Every place is taken, and so is every place in the queue, or the wait for one was too long.

    >>> print(BulkheadFullError("payments", None, 10, 5))
    bulkhead 'payments' is full (10 running, 5 waiting)
    """

    policy_type = "bulkhead"

    @property
    def running(self) -> int:
        """How many calls were running."""
        return cast("int", self.args[2])

    @property
    def waiting(self) -> int:
        """How many calls were waiting."""
        return cast("int", self.args[3])

    def __str__(self) -> str:
        return f"bulkhead {self.policy!r} is full ({self.running} running, {self.waiting} waiting)"


class RateLimitedError(RejectedError):
    """Too many in too short a time; `retry_after` says when the same request could pass.

    >>> print(RateLimitedError("search", 0.25, 100, 0, "tenant-7", None, "local"))
    rate limit 'search' of 100 reached for 'tenant-7'; try again in 0.25 s
    """

    policy_type = "rate_limit"

    @property
    def limit(self) -> int | None:
        """How many permits there are per period."""
        return cast("int | None", self.args[2])

    @property
    def remaining(self) -> int | None:
        """How many permits were left: fewer than the request asked for."""
        return cast("int | None", self.args[3])

    @property
    def key(self) -> object:
        """Whose limit it is, where the limiter has keys."""
        return self.args[4]

    @property
    def backpressure(self) -> float | None:
        """How hard-pressed the protected service is, from 0 to 1, where that is measured."""
        return cast("float | None", self.args[5])

    @property
    def origin(self) -> str:
        """`local`: this process said no. `remote`: a server did."""
        return cast("str", self.args[6])

    def __str__(self) -> str:
        owner = "rate limit" if self.policy is None else f"rate limit {self.policy!r}"
        limit = "" if self.limit is None else f" of {self.limit}"
        whose = "" if self.key is None else f" for {self.key!r}"
        wait = self.retry_after
        when = "" if wait is None else f"; try again in {wait:.3g} s" if wait < 1000 else f"; try again in {wait:.0f} s"
        return f"{owner}{limit} reached{whose}{when}"


class FailFastError(RejectedError):
    """Known to be bad, and not tried again until it is reset, its time is over or its check passes.

    >>> print(FailFastError("ledger", None, "3 failures in a row: PermissionError: token revoked"))
    fail fast 'ledger' is open (3 failures in a row: PermissionError: token revoked) until it is reset
    """

    policy_type = "fail_fast"

    @property
    def reason(self) -> str:
        """What is known to be bad."""
        return cast("str", self.args[2])

    def __str__(self) -> str:
        when = " until it is reset" if self.retry_after is None else f"; try again in {self.retry_after:.3g} s"
        return f"fail fast {self.policy!r} is open ({self.reason}){when}"


class FeatureDisabledError(RejectedError):
    """The feature is off for this call, and there is no alternative. `retry_after`: when its schedule begins again.

    >>> print(FeatureDisabledError("search", None, "share", "bob"))
    feature 'search' is off for 'bob' (not in its share)
    """

    policy_type = "feature_toggle"

    @property
    def reason(self) -> str:
        """The rule that said no: disabled, denied, schedule, predicate or share."""
        return cast("str", self.args[2])

    @property
    def key(self) -> object:
        """Whose call it was, where the toggle has a key."""
        return self.args[3]

    def __str__(self) -> str:
        why = {
            "disabled": "switched off",
            "denied": "on its deny list",
            "schedule": "outside of its schedule",
            "predicate": "its predicate says no",
            "share": "not in its share",
        }
        whose = "" if self.key is None else f" for {self.key!r}"
        when = "" if self.retry_after is None else f"; on again in {self.retry_after:.3g} s"
        return f"feature {self.policy!r} is off{whose} ({why.get(self.reason, self.reason)}){when}"


class ShedError(RejectedError):
    """More calls at once than the service can take, as far as its latency tells.

    >>> print(ShedError("orders", None, 20, "low"))
    concurrency limit 'orders' of 20 reached; shed a call of priority 'low'
    """

    policy_type = "concurrency_limit"

    @property
    def limit(self) -> int:
        """How many calls might run at once when this one was shed."""
        return cast("int", self.args[2])

    @property
    def priority(self) -> str | None:
        """The priority of the call, where the limit has priorities."""
        return cast("str | None", self.args[3])

    def __str__(self) -> str:
        what = "a call" if self.priority is None else f"a call of priority {self.priority!r}"
        return f"concurrency limit {self.policy!r} of {self.limit} reached; shed {what}"


class ThrottledError(RejectedError):
    """The backend rejects so many calls that this one was rejected here, to spare it.

    >>> print(ThrottledError("search", None, 0.4))
    adaptive throttle 'search': rejecting 40% of calls, because the backend fails so many
    """

    policy_type = "adaptive_throttle"

    @property
    def share(self) -> float:
        """The share of calls that is rejected at the moment."""
        return cast("float", self.args[2])

    def __str__(self) -> str:
        share = f"rejecting {self.share:.0%} of calls"
        return f"adaptive throttle {self.policy!r}: {share}, because the backend fails so many"


class WorkersExhaustedError(RejectedError):
    """So many timed-out calls still occupy their threads that one more is refused rather than started.

    >>> print(WorkersExhaustedError("report", None, 64))
    timeout 'report': 64 abandoned calls still occupy their threads; refusing to start another
    """

    policy_type = "timeout"

    @property
    def abandoned(self) -> int:
        """How many calls were given up on and have not ended yet."""
        return cast("int", self.args[2])

    def __str__(self) -> str:
        return (
            f"timeout {self.policy!r}: {self.abandoned} abandoned calls still occupy their threads; "
            "refusing to start another"
        )


class IdempotencyInProgressError(RejectedError):
    """The same work is being done at this moment, by somebody whose lease ends in `retry_after` seconds.

    >>> print(IdempotencyInProgressError("payments", 12.5, "order-7"))
    idempotency 'payments': 'order-7' is in progress; its lease ends in 12.5 s
    """

    policy_type = "idempotency"

    @property
    def key(self) -> str:
        """Which work."""
        return cast("str", self.args[2])

    def __str__(self) -> str:
        when = "" if self.retry_after is None else f"; its lease ends in {self.retry_after:.1f} s"
        return f"idempotency {self.policy!r}: {self.key!r} is in progress{when}"


class IdempotencyFullError(RejectedError):
    """No room to remember that this was done: it is refused, since nothing that may still be needed is forgotten.

    >>> print(IdempotencyFullError("memory", 30.0, 100_000))
    idempotency store 'memory' is full (100000 records that may still be needed); try again in 30 s
    """

    policy_type = "idempotency"

    @property
    def limit(self) -> int:
        """How many records the store has room for."""
        return cast("int", self.args[2])

    def __str__(self) -> str:
        when = "" if self.retry_after is None else f"; try again in {self.retry_after:.0f} s"
        return f"idempotency store {self.policy!r} is full ({self.limit} records that may still be needed){when}"


class TooEarlyError(RejectedError):
    """Raised by a handler: the event came before something it depends on. It comes again later, at no attempt's cost.

    >>> print(TooEarlyError("billing", 5.0, "order 7 is not known yet"))
    consumer 'billing': too early: order 7 is not known yet; try again in 5 s
    """

    policy_type = "consumer"

    @property
    def missing(self) -> str:
        """What it waits for."""
        return str(self.args[2]) if len(self.args) > 2 else "what it depends on is not there"

    def __str__(self) -> str:
        when = "" if self.retry_after is None else f"; try again in {self.retry_after:g} s"
        return f"consumer {self.policy!r}: too early: {self.missing}{when}"


class TimeoutExceededError(EverkeelError, TimeoutError):
    """No answer within the time allowed. Also a `TimeoutError`, so existing handlers keep working.

    >>> print(TimeoutExceededError("quote", 2.0))
    timeout 'quote': no answer within 2 s
    """

    # OSError, which TimeoutError is, gives two and three arguments a meaning of its own; hence __init__ and __reduce__.
    def __init__(self, policy: str | None, seconds: float, limit: str = "timeout") -> None:
        super().__init__()
        self.args = (policy, seconds)  # not given to OSError, which would take them for an errno and its text
        self.seconds = seconds
        self.limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.seconds, self.limit), self.__dict__

    def __str__(self) -> str:
        owner = self.limit if self.policy is None else f"{self.limit} {self.policy!r}"
        return f"{owner}: no answer within {self.seconds:g} s"


class HedgeTimeoutError(TimeoutExceededError):
    """None of the attempts beside each other answered in time.

    >>> print(HedgeTimeoutError("lookup", 2.0, "hedge"))
    hedge 'lookup': no answer within 2 s
    """


class RetryExhaustedError(EverkeelError):
    """Every attempt returned, but with a result that `on_result` calls a failure. `result` is the last one.

    An attempt that *raised* is never replaced by this error: when attempts run out the original exception leaves. The
    adaptive HTTP client raises it when a server still says "later" after the last attempt, with the wait it asked for.

    >>> print(RetryExhaustedError("poll", 3, "pending"))
    retry 'poll': 3 attempts, and the last result still counts as a failure: 'pending'
    >>> print(RetryExhaustedError("orders", 4, None, 2.5))
    'orders': 4 attempts, and the server still asks to come back later, in 2.5 s
    """

    @property
    def attempts(self) -> int:
        """How many attempts were made."""
        return cast("int", self.args[1])

    @property
    def result(self) -> object:
        """What the last attempt returned."""
        return self.args[2]

    @property
    def last_wait(self) -> float | None:
        """Seconds that the server asked to wait, the last time it did; None where nobody asked."""
        return cast("float | None", self.args[3]) if len(self.args) > 3 else None

    @property
    def retry_after(self) -> float | None:
        """The same: it is worth coming back then."""
        return self.last_wait

    def __str__(self) -> str:
        if self.last_wait is not None:
            owner = "" if self.policy is None else f"{self.policy!r}: "
            late = f"the server still asks to come back later, in {self.last_wait:.3g} s"
            return f"{owner}{self.attempts} attempts, and {late}"
        owner = "retry" if self.policy is None else f"retry {self.policy!r}"
        text = repr(self.result)
        if len(text) > 200:
            text = text[:200] + "…"
        return f"{owner}: {self.attempts} attempts, and the last result still counts as a failure: {text}"


class HTTPStatusError(EverkeelError):
    """A server answered with a status that counts as a failure, and the client was asked to raise.

    `response` is the response of the HTTP library. It stays behind when the error is pickled or copied: a response may
    hold a connection.

    >>> print(HTTPStatusError("payments", 503, 2.0, "GET", "https://example.com/cards"))
    'payments': GET https://example.com/cards answered 503; try again in 2 s
    """

    _response: object = None

    @property
    def status(self) -> int:
        """The status code."""
        return cast("int", self.args[1])

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the server asks to come back, if it said."""
        return cast("float | None", self.args[2]) if len(self.args) > 2 else None

    @property
    def method(self) -> str | None:
        """The method of the request."""
        return cast("str | None", self.args[3]) if len(self.args) > 3 else None

    @property
    def url(self) -> str | None:
        """Where the request went, without its query, which may hold what logs must not."""
        return cast("str | None", self.args[4]) if len(self.args) > 4 else None

    @property
    def response(self) -> Any:
        """The response as the HTTP library made it; None in a copy."""
        return self._response

    @response.setter
    def response(self, response: Any) -> None:
        self._response = response

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, {name: value for name, value in self.__dict__.items() if name != "_response"}

    def __str__(self) -> str:
        owner = "" if self.policy is None else f"{self.policy!r}: "
        what = f"{self.method} {self.url}" if self.method else "the server"
        when = "" if self.retry_after is None else f"; try again in {self.retry_after:.3g} s"
        return f"{owner}{what} answered {self.status}{when}"


class CollapseError(EverkeelError):
    """A batch answered, but not with a result for each call in it.

    >>> print(CollapseError("users", "3 went into the batch, and 2 results came back"))
    collapse 'users': 3 went into the batch, and 2 results came back
    """

    def __str__(self) -> str:
        owner = "collapse" if self.policy is None else f"collapse {self.policy!r}"
        return f"{owner}: {self.args[1]}"


class EventError(EverkeelError, ValueError):
    """An event is none: it has no id or type, its data cannot be written as JSON or read from it, it is too large.

    >>> print(EventError("event 'order.placed'", "its data is 2097152 bytes; at most 1048576 are allowed"))
    event 'order.placed': its data is 2097152 bytes; at most 1048576 are allowed
    """

    def __str__(self) -> str:
        return ": ".join(str(arg) for arg in self.args)


class PublishError(EverkeelError):
    """A transport did not confirm an event that was to be published directly, without an outbox.

    >>> print(PublishError("orders", "event 'order.placed'", "unknown", "no answer"))
    outbox 'orders': event 'order.placed' was not confirmed (unknown: no answer)
    """

    @property
    def result(self) -> str:
        """What the transport said: retryable, fatal or unknown."""
        return cast("str", self.args[2])

    def __str__(self) -> str:
        return f"outbox {self.policy!r}: {self.args[1]} was not confirmed ({self.args[2]}: {self.args[3]})"


class NotRetryable(Exception):  # noqa: N818 - a mixin that describes your error, not an error of ours
    """Mix this into a business error that trying again cannot help: out of stock, card refused, name taken.

    It is never retried and never charged to a breaker unless `on` names its class.

    >>> class CardRefused(NotRetryable):
    ...     '''The bank said no, and will say no again.'''
    """


class IdempotencyMismatchError(EverkeelError, NotRetryable):
    """A key that was used for one thing came with another. Nothing was done: which of the two is meant, nobody knows.

    >>> print(IdempotencyMismatchError("payments", "order-7"))
    idempotency 'payments': 'order-7' was used before with other content
    """

    @property
    def key(self) -> str:
        """The key that was used twice."""
        return cast("str", self.args[1])

    def __str__(self) -> str:
        return f"idempotency {self.policy!r}: {self.key!r} was used before with other content"


class ClaimLostError(EverkeelError, NotRetryable):
    """The work took longer than its lease, and somebody else was given it meanwhile: both may have done it.

    What was done in a transaction together with the claim was rolled back. What was done elsewhere was not.

    >>> print(ClaimLostError("payments", "order-7"))
    idempotency 'payments': lost the claim on 'order-7' while working on it; somebody else may have done it too
    """

    @property
    def key(self) -> str:
        """Which work."""
        return cast("str", self.args[1])

    def __str__(self) -> str:
        what = f"lost the claim on {self.key!r} while working on it"
        return f"idempotency {self.policy!r}: {what}; somebody else may have done it too"


class DeadLetterError(EverkeelError):
    """A dead letter cannot be changed like this; it stays as it is. `letter` is its id.

    >>> DeadLetterNotFoundError("7f3a").letter
    '7f3a'
    """

    @property
    def letter(self) -> str:
        """The id of the dead letter."""
        return cast("str", self.args[0])


class DeadLetterNotFoundError(DeadLetterError, LookupError):
    """There is no dead letter of this id: it was never there, or it was purged.

    >>> print(DeadLetterNotFoundError("7f3a"))
    there is no dead letter '7f3a'
    """

    def __str__(self) -> str:
        return f"there is no dead letter {self.letter!r}"


class DeadLetterStateError(DeadLetterError):
    """What was asked for cannot happen to a dead letter in this state.

    >>> print(DeadLetterStateError("7f3a", "discarded", "replayed"))
    dead letter '7f3a' is discarded, and cannot become replayed
    """

    @property
    def status(self) -> str:
        """What it is."""
        return cast("str", self.args[1])

    @property
    def wanted(self) -> str:
        """What it cannot become."""
        return cast("str", self.args[2])

    def __str__(self) -> str:
        return f"dead letter {self.letter!r} is {self.status}, and cannot become {self.wanted}"


class DeadLetterConflictError(DeadLetterError):
    """Somebody else changed the dead letter first. Look at it again before you decide what to do.

    >>> print(DeadLetterConflictError("7f3a", "pending", "replayed"))
    dead letter '7f3a' is no longer pending but replayed: somebody else was faster
    """

    @property
    def expected(self) -> str:
        """What it was thought to be."""
        return cast("str", self.args[1])

    @property
    def status(self) -> str:
        """What it is."""
        return cast("str", self.args[2])

    def __str__(self) -> str:
        return f"dead letter {self.letter!r} is no longer {self.expected} but {self.status}: somebody else was faster"


class DeadLettersFullError(EverkeelError):
    """As many dead letters of a consumer are kept as may be, and all of them still wait: deal with some of them.

    >>> print(DeadLettersFullError("billing", 100))
    there is no room for another dead letter of 'billing': 100 are kept, and none is finished; replay or discard some
    """

    @property
    def consumer(self) -> str:
        """Whose letters they are."""
        return cast("str", self.args[0])

    @property
    def most(self) -> int:
        """How many are kept."""
        return cast("int", self.args[1])

    def __str__(self) -> str:
        return (
            f"there is no room for another dead letter of {self.consumer!r}: {self.most} are kept, and none is "
            "finished; replay or discard some"
        )


class ReplayLimitError(DeadLetterError):
    """It was replayed as often as is allowed, and failed each time.

    >>> print(ReplayLimitError("7f3a", 3, 3))
    dead letter '7f3a' was replayed 3 times, and the limit is 3: discard it, or replay it with force
    """

    @property
    def replays(self) -> int:
        """How often it was replayed."""
        return cast("int", self.args[1])

    @property
    def limit(self) -> int:
        """How often it may be."""
        return cast("int", self.args[2])

    def __str__(self) -> str:
        return (
            f"dead letter {self.letter!r} was replayed {self.replays} times, and the limit is {self.limit}: "
            "discard it, or replay it with force"
        )


class SagaError(EverkeelError):
    """Something about one saga: `saga_type` and `saga_id` say which.

    >>> SagaNotFoundError(None, "order-7").saga_id
    'order-7'
    """

    @property
    def saga_type(self) -> str | None:
        """What kind of saga; None where that is not known."""
        return cast("str | None", self.args[0])

    @property
    def saga_id(self) -> str:
        """Which saga."""
        return cast("str", self.args[1])

    @property
    def _saga(self) -> str:
        return f"saga {self.saga_type!r} {self.saga_id!r}" if self.saga_type else f"saga {self.saga_id!r}"


class SagaNotFoundError(SagaError, LookupError):
    """There is no saga of this id: it was never started, or it was purged.

    >>> print(SagaNotFoundError(None, "order-7"))
    there is no saga 'order-7'
    """

    def __str__(self) -> str:
        return f"there is no {self._saga}"


class UnknownSagaError(SagaError, LookupError):
    """Nobody here has a definition of this saga, or of this version of it.

    >>> print(UnknownSagaError("order", "order-7", 2, ("order@1",)))
    saga 'order' 'order-7': no definition of version 2 here (known: order@1)
    """

    @property
    def version(self) -> int | None:
        """The version that is missing; None: any."""
        return cast("int | None", self.args[2])

    def __str__(self) -> str:
        known = ", ".join(self.args[3]) or "none"
        what = "no definition" if self.version is None else f"no definition of version {self.version}"
        return f"{self._saga}: {what} here (known: {known})"


class SagaStateError(SagaError):
    """What was asked for cannot be done to a saga in this state; it stays as it is.

    >>> print(SagaStateError("order", "order-7", "skip", "running", "charge", "done", "nothing has failed"))
    saga 'order' 'order-7' is running: cannot skip step 'charge', which is done (nothing has failed)
    """

    @property
    def state(self) -> str:
        """Where the saga is."""
        return cast("str", self.args[3])

    @property
    def step(self) -> str | None:
        """The step it was about."""
        return cast("str | None", self.args[4])

    def __str__(self) -> str:
        what, state, step, status, why = self.args[2:7]
        about = "" if step is None else f" step {step!r}" + (f", which is {status}" if status else "")
        return f"{self._saga} is {state}: cannot {what}{about}" + (f" ({why})" if why else "")


class SagaConflictError(SagaError):
    """A saga of this id is there, and is not what the caller takes it for: of another type, with another input, or
    changed since it was seen.

    >>> print(SagaConflictError("order", "order-7", "it began with another input"))
    saga 'order' 'order-7' is not as expected: it began with another input
    """

    def __str__(self) -> str:
        return f"{self._saga} is not as expected: {self.args[2]}"


class SagaCompensatedError(SagaError):
    """The saga turned back, and everything that it had done is undone. `cause` says why, `step` where.

    >>> print(SagaCompensatedError("order", "order-7", "rejected", "charge", "CardRefused: no funds"))
    saga 'order' 'order-7' was compensated (rejected) at step 'charge': CardRefused: no funds
    """

    @property
    def cause(self) -> str | None:
        """rejected, failed, timed_out, cancelled, ..."""
        return cast("str | None", self.args[2])

    @property
    def step(self) -> str | None:
        """The step that made it turn back; None when no step did."""
        return cast("str | None", self.args[3])

    @property
    def reason(self) -> str | None:
        """The error of that step, as text."""
        return cast("str | None", self.args[4])

    def __str__(self) -> str:
        at = f" at step {self.step!r}" if self.step else ""
        return f"{self._saga} was compensated ({self.cause}){at}" + (f": {self.reason}" if self.reason else "")


class SagaStoppedError(SagaError):
    """The saga cannot go on without an operator (parked, or a compensation is blocked), or was given up on (failed).

    >>> print(SagaStoppedError("order", "order-7", "compensation_blocked", "charge", "ConnectionError: refused"))
    saga 'order' 'order-7' is compensation_blocked at step 'charge': ConnectionError: refused
    """

    @property
    def state(self) -> str:
        """parked, compensation_blocked or failed."""
        return cast("str", self.args[2])

    @property
    def step(self) -> str | None:
        """Where it is stuck, if that is a step."""
        return cast("str | None", self.args[3])

    def __str__(self) -> str:
        at = f" at step {self.step!r}" if self.step else ""
        return f"{self._saga} is {self.state}{at}" + (f": {self.args[4]}" if self.args[4] else "")
