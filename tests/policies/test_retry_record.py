"""What a failed call leaves for people: the note on the error, and its explanation."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

from everkeel import TimeoutExceededError, explain, fallback, pipeline, retry
from everkeel.testing import Flaky


def failed(call, error: type[Exception] = ConnectionError) -> Exception:
    with pytest.raises(error) as raised:
        call()
    return raised.value


def test_the_error_has_a_note_saying_how_often_and_how_long(retried):
    error = failed(retried(retry("fetch", backoff=[1, 2], jitter=None), Flaky(ConnectionError("refused"))))
    assert error.__notes__ == ["retry 'fetch' gave up after 3 attempts over 3 s: all 3 attempts failed"]


def test_the_note_shows_in_a_traceback(guarded):
    error = failed(guarded(retry("fetch", backoff=0), Flaky(ConnectionError("refused"))))
    assert "gave up after 3 attempts" in "".join(traceback.format_exception(error))


def test_a_call_that_was_tried_once_has_no_note(retried):
    error = failed(retried(retry("fetch", attempts=1), Flaky(ConnectionError("refused"))))
    assert not hasattr(error, "__notes__")


def test_an_error_not_to_retry_on_has_neither_note_nor_record(retried):
    error = failed(retried(retry("fetch", on=OSError), Flaky(ValueError("no"))), ValueError)
    assert not hasattr(error, "__notes__")
    assert explain(error).decisions == ()


def test_a_note_of_ones_own_stays(retried):
    error = ConnectionError("refused")
    error.add_note("while loading orders")
    failed(retried(retry("fetch", backoff=0), Flaky(error)))
    assert error.__notes__[0] == "while loading orders"
    assert len(error.__notes__) == 2


def test_the_same_exception_raised_again_and_again_does_not_grow(retried):
    error = ConnectionError("refused")
    call = retried(retry("fetch", backoff=0), Flaky(error))
    for _ in range(50):
        failed(call)
    assert len(error.__notes__) == 1
    assert len(explain(error).decisions) <= 16


def test_two_retries_leave_a_note_each(guarded):
    policy = pipeline(retry("outer", attempts=2, backoff=0), retry("inner", attempts=2, backoff=0))
    error = failed(guarded(policy, Flaky(ConnectionError("refused"))))
    assert sorted(note.split(" gave up")[0] for note in error.__notes__) == ["retry 'inner'", "retry 'outer'"]


def test_an_exception_that_refuses_attributes_goes_without(guarded):
    class SealedError(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            if name in ("__notes__", "__everkeel__"):
                raise AttributeError(name)
            super().__setattr__(name, value)

    error = failed(guarded(retry("fetch", backoff=0), Flaky(SealedError("no"))), SealedError)
    assert explain(error).decisions == ()


def test_the_record_has_every_attempt_and_delay(retried):
    script = Flaky(ConnectionError("one"), TimeoutError("two"), ConnectionError("three"))
    explained = explain(failed(retried(retry("fetch", backoff=[1, 2], jitter=None), script)))
    assert (explained.attempts, explained.delays) == (3, (1.0, 2.0))
    assert str(explained) == (
        "retry 'fetch' gave up: all 3 attempts failed\n"
        "  attempt 1: ConnectionError: one; waited 1 s\n"
        "  attempt 2: TimeoutError: two; waited 2 s\n"
        "  attempt 3: ConnectionError: three"
    )


def test_a_record_says_which_error_was_not_one_to_retry_on(retried):
    error = failed(retried(retry("fetch", on=OSError, backoff=0), Flaky(OSError("busy"), KeyError("id"))), KeyError)
    assert error.__notes__ == ["retry 'fetch' gave up after 2 attempts over 0 s: the last error is not one to retry on"]
    assert explain(error).attempts == 2


def test_the_outermost_retry_is_the_one_that_counts(guarded):
    policy = pipeline(retry("outer", attempts=2, backoff=1, jitter=None), retry("inner", attempts=3, backoff=0))
    explained = explain(failed(guarded(policy, lambda: Flaky(ConnectionError("refused"))())))
    assert [decision.policy for decision in explained.decisions] == ["inner", "outer"]
    assert (explained.attempts, explained.delays) == (2, (1.0,))


def test_an_error_raised_from_a_retried_one_is_explained_too(guarded):
    call = guarded(retry("fetch", backoff=0), Flaky(ConnectionError("refused")))

    def load() -> None:
        try:
            call()
        except ConnectionError as error:
            raise RuntimeError("could not load") from error

    assert explain(failed(load, RuntimeError)).attempts == 3


def test_an_error_no_policy_saw_says_so():
    explained = explain(ValueError("no"))
    assert (explained.attempts, explained.delays) == (1, ())
    assert str(explained) == "ValueError: no policy decided anything about it"


def test_a_record_survives_pickling_and_copying(retried):
    error = failed(retried(retry("fetch", backoff=1), Flaky(ConnectionError("refused"))))
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert str(explain(other)) == str(explain(error))
        assert other.__notes__ == error.__notes__


def test_a_record_of_an_expiry_survives_pickling_and_copying(guarded):
    policy = retry("fetch", backoff=0, max_duration=1.5)
    error = failed(guarded(policy, Flaky(ConnectionError("refused"), takes=1)), TimeoutExceededError)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert str(explain(other)) == str(explain(error))
        assert (str(other), other.seconds, other.limit) == (str(error), 1.5, "retry")


def test_a_record_keeps_no_long_messages(guarded):
    error = failed(guarded(retry("fetch", attempts=2, backoff=0), Flaky(ConnectionError("x" * 5000))))
    assert len(str(explain(error))) < 600


def test_a_fallback_whose_alternatives_failed_says_so_after_the_retry(guarded):
    def other() -> None:
        raise KeyError("nothing cached")

    policy = pipeline(fallback(other, name="other"), retry("fetch", attempts=2, backoff=0))
    error = failed(guarded(policy, Flaky(ConnectionError("refused"))), KeyError)
    assert [str(decision).splitlines()[0] for decision in explain(error).decisions] == [
        "retry 'fetch' gave up: all 2 attempts failed",
        "fallback 'other' gave up: its alternatives failed too",
    ]
