"""The same seed and the same calls give the same faults; what was recorded can happen again."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from everkeel import ConfigError, chaos, enable_chaos
from everkeel.policies.chaos.config import ChaosConfig
from everkeel.policies.chaos.core import fault_of
from everkeel.testing import Flaky, VirtualClock, fresh_everkeel, run, virtual_time

KEYS = ["blue", "red", "green"]
seeds = st.integers() | st.text(max_size=5)
rates = st.floats(0.05, 1.0)
calls = st.lists(st.sampled_from(KEYS), min_size=1, max_size=30)


@contextmanager
def chaotic_process() -> Any:
    with fresh_everkeel(), virtual_time() as clock:
        enable_chaos()
        yield clock


def make(seed: Any, rate: float, **more: Any) -> Any:
    errors = [ConnectionError, TimeoutError]
    return chaos(rate=rate, seed=seed, latency=(0.1, 2.0), error=errors, key=lambda key: key, **more)


def faults(policy: Any) -> list[Any]:
    """What was injected, without when: that is a matter of the clock."""
    return [{name: value for name, value in entry.items() if name != "at"} for entry in policy.record()["faults"]]


def call_all(policy: Any, keys: list[str]) -> None:
    for key in keys:
        try:
            policy.call(lambda key: key, key)
        except (ConnectionError, TimeoutError):
            pass


# ------------------------------------------------------------------ known answers


def test_what_a_seed_gives_never_changes():
    rules = ChaosConfig(rate=0.2, error=[KeyError, OSError], latency=(1, 2), seed=42)
    hit = [fault for call in range(1, 21) if (fault := fault_of(rules, "blue", call))]
    assert [(fault.call, round(fault.latency, 6), fault.error) for fault in hit] == KNOWN


KNOWN = [(10, 1.882125, 0), (15, 1.81621, 0), (16, 1.713739, 1), (17, 1.522704, 0), (20, 1.646258, 0)]


@given(seeds, st.text(max_size=5), st.integers(1, 100), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_rate_takes_no_fault_away(seed, key, call, one, other):
    lower, higher = sorted((one, other))
    few = fault_of(ChaosConfig(rate=lower, error=KeyError, seed=seed), key, call)
    many = fault_of(ChaosConfig(rate=higher, error=KeyError, seed=seed), key, call)
    assert few is None or few == many


def test_no_rate_hits_nobody_and_the_whole_everybody():
    for call in range(1, 200):
        assert fault_of(ChaosConfig(rate=0.0, error=KeyError), "", call) is None
        assert fault_of(ChaosConfig(rate=1.0, error=KeyError), "", call) is not None


# ------------------------------------------------------------------ the same seed and calls


def test_it_is_the_same_in_every_form(every_form):
    def act(form: Any) -> Any:
        enable_chaos()
        policy = make(7, 0.4)
        call = form(policy, lambda key: key)
        ended = []
        for number in range(30):
            try:
                ended.append(call(KEYS[number % 3]))
            except (ConnectionError, TimeoutError) as error:
                ended.append(type(error).__name__)
        return ended, faults(policy), form.clock.sleeps

    came = every_form(act)
    assert all(one == came["plain-sync"] for one in came.values())


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(seeds, rates, calls, st.randoms(use_true_random=False))
def test_the_order_of_the_keys_among_each_other_changes_nothing(seed, rate, keys, chance):
    with chaotic_process():
        one, other = make(seed, rate), make(seed, rate)
        call_all(one, keys)
        chance.shuffle(keys)
        call_all(other, keys)
        assert faults(one) == faults(other)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(seeds, rates, calls, st.integers(0, 1000))
def test_tasks_in_any_order_get_the_same_faults(seed, rate, keys, order):
    with chaotic_process():
        expected = make(seed, rate)
        call_all(expected, keys)
        policy = make(seed, rate)

        @policy
        async def fetch(key: str) -> str:
            await asyncio.sleep(0)
            return key

        async def main() -> None:
            await asyncio.gather(*(fetch(key) for key in keys), return_exceptions=True)

        run(main, clock=VirtualClock(seed=order), shuffle=True)
        assert faults(policy) == faults(expected)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(seeds, rates, calls)
def test_threads_in_any_order_get_the_same_faults(seed, rate, keys):
    with fresh_everkeel():
        enable_chaos()
        results: list[Any] = []
        for threads in (1, 4):
            policy = chaos(rate=rate, seed=seed, error=[ConnectionError, TimeoutError], key=lambda key: key)
            barrier = threading.Barrier(threads)
            shares = [keys[place::threads] for place in range(threads)]

            def work(share: list[str], policy: Any = policy, barrier: Any = barrier) -> None:
                barrier.wait(30)
                call_all(policy, share)

            workers = [threading.Thread(target=work, args=(share,)) for share in shares]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(30)
            results.append(faults(policy))
        assert results[0] == results[1]


def test_calls_that_are_spared_have_a_number_too(chaotic):
    spared = chaos("one", rate=0.5, result="fault", window=(10, None))
    plain = chaos("two", rate=0.5, result="fault")
    for _ in range(10):
        spared.call(str), plain.call(str)
    chaotic.advance(10)
    answers = [(spared.call(str), plain.call(str)) for _ in range(20)]
    assert all(one == other for one, other in answers)


def test_another_seed_gives_other_faults(chaotic):
    def hit(seed: Any) -> list[Any]:
        policy = chaos(rate=0.5, result="fault", seed=seed)
        return [policy.call(str) for _ in range(64)]

    assert hit(1) == hit("1") == hit(1)
    assert len({tuple(hit(seed)) for seed in range(10)}) == 10


# ------------------------------------------------------------------ recorded, and again


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(seeds, rates, calls)
def test_what_was_recorded_happens_again(seed, rate, keys):
    with chaotic_process() as clock:
        first = make(seed, rate)
        call_all(first, keys)
        slept = list(clock.sleeps)
        recording = json.loads(json.dumps(first.record()))
    with chaotic_process() as clock:
        again = make("another seed", 0.0)
        again.replay(recording)
        call_all(again, keys)
        assert clock.sleeps == slept
        assert again.record()["faults"] == recording["faults"]


def test_a_replay_is_the_same_in_every_form(every_form):
    script = {"faults": [{"call": 2, "error": 1}, {"call": 4, "latency": 1.5}, {"call": 5, "latency": 1, "error": 0}]}

    def act(form: Any) -> Any:
        enable_chaos()
        policy = chaos("faults", error=[KeyError, TimeoutError])
        policy.replay(script)
        call, ended = form(policy, Flaky("ok")), []
        for _ in range(6):
            try:
                ended.append(call())
            except (KeyError, TimeoutError) as error:
                ended.append(type(error).__name__)
        return ended, form.clock.sleeps

    for name, came in every_form(act).items():
        assert came == (["ok", "TimeoutError", "ok", "ok", "KeyError", "ok"], [1.5, 1]), name


def test_a_replay_starts_over_and_none_goes_back_to_the_seed(chaotic):
    policy = chaos("faults", rate=1.0, result="fault")
    assert policy.call(str) == "fault"
    policy.replay({"faults": [{"call": 2, "result": True}]})
    assert [policy.call(str) for _ in range(3)] == ["", "fault", ""]
    assert policy.snapshot()["replaying"]
    policy.replay(None)
    assert policy.call(str) == "fault"
    assert not policy.snapshot()["replaying"]


def test_a_replay_heeds_neither_window_nor_tags(chaotic):
    policy = chaos("faults", result="fault", window=(100, 200), tags={"canary"})
    policy.replay({"faults": [{"call": 1, "result": True}]})
    assert policy.call(str) == "fault"


def test_a_recording_says_what_happened_when(chaotic):
    policy = chaos("faults", rate=1.0, latency=2, error=TimeoutError, key=lambda key: key)
    chaotic.advance(5)
    call_all(policy, ["blue"])
    assert policy.record() == {
        "version": 1,
        "seed": "0",
        "forgotten": 0,
        "faults": [{"call": 1, "key": "blue", "at": 5.0, "latency": 2.0, "error": 0, "raised": "TimeoutError"}],
    }


def test_a_recording_is_bounded(chaotic, monkeypatch):
    from everkeel.policies.chaos import recording

    monkeypatch.setattr(recording, "MOST", 3)
    policy = chaos("faults", rate=1.0, result="fault")
    for _ in range(5):
        policy.call(str)
    data = policy.record()
    assert ([entry["call"] for entry in data["faults"]], data["forgotten"]) == ([3, 4, 5], 2)


def test_a_recording_is_a_copy(chaotic):
    policy = chaos("faults", rate=1.0, result="fault")
    policy.call(str)
    policy.record()["faults"][0]["call"] = 99
    assert policy.record()["faults"][0]["call"] == 1


def test_any_part_of_a_schedule_is_a_schedule_so_that_a_failure_shrinks_to_what_it_takes():
    """Two faults in a row are what this client does not survive: of any recording, those two are left."""

    def breaks(recording: Any) -> bool:
        with chaotic_process():
            policy = chaos("faults", error=ConnectionError)
            policy.replay(recording)
            down = 0
            for _ in range(40):
                try:
                    policy.call(str)
                    down = 0
                except ConnectionError:
                    down += 1
                if down == 2:
                    return True
            return False

    with chaotic_process():
        storm = chaos("storm", rate=0.6, error=ConnectionError, seed=5)
        for _ in range(40):
            try:
                storm.call(str)
            except ConnectionError:
                pass
        recorded = storm.record()["faults"]
    assert breaks({"faults": recorded})
    parts = st.lists(st.sampled_from(recorded), unique_by=lambda entry: entry["call"])
    quick = settings(max_examples=2000, database=None, suppress_health_check=list(HealthCheck))
    smallest = find(parts.map(lambda part: {"faults": part}), breaks, settings=quick)
    (first, second) = sorted(entry["call"] for entry in smallest["faults"])
    assert second == first + 1


@pytest.mark.parametrize(
    ("recording", "message"),
    [
        ([], "replay must be what record() returned (got [])"),
        ({"faults": {}}, "replay must be what record() returned (got {'faults': {}})"),
        ({"faults": [1]}, "replay must have a mapping for each fault (got 1)"),
        (
            {"faults": [{"call": 0}]},
            "replay must say for each fault which call it is for: call, from 1, and key, a string (got {'call': 0})",
        ),
        (
            {"faults": [{"call": 1, "key": 7}]},
            "replay must say for each fault which call it is for: call, from 1, and key, a string "
            "(got {'call': 1, 'key': 7})",
        ),
        (
            {"faults": [{"call": 1, "latency": -1}]},
            "replay must have latency in seconds (got {'call': 1, 'latency': -1})",
        ),
        (
            {"faults": [{"call": 1, "error": 1}]},
            "replay must have errors of this policy, which has 1 (got {'call': 1, 'error': 1})",
        ),
        (
            {"faults": [{"call": 1, "result": True}]},
            "replay must not have results, since this policy has none (got {'call': 1, 'result': True})",
        ),
        (
            {"faults": [{"call": 1, "behavior": True}]},
            "replay must not have behaviors, since this policy has none (got {'call': 1, 'behavior': True})",
        ),
    ],
)
def test_a_recording_that_cannot_happen_here_is_refused_and_changes_nothing(chaotic, recording, message):
    policy = chaos("faults", rate=1.0, error=KeyError)
    with pytest.raises(ConfigError) as raised:
        policy.replay(recording)
    assert str(raised.value) == f"chaos 'faults': {message}"
    assert not policy.snapshot()["replaying"]
