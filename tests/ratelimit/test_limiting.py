"""What a limiter does to calls, in every form of calling: lets in, turns away, and says exactly when to come back."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from everkeel import ConfigError, RateLimitedError, rate_limit
from everkeel.ratelimit import Algorithm, Decision, Rate
from everkeel.testing import VirtualClock

SECOND = 1_000_000_000
ALGORITHMS = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter")


def echo(x: Any = None) -> Any:
    return x


def rejection(fn: Any, *args: Any, **kwargs: Any) -> RateLimitedError:
    with pytest.raises(RateLimitedError) as caught:
        fn(*args, **kwargs)
    return caught.value


# ------------------------------------------------------------------ in, or not


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_so_many_calls_pass_and_the_next_is_rejected(form: Any, by_hand: Any, algorithm: str) -> None:
    most = 1 if algorithm == "leaky_bucket" else 3
    call = form(rate_limit(3, "search", algorithm=algorithm, clock=by_hand), echo)
    assert [call(n) for n in range(most)] == list(range(most))
    error = rejection(call, 9)
    assert (error.policy, error.limit, error.remaining, error.key, error.origin) == ("search", 3, 0, None, "local")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("permits", [3, 7, 10])
def test_at_its_retry_after_a_call_passes_and_a_nanosecond_earlier_it_does_not(
    form: Any, by_hand: Any, algorithm: str, permits: int
) -> None:
    by_hand.now += 123_456_789
    call = form(rate_limit(permits, algorithm=algorithm, clock=by_hand), echo)
    for _ in range(permits if algorithm != "leaky_bucket" else 1):
        call()
    error = rejection(call)
    assert error.retry_after is not None
    exact = next(n for n in range(int(error.retry_after * SECOND) - 2, 2 * SECOND) if n / SECOND >= error.retry_after)
    began = by_hand.now
    by_hand.now = began + exact - 1
    rejection(call)
    by_hand.now = began + exact
    call()


def test_the_retry_after_in_seconds_is_never_less_than_the_nanoseconds(by_hand: Any) -> None:
    for permits in range(1, 200):
        limiter = rate_limit(permits, burst=1, clock=by_hand)
        limiter.acquire()
        wait = rejection(limiter.acquire).retry_after
        assert wait is not None
        assert wait * SECOND >= -(-SECOND // permits)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_permits_come_back_with_time(form: Any, by_hand: Any, admitted: Any, algorithm: str) -> None:
    ask = admitted(form(rate_limit(1, algorithm=algorithm, clock=by_hand), echo))
    answers = []
    for _ in range(5):
        answers += [ask(), ask()]
        by_hand.now += 2 * SECOND
    assert answers == [True, False] * 5


def test_a_burst_passes_after_a_quiet_time_and_then_the_rate(form: Any, by_hand: Any, admitted: Any) -> None:
    ask = admitted(form(rate_limit(1, burst=4, clock=by_hand), echo))
    assert [ask() for _ in range(6)] == [True] * 4 + [False] * 2
    by_hand.now += 2 * SECOND
    assert [ask() for _ in range(4)] == [True] * 2 + [False] * 2


def test_a_call_that_fails_has_used_its_permit(form: Any, by_hand: Any) -> None:
    call = form(rate_limit(1, clock=by_hand), lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        call()
    rejection(call)


def test_methods_and_any_arguments_are_limited(by_hand: Any) -> None:
    class Client:
        @rate_limit(1, key=lambda self, *args, **kwargs: self, clock=by_hand)
        def fetch(self, *args: int, **kwargs: int) -> Any:
            return args, kwargs

    one, other = Client(), Client()
    assert one.fetch(1, a=2) == ((1,), {"a": 2})
    assert other.fetch() == ((), {})
    assert rejection(one.fetch).key is one


def test_one_limiter_over_two_functions_limits_them_together(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(2, clock=by_hand)
    first, second = form(limiter, echo), form(limiter, echo)
    first()
    second()
    rejection(first)
    rejection(second)


def test_a_clock_that_starts_at_zero_or_before_is_as_good_as_any(form: Any, by_hand: Any, admitted: Any) -> None:
    for start in (0, -5 * SECOND):
        by_hand.now = start
        for key in (None, echo):
            ask = admitted(form(rate_limit(2, key=key, clock=by_hand), echo))
            assert [ask("x") for _ in range(3)] == [True, True, False]


# ------------------------------------------------------------------ costs


def test_a_call_takes_as_many_permits_as_it_costs(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(10, cost=4, clock=by_hand)
    call = form(limiter, echo)
    call()
    call()
    error = rejection(call)
    assert error.remaining == 2
    assert error.retry_after == 0.2


def test_the_cost_may_be_a_function_of_the_arguments(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(10, cost=lambda text: len(text), clock=by_hand)
    call = form(limiter, echo)
    call("1234567")
    assert limiter.remaining() == 3
    assert rejection(call, "1234").remaining == 3
    call("123")
    assert limiter.remaining() == 0


def test_a_free_call_passes_whatever_is_charged(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(1, cost=lambda n: n, clock=by_hand)
    call = form(limiter, echo)
    call(1)
    limiter.drain(60)
    assert call(0) == 0
    assert limiter.snapshot()["success"] == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("queue", [0, 5])
def test_a_cost_that_can_never_be_granted_is_refused_at_once_with_a_clear_error(
    timed: Any, algorithm: str, queue: int
) -> None:
    most = 1 if algorithm == "leaky_bucket" else 3
    call = timed(rate_limit(3, "tokens", algorithm=algorithm, cost=lambda n: n, queue=queue), echo)
    with pytest.raises(ConfigError) as caught:
        call(99)
    assert str(caught.value) == (
        f"rate limit 'tokens': cost must be a whole number from 0 to {most}: more can never be granted at once (got 99)"
    )


@pytest.mark.parametrize("cost", [-1, 1.0, True, "1", None])
def test_a_cost_must_be_a_whole_number(form: Any, by_hand: Any, cost: Any) -> None:
    call = form(rate_limit(3, cost=lambda: cost, clock=by_hand), lambda: None)
    with pytest.raises(ConfigError, match="cost must be a whole number from 0 to 3"):
        call()


# ------------------------------------------------------------------ who is not limited, and who hears of it


def test_an_excluded_call_is_not_limited(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(1, exclude=lambda path: path == "/health", clock=by_hand)
    call = form(limiter, echo)
    call("/")
    assert [call("/health") for _ in range(3)] == ["/health"] * 3
    rejection(call, "/")
    assert limiter.snapshot()["excluded"] == 3
    assert limiter.snapshot()["success"] == 1


def test_taking_permits_by_hand_has_no_arguments_to_exclude_by(by_hand: Any) -> None:
    limiter = rate_limit(1, exclude=lambda path: True, clock=by_hand)
    limiter.acquire()
    assert not limiter.try_acquire()


def test_the_hook_gets_the_error_before_it_is_raised(form: Any, by_hand: Any) -> None:
    seen: list[RateLimitedError] = []
    call = form(rate_limit(1, on_rejected=seen.append, clock=by_hand), echo)
    call()
    error = rejection(call)
    assert seen == [error]


def test_the_hook_may_raise_another_error_in_its_place(form: Any, by_hand: Any) -> None:
    class BusyError(Exception):
        pass

    def busy(error: RateLimitedError) -> None:
        raise BusyError(error.retry_after)

    call = form(rate_limit(1, on_rejected=busy, clock=by_hand), echo)
    call()
    with pytest.raises(BusyError) as caught:
        call()
    assert caught.value.args == (1.0,)


# ------------------------------------------------------------------ the error


def test_the_error_is_written_for_its_reader(by_hand: Any) -> None:
    limiter = rate_limit(4, "search", key=echo, clock=by_hand)
    call = limiter(echo)
    for _ in range(4):
        call("tenant-7")
    assert str(rejection(call, "tenant-7")) == "rate limit 'search' of 4 reached for 'tenant-7'; try again in 0.25 s"
    nameless = rate_limit(1, per=86_400, clock=by_hand)
    nameless.acquire()
    assert str(rejection(nameless.acquire)) == "rate limit of 1 reached; try again in 86400 s"


def test_the_error_survives_pickling(form: Any, by_hand: Any) -> None:
    call = form(rate_limit(1, "search", key=echo, clock=by_hand), echo)
    call("ann")
    error = rejection(call, "ann")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RateLimitedError
    assert again.args == error.args
    assert (again.policy, again.retry_after, again.limit, again.remaining) == ("search", 1.0, 1, 0)
    assert (again.key, again.backpressure, again.origin) == ("ann", None, "local")


# ------------------------------------------------------------------ other forms


def test_streams_are_limited_when_they_begin(clock: VirtualClock) -> None:
    limiter = rate_limit(1)

    @limiter
    def numbers() -> Any:
        sent = yield 1
        yield sent
        return "end"

    stream = numbers()
    assert (next(stream), stream.send("sent")) == (1, "sent")
    with pytest.raises(RateLimitedError):
        next(numbers())
    clock.sleep(1)

    @limiter
    async def async_numbers() -> Any:
        yield 1
        yield 2

    async def collect() -> list[int]:
        return [number async for number in async_numbers()]

    assert clock.run(collect()) == [1, 2]
    with pytest.raises(RateLimitedError):
        clock.run(collect())


def test_an_async_stream_is_closed_when_its_reader_stops(clock: VirtualClock) -> None:
    closed = []

    @rate_limit(5)
    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def read_one() -> None:
        stream = numbers()
        await anext(stream)
        await stream.aclose()

    clock.run(read_one())
    assert closed == [True]


def test_blocks_are_limited(by_hand: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(2, "door", clock=by_hand)
    with limiter:
        pass

    async def enter() -> None:
        async with limiter:
            pass

    clock.run(enter())
    with pytest.raises(RateLimitedError):
        clock.run(enter())
    with pytest.raises(RateLimitedError), limiter:
        raise AssertionError("the body must not run")


def test_an_entry_has_a_key_and_a_cost(by_hand: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(5, "door", key=echo, clock=by_hand)
    with limiter.entry(key="ann", cost=3) as entry:
        assert entry.result("answer") == "answer"
    assert limiter.remaining(key="ann") == 2
    with pytest.raises(RateLimitedError), limiter.entry(key="ann", cost=3):
        raise AssertionError("the body must not run")

    async def enter() -> None:
        async with limiter.entry(key="ann", cost=2):
            pass

    clock.run(enter())
    assert limiter.remaining(key="ann") == 0
    assert limiter.remaining(key="bob") == 5


def test_permits_can_be_taken_without_a_function_to_call(by_hand: Any, clock: VirtualClock) -> None:
    limiter = rate_limit(5, clock=by_hand)
    limiter.acquire()
    clock.run(limiter.aacquire(cost=3))
    assert limiter.remaining() == 1
    assert not limiter.try_acquire(cost=2)
    assert limiter.try_acquire()
    error = rejection(limiter.acquire)
    assert error.retry_after == 0.2
    with pytest.raises(RateLimitedError):
        clock.run(limiter.aacquire())
    assert limiter.snapshot()["rejected"] == 3
    assert limiter.snapshot()["success"] == 3


def test_by_hand_the_cost_is_the_usual_one_unless_it_is_said(by_hand: Any) -> None:
    limiter = rate_limit(10, cost=4, clock=by_hand)
    limiter.acquire()
    assert limiter.remaining() == 6
    with limiter:
        assert limiter.remaining() == 2


# ------------------------------------------------------------------ a limiter of one's own


class EveryOther(Algorithm):
    """Lets every other request pass. State: how many there were."""

    def acquire(self, state: int | None, now: int, permits: int) -> tuple[int, Decision]:
        seen = (state or 0) + 1
        return seen, Decision(seen % 2 == 1, 0 if seen % 2 else 7 * SECOND, 1, 0)

    def used(self, state: int | None, now: int) -> int:
        return state or 0

    def charged(self, now: int, permits: int) -> int:
        return permits


def test_an_algorithm_of_ones_own_is_used_as_any_other(form: Any, by_hand: Any, admitted: Any) -> None:
    limiter = rate_limit(1, "odd", algorithm=EveryOther, clock=by_hand)
    call = form(limiter, echo)
    assert [admitted(call)() for _ in range(4)] == [True, False, True, False]
    call()
    assert rejection(call).retry_after == 7.0


def test_an_algorithm_knows_its_rate(by_hand: Any) -> None:
    made: list[Rate] = []

    def make(rate: Rate) -> Algorithm:
        made.append(rate)
        return EveryOther(rate)

    rate_limit(5, per=2, burst=9, algorithm=make, clock=by_hand)
    assert set(made) == {Rate(5, 2 * SECOND, 9)}
