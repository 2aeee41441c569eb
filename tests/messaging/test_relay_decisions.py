"""What becomes of a batch, decided purely: every row goes to one place, and nothing of a key overtakes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel.engines.rows import Claimed, Lease, OutboxRow
from everkeel.messaging.relay.core import TopicHealth, judge
from everkeel.messaging.transports.protocol import CONFIRMED, FATAL, RETRYABLE, UNKNOWN, Published

ANSWERS = st.builds(
    Published,
    st.sampled_from([CONFIRMED, RETRYABLE, FATAL, UNKNOWN]),
    st.just(ValueError("no")),
    st.booleans(),
)
BATCHES = st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(0, 6), ANSWERS), max_size=12)


def claimed(place: int, key: str | None, failures: int) -> Claimed:
    row = OutboxRow(str(place), "/s", "t", "topic", key, "{}", None)
    return Claimed(row, Lease(place, "token", 1), failures, 0.0)


@settings(max_examples=300)
@given(BATCHES, st.none() | st.integers(1, 5))
def test_every_row_goes_to_exactly_one_place(batch, attempts):
    rows = [claimed(place, key, failures) for place, (key, failures, _) in enumerate(batch)]
    answers = [answer for _, _, answer in batch]
    verdict = judge(rows, answers, attempts, lambda failures: float(failures))
    places = [
        *verdict.delivered,
        *verdict.released,
        *(row for row, _ in verdict.away),
        *(row for row, _, _ in verdict.retried),
        *(row for row, _, _ in verdict.buried),
    ]
    assert sorted(row.lease.seq for row in places) == list(range(len(batch)))


@settings(max_examples=300)
@given(BATCHES, st.none() | st.integers(1, 5))
def test_a_key_has_one_failure_at_most_and_the_rest_behind_it_is_given_back(batch, attempts):
    rows = [claimed(place, key, failures) for place, (key, failures, _) in enumerate(batch)]
    verdict = judge(rows, [answer for _, _, answer in batch], attempts, lambda failures: 1.0)
    counted = [row.row.key for row, _, _ in (*verdict.retried, *verdict.buried) if row.row.key]
    assert len(counted) == len(set(counted))


@settings(max_examples=300)
@given(BATCHES, st.none() | st.integers(1, 5))
def test_only_a_counted_failure_makes_a_dead_letter(batch, attempts):
    rows = [claimed(place, key, failures) for place, (key, failures, _) in enumerate(batch)]
    answers = [answer for _, _, answer in batch]
    verdict = judge(rows, answers, attempts, lambda failures: 1.0)
    for row, reason, _ in verdict.buried:
        answer = answers[row.lease.seq]
        assert not answer.outage
        if reason == "attempts":
            assert attempts is not None
            assert row.failures + 1 >= attempts
            assert answer.result is RETRYABLE
        else:
            assert answer.result is FATAL
    away = any(answer.outage or answer.result is UNKNOWN for answer in answers if answer.result is not CONFIRMED)
    assert not verdict.out or away


@given(st.integers(1, 200))
def test_after_an_outage_a_topic_begins_with_one_and_comes_back_to_full_batches(most):
    health = TopicHealth()
    health.fell(now=100.0, delay=5.0)
    assert health.closed(104.9, 2)
    assert not health.closed(105.0, 2)
    windows = []
    while health.window is not None:
        windows.append(health.window)
        health.worked(most)
    assert windows == [2**n for n in range(len(windows))]
    assert windows[-1] * 2 >= most
    assert health.outages == 0
