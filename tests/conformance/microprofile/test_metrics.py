"""Section 13: what is counted, under which names."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

import everkeel.microprofile as mp
from everkeel import sleep
from everkeel.microprofile import config
from everkeel.microprofile.exposition import as_json, as_text, families
from everkeel.microprofile.metrics import METRICS, registry
from everkeel.microprofile.opentelemetry import export_metrics, views
from everkeel.microprofile.prometheus import FaultToleranceCollector
from everkeel.testing import VirtualClock

HERE = __name__
SECOND = 1_000_000_000


class DownError(Exception):
    pass


class OtherError(Exception):
    pass


class Service:
    """One method for each thing to count."""

    def __init__(self, *steps: Any) -> None:
        """Each execution takes the next step: raises it, sleeps so many seconds, or returns."""
        self.steps = list(steps)

    def step(self) -> str:
        step = self.steps.pop(0) if self.steps else None
        if isinstance(step, float):
            sleep(step)
        elif step is not None:
            raise step
        return "value"

    @mp.Retry(maxRetries=2, jitter=0, abortOn=OtherError)
    def retried(self) -> str:
        return self.step()

    @mp.Retry(maxRetries=0)
    def tried_once(self) -> str:
        return self.step()

    @mp.Retry(maxRetries=5, jitter=0, maxDuration=1000)
    def hurried(self) -> str:
        return self.step()

    @mp.Timeout(1000)
    def timed(self) -> str:
        return self.step()

    @mp.Fallback(fallbackMethod="_instead", skipOn=OtherError)
    def replaced(self) -> str:
        return self.step()

    def _instead(self) -> str:
        return self.step()

    @mp.CircuitBreaker(requestVolumeThreshold=2, delay=1000, skipOn=OtherError)
    def broken(self) -> str:
        return self.step()

    @mp.Bulkhead(1)
    def crowded(self, nested: bool = False) -> str:
        if nested:
            with pytest.raises(mp.BulkheadException):
                self.crowded()
        return self.step()


def tag(method: str, service: str = "Service") -> str:
    return f"{HERE}.{service}.{method}"


def value(name: str, method: str, **tags: str) -> int:
    return registry.value(name, method=tag(method), **tags)


def call(service: Service, method: str) -> None:
    """Whatever comes of it."""
    try:
        getattr(service, method)()
    except (DownError, OtherError, mp.FaultToleranceException):
        pass


def durations(name: str, method: str) -> tuple[float, ...]:
    found = [histogram for one in registry for metric, _, histogram in one.histograms() if metric.name == name]
    tags = [tags["method"] for one in registry for metric, tags, _ in one.histograms() if metric.name == name]
    return found[tags.index(tag(method))].read().recent


TAGS = {
    "ft.invocations.total": {("valueReturned", "notDefined"), ("exceptionThrown", "notDefined")},
    "ft.retry.calls.total": {
        (retried, result)
        for retried in ("true", "false")
        for result in ("valueReturned", "exceptionNotRetryable", "maxRetriesReached", "maxDurationReached")
    },
    "ft.retry.retries.total": {()},
    "ft.timeout.calls.total": {("true",), ("false",)},
    "ft.circuitbreaker.calls.total": {("success",), ("failure",), ("circuitBreakerOpen",)},
    "ft.circuitbreaker.state.total": {("open",), ("closed",), ("halfOpen",)},
    "ft.circuitbreaker.opened.total": {()},
    "ft.bulkhead.calls.total": {("accepted",), ("rejected",)},
    "ft.bulkhead.executionsRunning": {()},
    "ft.bulkhead.executionsWaiting": {()},
}
HISTOGRAMS = {"ft.timeout.executionDuration", "ft.bulkhead.runningDuration", "ft.bulkhead.waitingDuration"}


class Everything:
    """All policies but the fallback, asynchronous."""

    @mp.Asynchronous
    @mp.Retry
    @mp.Timeout
    @mp.CircuitBreaker
    @mp.Bulkhead
    def work(self) -> Future[str]:
        return mp.completed("value")


@pytest.mark.rule("MP-METRIC-01", "MP-METRIC-05", "MP-AMBIG-16")
def test_every_name_and_every_combination_of_tags_is_there_after_the_first_call() -> None:
    Everything().work().result()
    found: dict[str, set[tuple[str, ...]]] = {}
    for number in registry.numbers():
        assert number.tags.pop("method") == tag("work", "Everything")
        assert tuple(number.tags) == number.metric.tags
        found.setdefault(number.metric.name, set()).add(tuple(number.tags.values()))
    extra = {"ft.circuitbreaker.state.current"}
    assert {name: tags for name, tags in found.items() if name not in extra} == TAGS
    assert {metric.name for one in registry for metric, _, _ in one.histograms()} == HISTOGRAMS


@pytest.mark.rule("MP-METRIC-05", "MP-AMBIG-16")
def test_with_a_fallback_a_call_is_applied_or_not_applied_and_never_not_defined() -> None:
    Service().replaced()
    found = [number for number in registry.numbers() if number.metric.name == "ft.invocations.total"]
    tags = {(number.tags["result"], number.tags["fallback"]) for number in found}
    assert tags == {(one, two) for one in ("valueReturned", "exceptionThrown") for two in ("applied", "notApplied")}
    assert sum(number.value for number in found) == 1


class Base:
    """Its method is inherited."""

    @mp.Retry(jitter=0)
    def work(self) -> str:
        return "value"


class Heir(Base):
    """Reports under its own name."""


@mp.Retry(jitter=0)
class Whole:
    """Reports under each of its methods."""

    def one(self) -> str:
        return "value"

    def two(self) -> str:
        return "value"


@pytest.mark.rule("MP-METRIC-02", "MP-MAP-12")
def test_a_method_reports_under_the_class_of_its_object() -> None:
    for service in (Base(), Heir()):
        service.work()
    assert {one.method for one in registry} == {tag("work", "Base"), tag("work", "Heir")}


@pytest.mark.rule("MP-METRIC-02")
def test_policies_of_a_class_report_under_each_method() -> None:
    Whole().one()
    Whole().two()
    assert {one.method for one in registry} == {tag("one", "Whole"), tag("two", "Whole")}


@mp.Retry(jitter=0)
def alone() -> str:
    return "value"


@pytest.mark.rule("MP-METRIC-02", "MP-MAP-13")
def test_a_function_reports_under_its_module() -> None:
    alone()
    assert [one.method for one in registry] == [f"{HERE}.alone"]


@pytest.mark.rule("MP-METRIC-03")
def test_they_belong_to_the_scope_base() -> None:
    Everything().work().result()
    names = [line.split()[2] for line in as_text(families(registry)).splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(TAGS) + len(HISTOGRAMS) + 1
    assert all(name.startswith("base_ft_") for name in names)


def collected(reader: InMemoryMetricReader) -> dict[str, Any]:
    data: Any = reader.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    return {metric.name: metric for scope in scopes for metric in scope.metrics}


@pytest.mark.rule("MP-METRIC-04", "MP-AMBIG-21", "MP-METRIC-01")
def test_open_telemetry_has_the_same_names_and_tags_with_its_own_units_and_instruments() -> None:
    reader = InMemoryMetricReader()
    export = export_metrics(MeterProvider([reader], views=views()))
    Everything().work().result()
    found = collected(reader)
    export.close()
    bounds = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    assert {*TAGS, *HISTOGRAMS} <= found.keys()
    for name in HISTOGRAMS:
        (point,) = found[name].data.data_points
        assert (found[name].unit, point.explicit_bounds, point.count) == ("seconds", bounds, 1)
        assert found[name].data.aggregation_temporality is AggregationTemporality.CUMULATIVE
        assert dict(point.attributes) == {"method": tag("work", "Everything")}
    for name, tags in TAGS.items():
        points = found[name].data.data_points
        assert found[name].unit == ("nanoseconds" if name == "ft.circuitbreaker.state.total" else "")
        assert found[name].data.is_monotonic is not name.startswith("ft.bulkhead.executions")
        keys = METRICS[name].tags
        assert {tuple(point.attributes[key] for key in keys) for point in points} == tags


@pytest.mark.rule("MP-METRIC-06")
def test_a_disabled_policy_registers_nothing() -> None:
    config.configure({"Retry/enabled": "false", "Timeout/enabled": "false"}, environment=False)
    Everything().work().result()
    Service().retried()
    names = {number.metric.name for number in registry.numbers()}
    assert {name.split(".")[1] for name in names} == {"invocations", "circuitbreaker", "bulkhead"}
    assert [one.method for one in registry] == [tag("work", "Everything")]


@pytest.mark.rule("MP-METRIC-06")
def test_a_disabled_fallback_is_not_defined() -> None:
    config.configure({"Fallback/enabled": "false"}, environment=False)

    class Both:
        @mp.Retry
        @mp.Fallback(fallbackMethod="instead")
        def work(self) -> str:
            return "value"

        def instead(self) -> str:
            return "instead"

    Both().work()
    fallbacks = {n.tags["fallback"] for n in registry.numbers() if n.metric.name == "ft.invocations.total"}
    assert fallbacks == {"notDefined"}


@pytest.mark.rule("MP-METRIC-07")
def test_switched_off_nothing_is_registered_and_everything_works(virtual_time: VirtualClock) -> None:
    config.configure({config.METRICS: "false"}, environment=False)
    service = Service(DownError())
    assert service.retried() == "value"
    with pytest.raises(mp.TimeoutException):
        Service(2.0).timed()
    for _ in range(2):
        call(Service(DownError()), "broken")
    with pytest.raises(mp.CircuitBreakerOpenException):
        Service().broken()
    assert Service().crowded(nested=True) == "value"
    assert Service(DownError()).replaced() == "value"
    assert list(registry) == []


@pytest.mark.rule("MP-METRIC-07")
@pytest.mark.parametrize("values", [{}, {config.METRICS: "true"}])
def test_without_the_switch_metrics_are_there(values: dict[str, str]) -> None:
    config.configure(values, environment=False)
    Service().retried()
    assert [one.method for one in registry] == [tag("retried")]


@pytest.mark.rule("MP-METRIC-08")
def test_counters_only_grow(virtual_time: VirtualClock) -> None:
    steps: list[Any] = [DownError(), None, 2.0, OtherError(), DownError(), DownError(), DownError(), None, None]
    service, before = Service(*steps), Counter[Any]()
    for method in ("retried", "timed", "broken", "replaced", "crowded") * 3:
        call(service, method)
        numbers = [number for number in registry.numbers() if number.metric.kind == "counter"]
        now = Counter({(one.metric.name, *one.tags.values()): one.value for one in numbers})
        assert all(now[key] >= value for key, value in before.items())
        assert now.total() > before.total()
        before = now


@pytest.mark.rule("MP-METRIC-09")
@pytest.mark.parametrize(
    ("method", "steps", "result", "fallback"),
    [
        ("retried", [], "valueReturned", "notDefined"),
        ("retried", [DownError(), DownError()], "valueReturned", "notDefined"),
        ("retried", [DownError()] * 3, "exceptionThrown", "notDefined"),
        ("replaced", [], "valueReturned", "notApplied"),
        ("replaced", [OtherError()], "exceptionThrown", "notApplied"),
        ("replaced", [DownError()], "valueReturned", "applied"),
        ("replaced", [DownError(), DownError()], "exceptionThrown", "applied"),
    ],
)
def test_a_call_is_counted_once_by_its_final_outcome(method: str, steps: list[Any], result: str, fallback: str) -> None:
    call(Service(*steps), method)
    counted = {
        (number.tags["result"], number.tags["fallback"]): number.value
        for number in registry.numbers()
        if number.metric.name == "ft.invocations.total" and number.value
    }
    assert counted == {(result, fallback): 1}


@pytest.mark.rule("MP-METRIC-10", "MP-METRIC-11", "MP-METRIC-12", "MP-RETRY-23")
@pytest.mark.parametrize(
    ("method", "steps", "retried", "result"),
    [
        ("retried", [], "false", "valueReturned"),
        ("retried", [DownError()], "true", "valueReturned"),
        ("retried", [DownError()] * 3, "true", "maxRetriesReached"),
        ("tried_once", [DownError()], "false", "maxRetriesReached"),
        ("retried", [OtherError()], "false", "exceptionNotRetryable"),
        ("retried", [DownError(), OtherError()], "true", "exceptionNotRetryable"),
    ],
)
def test_retries_are_counted_once_a_call_with_why_they_ended(
    method: str, steps: list[Any], retried: str, result: str
) -> None:
    call(Service(*steps), method)
    counted = {
        (number.tags["retried"], number.tags["retryResult"]): number.value
        for number in registry.numbers()
        if number.metric.name == "ft.retry.calls.total" and number.value
    }
    assert counted == {(retried, result): 1}


class Slow:
    """Takes its time and fails."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @mp.Retry(maxRetries=5, jitter=0, maxDuration=1000)
    def work(self) -> None:
        sleep(self.seconds)
        raise DownError

    @mp.Retry(maxRetries=0, jitter=0, maxDuration=1000)
    def once(self) -> None:
        sleep(self.seconds)
        raise DownError


@pytest.mark.rule("MP-METRIC-11")
@pytest.mark.parametrize(("seconds", "retried"), [(2.0, "false"), (0.6, "true")])
def test_the_duration_may_be_over_with_or_without_a_retry(
    virtual_time: VirtualClock, seconds: float, retried: str
) -> None:
    with pytest.raises(DownError):
        Slow(seconds).work()
    tags = {"method": tag("work", "Slow"), "retried": retried, "retryResult": "maxDurationReached"}
    assert registry.value("ft.retry.calls.total", **tags) == 1


@pytest.mark.rule("MP-RETRY-23")
def test_where_both_limits_are_reached_it_is_the_number_of_retries(virtual_time: VirtualClock) -> None:
    with pytest.raises(DownError):
        Slow(2.0).once()
    tags = {"method": tag("once", "Slow"), "retried": "false", "retryResult": "maxRetriesReached"}
    assert registry.value("ft.retry.calls.total", **tags) == 1


@pytest.mark.rule("MP-METRIC-13")
@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_each_retry_that_is_made_counts(failures: int) -> None:
    call(Service(*[DownError()] * failures), "retried")
    assert value("ft.retry.retries.total", "retried") == min(failures, 2)


@pytest.mark.rule("MP-METRIC-14")
def test_each_attempt_that_reaches_the_timeout_counts_with_its_duration(virtual_time: VirtualClock) -> None:
    service = Service(0.3, 5.0, DownError())
    for _ in range(3):
        call(service, "timed")
    assert value("ft.timeout.calls.total", "timed", timedOut="true") == 1
    assert value("ft.timeout.calls.total", "timed", timedOut="false") == 2
    assert durations("ft.timeout.executionDuration", "timed") == (0.0, pytest.approx(0.3), pytest.approx(1.0))


@pytest.mark.rule("MP-METRIC-15", "MP-AMBIG-17")
def test_the_breaker_counts_what_it_made_of_each_attempt(virtual_time: VirtualClock) -> None:
    def counted() -> tuple[int, ...]:
        results = ("success", "failure", "circuitBreakerOpen")
        return tuple(
            value("ft.circuitbreaker.calls.total", "broken", circuitBreakerResult=result) for result in results
        )

    service = Service(None, OtherError())
    for _ in range(2):
        call(service, "broken")
    assert counted() == (2, 0, 0)
    service = Service(DownError(), DownError())
    for _ in range(3):
        call(service, "broken")
    assert counted() == (2, 1, 2)  # one failure in a window of two is half of it
    virtual_time.sleep(1.0)
    call(Service(None), "broken")
    assert counted() == (3, 1, 2)


class Trials:
    """Half open, a trial makes another call that must be prevented."""

    @mp.CircuitBreaker(requestVolumeThreshold=1, delay=1000)
    def work(self, fails: bool, nested: bool = False) -> None:
        if nested:
            with pytest.raises(mp.CircuitBreakerOpenException):
                self.work(False)
        if fails:
            raise DownError


def trial_value(name: str, **tags: str) -> int:
    return registry.value(name, method=tag("work", "Trials"), **tags)


@pytest.mark.rule("MP-METRIC-15", "MP-AMBIG-17")
def test_a_call_prevented_while_half_open_is_one_of_an_open_circuit(virtual_time: VirtualClock) -> None:
    with pytest.raises(DownError):
        Trials().work(True)
    virtual_time.sleep(1.0)
    Trials().work(False, nested=True)
    assert trial_value("ft.circuitbreaker.calls.total", circuitBreakerResult="circuitBreakerOpen") == 1
    assert trial_value("ft.circuitbreaker.calls.total", circuitBreakerResult="success") == 1


@pytest.mark.rule("MP-METRIC-16")
def test_only_openings_of_a_closed_circuit_count(virtual_time: VirtualClock) -> None:
    for _ in range(3):  # it opens, and then two trials fail
        with pytest.raises(DownError):
            Trials().work(True)
        virtual_time.sleep(1.0)
    assert trial_value("ft.circuitbreaker.opened.total") == 1
    Trials().work(False)
    with pytest.raises(DownError):
        Trials().work(True)
    assert trial_value("ft.circuitbreaker.opened.total") == 2


@pytest.mark.rule("MP-METRIC-17")
def test_the_times_in_states_grow_as_one_looks_and_are_exact(virtual_time: VirtualClock) -> None:
    def times() -> tuple[int, ...]:
        states = ("closed", "open", "halfOpen")
        return tuple(trial_value("ft.circuitbreaker.state.total", state=state) for state in states)

    Trials().work(False)
    virtual_time.sleep(2.0)
    assert times() == (2 * SECOND, 0, 0)
    with pytest.raises(DownError):
        Trials().work(True)
    virtual_time.sleep(0.5)
    assert times() == (2 * SECOND, SECOND // 2, 0)
    virtual_time.sleep(3.5)  # half open from 1 s on, though nobody calls
    assert times() == (2 * SECOND, SECOND, 3 * SECOND)
    with pytest.raises(DownError):
        Trials().work(True)  # half open to open
    virtual_time.sleep(0.25)
    assert times() == (2 * SECOND, SECOND + SECOND // 4, 3 * SECOND)
    virtual_time.sleep(0.75)
    Trials().work(False)
    virtual_time.sleep(1.0)
    assert times() == (3 * SECOND, 2 * SECOND, 3 * SECOND)


@pytest.mark.rule("MP-METRIC-18", "MP-METRIC-19", "MP-METRIC-20", "MP-METRIC-21")
def test_a_synchronous_bulkhead_counts_who_was_let_in_and_who_not() -> None:
    Service().crowded(nested=True)
    assert value("ft.bulkhead.calls.total", "crowded", bulkheadResult="accepted") == 1
    assert value("ft.bulkhead.calls.total", "crowded", bulkheadResult="rejected") == 1
    assert value("ft.bulkhead.executionsRunning", "crowded") == 0
    assert len(durations("ft.bulkhead.runningDuration", "crowded")) == 1
    names = {number.metric.name for number in registry.numbers()}
    names |= {metric.name for one in registry for metric, _, _ in one.histograms()}
    assert names.isdisjoint({"ft.bulkhead.executionsWaiting", "ft.bulkhead.waitingDuration"})


class Queue:
    """One may run and one may wait; each waits to be let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    @mp.Asynchronous
    @mp.Timeout(5, unit="SECONDS")
    @mp.Bulkhead(1, waitingTaskQueue=1)
    async def work(self, stubborn: bool = False) -> str:
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise
        return "value"


def queue_value(name: str, **tags: str) -> int:
    return registry.value(name, method=tag("work", "Queue"), **tags)


def queue_durations(name: str) -> tuple[float, ...]:
    (found,) = [histogram for one in registry for metric, _, histogram in one.histograms() if metric.name == name]
    return found.read().recent


@pytest.mark.rule("MP-METRIC-18", "MP-METRIC-19", "MP-METRIC-20")
async def test_an_asynchronous_bulkhead_counts_who_waits(virtual_time: VirtualClock) -> None:
    queue = Queue()
    calls = [asyncio.ensure_future(queue.work()) for _ in range(3)]
    await asyncio.sleep(1.0)
    assert queue_value("ft.bulkhead.calls.total", bulkheadResult="accepted") == 2
    assert queue_value("ft.bulkhead.calls.total", bulkheadResult="rejected") == 1
    assert queue_value("ft.bulkhead.executionsRunning") == 1
    assert queue_value("ft.bulkhead.executionsWaiting") == 1
    queue.let_go.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in results] == [str, str, mp.BulkheadException]
    assert queue_value("ft.bulkhead.executionsRunning") == 0
    assert queue_value("ft.bulkhead.executionsWaiting") == 0
    assert queue_durations("ft.bulkhead.waitingDuration") == (0.0, pytest.approx(1.0))
    assert queue_durations("ft.bulkhead.runningDuration") == (0.0, pytest.approx(1.0))


@pytest.mark.rule("MP-METRIC-22")
@pytest.mark.parametrize("way", ["timeout", "cancel"])
async def test_whoever_leaves_the_queue_has_waited_and_not_run(virtual_time: VirtualClock, way: str) -> None:
    queue = Queue()
    running = asyncio.ensure_future(queue.work(stubborn=True))
    await asyncio.sleep(1.0)
    waiting = asyncio.ensure_future(queue.work())
    await asyncio.sleep(2.0)
    assert queue_value("ft.bulkhead.executionsWaiting") == 1
    if way == "cancel":
        waiting.cancel()
    (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError if way == "cancel" else mp.TimeoutException)
    assert queue_value("ft.bulkhead.executionsWaiting") == 0
    assert queue_durations("ft.bulkhead.waitingDuration") == (0.0, pytest.approx(2.0 if way == "cancel" else 5.0))
    assert queue_durations("ft.bulkhead.runningDuration") == ()
    queue.let_go.set()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.sleep(0.1)
    assert len(queue_durations("ft.bulkhead.runningDuration")) == 1


def made_twice() -> Any:
    class Twin:
        @mp.Retry(jitter=0)
        @mp.CircuitBreaker
        def work(self) -> str:
            return "value"

    return Twin()


@pytest.mark.rule("MP-METRIC-23")
def test_two_methods_of_the_same_name_add_up() -> None:
    for twin in (made_twice(), made_twice()):
        twin.work()
    (one,) = registry
    assert one.calls["valueReturned", "notDefined"].read() == 2


class Promises:
    """Returns futures that fail."""

    @mp.Asynchronous
    @mp.Retry(maxRetries=1, jitter=0)
    def future(self) -> Future[str]:
        return mp.failed(DownError())

    @mp.Asynchronous
    @mp.Retry(maxRetries=1, jitter=0)
    async def stage(self) -> str:
        raise DownError


@pytest.mark.rule("MP-METRIC-24", "MP-AMBIG-11")
def test_a_failing_future_that_was_returned_is_a_value() -> None:
    with pytest.raises(DownError):
        Promises().future().result()
    method = tag("future", "Promises")
    assert registry.value("ft.invocations.total", method=method, result="valueReturned", fallback="notDefined") == 1
    assert registry.value("ft.retry.retries.total", method=method) == 0


@pytest.mark.rule("MP-METRIC-24", "MP-AMBIG-11")
async def test_a_failing_coroutine_is_an_exception(virtual_time: VirtualClock) -> None:
    with pytest.raises(DownError):
        await Promises().stage()
    method = tag("stage", "Promises")
    assert registry.value("ft.invocations.total", method=method, result="exceptionThrown", fallback="notDefined") == 1
    assert registry.value("ft.retry.retries.total", method=method) == 1


@mp.Timeout(1000)
class Worked:
    """The specification's example: attempt 1 times out, attempt 2 raises, attempt 3 returns."""

    def __init__(self) -> None:
        self.steps: list[Any] = [lambda: sleep(10.0), self._fail, lambda: None]

    def _fail(self) -> None:
        raise DownError

    @mp.Retry
    def do_work(self) -> str:
        self.steps.pop(0)()
        return "value"


@pytest.mark.rule("MP-METRIC-25")
def test_the_worked_example_of_the_specification(virtual_time: VirtualClock) -> None:
    assert Worked().do_work() == "value"
    method = tag("do_work", "Worked")
    counted = {
        (number.metric.name, *(value for key, value in number.tags.items() if key != "method")): number.value
        for number in registry.numbers()
        if number.value
    }
    assert [one.method for one in registry] == [method]
    assert counted == {
        ("ft.invocations.total", "valueReturned", "notDefined"): 1,
        ("ft.retry.calls.total", "true", "valueReturned"): 1,
        ("ft.retry.retries.total",): 2,
        ("ft.timeout.calls.total", "true"): 1,
        ("ft.timeout.calls.total", "false"): 2,
    }
    ((_, _, histogram),) = next(iter(registry)).histograms()
    assert histogram.read().count == 3


@pytest.mark.rule("MP-METRIC-26")
def test_every_exporter_gets_everything() -> None:
    readers = [InMemoryMetricReader(), InMemoryMetricReader()]
    exports = [export_metrics(MeterProvider([reader], views=views())) for reader in readers]
    scraped = CollectorRegistry()
    scraped.register(FaultToleranceCollector())
    Everything().work().result()
    for reader in readers:
        assert {*TAGS, *HISTOGRAMS} <= collected(reader).keys()
    for export in exports:
        export.close()
    in_prometheus, in_json = generate_latest(scraped).decode(), as_json(families(registry))
    for name in (*TAGS, *HISTOGRAMS):
        assert f"base_{name.replace('.', '_')}" in in_prometheus
        assert f'"{name}' in in_json


@pytest.mark.rule("MP-ORDER-11", "MP-AMBIG-12")
def test_what_is_counted_is_there_when_the_result_is() -> None:
    service = Everything()
    for place in range(1, 200):
        service.work().result()
        tags = {"method": tag("work", "Everything"), "result": "valueReturned", "fallback": "notDefined"}
        assert registry.value("ft.invocations.total", **tags) == place
        assert registry.value("ft.bulkhead.executionsRunning", method=tag("work", "Everything")) == 0


@pytest.mark.rule("MP-ASYNC-13")
def test_asynchronous_alone_adds_no_metrics() -> None:
    class Alone:
        @mp.Asynchronous
        def work(self) -> Future[int]:
            return mp.completed(threading.get_ident())

    assert Alone().work().result() != threading.get_ident()
    assert list(registry) == []


@pytest.mark.rule("MP-TIMEOUT-17")
def test_a_timeout_exception_of_the_users_own_is_no_timeout() -> None:
    call(Service(mp.TimeoutException("mine", 1.0)), "timed")
    assert value("ft.timeout.calls.total", "timed", timedOut="true") == 0
    assert value("ft.timeout.calls.total", "timed", timedOut="false") == 1
