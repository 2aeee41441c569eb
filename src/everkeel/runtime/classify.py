"""What counts as a failure: `on`, `ignore` and `on_result`, the same words in every policy.

`on` and `ignore` take an exception class, a predicate on the exception, or a tuple of both. `ignore` wins over `on`.
Two families are never failures unless a *class* in `on` names them: rejections by our own policies (an open breaker
says nothing about the thing behind it that is not known already) and `NotRetryable` business errors. An exception that
`on` does not mention is an answer like any other: it is not retried, and a breaker takes it as a sign of life.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from everkeel.errors import NotRetryable, RejectedError
from everkeel.runtime.outcome import FAILURE, NO_EVIDENCE, NO_RESULT, SUCCESS, Verdict
from everkeel.runtime.trouble import report

ErrorPredicate: TypeAlias = Callable[[BaseException], bool]
Errors: TypeAlias = type[BaseException] | ErrorPredicate | tuple[type[BaseException] | ErrorPredicate, ...]
ResultPredicate: TypeAlias = Callable[[Any], bool]

_SPECIAL = (RejectedError, NotRetryable)
_DEEPEST_CAUSE = 32  # a chain may be cyclic, or absurd


class ErrorMatch:
    """An `on=` or `ignore=` value, made ready to be asked about exceptions."""

    __slots__ = ("causes", "given", "predicates", "types")

    def __init__(self, given: Errors, *, causes: bool = False) -> None:
        parts: tuple[Any, ...] = given if isinstance(given, tuple) else (given,)
        types: list[type[BaseException]] = []
        predicates: list[Any] = []
        for part in parts:
            if isinstance(part, type):
                if not issubclass(part, BaseException):
                    raise ValueError(f"must be exception classes or predicates on an exception, not {part!r}")
                if not issubclass(part, Exception):
                    raise ValueError(f"must not name {part.__name__}: it is never retried, counted or replaced")
                types.append(part)
            elif callable(part):
                predicates.append(part)
            else:
                raise ValueError(f"must be exception classes or predicates on an exception, not {part!r}")
        self.given = given
        self.types = tuple(types)
        self.predicates = tuple(predicates)
        self.causes = causes

    def matches(self, error: BaseException) -> bool:
        """Does it name this exception, or, if asked to walk, one that caused it?"""
        if self._matches_one(error):
            return True
        if not self.causes:
            return False
        seen = {id(error)}
        for _ in range(_DEEPEST_CAUSE):
            cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
            if cause is None or id(cause) in seen:
                return False
            if self._matches_one(cause):
                return True
            seen.add(id(cause))
            error = cause
        return False

    def _matches_one(self, error: BaseException) -> bool:
        if isinstance(error, self.types):
            return True
        for predicate in self.predicates:
            if predicate(error):
                return True
        return False


def as_errors(value: Any) -> Any:
    """What `on=` and `ignore=` accept; ValueError for anything else."""
    ErrorMatch(value)
    return value


class Classifier:
    """One verdict for every outcome, decided the same way by every policy."""

    __slots__ = ("_ignore", "_named", "_on", "_plain", "on_result", "rejections")

    def __init__(
        self,
        on: ErrorMatch,
        ignore: ErrorMatch | None = None,
        on_result: ResultPredicate | None = None,
        *,
        rejections: bool = False,
    ) -> None:
        """`rejections`: treat our own rejections and business errors like any other (fallback does)."""
        self._on, self._ignore, self.on_result = on, ignore, on_result
        self.rejections = rejections
        self._named = tuple(cls for cls in on.types if issubclass(cls, _SPECIAL) or cls in (*_SPECIAL,))
        # One class and nothing ignored: two isinstance calls decide, which is what a failing call mostly pays.
        self._plain = on.types[0] if len(on.types) == 1 and ignore is None else ()

    def of_error(self, error: BaseException) -> Verdict:
        """FAILURE, NO_EVIDENCE, or SUCCESS for an exception that `on` does not mention."""
        if isinstance(error, self._plain) and not isinstance(error, _SPECIAL):
            return FAILURE
        if not isinstance(error, Exception):
            return NO_EVIDENCE
        try:
            if self._ignore is not None and self._ignore.matches(error):
                return NO_EVIDENCE
            if isinstance(error, _SPECIAL) and not self.rejections:
                return FAILURE if isinstance(error, self._named) else NO_EVIDENCE
            return FAILURE if self._on.matches(error) else SUCCESS
        except Exception as broken:
            return _broken_predicate(broken)

    def knows(self, cls: type[BaseException]) -> bool:
        """Is every error of this class a failure, whatever else it may say?"""
        return issubclass(cls, self._plain) and not issubclass(cls, _SPECIAL)

    def of_result(self, value: object) -> Verdict:
        """SUCCESS, unless `on_result` calls this value a failure."""
        if self.on_result is None or value is NO_RESULT:
            return SUCCESS
        try:
            return FAILURE if self.on_result(value) else SUCCESS
        except Exception as broken:
            return _broken_predicate(broken)


def _broken_predicate(broken: Exception) -> Verdict:
    # A predicate runs while a call is ending: were its own error to leave, it would replace the user's.
    report("a predicate raised; its call counts as a failure", broken)
    return FAILURE
