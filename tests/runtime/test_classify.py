"""What counts as a failure: on, ignore, on_result, the walk along the causes, and what is never a failure by chance."""

from __future__ import annotations

import asyncio

import pytest

from everkeel import CircuitOpenError, NotRetryable, RejectedError, Verdict
from everkeel.runtime.classify import Classifier, ErrorMatch, Errors, as_errors
from everkeel.runtime.outcome import NO_RESULT

SUCCESS, FAILURE, NO_EVIDENCE = Verdict


class CardRefusedError(NotRetryable):
    """A business error."""


class CardRefusedByValueError(NotRetryable, ValueError):
    """A business error that is also something `on` may name."""


def verdict(
    error: BaseException,
    on: Errors = Exception,
    ignore: Errors | None = None,
    *,
    causes: bool = False,
    rejections: bool = False,
) -> Verdict:
    match = ErrorMatch(on, causes=causes)
    but = None if ignore is None else ErrorMatch(ignore, causes=causes)
    return Classifier(match, but, rejections=rejections).of_error(error)


def caused_by(error: BaseException, *causes: BaseException) -> BaseException:
    """`error`, whose cause is the first of `causes`, whose cause is the second, and so on."""
    link = error
    for cause in causes:
        link.__cause__ = cause
        link = cause
    return error


# ------------------------------------------------------------------ on and ignore


@pytest.mark.parametrize(
    "on",
    [
        OSError,
        (ValueError, OSError),
        lambda error: isinstance(error, OSError),
        (ValueError, lambda error: isinstance(error, OSError)),
    ],
    ids=["class", "classes", "predicate", "classes and predicates"],
)
def test_an_error_that_on_names_is_a_failure(on: Errors) -> None:
    assert verdict(ConnectionError(), on) is FAILURE


def test_an_error_that_on_does_not_name_is_an_answer_like_any_other() -> None:
    assert verdict(KeyError(), OSError) is SUCCESS
    assert verdict(KeyError(), (OSError, ValueError)) is SUCCESS
    assert verdict(KeyError(), lambda error: False) is SUCCESS


def test_ignore_wins_over_on() -> None:
    assert verdict(ConnectionError(), OSError, ConnectionError) is NO_EVIDENCE
    assert verdict(PermissionError(), OSError, ConnectionError) is FAILURE


def test_ignore_may_be_a_predicate() -> None:
    assert verdict(OSError(2, "no such file"), OSError, lambda error: error.args[0] == 2) is NO_EVIDENCE


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_cancellation_and_interrupts_are_no_evidence_whatever_on_says(error: BaseException) -> None:
    assert verdict(error) is NO_EVIDENCE
    assert verdict(error, lambda error: True) is NO_EVIDENCE


@pytest.mark.parametrize("wrong", [None, 3, "OSError", int, (OSError, None), [OSError]])
def test_anything_but_exception_classes_and_predicates_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="must be exception classes or predicates on an exception, not"):
        as_errors(wrong)


@pytest.mark.parametrize("wrong", [BaseException, KeyboardInterrupt, asyncio.CancelledError, (OSError, SystemExit)])
def test_what_is_never_retried_counted_or_replaced_cannot_be_named(wrong: Errors) -> None:
    with pytest.raises(ValueError, match=r"must not name \w+: it is never retried, counted or replaced"):
        ErrorMatch(wrong)


# ------------------------------------------------------------------ rejections and business errors


@pytest.mark.parametrize("error", [RejectedError("other"), CircuitOpenError("other", 1.0, 0.5, 10), CardRefusedError()])
def test_rejections_and_business_errors_are_no_evidence(error: Exception) -> None:
    assert verdict(error) is NO_EVIDENCE
    assert verdict(error, (OSError, Exception)) is NO_EVIDENCE


def test_a_predicate_does_not_make_them_failures() -> None:
    assert verdict(RejectedError("other"), lambda error: True) is NO_EVIDENCE
    assert verdict(CardRefusedError(), (OSError, lambda error: True)) is NO_EVIDENCE


def test_a_class_that_names_them_does() -> None:
    assert verdict(CircuitOpenError("other", 1.0, 0.5, 10), CircuitOpenError) is FAILURE
    assert verdict(CircuitOpenError("other", 1.0, 0.5, 10), (OSError, RejectedError)) is FAILURE
    assert verdict(CardRefusedError(), (OSError, CardRefusedError)) is FAILURE


def test_a_class_that_names_another_of_them_does_not() -> None:
    assert verdict(RejectedError("other"), CircuitOpenError) is NO_EVIDENCE
    assert verdict(CardRefusedError(), CardRefusedByValueError) is NO_EVIDENCE


def test_a_business_error_is_one_also_by_another_class_of_its_own() -> None:
    assert verdict(CardRefusedByValueError(), ValueError) is NO_EVIDENCE


def test_whoever_asks_for_it_gets_them_judged_like_any_error() -> None:
    assert verdict(RejectedError("other"), rejections=True) is FAILURE
    assert verdict(CardRefusedError(), OSError, rejections=True) is SUCCESS


# ------------------------------------------------------------------ causes


def test_causes_are_not_looked_at_unless_asked_for() -> None:
    assert verdict(caused_by(RuntimeError(), OSError()), OSError) is SUCCESS


def test_the_walk_finds_a_cause_of_a_cause() -> None:
    assert verdict(caused_by(RuntimeError(), KeyError(), OSError()), OSError, causes=True) is FAILURE


def test_the_walk_serves_ignore_and_predicates_too() -> None:
    error = caused_by(RuntimeError(), ConnectionError())
    assert verdict(error, Exception, ConnectionError, causes=True) is NO_EVIDENCE
    assert verdict(error, lambda error: isinstance(error, OSError), causes=True) is FAILURE


def test_the_walk_goes_along_the_context_where_there_is_no_cause() -> None:
    error = RuntimeError()
    error.__context__ = OSError()
    assert verdict(error, OSError, causes=True) is FAILURE


def test_a_context_that_was_suppressed_is_not_a_cause() -> None:
    error = RuntimeError()
    error.__context__, error.__suppress_context__ = OSError(), True
    assert verdict(error, OSError, causes=True) is SUCCESS


def test_a_chain_that_bites_its_own_tail_ends_the_walk() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    assert verdict(first, OSError, causes=True) is SUCCESS


def test_the_walk_gives_up_on_a_chain_without_end() -> None:
    links = [RuntimeError(str(n)) for n in range(100)]
    assert verdict(caused_by(*links, OSError()), OSError, causes=True) is SUCCESS
    assert verdict(caused_by(*links[:30], OSError()), OSError, causes=True) is FAILURE


# ------------------------------------------------------------------ results


def test_every_result_is_a_success_unless_on_result_says_otherwise() -> None:
    plain = Classifier(ErrorMatch(Exception))
    picky = Classifier(ErrorMatch(Exception), None, lambda result: result is None)
    assert plain.of_result(None) is SUCCESS
    assert (picky.of_result(None), picky.of_result(0)) == (FAILURE, SUCCESS)


def test_work_without_a_result_is_not_shown_to_on_result() -> None:
    assert Classifier(ErrorMatch(Exception), None, lambda result: True).of_result(NO_RESULT) is SUCCESS


# ------------------------------------------------------------------ predicates that raise


def raising(_: object) -> bool:
    raise ZeroDivisionError("the predicate is wrong")


@pytest.mark.parametrize("where", ["on", "ignore"])
def test_a_predicate_that_raises_makes_its_call_a_failure_and_is_logged(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = verdict(OSError(), raising) if where == "on" else verdict(OSError(), Exception, raising)
    assert found is FAILURE
    assert "a predicate raised; its call counts as a failure" in caplog.text
    assert "the predicate is wrong" in caplog.text


def test_an_on_result_that_raises_makes_its_call_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    assert Classifier(ErrorMatch(Exception), None, raising).of_result("answer") is FAILURE
    assert "the predicate is wrong" in caplog.text


# ------------------------------------------------------------------ by class alone


@pytest.mark.parametrize(
    ("cls", "known"),
    [(ConnectionError, True), (KeyError, False), (RejectedError, False), (CardRefusedError, False)],
)
def test_a_classifier_knows_classes_whose_every_error_is_a_failure(cls: type[Exception], known: bool) -> None:
    assert Classifier(ErrorMatch(OSError)).knows(cls) is known


def test_nothing_is_known_by_class_where_something_is_ignored() -> None:
    assert not Classifier(ErrorMatch(OSError), ErrorMatch(ConnectionError)).knows(OSError)
