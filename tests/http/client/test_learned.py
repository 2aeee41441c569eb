"""What is left before a server's limit, counted down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everkeel.http.client.learned import Countdown, LearnedLimit
from everkeel.http.hints import ServerHints

HERE = ("https", "a.test", 443)


def test_the_last_one_closes_until_the_reset():
    count = Countdown(2, reset_at=10.0)
    assert count.sent(1.0) is None
    assert count.sent(2.0) == 8.0


def test_an_answer_that_does_not_know_what_is_under_way_does_not_raise_the_count():
    count = Countdown(3, reset_at=10.0)
    count.sent(0.0)
    count.sent(0.0)
    count.heard(2, 10.2, now=0.5)
    assert count.left == 1


def test_a_new_window_begins_anew():
    count = Countdown(0, reset_at=10.0)
    count.heard(100, 70.0, now=9.9)
    assert count.left == 100


def test_after_the_reset_nothing_is_known_until_somebody_says():
    count = Countdown(0, reset_at=10.0)
    assert count.sent(10.0) is None
    assert count.sent(11.0) is None


@given(
    limit=st.integers(1, 20),
    events=st.lists(st.tuples(st.sampled_from(["send", "answer"]), st.floats(0, 1)), max_size=80),
)
def test_no_more_are_sent_than_an_honest_server_takes_however_late_it_answers(limit, events):
    now, taken, closed = 0.0, 1, limit == 1
    under_way: list[int] = []
    count = Countdown(limit - 1, reset_at=10.0)  # what the answer to the first one said
    for what, seconds in events:
        now = min(9.9, now + seconds)
        if what == "answer" and under_way:
            remaining = under_way.pop(0)
            count.heard(remaining, 10.0, now)
            closed = closed or remaining == 0
        elif what == "send" and not closed:
            taken += 1
            assert taken <= limit
            under_way.append(limit - taken)
            closed = count.sent(now) is not None


def test_origins_are_bounded():
    learned = LearnedLimit(None, {}, longest=60, most=2, mode="enforce", clock=None)
    for port in range(5):
        learned.heard(("https", "a.test", port), ServerHints(remaining=5, reset_after=10))
    assert len(learned._said) == 2


def test_without_a_reset_nothing_is_learned():
    learned = LearnedLimit(None, {}, longest=60, most=2, mode="enforce", clock=None)
    learned.heard(HERE, ServerHints(remaining=0))
    assert learned.policy.try_acquire(key=HERE)
