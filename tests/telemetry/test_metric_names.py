"""What is measured: exact numbers after scripted sequences, and names that are the same everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everkeel import (
    BulkheadFullError,
    CircuitOpenError,
    FeatureDisabledError,
    RateLimitedError,
    TimeoutExceededError,
    adaptive_throttle,
    bulkhead,
    bulkhead_pool,
    cache,
    chaos,
    circuit_breaker,
    concurrency_limit,
    enable_chaos,
    events,
    fail_fast,
    fallback,
    feature_toggle,
    hedge,
    rate_limit,
    rate_limit_chain,
    registry,
    retry,
    sleep,
    timeout,
)
from everkeel.telemetry import names
from everkeel.telemetry.measuring import heard_events, measure, measure_all, measure_event
from everkeel.telemetry.names import METRICS
from everkeel.testing import Flaky

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "telemetry.md"


def numbers(policy, prefix: str = "everkeel.") -> dict[str, float]:
    """The measurements of a policy that are not zero, as `name{value of each own attribute}`."""
    found = {}
    for name, value, attributes in measure(policy):
        own = [text for key, text in attributes.items() if not key.startswith("everkeel.")]
        if value and name.startswith(prefix):
            found[name + (f"{{{','.join(own)}}}" if own else "")] = value
    return found


# ------------------------------------------------------------------ exact numbers


def test_a_retry(clock):
    policy = retry("fetch", on=OSError, attempts=3, backoff=0)
    policy.call(Flaky("fine"))
    policy.call(Flaky(OSError("down"), OSError("down"), "fine"))
    with pytest.raises(OSError, match="down"):
        policy.call(Flaky(*[OSError("down")] * 3))
    with pytest.raises(KeyError):
        policy.call(Flaky(KeyError("user")))
    assert numbers(policy) == {
        "everkeel.calls{success}": 2,
        "everkeel.calls{failure}": 1,
        "everkeel.calls{ignored}": 1,
        "everkeel.retry.attempts{success}": 2,
        "everkeel.retry.attempts{failure}": 5,
        "everkeel.retry.attempts{ignored}": 1,
        "everkeel.retry.gave_up{attempts}": 1,
        "everkeel.retry.gave_up{not_retryable}": 1,
        "everkeel.retry.ignored": 1,
    }


def test_a_circuit_breaker(clock):
    policy = circuit_breaker("bank", failure_rate=0.5, minimum_calls=4, open_for=10, probes=1)
    clock.advance(5)
    policy.call(len, "")
    policy.call(len, "")
    for _ in range(2):
        with pytest.raises(OSError, match="down"):
            policy.call(Flaky(OSError("down")))
    for _ in range(3):
        with pytest.raises(CircuitOpenError):
            policy.call(len, "")
    clock.advance(10)
    policy.call(len, "")
    clock.advance(2)
    assert numbers(policy) == {
        "everkeel.calls{success}": 3,
        "everkeel.calls{failure}": 2,
        "everkeel.calls{rejected}": 3,
        "everkeel.circuit.state{closed}": 1,
        "everkeel.circuit.transitions{closed,open}": 1,
        "everkeel.circuit.transitions{open,half_open}": 1,
        "everkeel.circuit.transitions{half_open,closed}": 1,
        "everkeel.circuit.rejected": 3,
        "everkeel.circuit.time_in_state{closed}": 7,
        "everkeel.circuit.time_in_state{open}": 10,
    }


def test_an_open_circuit_shows_what_opened_it(clock):
    policy = circuit_breaker("bank", failure_rate=0.5, minimum_calls=2)
    policy.call(len, "")
    with pytest.raises(OSError, match="down"):
        policy.call(Flaky(OSError("down")))
    found = numbers(policy, "everkeel.circuit.")
    assert found["everkeel.circuit.state{open}"] == 1
    assert found["everkeel.circuit.failure_rate"] == 0.5
    assert found["everkeel.circuit.window.calls"] == 2


def test_every_state_of_a_circuit_is_there_with_zero_or_one(clock):
    states = [row for row in measure(circuit_breaker("bank")) if row.name == "everkeel.circuit.state"]
    assert [(row.attributes["state"], row.value) for row in states] == [("closed", 1), ("open", 0), ("half_open", 0)]


def test_a_keyed_breaker_counts_its_circuits_and_tells_no_key(clock):
    policy = circuit_breaker("hosts", key=lambda host: host, minimum_calls=1)
    for host in ("a", "b", "c"):
        policy.call(len, host)
    policy.force_open(key="a")
    found = numbers(policy, "everkeel.circuit.state")
    assert found == {"everkeel.circuit.state{closed}": 2, "everkeel.circuit.state{open}": 1}


def test_a_timeout(clock):
    policy = timeout(1, "slow", runs="inline")
    policy.call(len, "")
    with pytest.raises(TimeoutExceededError):
        policy.call(sleep, 2)
    assert numbers(policy, "everkeel.timeout") == {"everkeel.timeout.expired": 1}


def test_a_bulkhead_and_a_concurrency_limit(clock):
    for policy in (bulkhead(2, "db"), concurrency_limit("db", initial=2)):
        with policy.entry(), policy.entry():
            if isinstance(policy, type(bulkhead(1))):
                with pytest.raises(BulkheadFullError):
                    policy.call(len, "")
            assert numbers(policy, "everkeel.bulkhead") == {"everkeel.bulkhead.running": 2}
            assert numbers(policy, "everkeel.concurrency") == {"everkeel.concurrency.limit": 2}


def test_a_rate_limit(clock):
    policy = rate_limit(4, "api", per=2)
    for _ in range(4):
        policy.call(len, "")
    with pytest.raises(RateLimitedError):
        policy.call(len, "")
    clock.advance(0.5)
    assert numbers(policy, "everkeel.rate_limit") == {
        "everkeel.rate_limit.decisions{granted}": 4,
        "everkeel.rate_limit.decisions{rejected}": 1,
        "everkeel.rate_limit.available": 1,
        "everkeel.rate_limit.capacity": 4,
        "everkeel.rate_limit.refill_rate": 2,
        "everkeel.rate_limit.utilization": 0.75,
    }


def test_a_keyed_rate_limit_does_not_say_how_many_are_available(clock):
    policy = rate_limit(4, "api", key=lambda user: user)
    policy.call(len, "alice")
    assert "everkeel.rate_limit.available" not in {row.name for row in measure(policy)}


def test_a_fallback(clock):
    policy = fallback("other", name="spare")
    policy.call(Flaky(OSError("down")))
    assert numbers(policy, "everkeel.fallback") == {"everkeel.fallback.used": 1}


def test_a_cache(clock):
    policy = cache(10, "answers")
    look_up = policy(lambda question: 42)
    for question in ("why", "why", "how"):
        look_up(question)
    assert numbers(policy, "everkeel.cache") == {
        "everkeel.cache.lookups{hit}": 1,
        "everkeel.cache.lookups{miss}": 2,
    }


def test_a_feature_toggle(clock):
    policy = feature_toggle("beta", enabled=False)
    with pytest.raises(FeatureDisabledError):
        policy.call(len, "")
    assert numbers(policy, "everkeel.toggle") == {"everkeel.toggle.denied{disabled}": 1}


def test_chaos(clock):
    enable_chaos()
    policy = chaos("monkey", rate=1.0, latency=0.1)
    policy.call(len, "")
    assert numbers(policy, "everkeel.chaos") == {"everkeel.chaos.injected{latency}": 1}


def test_a_hedge(clock):
    import asyncio

    policy = hedge("quote", delay=0.1)
    waits = iter([1.0, 0.0])

    async def ask() -> str:
        await asyncio.sleep(next(waits))
        return "answer"

    clock.run(policy.acall(ask))
    assert numbers(policy, "everkeel.hedge") == {"everkeel.hedge.started": 1, "everkeel.hedge.won{2}": 1}


def test_what_a_shadow_would_have_done(clock):
    policy = bulkhead(1, "db", mode="shadow")
    with policy.entry():
        policy.call(len, "")
    assert numbers(policy, "everkeel.shadow") == {"everkeel.shadow.would{reject}": 1}


# ------------------------------------------------------------------ all of them


def test_every_type_of_policy_is_measured_in_names_that_are_listed(clock):
    enable_chaos()
    limit = rate_limit(9, "limit")
    one_of_each = [
        retry("r"), circuit_breaker("c"), timeout(1, "t", runs="inline"), bulkhead(1, "b"), bulkhead_pool(1, "p"),
        limit, fallback(1, name="f"), hedge("h"), cache(1, "k"), concurrency_limit("l"), adaptive_throttle("a"),
        feature_toggle("o"), fail_fast("x"), chaos("m", error=OSError), rate_limit_chain(limit, name="rc"),
    ]  # fmt: skip
    assert {row.attributes["everkeel.policy.name"] for row in measure_all()} == {one.name for one in one_of_each}
    for name, _, attributes in measure_all():
        own = {key for key in attributes if key not in (names.POLICY_NAME, names.POLICY_TYPE)}
        assert own == set(METRICS[name].attributes)
        assert METRICS[name].source == "snapshot"


def test_a_policy_that_cannot_be_read_does_not_hide_the_others(clock, caplog, monkeypatch):
    broken, fine = retry("broken"), retry("fine")
    monkeypatch.setattr(type(broken.state), "details", _raise_for(broken, type(broken.state).details))
    assert {row.attributes[names.POLICY_NAME] for row in measure_all(registry)} == {fine.name}
    assert "retry 'broken': its snapshot could not be read for telemetry" in caplog.text


def _raise_for(policy, details):
    def raising(state):
        if state.policy is policy:
            raise RuntimeError("no details today")
        return details(state)

    return raising


def test_the_snapshots_measurements_are_numbers_and_texts(clock):
    retry("r"), circuit_breaker("c"), rate_limit(3, "l")
    for _, value, attributes in measure_all():
        assert isinstance(value, int | float)
        assert all(isinstance(text, str) for text in attributes.values())


# ------------------------------------------------------------------ from events


def test_events_that_are_heard_for_trouble_leave_calls_alone():
    assert not {events.Succeeded, events.Failed, events.Ignored, events.Granted} & set(heard_events())


WHO = {"policy": "p", "policy_type": "rate_limit"}
EVENT = {"event_id": "e-1", "event_type": "order.placed", "topic": "orders", "attempt": 1}
MEASURED = [
    (events.Retrying(**WHO, attempt=1, delay=0.5, error=None), 0.5),
    (events.CallRejected(**WHO, error=RateLimitedError("p", 1.5)), 1.5),
    (events.WaitEnded(**WHO, seconds=0.75, granted=True), 0.75),
    (events.Granted(**WHO, permits=3), 3),
    (events.Succeeded(**WHO, duration=0.25), 0.25),
    (events.Failed(**WHO, duration=0.25, error=OSError()), 0.25),
    (events.Ignored(**WHO, duration=0.25, error=OSError()), 0.25),
    (events.EventDelivered(**WHO, **EVENT, age=40.0), 40.0),
    (events.BatchPublished(**WHO, topic="orders", size=3, confirmed=3, duration=0.2), 0.2),
    (events.SagaCompleted(**WHO, saga_id="s-1", duration=7.0), 7.0),
    (events.SagaCompensated(**WHO, saga_id="s-1", cause="rejected", duration=8.0), 8.0),
    (events.StepCompleted(**WHO, saga_id="s-1", step="pay", attempt=1, duration=2.0), 2.0),
    (events.StepUndone(**WHO, saga_id="s-1", step="pay", attempt=1, duration=3.0), 3.0),
]


def test_the_events_that_are_heard_are_those_that_are_measured():
    assert {type(event) for event, _ in MEASURED} == set(heard_events(calls=True))


@pytest.mark.parametrize(("event", "value"), MEASURED, ids=[type(event).__name__ for event, _ in MEASURED])
def test_every_event_that_is_heard_measures_something_recorded(event, value):
    measured = measure_event(event)
    assert measured is not None
    assert measured.value == value
    assert METRICS[measured.name].source == ("event" if type(event) in heard_events() else "call")
    assert set(measured.attributes) == {names.POLICY_NAME, names.POLICY_TYPE, *METRICS[measured.name].attributes}


def test_a_step_whose_beginning_is_not_known_has_no_duration():
    assert measure_event(events.StepCompleted(**WHO, saga_id="s-1", step="pay", attempt=1)) is None
    assert measure_event(events.StepUndone(**WHO, saga_id="s-1", step="pay", attempt=1)) is None


def test_a_batch_of_which_something_was_not_confirmed_has_failed():
    published = events.BatchPublished(**WHO, topic="orders", size=3, confirmed=2, duration=0.2)
    assert measure_event(published).attributes["result"] == "failed"


def test_a_rejection_that_cannot_say_when_to_come_back_is_not_recorded():
    assert measure_event(events.CallRejected(policy="p", policy_type="rate_limit", error=RateLimitedError("p"))) is None


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_name_is_good_for_opentelemetry_and_for_prometheus(metric):
    assert re.fullmatch(r"everkeel(\.[a-z][a-z_]*)+", metric.name)
    assert re.fullmatch(r"[a-z_]+", metric.prometheus_name)
    assert metric.prometheus_name.endswith("_total") == (metric.kind == "counter")
    assert ("_seconds" in metric.prometheus_name) == (metric.unit == "s")
    assert metric.description.endswith(".")


def test_no_two_metrics_share_a_name():
    assert len({metric.prometheus_name for metric in METRICS.values()}) == len(METRICS)


def test_the_table_of_the_documentation_is_the_generated_one():
    page = PAGE.read_text(encoding="utf-8")
    table = re.search(r"<!-- the table of metrics.*?-->\n(.*?)\n<!-- end of the table -->", page, re.DOTALL)
    assert table is not None
    assert table[1] == names.table(), "python -m everkeel.telemetry.names prints the table"
