"""Modes, events, snapshots: what can be seen of a limiter, and that looking changes nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import everkeel
from everkeel import RateLimitedError, guard, pipeline, policies_of, rate_limit
from everkeel.compose import source
from everkeel.events import CallRejected, Failed, Granted, Succeeded, WouldHave
from everkeel.testing import EventRecorder, VirtualClock

SECOND = 1_000_000_000


def who(user: Any = None, *rest: Any) -> Any:
    return user


# ------------------------------------------------------------------ shadow


def test_in_shadow_mode_everybody_passes_and_who_would_not_have_is_counted(
    form: Any, by_hand: Any, heard: EventRecorder
) -> None:
    limiter = rate_limit(2, "search", key=who, mode="shadow", clock=by_hand)
    call = form(limiter, who)
    assert [call("ann") for _ in range(5)] == ["ann"] * 5
    snapshot = limiter.snapshot()
    assert (snapshot["success"], snapshot["rejected"], snapshot["would"]) == (2, 0, {"reject": 3})
    events = heard.of(WouldHave)
    assert [event.action for event in events] == ["reject"] * 3
    error = events[0].error
    assert isinstance(error, RateLimitedError)
    assert (error.key, error.retry_after) == ("ann", 0.5)
    assert heard.of(CallRejected) == []


def test_in_shadow_mode_nobody_waits(timed: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(1, queue=5, mode="shadow")
    call = timed(limiter, who)
    for _ in range(3):
        call()
    assert clock.monotonic() == 0
    assert limiter.snapshot()["would"] == {"queue": 2}


def test_in_shadow_mode_a_mistake_does_not_touch_the_call(
    form: Any, by_hand: Any, caplog: pytest.LogCaptureFixture
) -> None:
    call = form(rate_limit(1, "search", key=who, cost=lambda user: 99, mode="shadow", clock=by_hand), who)
    with caplog.at_level(logging.ERROR, "everkeel"):
        assert call("ann") == "ann"
        assert call(["unhashable"]) == ["unhashable"]
    assert [record.getMessage() for record in caplog.records] == ["rate limit 'search': would have raised"] * 2


def test_in_shadow_mode_denied_and_excluded_calls_are_counted_as_such(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(5, key=who, deny={"mallory"}, allow={"root"}, mode="shadow", clock=by_hand)
    call = form(limiter, who)
    for user in ("mallory", "root", "ann"):
        call(user)
    snapshot = limiter.snapshot()
    assert (snapshot["would"], snapshot["excluded"], snapshot["success"]) == ({"reject": 1}, 1, 1)


def test_in_shadow_mode_the_service_is_measured_and_may_ask_for_a_pause(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(5, backpressure=True, drain_on=lambda answer: answer, mode="shadow", clock=by_hand)

    def work(answer: Any) -> Any:
        by_hand.now += SECOND
        if answer is None:
            raise OSError
        return answer

    call = form(limiter, work)
    with pytest.raises(OSError):
        call(None)
    assert limiter.snapshot()["backpressure"] == 1
    call(True)
    assert limiter.remaining() == 0


def test_in_shadow_mode_blocks_streams_and_permits_by_hand_pass(by_hand: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(1, "search", mode="shadow", clock=by_hand)

    @limiter
    def numbers() -> Any:
        yield 1

    @limiter
    async def async_numbers() -> Any:
        yield 2

    async def everything() -> list[int]:
        async with limiter:
            await limiter.aacquire()
        return [number async for number in async_numbers()]

    with limiter, limiter.entry(cost=1) as entry:
        entry.result("fine")
    with pytest.raises(OSError), limiter:
        raise OSError
    limiter.acquire()
    assert limiter.try_acquire()
    assert list(numbers()) == [1]
    assert clock.run(everything()) == [2]
    assert limiter.snapshot()["would"] == {"reject": 8}


# ------------------------------------------------------------------ off


def test_a_limiter_that_is_off_does_nothing(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(1, "search", mode="off", clock=by_hand)
    call = form(limiter, who)
    assert [call(n) for n in range(3)] == [0, 1, 2]
    limiter.acquire()
    with limiter:
        pass
    assert limiter.try_acquire()
    assert limiter.snapshot()["success"] == 0
    limiter.mode = "enforce"
    call(1)
    with pytest.raises(RateLimitedError):
        call(1)


def test_everything_can_be_switched_off(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(1, clock=by_hand)
    call = form(limiter, who)
    everkeel.disable()
    try:
        for _ in range(3):
            call()
        assert limiter.try_acquire(cost=1)
    finally:
        everkeel.enable()
    assert limiter.remaining() == 1


# ------------------------------------------------------------------ events


def test_every_grant_is_told_while_somebody_listens_for_it(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(9, "search", key=who, cost=2, clock=by_hand)
    call = form(limiter, who)
    call("ann")
    heard: list[Any] = []
    with limiter.subscribe(heard.append, Granted):
        call("ann")
        call("bob")
    call("ann")
    assert [(event.policy, event.policy_type, event.permits, event.key) for event in heard] == [
        ("search", "rate_limit", 2, "ann"),
        ("search", "rate_limit", 2, "bob"),
    ]


def test_listening_for_grants_takes_the_quick_way_away_and_listening_for_trouble_does_not(by_hand: Any) -> None:
    limiter = rate_limit(9, clock=by_hand)
    call = limiter(who)
    assert "gate.hand" in source(call)
    with limiter.subscribe(lambda event: None, Granted):
        assert "gate.hand" not in source(call)
    with limiter.subscribe(lambda event: None, CallRejected):
        assert "gate.hand" in source(call)
    assert "gate.hand" in source(call)


def test_a_rejection_is_told_with_the_very_error(form: Any, by_hand: Any, heard: EventRecorder) -> None:
    call = form(rate_limit(1, "search", key=who, clock=by_hand), who)
    call("ann")
    with pytest.raises(RateLimitedError) as caught:
        call("ann")
    (event,) = heard.of(CallRejected)
    assert event.error is caught.value
    assert (event.policy, event.key) == ("search", "ann")
    assert len(heard.of(Succeeded)) == 1
    assert heard.of(Failed) == []


def test_a_listener_may_use_the_limiter(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(1, "search", clock=by_hand)
    seen: list[int] = []
    call = form(limiter, who)
    with limiter.subscribe(lambda event: seen.append(limiter.remaining())):
        call()
        with pytest.raises(RateLimitedError):
            call()
    assert seen[-1] == 0


# ------------------------------------------------------------------ snapshots


def test_a_snapshot_is_plain_numbers(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(10, "search", per=2, burst=20, clock=by_hand)
    call = form(limiter, who)
    for _ in range(5):
        call()
    assert limiter.snapshot() == {
        "name": "search", "type": "rate_limit", "mode": "enforce", "success": 5, "failure": 0, "ignored": 0,
        "rejected": 0, "would": {}, "capacity": 20, "available": 15, "utilization": 0.25, "refill_rate": 5.0,
        "backpressure": None, "waiting": 0, "queued": 0, "excluded": 0, "keys": 0, "overflow": 0,
    }  # fmt: skip


def test_a_snapshot_of_a_keyed_limiter_says_how_many_keys_there_are(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(10, "search", key=who, clock=by_hand)
    call = form(limiter, who)
    for user in ("ann", "bob", "ann"):
        call(user)
    snapshot = limiter.snapshot()
    assert (snapshot["keys"], snapshot["available"], snapshot["utilization"], snapshot["success"]) == (2, None, None, 3)


def test_a_layer_lends_itself_to_blocks_of_any_kind(by_hand: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(2, drain_on=lambda answer: answer, backpressure=True, clock=by_hand)
    (layer,) = limiter.layers()
    permit = layer.enter()
    by_hand.now += SECOND
    layer.done(permit, True)
    assert (limiter.remaining(), limiter.snapshot()["backpressure"]) == (0, 1.0)
    by_hand.now += 10 * SECOND
    clock.run(layer.aenter())
    assert limiter.remaining() == 1
    limiter.mode = "shadow"
    (watching,) = limiter.layers()
    watching.done(watching.enter(), True)
    assert limiter.remaining() == 0


# ------------------------------------------------------------------ with others


def test_it_is_part_of_a_pipeline_and_of_a_guard(clock: VirtualClock) -> None:
    limiter = rate_limit(1, "search")
    stack = pipeline(limiter)
    assert stack.call(who, 1) == 1
    with pytest.raises(RateLimitedError):
        stack.call(who, 1)

    @guard(rate_limit=1)
    def call() -> str:
        return "answer"

    assert call() == "answer"
    with pytest.raises(RateLimitedError):
        call()


def test_a_retry_that_names_it_waits_for_its_retry_after(clock: VirtualClock) -> None:
    @everkeel.retry(on=RateLimitedError, attempts=2, backoff=0)
    @rate_limit(1, per=5)
    def call() -> float:
        return clock.monotonic()

    assert [call(), call()] == [0, 5]


def test_without_a_name_it_takes_the_functions(by_hand: Any) -> None:
    @rate_limit(1, clock=by_hand)
    def find() -> None: ...

    find()
    with pytest.raises(RateLimitedError, match="find' of 1 reached"):
        find()
    assert policies_of(find)[0].snapshot()["rejected"] == 1
