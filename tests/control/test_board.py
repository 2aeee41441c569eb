"""The core of snapshots and live streams: told readings, it knows what changed since when, and how fast."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel.control.board import MOST_GONE, Board, less, plain

A, B = ("retry", "a"), ("retry", "b")


def reading(success: int = 0, **more):
    return {"success": success, "failure": 0, "ignored": 0, "rejected": 0, "would": {}, **more}


def test_who_did_not_change_is_not_news():
    board = Board()
    first = board.read([(A, 1, reading(1)), (B, 1, reading(1))], 0.0, 100.0)
    second = board.read([(A, 1, reading(1)), (B, 1, reading(5))], 1.0, 101.0)
    changed, gone = board.since(first)
    assert ([identity for identity, _ in changed], gone) == ([B], [])
    assert board.since(second) == ([], [])
    assert (board.rows[A].updated, board.rows[B].updated) == (100.0, 101.0)


def test_a_rate_is_calls_per_second_between_two_readings_and_goes_back_to_zero_once():
    board = Board()
    board.read([(A, 1, reading(10))], 0.0, 0.0)
    board.read([(A, 1, reading(30))], 2.0, 2.0)
    assert board.rows[A].rates["success"] == 10.0
    quiet = board.read([(A, 1, reading(30))], 3.0, 3.0)
    assert board.rows[A].rates["success"] == 0.0
    assert board.rows[A].updated == 2.0  # the numbers did not change then, only their rate
    assert board.read([(A, 1, reading(30))], 4.0, 4.0) == quiet


def test_two_readings_in_quick_succession_do_not_make_noise_of_a_rate():
    board = Board()
    board.read([(A, 1, reading(0))], 0.0, 0.0)
    board.read([(A, 1, reading(100))], 1.0, 1.0)
    board.read([(A, 1, reading(101))], 1.01, 1.01)
    assert board.rows[A].rates["success"] == 100.0
    board.read([(A, 1, reading(150))], 2.0, 2.0)
    assert board.rows[A].rates["success"] == 50.0


def test_a_counter_that_started_over_has_no_negative_rate():
    board = Board()
    board.read([(A, 1, reading(1000))], 0.0, 0.0)
    board.read([(A, 1, reading(4))], 1.0, 1.0)
    assert board.rows[A].rates["success"] == 4.0


def test_time_passing_is_no_news():
    board = Board()
    version = board.read([(A, 1, reading(time_in_state={"closed": 1.0}, retry_after=3.0))], 0.0, 0.0)
    board.read([(A, 1, reading(time_in_state={"closed": 2.0}, retry_after=2.0))], 1.0, 1.0)
    assert board.since(version) == ([], [])
    assert board.rows[A].numbers["retry_after"] == 2.0  # whoever asks gets it all the same


def test_what_is_gone_is_told_and_what_came_back_is_not():
    board = Board()
    version = board.read([(A, 1, reading()), (B, 1, reading())], 0.0, 0.0)
    board.read([(A, 1, reading())], 1.0, 1.0)
    assert board.since(version) == ([], [B])
    board.read([(A, 1, reading()), (B, 2, reading())], 2.0, 2.0)
    changed, gone = board.since(version)
    assert ([identity for identity, _ in changed], gone) == ([B], [])


def test_a_reader_who_missed_too_many_removals_or_is_of_another_process_takes_everything():
    board = Board()
    many = [(("retry", str(n)), 1, reading()) for n in range(MOST_GONE + 1)]
    version = board.read(many, 0.0, 0.0)
    board.read([], 1.0, 1.0)
    board.read([(A, 1, reading())], 2.0, 2.0)
    board.read([], 3.0, 3.0)
    assert board.since(version) is None
    assert board.since(board.version + 1) is None
    assert board.since(board.version) == ([], [])


def test_a_reset_lets_counters_begin_anew_and_leaves_the_rest():
    board = Board()
    raw = reading(7, running=3, gave_up={"attempts": 2}, state="open")
    board.reset(A, 1, raw)
    board.note(A, 1, reading(9, running=3, gave_up={"attempts": 2, "deadline": 1}, state="open"), 0.0, 0.0)
    numbers = board.rows[A].numbers
    assert (numbers["success"], numbers["running"], numbers["state"]) == (2, 3, "open")
    assert numbers["gave_up"] == {"attempts": 0, "deadline": 1}
    board.note(A, 2, reading(9), 1.0, 1.0)  # a successor of the same name
    assert board.rows[A].numbers["success"] == 9


COUNTS = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 3), max_size=4)


@given(st.lists(COUNTS, max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
@settings(max_examples=150)
def test_whoever_follows_the_changes_has_what_a_snapshot_has(rounds, looks):
    """However often it looks: applying the changes to what it has gives what everybody has who asks anew."""
    board, mine, version = Board(), {}, 0
    for second, (counts, look) in enumerate(zip(rounds, looks, strict=False)):
        board.read([(("retry", name), 1, reading(n)) for name, n in counts.items()], float(second), float(second))
        if look:
            news = board.since(version)
            assert news is not None
            changed, gone = news
            mine.update({identity: (row.numbers, row.rates) for identity, row in changed})
            for identity in gone:
                mine.pop(identity, None)
            version = board.version
            assert mine == {identity: (row.numbers, row.rates) for identity, row in board.rows.items()}


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
READINGS = st.recursive(
    LEAVES, lambda one: st.lists(one) | st.dictionaries(st.integers() | st.text(), one), max_leaves=5
)


@given(READINGS)
def test_every_reading_is_json(value):
    import json

    json.dumps(plain(value), allow_nan=False)


def test_less_than_nothing_is_what_there_is():
    assert less({"success": 3}, {"success": 5}) == {"success": 3}
