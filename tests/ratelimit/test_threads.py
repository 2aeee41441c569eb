"""Threads hammering one limiter are granted exactly as much as there is, and a forked child starts clean."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from everkeel import RateLimitedError, rate_limit
from everkeel.compose import source
from everkeel.ratelimit import gate as gates
from everkeel.ratelimit.gate import CLOSED

SECOND = 1_000_000_000
ALGORITHMS = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter")


def who(user: Any = None) -> Any:
    return user


def hammer(call: Any, times: int, *args: Any) -> int:
    """How many of so many calls were let in."""
    granted = 0
    for _ in range(times):
        try:
            call(*args)
        except RateLimitedError:
            continue
        granted += 1
    return granted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("keyed", [False, True], ids=["one", "keyed"])
def test_threads_hammering_one_key_are_granted_exactly_as_many_as_there_are(
    form: Any, by_hand: Any, together: Any, algorithm: str, keyed: bool
) -> None:
    most = 1 if algorithm == "leaky_bucket" else 100
    limiter = rate_limit(100, algorithm=algorithm, key=who if keyed else None, clock=by_hand)
    call = form(limiter, who)
    granted = together(8, lambda number: hammer(call, 100, "ann"))
    assert sum(granted) == most
    snapshot = limiter.snapshot()
    assert (snapshot["success"], snapshot["rejected"]) == (most, 800 - most)


@pytest.mark.parametrize("scale", [100, 7], ids=["whole nanoseconds", "parts of them"])
def test_threads_on_many_keys_are_granted_exactly_as_many_as_each_has(
    threaded: Any, by_hand: Any, together: Any, scale: int
) -> None:
    call = threaded(rate_limit(scale, burst=10, key=who, clock=by_hand), who)
    granted = together(8, lambda number: sum(hammer(call, 1, n % 20) for n in range(400)))
    assert sum(granted) == 20 * 10


def test_threads_with_different_costs_take_exactly_what_there_is(by_hand: Any, together: Any) -> None:
    limiter = rate_limit(1000, clock=by_hand)

    def take(number: int) -> int:
        taken = 0
        for n in range(300):
            cost = (number + n) % 4 + 1
            taken += cost if limiter.try_acquire(cost=cost) else 0
        return taken

    taken = sum(together(8, take))
    assert taken + limiter.remaining() == 1000
    assert limiter.remaining() < 1


def test_taking_and_giving_back_from_many_threads_loses_nothing(threaded: Any, by_hand: Any, together: Any) -> None:
    limiter = rate_limit(1000, clock=by_hand)
    call = threaded(limiter, who)

    def take_and_give_back(number: int) -> None:
        for _ in range(200):
            call()
            limiter.adjust(-1)

    assert together(4, take_and_give_back) == [None] * 4
    assert limiter.remaining() == 1000


def test_changing_the_rate_under_load_grants_nothing_twice(threaded: Any, by_hand: Any, together: Any) -> None:
    limiter = rate_limit(50, burst=200, clock=by_hand)
    call = threaded(limiter, who)

    def act(number: int) -> int:
        if number:
            return hammer(call, 300)
        for permits in (70, 90, 110, 130):  # other parts of a nanosecond each time
            limiter.reconfigure(permits=permits)
        return 0

    assert sum(together(5, act)) == 200


def test_reconfiguring_and_calling_at_once_never_deadlocks(together: Any) -> None:
    limiter = rate_limit(3, per=0.001)  # real time, so that lower limits do come into force
    call = limiter(who)

    def act(number: int) -> None:
        for n in range(300):
            if number < 2:
                limiter.reconfigure(permits=2 + n % 5)
            else:
                hammer(call, 3)

    assert together(6, act) == [None] * 6


def test_the_woven_function_decides_without_calling_anything(by_hand: Any) -> None:
    text = source(rate_limit(5, clock=by_hand)(who))
    assert "gate.hand.pop()" in text
    assert "with " not in text
    assert "raise limiter.refused" in text
    assert "* gate.scale" not in text
    assert "* gate.scale" in source(rate_limit(7, clock=by_hand)(who))


# ------------------------------------------------------------------ the number in hand


def test_a_number_that_is_lost_is_taken_for_an_empty_bucket(by_hand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "_PATIENCE", 3)
    limiter = rate_limit(5, clock=by_hand)
    call = limiter(who)
    call()
    limiter.limiter.door.gate.hand.clear()  # Ctrl-C between taking it and putting it back
    with pytest.raises(RateLimitedError):
        call()
    by_hand.now += SECOND
    assert [hammer(call, 10), limiter.remaining()] == [5, 0]


def test_who_finds_the_hand_empty_waits_for_the_number(by_hand: Any) -> None:
    limiter = rate_limit(5, clock=by_hand)
    call = limiter(who)
    call()
    hand = limiter.limiter.door.gate.hand
    number = hand.pop()  # a thread is suspended here
    late = threading.Thread(target=call)
    late.start()
    threading.Event().wait(0.01)
    hand.append(number)
    late.join()
    assert limiter.remaining() == 3


def test_a_call_under_way_with_another_rate_does_not_mix_up_the_two(by_hand: Any) -> None:
    limiter = rate_limit(3, clock=by_hand)  # counts thirds of a nanosecond
    call = limiter(who)
    call()
    before = limiter.limiter.door.fine
    limiter.reconfigure(permits=100)
    assert before is not limiter.limiter.door.gate
    assert not before.hand  # it finds nothing there, and asks again
    assert limiter.limiter.door.fine is CLOSED
    assert limiter.remaining() == 99


# ------------------------------------------------------------------ fork


def in_a_child(act: Any) -> int:
    """Run `act` in a forked child; its exit code is what it answers (99: it raised)."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = int(act())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("keyed", [False, True], ids=["one", "keyed"])
def test_a_forked_child_has_what_was_charged_and_no_lock_that_is_held(threaded: Any, by_hand: Any, keyed: bool) -> None:
    limiter = rate_limit(5, key=who if keyed else None, clock=by_hand)
    call = threaded(limiter, who)
    hammer(call, 3, "ann")
    with limiter.lock:  # another thread is in there at this very moment
        granted = in_a_child(lambda: hammer(call, 10, "ann"))
    assert granted == 2
    assert hammer(call, 10, "ann") == 2


def test_in_a_forked_child_the_number_is_there_even_if_another_thread_had_it_in_hand(by_hand: Any) -> None:
    limiter = rate_limit(5, clock=by_hand)
    call = limiter(who)
    call()
    hand = limiter.limiter.door.gate.hand
    number = hand.pop()

    def child() -> int:
        first = hammer(call, 10)
        by_hand.now += SECOND
        return 10 * first + hammer(call, 10)

    assert in_a_child(child) == 5  # it assumes the worst: an empty bucket, which fills again
    hand.append(number)
    assert limiter.remaining() == 4


@pytest.mark.parametrize("keyed", [False, True], ids=["one", "keyed"])
def test_nobody_waits_in_a_forked_child(threaded: Any, by_hand: Any, keyed: bool) -> None:
    limiter = rate_limit(1, per=60, queue=5, key=who if keyed else None, clock=by_hand)
    call = threaded(limiter, who)
    call("ann")
    whose = {"key": "ann"} if keyed else {}

    async def parent() -> int:
        waiting = asyncio.ensure_future(limiter.aacquire(**whose))
        await asyncio.sleep(0)

        def child() -> int:
            by_hand.now += 60 * SECOND
            call("ann")  # those in the parent's line are not here
            return 10 * limiter.snapshot()["waiting"] + limiter.remaining(**whose)

        code = in_a_child(child)
        assert limiter.snapshot()["waiting"] == 1
        waiting.cancel()
        return code

    assert asyncio.run(parent()) == 0
