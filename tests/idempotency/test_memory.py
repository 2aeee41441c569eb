"""The memory store: bounded, never forgetful about what matters, safe under threads."""

from __future__ import annotations

import threading

import pytest

from everkeel.errors import ConfigError, IdempotencyFullError
from everkeel.idempotency import Duplicate, Fresh, InProgress, MemoryIdempotencyStore, MemoryRecords, State
from everkeel.testing import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


def test_at_the_cap_completed_and_running_work_is_never_dropped_and_the_refusal_says_when_to_come_back(clock):
    store = MemoryRecords(max_records=2, clock=clock)
    store.complete(store.begin("s", "done", retain=100).token)
    store.begin("s", "running", lease=10, retain=100)
    with pytest.raises(IdempotencyFullError, match="is full \\(2 records") as refused:
        store.begin("s", "new")
    assert 0 < refused.value.retry_after <= 110
    assert store.begin("s", "done") == Duplicate(None)
    assert isinstance(store.begin("s", "running"), InProgress)
    clock.advance(refused.value.retry_after)
    assert isinstance(store.begin("s", "new"), Fresh)


def test_at_the_cap_failed_work_goes_first_the_oldest_before_the_others(clock):
    store = MemoryRecords(max_records=3, clock=clock)
    for key in ("old", "young"):
        store.fail(store.begin("s", key).token)
    store.complete(store.begin("s", "done").token)
    assert isinstance(store.begin("s", "new"), Fresh)
    assert store.get("s", "old") is None
    assert store.get("s", "young").state is State.FAILED
    assert store.begin("s", "done") == Duplicate(None)


def test_at_the_cap_what_is_over_its_time_goes_before_what_failed(clock):
    store = MemoryRecords(max_records=2, clock=clock)
    store.complete(store.begin("s", "over", retain=5).token)
    store.fail(store.begin("s", "failed", retain=100).token)
    clock.advance(5)
    store.begin("s", "new")
    assert store.get("s", "failed") is not None


def test_records_over_their_time_are_swept_while_others_come(clock):
    store = MemoryRecords(clock=clock)
    for number in range(500):
        store.complete(store.begin("s", str(number), retain=10).token)
    clock.advance(60)
    for number in range(100):
        store.begin("other", str(number))
    assert len(store) == 100


def test_churn_at_the_cap_keeps_the_books_small(clock):
    store = MemoryRecords(max_records=10, clock=clock)
    for number in range(2000):
        store.fail(store.begin("s", str(number)).token)
    assert len(store) == 10
    assert len(store._due) < 200


def test_purge_is_bounded_and_leaves_what_still_counts(clock):
    store = MemoryRecords(clock=clock)
    for number in range(20):
        store.complete(store.begin("s", str(number), retain=10 if number < 15 else 1000).token)
    clock.advance(70)
    assert [store.purge(10), store.purge(10), store.purge(10)] == [10, 5, 0]
    assert store.stats().completed == 5


def test_stats_count_what_still_counts_by_scope(clock):
    store = MemoryRecords(clock=clock)
    store.begin("a", "1")
    store.complete(store.begin("a", "2").token)
    store.fail(store.begin("b", "3").token)
    assert (store.stats("a").in_progress, store.stats("a").completed, store.stats("a").failed) == (1, 1, 0)
    assert store.stats().failed == 1


def test_forget_lets_a_key_run_again_only_from_the_state_that_was_expected(clock):
    store = MemoryRecords(clock=clock)
    store.complete(store.begin("s", "k").token)
    assert not store.forget("s", "k", expect=State.FAILED)
    assert store.forget("s", "k", expect=State.COMPLETED)
    assert not store.forget("s", "k")
    assert isinstance(store.begin("s", "k"), Fresh)


def test_of_thirtytwo_threads_exactly_one_is_fresh():
    store, barrier, answers = MemoryRecords(), threading.Barrier(32), []

    def begin():
        barrier.wait()
        answers.append(store.begin("s", "k"))

    threads = [threading.Thread(target=begin) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(answer.fresh for answer in answers) == 1
    assert sum(isinstance(answer, InProgress) for answer in answers) == 31


async def test_both_faces_are_one_store(virtual_time):
    store = MemoryIdempotencyStore()
    fresh = await store.begin("s", "k")
    assert isinstance(store.sync.begin("s", "k"), InProgress)
    assert await store.extend(fresh.token, 100)
    assert await store.complete(fresh.token, b"kept")
    assert store.sync.begin("s", "k") == Duplicate(b"kept")
    assert (await store.stats()).completed == 1
    assert (await store.get("s", "k")).result == b"kept"
    assert await store.forget("s", "k")
    assert await store.purge() == 0
    assert len(store) == 0


async def test_a_transaction_is_refused_where_there_are_none(virtual_time):
    with pytest.raises(TypeError, match="has no transactions"):
        await MemoryIdempotencyStore().begin("s", "k", tx=object())


def test_a_result_that_is_not_bytes_is_refused_and_the_claim_stays(clock):
    store = MemoryRecords(clock=clock)
    token = store.begin("s", "k").token
    with pytest.raises(TypeError, match="must be bytes or None, not str"):
        store.complete(token, "text")
    assert store.complete(token, b"bytes")


def test_a_store_without_room_for_anything_is_refused():
    with pytest.raises(ConfigError, match="max_records must be a whole number of at least 1"):
        MemoryRecords(max_records=0)
