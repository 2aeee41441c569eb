"""The pure core against a slow and obvious model, and each of its rules by name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel.errors import ConfigError
from everkeel.idempotency import Duplicate, Fresh, InProgress, Mismatch, Record, State, Token, core


def ask(record, now=0.0, *, nonce="n", fingerprint=None, epoch=0, lease=10.0, retain=100.0):
    wanted = core.request("s", "k", fingerprint=fingerprint, lease=lease, retain=retain, epoch=epoch, nonce=nonce)
    return core.begin(record, wanted, now)


def claimed(now=0.0, **options) -> tuple[Token, Record]:
    answer, record = ask(None, now, **options)
    assert isinstance(answer, Fresh)
    assert record is not None
    return answer.token, record


def test_the_first_is_fresh_and_the_second_waits_for_the_lease():
    _, record = claimed()
    assert ask(record, 4.0)[0] == InProgress(6.0)


def test_a_crash_frees_the_key_when_the_lease_ends_and_counts_as_a_try():
    _, record = claimed()
    answer, after = ask(record, 10.0, nonce="second")
    assert isinstance(answer, Fresh)
    assert (answer.attempt, answer.token.fence, after.attempts) == (2, 2, 2)


def test_a_failure_frees_the_key_at_once():
    token, record = claimed()
    answer, _ = ask(core.fail(record, token, 1.0), 1.0)
    assert isinstance(answer, Fresh)
    assert answer.attempt == 2


def test_a_refunded_failure_is_not_counted():
    token, record = claimed()
    answer, _ = ask(core.fail(record, token, 1.0, refund=True), 1.0)
    assert isinstance(answer, Fresh)
    assert (answer.attempt, answer.token.fence) == (1, 2)


def test_completed_suppresses_with_its_result_until_it_is_forgotten():
    token, record = claimed()
    done = core.complete(record, token, b"42", 5.0)
    assert ask(done, 104.9)[0] == Duplicate(b"42")
    assert isinstance(ask(done, 105.0)[0], Fresh)


@pytest.mark.parametrize("end", [core.complete, lambda *a: core.fail(a[0], a[1], a[3])], ids=["complete", "fail"])
def test_who_lost_the_claim_changes_nothing(end):
    token, record = claimed()
    _, taken = ask(record, 10.0, nonce="second")
    assert end(taken, token, None, 11.0) is None
    assert core.extend(taken, token, 10.0, 11.0) is None


def test_a_lease_that_is_over_still_holds_while_nobody_has_taken_the_key():
    token, record = claimed()
    assert core.complete(record, token, None, 50.0).state is State.COMPLETED


def test_what_is_completed_cannot_be_failed_or_completed_again():
    token, record = claimed()
    done = core.complete(record, token, b"first", 1.0)
    assert core.fail(done, token, 2.0) is None
    assert core.complete(done, token, b"second", 2.0) is None


@pytest.mark.parametrize("ended", ["in_progress", "failed", "completed", "lapsed"])
def test_another_payload_under_the_same_key_is_a_mismatch_whatever_became_of_the_first(ended):
    token, record = claimed(fingerprint=b"a")
    if ended == "failed":
        record = core.fail(record, token, 1.0)
    elif ended == "completed":
        record = core.complete(record, token, None, 1.0)
    assert ask(record, 20.0 if ended == "lapsed" else 2.0, fingerprint=b"b")[0] == Mismatch()


def test_a_payload_that_is_not_known_is_no_mismatch():
    token, record = claimed(fingerprint=None)
    assert ask(core.complete(record, token, None, 1.0), 2.0, fingerprint=b"b")[0] == Duplicate(None)


def test_a_replay_of_failed_work_runs_also_edited_and_counts_its_tries_from_one():
    token, record = claimed(fingerprint=b"a")
    answer, after = ask(core.fail(record, token, 1.0), 2.0, fingerprint=b"edited", epoch=1)
    assert isinstance(answer, Fresh)
    assert (answer.attempt, after.epoch, after.fingerprint) == (1, 1, b"edited")


def test_a_replay_of_completed_work_is_refused():
    token, record = claimed(fingerprint=b"a")
    done = core.complete(record, token, b"r", 1.0)
    assert ask(done, 2.0, fingerprint=b"a", epoch=3)[0] == Duplicate(b"r")
    assert ask(done, 2.0, fingerprint=b"edited", epoch=3)[0] == Mismatch()


def test_a_replay_waits_for_work_that_is_in_progress():
    _, record = claimed(fingerprint=b"a")
    assert ask(record, 2.0, fingerprint=b"edited", epoch=1)[0] == InProgress(8.0)


def test_a_late_copy_of_what_was_replayed_does_not_turn_the_epoch_back():
    token, record = claimed()
    replayed = core.fail(*reversed(claimed_again(core.fail(record, token, 1.0), epoch=2)), 3.0)
    answer, after = ask(replayed, 4.0, epoch=0)
    assert isinstance(answer, Fresh)
    assert (after.epoch, answer.attempt) == (2, 2)


@pytest.mark.parametrize("ended", ["in_progress", "failed", "completed"])
def test_a_late_copy_of_what_was_edited_since_is_no_mismatch(ended):
    token, record = claimed(fingerprint=b"a")
    token, record = claimed_again(core.fail(record, token, 1.0), fingerprint=b"edited", epoch=1)
    if ended == "failed":
        record = core.fail(record, token, 3.0)
    elif ended == "completed":
        record = core.complete(record, token, b"r", 3.0)
    assert ask(record, 4.0, fingerprint=b"a")[0] == Duplicate(b"r" if ended == "completed" else None)


def claimed_again(record, **options):
    answer, after = ask(record, 2.0, **options)
    assert isinstance(answer, Fresh)
    return answer.token, after


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"scope": ""}, "scope"),
        ({"key": ""}, "key"),
        ({"key": 7}, "key"),
        ({"key": "a\0b"}, "key"),
        ({"fingerprint": "text"}, "fingerprint"),
        ({"lease": 0}, "lease"),
        ({"retain": -1}, "retain"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": True}, "epoch"),
    ],
)
def test_a_wrong_question_is_refused_by_name(wrong, names):
    right = {"scope": "s", "key": "k", "fingerprint": None, "lease": 1, "retain": 1, "epoch": 0, "nonce": "n"}
    with pytest.raises(ConfigError, match=f"idempotency: {names} must be"):
        core.request(**{**right, **wrong})


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from([None, b"a", b"b"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["complete", "fail", "refund", "extend"]), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 9.0, 10.0, 60.0, 110.0])),
    ),
    max_size=40,
)


def change(how, record, token, now):
    if how == "complete":
        return core.complete(record, token, b"", now)
    if how == "extend":
        return core.extend(record, token, 10.0, now)
    return core.fail(record, token, now, refund=how == "refund")


@given(STEPS)
@settings(max_examples=300)
def test_whatever_happens_at_most_one_holds_the_key_and_only_the_holder_ends_it(steps):
    record, now, tokens, holder, completed_until = None, 0.0, [], None, None
    for number, step in enumerate(steps):
        if step[0] == "wait":
            now += step[1]
        elif step[0] == "begin":
            answer, after = ask(record, now, nonce=str(number), fingerprint=step[1], epoch=step[2])
            if isinstance(answer, Fresh):
                assert completed_until is None or now >= completed_until, "completed work ran again"
                if holder is not None and record.state is State.IN_PROGRESS:
                    assert now >= record.until, "taken from somebody whose lease was not over"
                holder, completed_until = answer.token, None
                tokens.append(answer.token)
            else:
                assert after is record
            record = after
        elif tokens:
            token = tokens[step[1] % len(tokens)]
            after = change(step[0], record, token, now)
            assert (after is not None) == (token is holder)
            if after is not None:
                record = after
                if step[0] != "extend":
                    holder = None
                if step[0] == "complete":
                    completed_until = now + 100.0
        assert record is None or record.attempts >= 0
