"""What is left of a recording when nothing more can go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel.testing import shrink_faults


def recording(calls: list[int]) -> dict[str, Any]:
    return {"version": 1, "seed": "0", "faults": [{"call": call, "error": 0} for call in calls]}


def needs(wanted: set[int]) -> Any:
    return lambda part: wanted <= {fault["call"] for fault in part["faults"]}


@given(st.lists(st.integers(1, 50), unique=True, min_size=1), st.data())
def test_exactly_what_matters_is_left(calls, data):
    wanted = set(data.draw(st.lists(st.sampled_from(calls), unique=True)))
    left = shrink_faults(recording(calls), needs(wanted))
    assert {fault["call"] for fault in left["faults"]} == wanted
    assert left["seed"] == "0"


@given(st.lists(st.integers(1, 50), unique=True, min_size=1), st.integers(1, 5))
def test_no_fault_that_is_left_can_go(calls, modulus):
    def fails(part: Any) -> bool:
        return sum(fault["call"] for fault in part["faults"]) % modulus == total % modulus

    total = sum(calls)
    left = shrink_faults(recording(calls), fails)
    assert fails(left)
    for place in range(len(left["faults"])):
        fewer = {**left, "faults": left["faults"][:place] + left["faults"][place + 1 :]}
        assert not fails(fewer)


def test_it_takes_few_replays_to_find_the_two_that_matter():
    replays = []

    def fails(part: Any) -> bool:
        replays.append(part)
        return bool(needs({137, 842})(part))

    assert len(shrink_faults(recording(list(range(1, 1001))), fails)["faults"]) == 2
    assert len(replays) < 100


def test_what_does_not_fail_cannot_be_shrunk():
    with pytest.raises(ValueError, match="it does not fail with the whole recording: there is nothing to shrink"):
        shrink_faults(recording([1]), lambda part: False)


def test_the_recording_itself_is_left_alone():
    whole = recording([1, 2, 3])
    shrink_faults(whole, needs({2}))
    assert whole == recording([1, 2, 3])
