"""How long a retry waits: backoffs, jitter, and what the error itself asks for."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from everkeel import ConfigError, Outcome, constant, events, exponential, fibonacci, linear, retry
from everkeel.runtime.backoff import as_backoff, jittered
from everkeel.testing import Flaky


class BusyError(Exception):
    """Somebody's error that says when to come back."""

    def __init__(self, retry_after: object) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


# ------------------------------------------------------------------ through a retry


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (0.5, [0.5, 0.5, 0.5]),
        (timedelta(milliseconds=250), [0.25, 0.25, 0.25]),
        (constant(2), [2.0, 2.0, 2.0]),
        (linear(1, 0.5), [1.0, 1.5, 2.0]),
        (exponential(0.2, max=0.5), [0.2, 0.4, 0.5]),
        (fibonacci(1), [1.0, 1.0, 2.0]),
        ([0.1, 1], [0.1, 1.0, 1.0]),
        (lambda attempt: attempt * 3, [3.0, 6.0, 9.0]),
        (lambda attempt, outcome: outcome.attempts + len(outcome.error.args), [2.0, 3.0, 4.0]),
    ],
    ids=["seconds", "timedelta", "constant", "linear", "exponential", "fibonacci", "sequence", "function", "outcome"],
)
def test_every_kind_of_backoff_is_waited_for(retried, backoff, delays):
    with pytest.raises(ConnectionError):
        retried(retry("fetch", attempts=4, backoff=backoff, jitter=None), Flaky(ConnectionError("refused")))()
    assert retried.clock.sleeps == delays


def test_the_default_is_full_jitter_on_doubling_from_a_fifth_of_a_second(retried):
    with pytest.raises(ConnectionError):
        retried(retry("fetch", attempts=4), Flaky(ConnectionError))()
    chance = Random(0).random
    assert retried.clock.sleeps == [0.2 * chance(), 0.4 * chance(), 0.8 * chance()]


def test_a_backoff_per_exception_class_is_asked_in_its_order(retried):
    policy = retry("fetch", attempts=4, backoff={ConnectionRefusedError: 5, OSError: [1, 2]}, jitter=None)
    with pytest.raises(OSError):
        retried(policy, Flaky(ConnectionRefusedError, OSError(), ConnectionRefusedError, OSError()))()
    assert retried.clock.sleeps == [5.0, 2.0, 5.0]


def test_an_error_that_the_table_does_not_name_waits_as_by_default(retried):
    with pytest.raises(KeyError):
        retried(retry("fetch", backoff={OSError: 9}, jitter=None), Flaky(KeyError("x")))()
    assert retried.clock.sleeps == [0.2, 0.4]


def test_no_sleep_is_called_when_the_delay_is_zero(retried):
    with pytest.raises(ConnectionError):
        retried(retry("fetch", attempts=9, backoff=0), Flaky(ConnectionError))()
    assert retried.clock.sleeps == []


def test_a_backoff_function_that_raises_ends_the_retry_with_the_original_error(retried, caplog):
    def backoff(attempt: int) -> float:
        raise RuntimeError("broken backoff")

    with pytest.raises(ConnectionError, match="refused"):
        retried(retry("fetch", backoff=backoff), Flaky(ConnectionError("refused")))()
    assert "the backoff function raised" in caplog.text


def test_a_backoff_function_that_returns_no_seconds_ends_the_retry_with_the_original_error(retried, caplog):
    with pytest.raises(ConnectionError):
        retried(retry("fetch", backoff=lambda attempt: "soon"), Flaky(ConnectionError))()
    assert "the backoff function returned 'soon'; it must return seconds" in caplog.text


def test_a_builtin_that_does_not_say_what_it_takes_gets_attempt_and_outcome(retried):
    class Doubling:
        __signature__ = "not one"

        def __call__(self, attempt: int, outcome: Outcome) -> float:
            return 2.0 * outcome.attempts

    retried(retry("fetch", backoff=Doubling(), jitter=None), Flaky(ConnectionError, ConnectionError, "answer"))()
    assert retried.clock.sleeps == [2.0, 4.0]


def test_a_backoff_function_below_zero_waits_not_at_all(retried):
    assert retried(retry("fetch", backoff=lambda attempt: -1, jitter=None), Flaky(ConnectionError, "answer"))()
    assert retried.clock.sleeps == []


@pytest.mark.parametrize("hint", [3, 3.0, timedelta(seconds=3)])
def test_the_errors_retry_after_is_waited_for(retried, hint):
    retried(retry("fetch", backoff=1, jitter=None), Flaky(BusyError(hint), "answer"))()
    assert retried.clock.sleeps == [3.0]


def test_a_retry_after_shorter_than_the_backoff_changes_nothing(retried):
    retried(retry("fetch", backoff=1, jitter=None), Flaky(BusyError(0.2), "answer"))()
    assert retried.clock.sleeps == [1.0]


def test_a_retry_after_is_waited_for_without_a_backoff_too(retried):
    retried(retry("fetch", backoff=0), Flaky(BusyError(0.2), "answer"))()
    assert retried.clock.sleeps == [0.2]


def test_a_retry_after_is_waited_for_once_and_not_after_the_next_error(retried):
    policy = retry("fetch", backoff=0)
    with pytest.raises(KeyError):
        retried(policy, Flaky(KeyError("id")))()  # now it knows that nothing but the number decides about these
    with pytest.raises(KeyError):
        retried(policy, Flaky(BusyError(3), KeyError("id")))()
    assert retried.clock.sleeps == [3.0]


@pytest.mark.parametrize("hint", [None, True, "soon", float("nan"), -5])
def test_a_retry_after_that_is_no_time_is_not_for_us(retried, hint):
    retried(retry("fetch", backoff=1, jitter=None), Flaky(BusyError(hint), "answer"))()
    assert retried.clock.sleeps == [1.0]


@pytest.mark.parametrize("hint", [60.1, float("inf")])
def test_asked_to_wait_longer_than_max_retry_after_it_gives_up_at_once(retried, heard, hint):
    fetch = Flaky(BusyError(hint))
    with pytest.raises(BusyError):
        retried(retry("fetch"), fetch)()
    assert (fetch.calls, retried.clock.sleeps) == (1, [])
    assert heard.of(events.RetryGaveUp)[0].reason == "retry_after"


def test_a_retry_after_of_exactly_the_maximum_is_obeyed(retried):
    retried(retry("fetch", max_retry_after=5), Flaky(BusyError(5), "answer"))()
    assert retried.clock.sleeps == [5.0]


class TouchyError(Exception):
    """Somebody's error that cannot say when to come back."""

    @property
    def retry_after(self) -> float:
        raise LookupError("no such header")


def test_a_retry_after_that_raises_does_not_replace_the_error(retried, caplog):
    call = retried(retry("fetch", backoff=0), Flaky(TouchyError))
    for _ in range(3):
        with pytest.raises(TouchyError):
            call()


# ------------------------------------------------------------------ the values themselves

lengths = st.floats(min_value=0, max_value=1e6)
attempts = st.integers(min_value=1, max_value=400)


@st.composite
def backoffs(draw):
    top = draw(st.none() | lengths)
    return draw(
        st.one_of(
            st.builds(constant, lengths),
            st.builds(linear, lengths, st.none() | lengths, max=st.just(top)),
            st.builds(exponential, lengths, factor=st.floats(min_value=1, max_value=5), max=st.just(top)),
            st.builds(fibonacci, lengths, max=st.just(top)),
            st.lists(lengths, min_size=1, max_size=5).map(as_backoff),
        )
    )


growing = st.one_of(
    st.builds(linear, lengths, st.none() | lengths, max=st.none() | lengths),
    st.builds(exponential, lengths, factor=st.floats(min_value=1, max_value=5), max=st.none() | lengths),
    st.builds(fibonacci, lengths, max=st.none() | lengths),
)


@given(backoffs(), attempts)
def test_a_delay_is_never_negative_and_never_above_its_ceiling(backoff, attempt):
    assert 0 <= backoff.delay(attempt) <= backoff.ceiling


@given(growing, attempts)
def test_a_growing_backoff_never_shrinks(backoff, attempt):
    assert backoff.delay(attempt) <= backoff.delay(attempt + 1)


@given(lengths, attempts)
def test_doubling_doubles(first, attempt):
    assume(attempt < 300)
    assert exponential(first, max=None).delay(attempt + 1) == 2 * exponential(first, max=None).delay(attempt)


@given(lengths, attempts)
def test_each_fibonacci_delay_is_the_sum_of_the_two_before(first, attempt):
    assume(attempt < 300)
    delay = fibonacci(first, max=None).delay
    assert delay(attempt + 2) == delay(attempt + 1) + delay(attempt)


def test_the_ten_thousandth_delay_is_its_ceiling_and_not_an_overflow():
    for backoff in (exponential(1, max=30), fibonacci(1, max=30), linear(1, max=30)):
        assert backoff.delay(10_000) == 30.0
    assert exponential(0, max=30).delay(10_000) == 0.0


@given(backoffs(), attempts, st.sampled_from(["full", "equal", 0.5, None]), st.integers())
def test_jitter_stays_in_its_bounds(backoff, attempt, jitter, seed):
    delay = backoff.delay(attempt)
    assume(delay < 1e300)
    waited = jittered(delay, backoff, jitter, 0.0, Random(seed).random)
    low, high = {
        "full": (0, delay),
        "equal": (delay / 2, delay),
        0.5: (delay, delay + 0.5),
        None: (delay, delay),
    }[jitter]
    assert low <= waited <= high


@given(backoffs(), st.integers())
def test_decorrelated_jitter_moves_between_the_first_delay_and_thrice_the_previous(backoff, seed):
    chance, previous = Random(seed).random, 0.0
    for attempt in range(1, 12):
        delay = backoff.delay(attempt)
        assume(delay < 1e300)
        waited = jittered(delay, backoff, "decorrelated", previous, chance)
        if delay == 0:
            assert waited == 0
            continue
        low = min(backoff.first or delay, backoff.ceiling)
        assert low <= waited <= backoff.ceiling
        assert waited <= max(low, 3 * (previous or low)) * (1 + 1e-12)
        previous = waited


def test_decorrelated_jitter_on_a_function_waits_at_least_what_it_says():
    backoff = as_backoff(lambda attempt: 2.0)
    assert 2.0 <= jittered(2.0, backoff, "decorrelated", 0.0, Random(1).random) <= 6.0


@given(st.lists(lengths, min_size=1), st.integers(min_value=1, max_value=50))
def test_the_last_delay_of_a_sequence_repeats(delays, attempt):
    assert as_backoff(delays).delay(attempt) == delays[min(attempt, len(delays)) - 1]


def test_a_backoff_of_a_backoff_is_itself():
    backoff = exponential(1)
    assert as_backoff(backoff) is backoff


def test_a_table_may_hold_every_kind_of_backoff():
    table = as_backoff({KeyError: [1, 2], OSError: lambda attempt: 7, ValueError: linear(3), Exception: {KeyError: 0}})
    errors = [KeyError(), OSError(), ValueError(), RuntimeError()]
    assert [table.delay(2, Outcome(error=error)) for error in errors] == [2.0, 7.0, 6.0, 0.4]


@pytest.mark.parametrize(
    ("backoff", "text"),
    [
        (constant(1), "constant(1.0)"),
        (linear(1, max=9), "linear(1.0, 1.0, max=9.0)"),
        (exponential(1, max=None), "exponential(1.0, factor=2.0, max=None)"),
        (fibonacci(1), "fibonacci(1.0, max=30.0)"),
        (as_backoff([1, 2]), "[1.0, 2.0]"),
        (as_backoff({OSError: 1}), "{OSError: constant(1.0)}"),
    ],
)
def test_a_backoff_shows_what_it_is(backoff, text):
    assert repr(backoff) == text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: constant(-1), "constant: delay must not be negative (got -1)"),
        (lambda: constant("1s"), "constant: delay must be seconds as a number, or a timedelta (got '1s')"),
        (lambda: linear(1, -1), "linear: step must not be negative (got -1)"),
        (lambda: linear(-1), "linear: first must not be negative (got -1)"),
        (lambda: linear(1, max=-1), "linear: max must not be negative (got -1)"),
        (lambda: exponential(True), "exponential: first must be seconds as a number, or a timedelta (got True)"),
        (lambda: exponential(1, factor=0.5), "exponential: factor must be a number of at least 1 (got 0.5)"),
        (lambda: linear(1, max=float("inf")), "linear: max must be seconds as a number, or a timedelta (got inf)"),
        (lambda: fibonacci(-1), "fibonacci: first must not be negative (got -1)"),
        (lambda: fibonacci(1, max="x"), "fibonacci: max must be seconds as a number, or a timedelta (got 'x')"),
    ],
)  # fmt: skip
def test_a_backoff_that_cannot_be_says_so_when_it_is_made(make, message):
    with pytest.raises(ConfigError) as raised:
        make()
    assert str(raised.value) == message
