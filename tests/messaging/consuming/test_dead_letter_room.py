"""How many dead letters fit: decided without counting each time, and never more than may be kept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel.messaging.dead_letters.room import COUNT_AGAIN, FULL_FOR, Room


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 500), st.lists(st.sampled_from(["write", "write", "write", "delete", "wait"]), max_size=700))
def test_one_process_never_keeps_more_than_may_be_and_counts_seldom_where_there_is_much_room(most, acts):
    room, now, kept, counts, writes = Room(most), 0.0, 0, 0, 0
    for act in acts:
        if act == "wait":
            now += 1.0
        elif act == "delete":
            kept = max(0, kept - 1)
        elif not room.takes("billing", now):
            counts += 1
            if kept < most:
                room.counted("billing", kept, now)
                kept, writes = kept + 1, writes + 1
            else:
                room.filled("billing", now)
        else:
            kept, writes = kept + 1, writes + 1
        assert kept <= most
    if most >= 400 and writes < 200 and "wait" not in acts:
        assert counts <= 1 + writes // 20


def test_a_count_is_trusted_for_a_while_and_consumers_have_rooms_of_their_own():
    room = Room(1000)
    room.counted("billing", 0, 0.0)
    assert room.takes("billing", COUNT_AGAIN - 0.1)
    assert not room.takes("billing", COUNT_AGAIN)
    assert not room.takes("shipping", 0.0)


def test_that_there_is_no_room_is_believed_for_a_moment():
    room = Room(1)
    room.filled("billing", 0.0)
    assert room.is_full("billing", FULL_FOR - 0.1)
    assert not room.is_full("shipping", 0.0)
    assert not room.is_full("billing", FULL_FOR)
    room.filled("billing", 5.0)
    room.counted("billing", 0, 5.0)
    assert not room.is_full("billing", 5.0)


def test_a_hundredth_makes_way_at_once_but_never_none_and_never_too_many():
    assert [Room(most).step for most in (1, 100, 5_000, 10_000_000)] == [1, 1, 50, 1000]
