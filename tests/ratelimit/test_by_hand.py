"""Permits by hand: several limits at once, reserved and settled; corrections, pauses, and what the result asks for."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from everkeel import ConfigError, RateLimitedError, rate_limit, rate_limit_chain
from everkeel.events import Drained
from everkeel.testing import CancelledRun, EventRecorder, VirtualClock, cancel_at_every_await, wait_until_idle

SECOND = 1_000_000_000
ALGORITHMS = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter")


def who(user: Any = None, *rest: Any) -> Any:
    return user


# ------------------------------------------------------------------ chains


def test_a_chain_takes_from_all_of_its_limits(form: Any, by_hand: Any) -> None:
    everybody, each = rate_limit(10, clock=by_hand), rate_limit(2, key=who, clock=by_hand)
    call = form(rate_limit_chain(everybody, each), who)
    call("ann")
    call("bob")
    assert (everybody.remaining(), each.remaining(key="ann"), each.remaining(key="bob")) == (8, 1, 1)


def test_a_chain_gives_back_what_it_took_when_one_says_no(form: Any, by_hand: Any) -> None:
    everybody = rate_limit(10, "everybody", cost=3, clock=by_hand)
    each = rate_limit(1, "each", key=who, clock=by_hand)
    chain = rate_limit_chain(everybody, each, name="both")
    call = form(chain, who)
    call("ann")
    with pytest.raises(RateLimitedError) as caught:
        call("ann")
    assert caught.value.policy == "each"
    assert everybody.remaining() == 7
    assert (chain.snapshot()["success"], chain.snapshot()["rejected"]) == (1, 1)
    call("bob")
    assert everybody.remaining() == 4


def test_a_chain_takes_nothing_after_the_first_no(form: Any, by_hand: Any) -> None:
    first, second = rate_limit(1, clock=by_hand), rate_limit(10, clock=by_hand)
    call = form(rate_limit_chain(first, second), who)
    call()
    with pytest.raises(RateLimitedError):
        call()
    assert second.remaining() == 9


@pytest.mark.parametrize(
    "more", [{"allow": {"ann"}}, {"exclude": lambda user: True}, {"mode": "off"}], ids=["allow", "exclude", "off"]
)
def test_a_chain_gives_back_nothing_that_was_not_taken(form: Any, by_hand: Any, more: dict[str, Any]) -> None:
    lenient = rate_limit(5, key=who, clock=by_hand, **more)
    lenient.adjust(3, key="ann")
    strict = rate_limit(1, clock=by_hand)
    call = form(rate_limit_chain(lenient, strict), who)
    call("ann")
    with pytest.raises(RateLimitedError):
        call("ann")
    assert lenient.remaining(key="ann") == 2


def test_a_chain_gives_back_nothing_to_a_limit_that_only_watches_and_would_have_said_no(
    form: Any, by_hand: Any
) -> None:
    watching, strict = rate_limit(1, mode="shadow", clock=by_hand), rate_limit(2, clock=by_hand)
    call = form(rate_limit_chain(watching, strict), who)
    call()
    call()
    with pytest.raises(RateLimitedError):
        call()
    assert watching.remaining() == 0


def test_a_chain_that_is_cancelled_while_it_waits_gives_back_what_it_took() -> None:
    made: list[Any] = []

    async def run() -> None:
        first, second = rate_limit(10, per=3600), rate_limit(1, queue=5)
        made[:] = [first, second]
        chain = rate_limit_chain(first=first, second=second)
        await chain.areserve()
        await chain.areserve()
        made.append("done")

    def check(outcome: CancelledRun) -> None:
        first, second, *done = made
        assert first.remaining() == (8 if done else 9)
        assert second.limiter.door.waiting == 0
        assert outcome.cancelled == (not done)

    assert cancel_at_every_await(run, check) == 1


def test_a_chain_interrupted_by_something_else_is_not_a_rejection(by_hand: Any) -> None:
    def broken(user: str) -> Any:
        raise OSError("the plans are not there")

    first = rate_limit(5, clock=by_hand)
    chain = rate_limit_chain(first, rate_limit(5, key=who, limits=broken, clock=by_hand))
    with pytest.raises(OSError, match="the plans"):
        chain.call(who, "ann")
    assert first.remaining() == 5
    assert chain.snapshot()["rejected"] == 0


def test_chains_guard_streams(clock: VirtualClock) -> None:
    chain = rate_limit_chain(rate_limit(2))

    @chain
    def numbers() -> Any:
        yield 1
        return "end"

    @chain
    async def async_numbers() -> Any:
        yield 2

    async def collect() -> list[int]:
        return [number async for number in async_numbers()]

    assert list(numbers()) == [1]
    assert clock.run(collect()) == [2]
    with pytest.raises(RateLimitedError):
        list(numbers())


def test_a_chain_waits_where_its_limits_have_queues(timed: Any, clock: VirtualClock) -> None:
    call = timed(rate_limit_chain(rate_limit(1, queue=5), rate_limit(10)), who)
    for _ in range(3):
        call()
    assert clock.monotonic() == 2


def test_a_chain_that_only_watches_lets_everybody_pass(form: Any, by_hand: Any) -> None:
    first, second = rate_limit(5, clock=by_hand), rate_limit(1, clock=by_hand)
    chain = rate_limit_chain(first, second, mode="shadow", name="both")
    call = form(chain, who)
    assert [call(n) for n in range(4)] == [0, 1, 2, 3]
    assert chain.snapshot()["would"] == {"reject": 3}
    assert (first.remaining(), second.remaining()) == (4, 0)
    chain.mode = "off"
    call(1)
    assert chain.snapshot()["would"] == {"reject": 3}
    chain.mode = "enforce"
    with pytest.raises(RateLimitedError):
        call(1)


def test_a_chain_shows_the_snapshots_of_its_limits(by_hand: Any) -> None:
    chain = rate_limit_chain(requests=rate_limit(5, "requests", clock=by_hand))
    chain.reserve(requests=2)
    assert chain.snapshot()["limits"]["requests"]["available"] == 3


def test_a_chain_is_no_block_and_says_what_to_write_instead(by_hand: Any) -> None:
    chain = rate_limit_chain(rate_limit(5, clock=by_hand), name="both")
    with pytest.raises(TypeError, match=r"rate limit chain 'both' cannot be a block: .* use reserve\(\)"), chain:
        pass


def test_a_derived_chain_shares_the_limits(by_hand: Any) -> None:
    chain = rate_limit_chain(requests=rate_limit(5, clock=by_hand), name="both", clock=by_hand)
    other = chain.derive("other", mode="shadow")
    other.reserve(requests=2)
    assert chain.limits["requests"].remaining() == 3
    assert (other.name, other.mode, other.clock) == ("other", "shadow", by_hand)


def test_what_is_wrong_with_a_chain_is_said_when_it_is_written(by_hand: Any) -> None:
    for make, told in [
        (lambda: rate_limit_chain(), "rate limit chain: limits must be at least one rate limit (got none)"),
        (lambda: rate_limit_chain(name="x"), "rate limit chain 'x': limits must be at least one rate limit (got none)"),
        (lambda: rate_limit_chain(5), "rate limit chain: limit 1 must be a rate_limit(...) (got 5)"),
        (lambda: rate_limit_chain(a=5), "rate limit chain: limit a must be a rate_limit(...) (got 5)"),
    ]:
        with pytest.raises(ConfigError) as caught:
            make()  # type: ignore[no-untyped-call]
        assert str(caught.value) == told


# ------------------------------------------------------------------ reserve, then settle


@pytest.fixture
def model(by_hand: Any) -> Any:
    """A language model: requests and tokens per minute."""
    return rate_limit_chain(
        name="model",
        requests=rate_limit(60, "requests", per=60, clock=by_hand),
        tokens=rate_limit(1000, "tokens", per=60, clock=by_hand),
    )


def left(model: Any) -> tuple[int, int]:
    return model.limits["requests"].remaining(), model.limits["tokens"].remaining()


def test_what_was_reserved_too_much_is_given_back(model: Any) -> None:
    reservation = model.reserve(requests=1, tokens=800)
    assert left(model) == (59, 200)
    reservation.settle(tokens=300)
    assert left(model) == (59, 700)


def test_what_was_reserved_too_little_is_charged(model: Any, by_hand: Any) -> None:
    model.reserve(tokens=800).settle(tokens=1500)
    assert left(model) == (59, 0)
    with pytest.raises(RateLimitedError) as caught:
        model.reserve(tokens=1)
    assert caught.value.policy == "tokens"
    assert caught.value.retry_after == pytest.approx(501 * 0.06)
    assert left(model) == (59, 0)  # the request was given back


def test_a_resource_that_was_estimated_at_nothing_can_be_settled(model: Any) -> None:
    model.reserve(tokens=0).settle(tokens=400)
    assert left(model) == (59, 600)


def test_without_a_settlement_the_estimate_stands(model: Any) -> None:
    with model.reserve(tokens=800):
        pass
    with pytest.raises(ZeroDivisionError), model.reserve(tokens=100):
        raise ZeroDivisionError
    assert left(model) == (58, 100)


def test_a_cancelled_reservation_gives_everything_back(model: Any) -> None:
    model.reserve(requests=2, tokens=800).cancel()
    assert left(model) == (60, 1000)


def test_a_reservation_ends_once(model: Any) -> None:
    reservation = model.reserve(tokens=800)
    reservation.settle(tokens=700)
    for act in (reservation.cancel, lambda: reservation.settle(tokens=1)):
        with pytest.raises(RuntimeError, match="this reservation is settled or cancelled already"):
            act()
    assert left(model) == (59, 300)


def test_what_is_not_said_costs_what_it_usually_does(by_hand: Any) -> None:
    chain = rate_limit_chain(a=rate_limit(10, cost=3, clock=by_hand), b=rate_limit(10, clock=by_hand))
    assert chain.reserve().costs == {"a": 3, "b": 1}


def test_a_reservation_for_a_key(by_hand: Any) -> None:
    chain = rate_limit_chain(
        everybody=rate_limit(100, clock=by_hand), each=rate_limit(10, "each", key=who, clock=by_hand)
    )
    chain.reserve(key="ann", each=8).settle(each=3)
    assert chain.limits["each"].remaining(key="ann") == 7
    assert chain.limits["everybody"].remaining() == 99
    with pytest.raises(TypeError, match="rate limit 'each' has a key function: say whose permits with key="):
        chain.reserve(each=1)


def test_a_reservation_can_be_awaited(clock: VirtualClock) -> None:
    chain = rate_limit_chain(tokens=rate_limit(100, queue=5))

    async def main() -> None:
        await chain.areserve(tokens=100)
        with await chain.areserve(tokens=50) as reservation:
            reservation.settle(tokens=20)

    clock.run(main)
    assert clock.monotonic() == 0.5
    assert chain.limits["tokens"].remaining() == 30


def test_a_chain_that_is_off_reserves_nothing(model: Any, by_hand: Any) -> None:
    model.mode = "off"
    model.reserve(tokens=800).settle(tokens=900)
    assert left(model) == (60, 1000)
    model.mode = "shadow"
    model.limits["tokens"].adjust(500)
    reservation = model.reserve(tokens=800)  # would have been rejected: nothing was taken, nothing is settled
    reservation.settle(tokens=900)
    assert left(model) == (60, 500)


def test_what_is_wrong_with_a_reservation_is_said(model: Any) -> None:
    reservation = model.reserve(tokens=5)
    for act, told in [
        (lambda: model.reserve(tokns=5), "rate limit chain 'model': tokns must be one of requests, tokens (got 5)"),
        (lambda: model.reserve(tokens=-1), "rate limit chain 'model': tokens must be at least 0 (got -1)"),
        (lambda: reservation.settle(tokns=5), "reservation: tokns must be one of requests, tokens (got 5)"),
        (lambda: reservation.settle(tokens=1.5), "reservation: tokens must be a whole number of at least 0 (got 1.5)"),
    ]:
        with pytest.raises(ConfigError) as caught:
            act()
        assert str(caught.value) == told
    reservation.settle(tokens=1)  # a mistake does not end it
    assert left(model) == (59, 999)


# ------------------------------------------------------------------ corrections


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_server_that_says_less_is_left_is_believed(by_hand: Any, algorithm: str) -> None:
    limiter = rate_limit(10, algorithm=algorithm, clock=by_hand)
    most = limiter.remaining()
    limiter.correct(remaining=min(3, most - 1))
    assert limiter.remaining() == min(3, most - 1)
    limiter.correct(remaining=10)  # one that says more is left does not make us grant more
    assert limiter.remaining() == min(3, most - 1)


def test_a_server_with_nothing_left_is_left_alone_until_it_says(form: Any, by_hand: Any, admitted: Any) -> None:
    limiter = rate_limit(10, clock=by_hand)
    ask = admitted(form(limiter, who))
    limiter.correct(remaining=0, reset_after=timedelta(seconds=30))
    by_hand.now += 30 * SECOND - 1
    assert not ask()
    by_hand.now += 1
    assert ask()


def test_a_correction_is_for_a_key(by_hand: Any) -> None:
    limiter = rate_limit(10, key=who, clock=by_hand)
    limiter.correct(remaining=2, key="ann")
    assert (limiter.remaining(key="ann"), limiter.remaining(key="bob")) == (2, 10)


@pytest.mark.parametrize("wrong", [1.5, "3", None, True])
def test_what_is_left_must_be_a_whole_number(by_hand: Any, wrong: Any) -> None:
    limiter = rate_limit(10, "x", clock=by_hand)
    with pytest.raises(ConfigError) as caught:
        limiter.correct(remaining=wrong)
    assert str(caught.value) == f"rate limit 'x': remaining must be a whole number (got {wrong!r})"
    with pytest.raises(ConfigError) as caught:
        limiter.adjust(wrong)
    assert str(caught.value) == f"rate limit 'x': permits must be a whole number (got {wrong!r})"


# ------------------------------------------------------------------ pauses


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seconds", [0.25, 3, 100])
def test_nothing_is_granted_during_a_pause_and_something_right_after_it(
    form: Any, by_hand: Any, algorithm: str, seconds: float
) -> None:
    by_hand.now += 123_456_789
    limiter = rate_limit(2, algorithm=algorithm, clock=by_hand)
    call = form(limiter, who)
    limiter.drain(seconds)
    with pytest.raises(RateLimitedError) as caught:
        call()
    assert caught.value.retry_after == pytest.approx(seconds)
    by_hand.now += int(seconds * SECOND) - 1
    with pytest.raises(RateLimitedError):
        call()
    by_hand.now += 1
    call()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_emptied_limit_fills_again_by_itself(form: Any, by_hand: Any, algorithm: str) -> None:
    limiter = rate_limit(2, algorithm=algorithm, clock=by_hand)
    call = form(limiter, who)
    limiter.drain()
    with pytest.raises(RateLimitedError) as caught:
        call()
    assert caught.value.retry_after is not None
    by_hand.now += round(caught.value.retry_after * SECOND)
    call()
    assert caught.value.retry_after <= 1.5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "change", [{"permits": 50}, {"permits": 50, "per": 0.1}, {"algorithm": "fixed_window"}], ids=str
)
@pytest.mark.parametrize("keyed", [False, True], ids=["one", "keyed"])
def test_a_pause_outlives_a_change_of_the_limit(by_hand: Any, algorithm: str, change: Any, keyed: bool) -> None:
    limiter = rate_limit(2, algorithm=algorithm, key=who if keyed else None, clock=by_hand)
    whose = {"key": "ann"} if keyed else {}
    limiter.drain(30, **whose)
    limiter.reconfigure(**change)
    by_hand.now += 30 * SECOND - 1
    assert not limiter.try_acquire(**whose)
    by_hand.now += 2 * SECOND
    assert limiter.try_acquire(**whose)


def test_a_pause_is_told(by_hand: Any, heard: EventRecorder) -> None:
    limiter = rate_limit(2, "search", key=who, clock=by_hand)
    limiter.drain(5, key="ann")
    limiter.drain(key="ann")
    assert [(event.policy, event.seconds, event.key) for event in heard.of(Drained)] == [
        ("search", 5.0, "ann"),
        ("search", None, "ann"),
    ]


@pytest.mark.parametrize("wrong", [-1, "5", float("nan"), True])
def test_the_length_of_a_pause_is_checked(by_hand: Any, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="rate limit 'x': seconds must"):
        rate_limit(2, "x", clock=by_hand).drain(wrong)


def test_those_who_wait_wait_longer_when_a_pause_is_asked_for(clock: VirtualClock) -> None:
    limiter = rate_limit(1, queue=5)

    async def main() -> None:
        await limiter.aacquire()
        waiting = asyncio.create_task(limiter.aacquire())
        await wait_until_idle()
        limiter.drain(10)
        await waiting

    clock.run(main)
    assert clock.monotonic() == 10


# ------------------------------------------------------------------ what the result asks for


@pytest.mark.parametrize(("wish", "pause"), [(True, 0.5), (10, 10), (timedelta(seconds=10), 10), (0.25, 0.25)])
def test_a_result_may_ask_for_a_pause(form: Any, by_hand: Any, wish: Any, pause: float) -> None:
    limiter = rate_limit(2, drain_on=lambda answer: answer, clock=by_hand)
    call = form(limiter, who)
    call(None)
    call(False)
    by_hand.now += 10 * SECOND
    call(wish)
    with pytest.raises(RateLimitedError) as caught:
        call(None)
    assert caught.value.retry_after == pytest.approx(pause)


def test_a_result_asks_for_a_pause_of_its_own_key(form: Any, by_hand: Any, admitted: Any) -> None:
    limiter = rate_limit(5, key=who, drain_on=lambda answer: answer == "busy", clock=by_hand)
    ask = admitted(form(limiter, lambda user, answer: answer))
    ask("ann", "busy")
    assert [ask("ann", ""), ask("bob", "")] == [False, True]


def test_the_result_of_a_block_may_ask_for_a_pause(by_hand: Any) -> None:
    limiter = rate_limit(5, key=who, drain_on=lambda answer: answer == 429, clock=by_hand)
    with limiter.entry(key="ann") as entry:
        entry.result(429)
    with limiter.entry(key="bob"):
        pass  # a block that does not say what came of it asks for nothing
    assert (limiter.remaining(key="ann"), limiter.remaining(key="bob")) == (0, 4)


@pytest.mark.parametrize(
    "wrong", [lambda answer: 1 // 0, lambda answer: -5, lambda answer: "soon"], ids=["raises", "negative", "no length"]
)
def test_a_broken_predicate_harms_nobody(form: Any, by_hand: Any, caplog: pytest.LogCaptureFixture, wrong: Any) -> None:
    call = form(rate_limit(5, "search", drain_on=wrong, clock=by_hand), who)
    with caplog.at_level(logging.ERROR, "everkeel"):
        assert call("answer") == "answer"
    assert [record.getMessage() for record in caplog.records] == ["rate limit 'search': drain_on raised"]
