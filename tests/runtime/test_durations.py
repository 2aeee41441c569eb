"""Lengths of time as people write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel.runtime.durations import PATTERN, as_seconds, schema


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5), ("2s", 2.0), ("1m", 60.0), ("1h", 3600.0), ("1d", 86400.0), ("250us", 0.00025),
        ("1.5s", 1.5), ("1h30m", 5400.0), ("2 s", 2.0), ("30", 30.0), ("0s", 0.0), ("1.1ms", 0.0011),
        ("PT1.5S", 1.5), ("PT1H30M", 5400.0), ("P1D", 86400.0), ("P1W", 604800.0), ("P1DT1S", 86401.0), ("PT0S", 0.0),
        (2, 2.0), (0.25, 0.25), (0, 0.0),
    ],
)  # fmt: skip
def test_what_is_a_duration(text: object, seconds: float) -> None:
    assert as_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "s", "5x", "-1s", "1s2", "PT", "P", "P1DT", "P1", "PT1X", "pt1s", "1 hour", "1,5s", "0x10", "1e3s", "5S",
     True, None, [], {}, float("inf"), float("nan"), 10**400, "9" * 400 + "h"],
)  # fmt: skip
def test_what_is_none(text: object) -> None:
    with pytest.raises(ValueError, match="must be a duration such as 500ms"):
        as_seconds(text)


@given(st.from_regex(PATTERN))
def test_what_the_schema_takes_is_read(text: str) -> None:
    assert as_seconds(text) >= 0


@given(st.from_regex(PATTERN))
def test_the_schema_knows_no_time_from_some_time(text: str) -> None:
    pattern = schema(zero=False)["anyOf"][1]["pattern"]
    length = as_seconds(text)
    assert bool(re.search(pattern, text)) == (length > 0) or 0 < length < 1e-300
