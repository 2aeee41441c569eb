"""The standard's metrics, `ft.*`: their names and tags, and the numbers of each guarded method.

Numbers are kept here and read when somebody looks: by `everkeel.microprofile.endpoint`, `.prometheus` or
`.opentelemetry`. All metrics of a method exist from its first use on, every combination of tags at zero, so that a rate
can be computed over the first failure too. Where metrics are disabled a method has no numbers, and nothing is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Literal, NamedTuple, TypeAlias

from everkeel.microprofile import config
from everkeel.microprofile.instruments import Count, Histogram, Level, StateTimes, tell_after_fork
from everkeel.runtime.trouble import report

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
RetryResult: TypeAlias = Literal["valueReturned", "exceptionNotRetryable", "maxRetriesReached", "maxDurationReached"]

SCOPE = "base"

RESULTS = ("valueReturned", "exceptionThrown")
RETRY_RESULTS: tuple[RetryResult, ...] = (
    "valueReturned",
    "exceptionNotRetryable",
    "maxRetriesReached",
    "maxDurationReached",
)
BREAKER_RESULTS = ("success", "failure", "circuitBreakerOpen")
STATES = ("open", "closed", "halfOpen")
BOOLEANS = ("true", "false")


class Metric(NamedTuple):
    """One metric as the standard has it."""

    name: str
    kind: Kind
    description: str
    tags: tuple[str, ...] = ()
    """Its tags beside `method`."""
    unit: Literal["none", "nanoseconds"] = "none"
    monotonic: bool = True
    """Whether it can only grow: decides which instrument a gauge is in OpenTelemetry."""


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("ft.invocations.total", "counter", "Calls of the method.", ("result", "fallback")),
        Metric("ft.retry.calls.total", "counter", "Calls by how their retries ended.", ("retried", "retryResult")),
        Metric("ft.retry.retries.total", "counter", "Times the method was tried again."),
        Metric("ft.timeout.calls.total", "counter", "Attempts by whether they timed out.", ("timedOut",)),
        Metric("ft.timeout.executionDuration", "histogram", "How long attempts took.", unit="nanoseconds"),
        Metric(
            "ft.circuitbreaker.calls.total",
            "counter",
            "Attempts by what the circuit breaker made of them.",
            ("circuitBreakerResult",),
        ),
        Metric(
            "ft.circuitbreaker.state.total",
            "gauge",
            "Time the circuit breaker has spent in each state.",
            ("state",),
            "nanoseconds",
        ),
        Metric("ft.circuitbreaker.opened.total", "counter", "Times a closed circuit breaker opened."),
        Metric("ft.bulkhead.calls.total", "counter", "Attempts by whether they were let in.", ("bulkheadResult",)),
        Metric("ft.bulkhead.executionsRunning", "gauge", "Executions that run now.", monotonic=False),
        Metric("ft.bulkhead.executionsWaiting", "gauge", "Executions that wait in the queue now.", monotonic=False),
        Metric("ft.bulkhead.runningDuration", "histogram", "How long executions ran.", unit="nanoseconds"),
        Metric("ft.bulkhead.waitingDuration", "histogram", "How long executions waited.", unit="nanoseconds"),
        # Beyond the standard.
        Metric("ft.ratelimit.calls.total", "counter", "Attempts by whether the limit let them.", ("rateLimitResult",)),
        Metric(
            "ft.circuitbreaker.state.current",
            "gauge",
            "1 for the state the circuit breaker is in, 0 for the others.",
            ("state",),
            monotonic=False,
        ),
    )
}


class Number(NamedTuple):
    """One number of a counter or gauge, as it is now."""

    metric: Metric
    tags: dict[str, str]
    value: int


class MethodMetrics:
    """What is counted for one method. Each part is None where the method has no such policy.

    Whoever guards calls tells it what happened, before the result can be seen by the caller.
    """

    def __init__(self, method: str) -> None:
        self.method = method
        self.calls: dict[tuple[str, str], Count] = {}
        """By result and fallback."""
        self.retry: RetryMetrics | None = None
        self.timeout: TimeoutMetrics | None = None
        self.circuit_breaker: BreakerMetrics | None = None
        self.bulkhead: BulkheadMetrics | None = None
        self.rate_limit: RateLimitMetrics | None = None

    def ended(self, *, raised: bool, fallback: Literal["applied", "notApplied", "notDefined"]) -> None:
        """A call is over, retries and fallback included."""
        self.calls["exceptionThrown" if raised else "valueReturned", fallback].add()

    def numbers(self) -> Iterator[Number]:
        """Every counter and gauge, as it is now."""
        yield from self._counted("ft.invocations.total", self.calls)
        for part in (self.retry, self.timeout, self.circuit_breaker, self.bulkhead, self.rate_limit):
            for name, tags, value in part.read() if part is not None else ():
                yield self._number(name, tags, value)

    def histograms(self) -> Iterator[tuple[Metric, dict[str, str], Histogram]]:
        """Every histogram."""
        tags = {"method": self.method}
        if self.timeout is not None:
            yield METRICS["ft.timeout.executionDuration"], tags, self.timeout.duration
        if self.bulkhead is not None:
            yield METRICS["ft.bulkhead.runningDuration"], tags, self.bulkhead.running_duration
            if self.bulkhead.waiting_duration is not None:
                yield METRICS["ft.bulkhead.waitingDuration"], tags, self.bulkhead.waiting_duration

    def _counted(self, name: str, counts: dict[tuple[str, str], Count]) -> Iterator[Number]:
        for values, count in list(counts.items()):
            yield self._number(name, values, count.read())

    def _number(self, name: str, values: tuple[str, ...], value: int) -> Number:
        metric = METRICS[name]
        return Number(metric, {"method": self.method, **dict(zip(metric.tags, values, strict=True))}, value)


Reading: TypeAlias = Iterator[tuple[str, tuple[str, ...], int]]
"""Name of the metric, values of its tags in their order, the number."""


class RetryMetrics:
    """`ft.retry.*` of one method."""

    def __init__(self) -> None:
        self._calls = {both: Count() for both in product(BOOLEANS, RETRY_RESULTS)}
        self._retries = Count()

    def retried(self) -> None:
        """One more attempt is made after the first."""
        self._retries.add()

    def ended(self, *, retried: bool, result: RetryResult) -> None:
        """A call will not be tried again, for this reason."""
        self._calls["true" if retried else "false", result].add()

    def read(self) -> Reading:
        """The numbers, as they are now."""
        for both, count in self._calls.items():
            yield "ft.retry.calls.total", both, count.read()
        yield "ft.retry.retries.total", (), self._retries.read()


class TimeoutMetrics:
    """`ft.timeout.*` of one method."""

    def __init__(self, recorded: Callable[[str, float], None]) -> None:
        self._calls = {one: Count() for one in BOOLEANS}
        self.duration = Histogram(lambda seconds: recorded("ft.timeout.executionDuration", seconds))

    def ended(self, seconds: float, *, timed_out: bool) -> None:
        """An attempt is over, or was given up."""
        self._calls["true" if timed_out else "false"].add()
        self.duration.record(seconds)

    def read(self) -> Reading:
        """The numbers, as they are now."""
        for one, count in self._calls.items():
            yield "ft.timeout.calls.total", (one,), count.read()


class BreakerMetrics:
    """`ft.circuitbreaker.*` of one method."""

    def __init__(self) -> None:
        self._calls = {one: Count() for one in BREAKER_RESULTS}
        self._opened = Count()
        self._times: list[StateTimes] = []

    def ended(self, result: Literal["success", "failure", "circuitBreakerOpen"]) -> None:
        """An attempt was recorded as this, or prevented."""
        self._calls[result].add()

    def opened(self) -> None:
        """The circuit opened after it had been closed; a trial that fails does not count."""
        self._opened.add()

    def watch(self, times: StateTimes) -> None:
        """Report the times of a breaker; of two under the same name, the sum."""
        self._times.append(times)

    def read(self) -> Reading:
        """The numbers, as they are now."""
        for one, count in self._calls.items():
            yield "ft.circuitbreaker.calls.total", (one,), count.read()
        yield "ft.circuitbreaker.opened.total", (), self._opened.read()
        read = [times.read() for times in list(self._times)]
        now = [times.state() for times in list(self._times)]
        for state in STATES:
            yield "ft.circuitbreaker.state.total", (state,), sum(times[state] for times in read)
            yield "ft.circuitbreaker.state.current", (state,), now.count(state)


class BulkheadMetrics:
    """`ft.bulkhead.*` of one method; waiting only where it is asynchronous, since others do not wait."""

    def __init__(self, recorded: Callable[[str, float], None]) -> None:
        self._calls = {"accepted": Count(), "rejected": Count()}
        self.running = Level()
        self.running_duration = Histogram(lambda seconds: recorded("ft.bulkhead.runningDuration", seconds))
        self.waiting: Level | None = None
        self.waiting_duration: Histogram | None = None
        self._recorded = recorded

    def may_wait(self) -> None:
        """There is a queue."""
        if self.waiting is None:
            self.waiting = Level()
            recorded = self._recorded
            self.waiting_duration = Histogram(lambda seconds: recorded("ft.bulkhead.waitingDuration", seconds))

    def accepted(self) -> None:
        """An execution was let in, to run or to wait."""
        self._calls["accepted"].add()

    def rejected(self) -> None:
        """An execution was turned away."""
        self._calls["rejected"].add()

    def queued(self) -> None:
        """An accepted execution begins to wait."""
        if self.waiting is not None:
            self.waiting.up()

    def unqueued(self) -> None:
        """An execution does not wait any more, whether it runs now or was removed."""
        if self.waiting is not None:
            self.waiting.down()

    def waited(self, seconds: float) -> None:
        """How long an accepted execution waited, 0 included."""
        if self.waiting_duration is not None:
            self.waiting_duration.record(seconds)

    def started(self) -> None:
        """An execution runs."""
        self.running.up()

    def finished(self, seconds: float) -> None:
        """An execution ran so long."""
        self.running.down()
        self.running_duration.record(seconds)

    def read(self) -> Reading:
        """The numbers, as they are now."""
        for one, count in self._calls.items():
            yield "ft.bulkhead.calls.total", (one,), count.read()
        yield "ft.bulkhead.executionsRunning", (), self.running.read()
        if self.waiting is not None:
            yield "ft.bulkhead.executionsWaiting", (), self.waiting.read()


class RateLimitMetrics:
    """`ft.ratelimit.*` of one method."""

    def __init__(self) -> None:
        self._calls = {"permitted": Count(), "rejected": Count()}

    def ended(self, *, permitted: bool) -> None:
        """An attempt was let through, or not."""
        self._calls["permitted" if permitted else "rejected"].add()

    def read(self) -> Reading:
        """The numbers, as they are now."""
        for one, count in self._calls.items():
            yield "ft.ratelimit.calls.total", (one,), count.read()


Recorder: TypeAlias = Callable[[str, float, dict[str, str]], None]
"""Told of every value of a histogram: name, seconds, tags."""


class MetricRegistry:
    """The numbers of all guarded methods of this process, by the value of their `method` tag."""

    def __init__(self) -> None:
        self._methods: dict[str, MethodMetrics] = {}
        self._lock = threading.Lock()
        self._recorders: tuple[Recorder, ...] = ()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """A lock that nobody holds."""
        self._lock = threading.Lock()

    def register(
        self,
        method: str,
        *,
        retry: bool = False,
        timeout: bool = False,
        circuit_breaker: bool = False,
        bulkhead: bool = False,
        fallback: bool = False,
        rate_limit: bool = False,
        asynchronous: bool = False,
    ) -> MethodMetrics | None:
        """The numbers of a method with these policies *in force*, all at zero if nobody has registered them yet.

        None where metrics are disabled, or where it has none of the policies: `asynchronous` alone has no metrics.
        """
        if not config.current().metrics_enabled:
            return None
        if not (retry or timeout or circuit_breaker or bulkhead or fallback or rate_limit):
            return None
        with self._lock:
            known = self._methods.get(method)
            metrics = MethodMetrics(method) if known is None else known
            for result in RESULTS:
                for use in ("applied", "notApplied") if fallback else ("notDefined",):
                    metrics.calls.setdefault((result, use), Count())

            def recorded(name: str, seconds: float) -> None:
                for recorder in self._recorders:
                    try:
                        recorder(name, seconds, tags)
                    except Exception as error:  # an exporter's trouble is not the call's
                        report(f"exporting {name} of {method} failed", error)

            tags = {"method": method}
            if retry and metrics.retry is None:
                metrics.retry = RetryMetrics()
            if timeout and metrics.timeout is None:
                metrics.timeout = TimeoutMetrics(recorded)
            if circuit_breaker and metrics.circuit_breaker is None:
                metrics.circuit_breaker = BreakerMetrics()
            if bulkhead and metrics.bulkhead is None:
                metrics.bulkhead = BulkheadMetrics(recorded)
            if bulkhead and asynchronous and metrics.bulkhead is not None:
                metrics.bulkhead.may_wait()
            if rate_limit and metrics.rate_limit is None:
                metrics.rate_limit = RateLimitMetrics()
            self._methods[method] = metrics  # last: whoever reads meanwhile sees all of it or nothing
            return metrics

    def __iter__(self) -> Iterator[MethodMetrics]:
        return iter(list(self._methods.values()))

    def numbers(self) -> Iterable[Number]:
        """Every counter and gauge of every method."""
        return (number for method in self for number in method.numbers())

    def value(self, name: str, **tags: str) -> int:
        """One number, 0 where there is none: for tests and for looking around.

        >>> registry.value("ft.retry.retries.total", method="shop.Orders.pay")
        0
        """
        for number in self.numbers():
            if number.metric.name == name and number.tags == tags:
                return number.value
        return 0

    def record_to(self, recorder: Recorder) -> Callable[[], None]:
        """Have `recorder` told of every value of a histogram from now on, until the answer is called."""
        with self._lock:
            self._recorders = (*self._recorders, recorder)

        def stop() -> None:
            with self._lock:
                self._recorders = tuple(one for one in self._recorders if one is not recorder)

        return stop

    def clear(self) -> None:
        """Forget every method. For tests; a method that is in use goes on counting unseen."""
        with self._lock:
            self._methods.clear()


registry = MetricRegistry()
"""The one of this process."""
