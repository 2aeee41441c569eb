"""The header vocabulary: what is written is read back, and what somebody else wrote never raises."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everkeel.http import headers as h
from everkeel.http.hints import (
    NOTHING,
    RequestHints,
    ServerHints,
    read_request,
    read_response,
    write_request,
    write_response,
)
from everkeel.http.structured import Item, parse_dictionary, parse_list, parse_string, write_string

printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))
junk = st.text() | printable | st.binary().map(lambda raw: raw.decode("latin-1"))
names = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=20)
seconds = st.floats(0, 1e8)

READERS = [
    lambda text: h.read_retry_after(text, now=0.0, date=text),
    h.read_retry_after_ms,
    h.read_rate_limit,
    h.read_rate_limit_policy,
    h.read_backpressure,
    h.read_timeout_ms,
    h.read_attempt,
    h.read_priority,
    h.read_idempotency_key,
    h.read_traceparent,
    h.read_date,
    parse_list,
    parse_dictionary,
    parse_string,
]

# ---------------------------------------------------------------------- what others wrote


@given(text=junk)
@example(text='"a";r=' + "9" * 400)
@example(text="9" * 5000)
@example(text="\u0663")  # a digit, to Python
@example(text="Mon, 31 Feb 2026 25:61:61 GMT")
@example(text='"\\')
@example(text="a" * 100_000)
def test_nothing_that_a_peer_can_send_raises(text):
    for reader in READERS:
        reader(text)
    everywhere = lambda name: text  # noqa: E731
    read_request(everywhere)
    read_response(everywhere, now=0.0)


@given(text=junk, now=st.floats(-1e12, 1e12))
def test_waits_are_never_negative_infinite_or_no_number(text, now):
    hints = read_response(lambda name: text, now=now)
    for wait in (hints.retry_after, hints.reset_after, hints.window, read_request(lambda name: text).timeout):
        assert wait is None or (0 <= wait <= 1e15 and math.isfinite(wait))
    assert hints.backpressure is None or 0 <= hints.backpressure <= 1
    assert hints.remaining is None or hints.remaining >= 0


def test_nothing_said_is_nothing():
    assert read_response(lambda name: None, now=0.0) is NOTHING
    assert read_request(lambda name: None) == RequestHints()


# ---------------------------------------------------------------------- round trips


@given(wait=seconds)
def test_a_wait_is_read_back_and_never_shorter(wait):
    assert wait <= h.read_retry_after(h.write_retry_after(wait), now=0) < wait + 1.0001
    assert wait - 1e-6 <= h.read_retry_after_ms(h.write_retry_after_ms(wait)) <= wait + 0.0011


@given(left=seconds)
def test_a_remaining_time_is_read_back_and_never_longer(left):
    assert left - 0.0011 <= h.read_timeout_ms(h.write_timeout_ms(left)) <= left + 1e-6


@given(
    limits=st.lists(
        st.builds(h.Limit, names, st.integers(0, 10**14), st.none() | st.integers(0, 10**8).map(float)), min_size=1
    )
)
def test_limits_are_read_back(limits):
    written = h.write_rate_limit(*limits)
    if len(written) < 8000:
        assert h.read_rate_limit(written) == tuple(limits)


@given(
    quotas=st.lists(
        st.builds(h.Quota, names, st.integers(0, 10**14), st.none() | st.integers(1, 10**8).map(float)), min_size=1
    )
)
def test_quotas_are_read_back(quotas):
    written = h.write_rate_limit_policy(*quotas)
    if len(written) < 8000:
        assert h.read_rate_limit_policy(written) == tuple(quotas)


@given(share=st.floats(0, 1))
def test_pressure_is_read_back(share):
    assert h.read_backpressure(h.write_backpressure(share)) == pytest.approx(share, abs=0.0005)


@given(key=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255))
def test_an_idempotency_key_is_read_back(key):
    assert h.read_idempotency_key(h.write_idempotency_key(key)) == key


@given(text=printable)
def test_a_string_is_read_back(text):
    assert parse_string(write_string(text)) == text


@given(
    hints=st.builds(
        RequestHints,
        timeout=st.none() | st.integers(0, 10**9).map(lambda ms: ms / 1000),
        attempt=st.none() | st.integers(1, 1_000_000),
        priority=st.none() | st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True),
        idempotency_key=st.none() | names,
    )
)
def test_what_a_request_says_is_read_back(hints):
    assert read_request(h.lookup_in(write_request(hints))) == hints


@given(
    remaining=st.integers(0, 10**9),
    reset=st.integers(0, 10**6).map(float),
    limit=st.integers(1, 10**9),
    window=st.integers(1, 10**6).map(float),
    older=st.booleans(),
)
def test_what_a_response_says_is_read_back(remaining, reset, limit, window, older):
    hints = ServerHints(
        retry_after=reset, remaining=remaining, reset_after=reset, limit=limit, window=window, name="default"
    )
    assert read_response(h.lookup_in(write_response(hints, older=older)), now=0.0) == hints


# ---------------------------------------------------------------------- by the letter


@pytest.mark.parametrize(
    ("value", "date", "wait"),
    [
        ("0", None, 0.0),
        (" 120 ", None, 120.0),
        ("1.5", None, 1.5),  # not by the standard, but sent
        ("99999999999999999999", None, h.MOST_SECONDS),
        ("Thu, 01 Jan 1970 00:02:00 GMT", None, 20.0),
        ("Thu, 01 Jan 1970 00:01:00 GMT", None, 0.0),
        ("Thursday, 01-Jan-70 00:02:00 GMT", None, 20.0),
        ("Thu Jan  1 00:02:00 1970", None, 20.0),
        ("Thu, 01 Jan 1970 00:02:00 GMT", "Thu, 01 Jan 1970 00:01:55 GMT", 5.0),
        ("Thu, 01 Jan 1970 00:02:00 GMT", "no date", 20.0),
        ("-1", None, None),
        ("+1", None, None),
        ("1e3", None, None),
        ("tomorrow", None, None),
        ("", None, None),
    ],
)
def test_retry_after_by_the_letter(value, date, wait):
    assert h.read_retry_after(value, now=100.0, date=date) == wait


def test_milliseconds_win_over_seconds():
    get = h.lookup_in({"Retry-After": "2", "X-RateLimit-Retry-After-Ms": "1250"})
    assert read_response(get, now=0).retry_after == 1.25


def test_broken_milliseconds_leave_the_seconds():
    get = h.lookup_in({"Retry-After": "2", "X-RateLimit-Retry-After-Ms": "soon"})
    assert read_response(get, now=0).retry_after == 2.0


def test_of_several_limits_the_tightest_counts():
    get = h.lookup_in(
        {
            "RateLimit": '"burst";r=50;t=3, "daily";r=2;t=3600',
            "RateLimit-Policy": '"burst";q=100;w=60, "daily";q=9;w=86400',
        }
    )
    said = read_response(get, now=0)
    assert (said.name, said.remaining, said.reset_after, said.limit, said.window) == ("daily", 2, 3600.0, 9, 86400.0)


@pytest.mark.parametrize("prefix", ["", "X-"])
def test_the_older_three_are_understood(prefix):
    get = h.lookup_in(
        {
            f"{prefix}RateLimit-Limit": "100, 100;w=60",
            f"{prefix}RateLimit-Remaining": "7",
            f"{prefix}RateLimit-Reset": "30",
        }
    )
    said = read_response(get, now=0)
    assert (said.limit, said.remaining, said.reset_after) == (100, 7, 30.0)


def test_a_reset_that_is_a_moment_is_measured_by_the_servers_clock():
    get = h.lookup_in(
        {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1445412490", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    )
    assert read_response(get, now=0).reset_after == 10.0


def test_the_one_field_of_draft_seven_is_understood():
    said = read_response(h.lookup_in({"RateLimit": "limit=100, remaining=50, reset=30"}), now=0)
    assert (said.limit, said.remaining, said.reset_after) == (100, 50, 30.0)


@pytest.mark.parametrize(
    "text",
    [
        '"a";r=5,',
        ',"a";r=5',
        '"a" "b"',
        '"a";R=5',
        '"a;r=5',
        "1.2345",
        "1234567890123456",
        '"\u00e4"',
        "(1 2)",
        ":not base64!:",
        "?2",
        "@1.5",
        '"a";;r=1',
    ],
)
def test_a_malformed_list_is_none_at_all(text):
    assert parse_list(text) is None


def test_a_list_by_the_letter():
    assert parse_list('"a\\"b";x;y=?0;z=:YQ==:, tok/en;q=1.5 ,\t-7, @17, *') == (
        Item('a"b', {"x": True, "y": False, "z": "YQ=="}),
        Item("tok/en", {"q": 1.5}),
        Item(-7, {}),
        Item(17, {}),
        Item("*", {}),
    )
    assert parse_list("") == ()
    assert parse_dictionary("a, b=1;x=2, c=?0") == {"a": True, "b": 1, "c": False}
    assert parse_dictionary("a=, b") is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('"k-1"', "k-1"),
        ("k-1", "k-1"),
        ('"a b"', "a b"),
        ("a b", None),
        ('"a', None),
        ('""', None),
        ("", None),
        ("k" * 256, None),
        ("caf\u00e9", None),
        ('"a", "b"', None),
    ],
)
def test_idempotency_keys_by_the_letter(text, key):
    assert h.read_idempotency_key(text) == key


@pytest.mark.parametrize(
    ("write", "value"),
    [
        (h.write_retry_after, -1),
        (h.write_retry_after, math.nan),
        (h.write_retry_after_ms, math.inf),
        (h.write_backpressure, 1.1),
        (h.write_attempt, 0),
        (h.write_priority, "a b"),
        (h.write_priority, ""),
        (h.write_idempotency_key, ""),
        (h.write_idempotency_key, "k" * 256),
        (h.write_idempotency_key, "line\nbreak"),
        (h.write_rate_limit, h.Limit("a", -1)),
        (h.write_rate_limit_policy, h.Quota("\u00e4", 1)),
    ],
)
def test_what_must_not_be_sent_is_refused(write, value):
    with pytest.raises(ValueError):
        write(value)


def test_a_traceparent_has_its_form():
    good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert h.read_traceparent(good) == good
    assert h.read_traceparent("00-zz") is None


def test_dates_are_written_as_http_has_them():
    assert h.read_date(h.write_date(1_700_000_000)) == 1_700_000_000.0
