"""Section 15: defaults, as the records say and as calls behave."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import Future

import pytest

from everkeel.microprofile import (
    Asynchronous,
    Bulkhead,
    BulkheadException,
    CircuitBreaker,
    CircuitBreakerOpenException,
    Retry,
    Timeout,
    TimeoutException,
    completed,
)
from everkeel.microprofile import annotations as said
from everkeel.testing import Flaky

DEFAULTS = {
    "Timeout": {"value": 1000, "unit": "MILLIS"},
    "Retry": {
        "maxRetries": 3,
        "delay": 0,
        "delayUnit": "MILLIS",
        "maxDuration": 180000,
        "durationUnit": "MILLIS",
        "jitter": 200,
        "jitterDelayUnit": "MILLIS",
        "retryOn": (Exception,),
        "abortOn": (),
    },
    "Fallback": {"value": None, "fallbackMethod": None, "applyOn": (BaseException,), "skipOn": ()},
    "CircuitBreaker": {
        "failOn": (BaseException,),
        "skipOn": (),
        "delay": 5000,
        "delayUnit": "MILLIS",
        "requestVolumeThreshold": 20,
        "failureRatio": 0.5,
        "successThreshold": 1,
    },
    "Bulkhead": {"value": 10, "waitingTaskQueue": 10},
    "Asynchronous": {},
}


class DownError(Exception):
    pass


@pytest.mark.rule("MP-DEFAULT-01")
@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_the_defaults_are_those_of_the_table(name):
    record = said.RECORDS[name]()
    written = {one.metadata["camel"]: getattr(record, one.name) for one in dataclasses.fields(record)}
    assert written == DEFAULTS[name]


@pytest.mark.rule("MP-DEFAULT-01")
def test_a_bare_timeout_is_a_second(virtual_time):
    assert Timeout(Flaky("in time", takes=0.999))() == "in time"
    with pytest.raises(TimeoutException):
        Timeout(Flaky("late", takes=1.001))()


@pytest.mark.rule("MP-DEFAULT-01")
def test_a_bare_retry_tries_four_times_within_three_minutes(virtual_time):
    script = Flaky(DownError())
    with pytest.raises(DownError):
        Retry(script)()
    assert script.calls == 4
    slow = Flaky(DownError(), takes=100)
    with pytest.raises(DownError):
        Retry(slow)()
    assert slow.calls == 2


@pytest.mark.rule("MP-DEFAULT-01")
def test_a_bare_circuit_breaker_opens_at_ten_of_twenty_for_five_seconds(virtual_time):
    script = Flaky(*["fine"] * 10, *[DownError()] * 10, "fine again")
    guarded = CircuitBreaker(script)
    for _ in range(20):
        try:
            guarded()
        except DownError:
            pass
    with pytest.raises(CircuitBreakerOpenException):
        guarded()
    virtual_time.advance(4.999)
    with pytest.raises(CircuitBreakerOpenException):
        guarded()
    virtual_time.advance(0.001)
    assert [guarded(), guarded()] == ["fine again"] * 2


@pytest.mark.rule("MP-DEFAULT-01")
def test_a_bare_bulkhead_has_ten_places_and_ten_in_the_queue():
    gate = threading.Event()

    @Asynchronous
    @Bulkhead
    def work() -> Future[str]:
        gate.wait(10)
        return completed("done")

    calls = [work() for _ in range(21)]
    assert type(calls[20].exception(10)) is BulkheadException
    assert not any(call.done() for call in calls[:20])
    gate.set()
    assert [call.result(10) for call in calls[:20]] == ["done"] * 20
