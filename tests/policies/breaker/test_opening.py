"""What opens a circuit, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel import CircuitOpenError, NotRetryable, RejectedError, circuit_breaker
from everkeel.policies.circuit_breaker.config import CircuitBreakerConfig
from everkeel.policies.circuit_breaker.core import Closed, Open
from everkeel.testing import assert_state


class OutOfStockError(NotRetryable):
    """Not the warehouse's fault."""


class HttpError(Exception):
    """What a client raises, from what the network raised."""


# ------------------------------------------------------------------ by share


def test_it_opens_when_the_rate_is_reached(calls):
    breaker = circuit_breaker("payments", failure_rate=0.5, minimum_calls=4)
    payments = calls(breaker)
    assert payments.feed("ssff s") == "ssffx"
    assert_state(breaker, "open", failure_rate=0.5, window_calls=4)


def test_it_stays_closed_just_below_the_rate(calls):
    breaker = circuit_breaker("payments", failure_rate=0.5, minimum_calls=4, window=9)
    payments = calls(breaker)
    assert payments.feed("sssss ffff s") == "sssssffffs"
    assert_state(breaker, "closed")


def test_a_success_that_reaches_minimum_calls_opens(calls):
    breaker = circuit_breaker("payments", failure_rate=0.5, window=4, minimum_calls=4)
    payments = calls(breaker)
    payments.feed("sff")
    assert_state(breaker, "closed")
    payments.feed("s")
    assert_state(breaker, "open", failure_rate=0.5)


def test_nothing_opens_it_before_minimum_calls(calls):
    breaker = circuit_breaker("payments", failure_rate=0.1, minimum_calls=10)
    payments = calls(breaker)
    assert payments.feed("f" * 9) == "f" * 9
    assert_state(breaker, "closed", failure_rate=1.0)


def test_the_failure_that_reaches_minimum_calls_opens(calls):
    breaker = circuit_breaker("payments", minimum_calls=10)
    assert calls(breaker).feed("f" * 12) == "f" * 10 + "xx"


def test_by_default_half_of_ten_calls_open_it(calls):
    breaker = circuit_breaker("payments")
    assert calls(breaker).feed("sssss fffff s") == "sssss" + "fffff" + "x"


def test_a_window_of_one_opens_on_one_failure(calls):
    breaker = circuit_breaker("payments", window=1, minimum_calls=1)
    assert calls(breaker).feed("ssf s") == "ssfx"


def test_a_rate_of_one_needs_every_call_of_the_window_to_fail(calls):
    breaker = circuit_breaker("payments", failure_rate=1.0, window=3, minimum_calls=3)
    assert calls(breaker).feed("s ff s ff f s") == "sffsfffx"


def test_seven_of_twentyfive_are_a_rate_of_twentyeight_hundredths(calls):
    # 0.28 * 25 is 7.000000000000001: a rule that multiplies instead of dividing waits for the eighth failure.
    breaker = circuit_breaker("payments", failure_rate=0.28, window=25, minimum_calls=25)
    payments = calls(breaker)
    assert payments.feed("s" * 18 + "f" * 7 + "s") == "s" * 18 + "f" * 7 + "x"


@given(calls=st.integers(1, 200), hundredths=st.integers(1, 100), data=st.data())
def test_it_opens_exactly_when_failures_by_calls_is_at_least_the_rate(calls, hundredths, data):
    failures = data.draw(st.integers(0, calls))
    rate = data.draw(st.sampled_from([hundredths / 100, max(failures, 1) / calls]))
    rules = CircuitBreakerConfig(failure_rate=rate, window=calls, minimum_calls=calls)
    closed, last = Closed(rules, 0.0), None
    for _ in range(calls - failures):
        last = closed.success(rules, 0.0)
    for _ in range(failures):
        last = closed.failure(rules, 0.0)
    assert isinstance(last, Open) == (failures / calls >= rate)


# ------------------------------------------------------------------ in a row, and both


def test_so_many_failures_in_a_row_open_it(calls):
    breaker = circuit_breaker("payments", failure_rate=None, consecutive=3)
    assert calls(breaker).feed("ff s fff s") == "ffsfffx"


def test_without_a_rate_no_share_opens_it(calls):
    breaker = circuit_breaker("payments", failure_rate=None, consecutive=3)
    assert calls(breaker).feed("ffs" * 30) == "ffs" * 30
    assert_state(breaker, "closed")


def test_failures_in_a_row_do_not_wait_for_minimum_calls(calls):
    breaker = circuit_breaker("payments", consecutive=2, minimum_calls=10)
    assert calls(breaker).feed("ff s") == "ffx"


def test_with_both_rules_the_share_opens_it_too(calls):
    breaker = circuit_breaker("payments", consecutive=5, failure_rate=0.5, minimum_calls=4)
    assert calls(breaker).feed("sfsf s") == "sfsfx"


def test_failures_in_a_row_may_be_older_than_the_window_duration(calls, clock):
    breaker = circuit_breaker("payments", failure_rate=None, consecutive=2, window_duration=10)
    payments = calls(breaker)
    payments.feed("f")
    clock.advance(100)
    assert payments.feed("f s") == "fx"


def test_an_ignored_error_does_not_break_a_row_of_failures(calls):
    breaker = circuit_breaker("payments", failure_rate=None, consecutive=3, ignore=KeyError)
    assert calls(breaker).feed("f i f i f s") == "fifif" + "x"


# ------------------------------------------------------------------ slow


def slowly(payments, clock, script, seconds):
    return payments.feed(script, during=lambda: clock.advance(seconds))


def test_slow_calls_open_it(calls, clock):
    breaker = circuit_breaker("payments", slow_duration=2, slow_rate=0.5, minimum_calls=4)
    payments = calls(breaker)
    slowly(payments, clock, "s", 1.9)
    slowly(payments, clock, "ss", 2)
    assert payments.feed("s s") == "sx"
    assert_state(breaker, "open", success=4, failure=0)


def test_by_default_every_call_must_be_slow(calls, clock):
    breaker = circuit_breaker("payments", slow_duration=2, minimum_calls=3, window=3)
    payments = calls(breaker)
    slowly(payments, clock, "ss", 2)
    payments.feed("s")
    slowly(payments, clock, "ss", 3)
    assert_state(breaker, "closed", slow_rate=2 / 3)
    slowly(payments, clock, "s", 2)
    assert_state(breaker, "open")


def test_a_slow_failure_is_slow_as_well(calls, clock):
    breaker = circuit_breaker("payments", failure_rate=None, slow_duration=2, minimum_calls=2)
    slowly(calls(breaker), clock, "sf", 2)
    assert_state(breaker, "open")


def test_slow_calls_leave_the_window_like_any_other(calls, clock):
    breaker = circuit_breaker("payments", slow_duration=2, slow_rate=0.5, window=2, minimum_calls=2)
    payments = calls(breaker)
    payments.feed("ss")
    breaker.reconfigure(slow_rate=0.9)
    slowly(payments, clock, "s", 2)
    payments.feed("ss")
    assert_state(breaker, "closed", slow_rate=0.0)


def test_slow_calls_count_in_a_time_window_too(calls, clock):
    breaker = circuit_breaker("payments", slow_duration=1, slow_rate=0.5, window_duration=100, minimum_calls=4)
    payments = calls(breaker)
    payments.feed("ss")
    slowly(payments, clock, "ss", 1)
    assert_state(breaker, "open")


def test_the_error_says_that_calls_were_slow(calls, clock):
    breaker = circuit_breaker("payments", slow_duration=2, slow_rate=0.5, minimum_calls=4)
    payments = calls(breaker)
    payments.feed("ss")
    slowly(payments, clock, "ss", 2)
    error = payments.rejected()
    assert str(error) == "circuit 'payments' is open (50% of the last 4 calls were slow); next probe in 30.0 s"
    assert error.reason == "slow"


# ------------------------------------------------------------------ what counts as what


def test_results_that_on_result_names_are_failures(calls):
    breaker = circuit_breaker("payments", minimum_calls=2, on_result=lambda answer: answer == 503)
    payments = calls(breaker)
    assert [payments(200), payments(503)] == [200, 503]
    assert_state(breaker, "open", success=1, failure=1)


def test_a_result_is_judged_only_where_there_is_one(block):
    breaker = circuit_breaker("payments", minimum_calls=2, on_result=lambda answer: answer.status == 503)
    block(breaker).feed("sssss")
    assert_state(breaker, "closed", success=5, failure=0)


def test_the_end_of_a_stream_is_no_result(clock):
    breaker = circuit_breaker("pages", minimum_calls=2, on_result=lambda answer: answer is None)

    @breaker
    def pages():
        yield 1
        yield 2

    assert [list(pages()) for _ in range(3)] == [[1, 2]] * 3
    assert_state(breaker, "closed", success=3)


def test_a_predicate_on_results_that_raises_counts_as_a_failure(calls, caplog):
    breaker = circuit_breaker("payments", minimum_calls=2, on_result=lambda answer: answer.status)
    payments = calls(breaker)
    assert [payments("ok"), payments("ok")] == ["ok", "ok"]
    assert_state(breaker, "open")
    assert "a predicate raised; its call counts as a failure" in caplog.text


def test_an_ignored_error_is_no_evidence(calls):
    breaker = circuit_breaker("payments", ignore=KeyError, minimum_calls=2)
    assert calls(breaker).feed("iiiii") == "iiiii"
    assert_state(breaker, "closed", window_calls=0, success=0, failure=0, ignored=5)


def test_ignore_wins_over_on(calls):
    breaker = circuit_breaker("payments", on=(KeyError, ConnectionError), ignore=KeyError, minimum_calls=2)
    assert calls(breaker).feed("iii ff s") == "iiiffx"


def test_an_exception_that_on_does_not_name_is_a_sign_of_life(calls):
    breaker = circuit_breaker("payments", on=ConnectionError, failure_rate=0.5, minimum_calls=4)
    payments = calls(breaker)
    payments.feed("uuu f")
    assert_state(breaker, "closed", failure_rate=0.25, window_calls=4)


def test_a_sign_of_life_breaks_a_row_of_failures(calls):
    breaker = circuit_breaker("payments", on=ConnectionError, failure_rate=None, consecutive=2)
    assert calls(breaker).feed("f u f u f f s") == "fufuffx"


def test_every_call_is_counted_once(calls):
    breaker = circuit_breaker("payments", on=ConnectionError, ignore=KeyError, failure_rate=0.9)
    calls(breaker).feed("ss f uuu iiii c")
    assert_state(breaker, "closed", success=2 + 3, failure=1, ignored=4, rejected=0)


@pytest.mark.parametrize("error", [RejectedError("limiter", 1.0), CircuitOpenError("inner", 1.0, 0.5, 10)])
def test_a_rejection_by_another_policy_is_no_evidence(calls, error):
    breaker = circuit_breaker("payments", minimum_calls=2)
    payments = calls(breaker)
    for _ in range(5):
        with pytest.raises(RejectedError) as raised:
            payments(error)
        assert raised.value is error
    assert_state(breaker, "closed", window_calls=0, failure=0, ignored=5)


def test_a_business_error_is_no_evidence(calls):
    breaker = circuit_breaker("stock", minimum_calls=2)
    stock = calls(breaker)
    for _ in range(5):
        with pytest.raises(OutOfStockError):
            stock(OutOfStockError())
    assert_state(breaker, "closed", window_calls=0, failure=0, ignored=5)


@pytest.mark.parametrize(("named", "error"), [(RejectedError, RejectedError("x", None)), (OutOfStockError,) * 2])
def test_a_rejection_or_business_error_that_on_names_is_a_failure(calls, named, error):
    breaker = circuit_breaker("stock", minimum_calls=2, on=(ConnectionError, named))
    stock = calls(breaker)
    for _ in range(2):
        with pytest.raises(named):
            stock(error)
    assert_state(breaker, "open", failure=2)


def test_a_predicate_may_say_what_is_a_failure(calls):
    breaker = circuit_breaker("disk", minimum_calls=3, on=lambda error: getattr(error, "errno", 0) == 28)
    disk = calls(breaker)
    for number in (2, 28, 28):
        with pytest.raises(OSError):
            disk(OSError(number, "full"))
    assert_state(breaker, "open", failure=2, success=1)


def test_causes_are_looked_at_when_asked(calls):
    breaker = circuit_breaker("payments", minimum_calls=2, on=ConnectionError, causes=True)
    payments = calls(breaker)
    error = HttpError("no answer")
    error.__cause__ = ConnectionError("refused")
    for _ in range(2):
        with pytest.raises(HttpError):
            payments(error)
    assert_state(breaker, "open")


# ------------------------------------------------------------------ hooks of a stricter face


def test_ignored_errors_may_count_as_success(calls):
    breaker = circuit_breaker("payments", ignore=KeyError, ignored="success", failure_rate=0.5, minimum_calls=4)
    calls(breaker).feed("iii f")
    assert_state(breaker, "closed", failure_rate=0.25, window_calls=4, success=3, failure=1, ignored=0)


def test_rejections_may_count_as_failures(calls):
    breaker = circuit_breaker("payments", rejections="failure", minimum_calls=2)
    payments = calls(breaker)
    for error in (RejectedError("limiter", 1.0), OutOfStockError()):
        with pytest.raises(type(error)):
            payments(error)
    assert_state(breaker, "open", failure=2)


def test_a_rejection_is_no_success_where_ignored_errors_are(calls):
    breaker = circuit_breaker("payments", ignore=KeyError, ignored="success")
    payments = calls(breaker)
    for error in (RejectedError("limiter", 1.0), OutOfStockError()):
        with pytest.raises(type(error)):
            payments(error)
    assert_state(breaker, "closed", window_calls=0, success=0, ignored=2)
