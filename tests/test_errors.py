"""The exception family: a tree, with data, that survives pickling and copying."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from everkeel import errors
from everkeel.errors import (
    BulkheadFullError,
    CircuitOpenError,
    ClaimLostError,
    CollapseError,
    ConfigError,
    DeadLetterConflictError,
    DeadLetterError,
    DeadLetterNotFoundError,
    DeadLettersFullError,
    DeadLetterStateError,
    EventError,
    EverkeelError,
    FailFastError,
    FeatureDisabledError,
    HedgeTimeoutError,
    HTTPStatusError,
    IdempotencyFullError,
    IdempotencyInProgressError,
    IdempotencyMismatchError,
    InvalidConfigurationError,
    NotRetryable,
    PublishError,
    RateLimitedError,
    RejectedError,
    ReplayLimitError,
    RetryExhaustedError,
    SagaCompensatedError,
    SagaConflictError,
    SagaError,
    SagaNotFoundError,
    SagaStateError,
    SagaStoppedError,
    ShedError,
    ThrottledError,
    TimeoutExceededError,
    TooEarlyError,
    UnknownSagaError,
    WorkersExhaustedError,
)
from everkeel.microprofile import exceptions as standard
from everkeel.microprofile.exceptions import (
    BulkheadException,
    CircuitBreakerOpenException,
    FaultToleranceDefinitionException,
    FaultToleranceException,
    RateLimitException,
    TimeoutException,
)

STANDARD = [
    FaultToleranceException("shop.Orders.pay"),
    TimeoutException("shop.Orders.pay", 0.5),
    CircuitBreakerOpenException("shop.Orders.pay", 3.2, 0.5, 20),
    BulkheadException("shop.Orders.pay", None, 10, 10),
    RateLimitException("shop.Orders.pay", 0.25, 100, 0, None, None, "local"),
    FaultToleranceDefinitionException("shop.Orders.pay", "Retry.maxRetries", "must be at least -1", "-3"),
]
"""Those of the MicroProfile face, whose names are not ours to choose."""

EXAMPLES = [
    EverkeelError("payments"),
    ConfigError("retry 'fetch'", "attempts", "must be at least 1", "0"),
    InvalidConfigurationError("everkeel.yaml", None, "is wrong", None, ("a", "b")),
    RejectedError("payments", 1.5),
    CircuitOpenError("payments", 3.2, 0.52, 100),
    CircuitOpenError("payments", None, None, 0, "forced"),
    CircuitOpenError("payments", 3.0, 0.9, 100, "slow"),
    BulkheadFullError("payments", None, 10, 5),
    RateLimitedError("search", 0.25, 100, 0, "tenant-7", None, "local"),
    FeatureDisabledError("search", None, "share", "bob"),
    FeatureDisabledError("search", 60.0, "schedule", None),
    FailFastError("ledger", None, "its check failed"),
    FailFastError("ledger", 3.0, "3 failures in a row: OSError: disk full"),
    WorkersExhaustedError("report", None, 64),
    ShedError("orders", None, 20, "low"),
    ThrottledError("search", None, 0.4),
    TimeoutExceededError("quote", 2.0),
    TimeoutExceededError(None, 0.5, "deadline"),
    TimeoutExceededError("quote", 0.5, "attempt of retry"),
    HedgeTimeoutError("lookup", 2.0, "hedge"),
    CollapseError("users", "3 went into the batch, and 2 results came back"),
    RetryExhaustedError("poll", 3, "pending"),
    RetryExhaustedError(None, 3, None),
    RetryExhaustedError("orders", 4, None, 2.5),
    HTTPStatusError("payments", 503, 2.0, "GET", "https://example.com/cards"),
    EventError("event 'order.placed'", "needs id"),
    PublishError("orders", "event 'order.placed'", "unknown", "no answer"),
    NotRetryable("out of stock"),
    IdempotencyInProgressError("payments", 12.5, "order-7"),
    IdempotencyFullError("memory", 30.0, 100_000),
    IdempotencyMismatchError("payments", "order-7"),
    ClaimLostError("payments", "order-7"),
    TooEarlyError("billing", 5.0, "order 7 is not known yet"),
    DeadLetterError("7f3a"),
    DeadLetterNotFoundError("7f3a"),
    DeadLetterStateError("7f3a", "discarded", "replayed"),
    DeadLetterConflictError("7f3a", "pending", "replayed"),
    ReplayLimitError("7f3a", 3, 3),
    DeadLettersFullError("billing", 100),
    SagaError("order", "order-7"),
    SagaNotFoundError(None, "order-7"),
    UnknownSagaError("order", "order-7", 2, ("order@1",)),
    SagaStateError("order", "order-7", "skip", "running", "charge", "done", "nothing has failed"),
    SagaConflictError("order", "order-7", "began with another input"),
    SagaCompensatedError("order", "order-7", "rejected", "charge", "CardRefused: no funds"),
    SagaStoppedError("order", "order-7", "parked", None, None),
]

ROUND_TRIPS = [
    *(lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol)) for protocol in range(6)),
    copy.copy,
    copy.deepcopy,
]

public = {
    name: thing
    for name, thing in vars(errors).items()
    if inspect.isclass(thing) and issubclass(thing, Exception) and thing.__module__ == errors.__name__
}


def fields(error: Exception) -> dict[str, object]:
    """Everything it says about itself."""
    properties = [name for name in dir(type(error)) if isinstance(getattr(type(error), name), property)]
    return {"str": str(error), "args": error.args, **vars(error), **{name: getattr(error, name) for name in properties}}


def test_every_error_has_an_example_here():
    # Whoever adds an error adds one to EXAMPLES: the tests below then hold for it too.
    assert {type(example) for example in EXAMPLES} == set(public.values())
    written = {thing for thing in vars(standard).values() if getattr(thing, "__module__", None) == standard.__name__}
    assert {type(example) for example in STANDARD} == written


@pytest.mark.parametrize("error", [*EXAMPLES, *STANDARD], ids=repr)
@pytest.mark.parametrize("round_trip", ROUND_TRIPS, ids=[*(f"pickle{n}" for n in range(6)), "copy", "deepcopy"])
def test_every_error_survives_pickling_and_copying(error, round_trip):
    again = round_trip(error)
    assert type(again) is type(error)
    assert fields(again) == fields(error)


@pytest.mark.parametrize("error", [*EXAMPLES, *STANDARD], ids=repr)
def test_notes_and_attributes_survive_pickling_and_copying(error):
    noted = copy.copy(error)
    noted.add_note("while loading orders")
    noted.extra = 7
    for again in (pickle.loads(pickle.dumps(noted)), copy.copy(noted), copy.deepcopy(noted)):
        assert (again.__notes__, again.extra) == (["while loading orders"], 7)
    assert not hasattr(error, "extra")


@pytest.mark.parametrize(("name", "cls"), public.items())
def test_every_error_of_ours_ends_in_error_and_has_one_root(name, cls):
    assert cls is NotRetryable or (name.endswith("Error") and issubclass(cls, EverkeelError))


@pytest.mark.parametrize("error", [one for one in [*EXAMPLES, *STANDARD] if isinstance(one, EverkeelError)], ids=repr)
def test_every_error_says_which_policy_and_when_to_come_back(error):
    assert error.policy == error.args[0]
    assert error.retry_after is None or error.retry_after > 0


READ = {
    "retry 'fetch': attempts must be at least 1 (got 0)": EXAMPLES[1],
    "retry 'fetch': is used up": ConfigError("retry 'fetch'", None, "is used up", None),
    "cannot guard it": ConfigError(None, None, "cannot guard it", None),
    "rejected by 'payments'": RejectedError("payments", 1.5),
    "circuit 'payments' is open (52% of the last 100 calls failed); next probe in 3.2 s": CircuitOpenError(
        "payments", 3.2, 0.52, 100
    ),
    "circuit 'payments' is open (52% of the last 100 calls were slow); next probe in 3.2 s": CircuitOpenError(
        "payments", 3.2, 0.52, 100, "slow"
    ),
    "circuit 'payments' is open (forced)": CircuitOpenError("payments", None, None, 0, "forced"),
    "circuit 'payments' is open": CircuitOpenError("payments", None, None, 0),
    "bulkhead 'payments' is full (10 running, 5 waiting)": BulkheadFullError("payments", None, 10, 5),
    "timeout 'report': 64 abandoned calls still occupy their threads; refusing to start another": (
        WorkersExhaustedError("report", None, 64)
    ),
    "timeout 'quote': no answer within 2 s": TimeoutExceededError("quote", 2.0),
    "deadline: no answer within 0.25 s": TimeoutExceededError(None, 0.25, "deadline"),
    "retry 'poll': 3 attempts, and the last result still counts as a failure: 'pending'": (
        RetryExhaustedError("poll", 3, "pending")
    ),
    "retry: 3 attempts, and the last result still counts as a failure: 0": RetryExhaustedError(None, 3, 0),
    "'orders': 4 attempts, and the server still asks to come back later, in 2.5 s": (
        RetryExhaustedError("orders", 4, None, 2.5)
    ),
    "'payments': GET https://example.com/cards answered 503; try again in 2 s": (
        HTTPStatusError("payments", 503, 2.0, "GET", "https://example.com/cards")
    ),
    "the server answered 500": HTTPStatusError(None, 500),
}


@pytest.mark.parametrize(("text", "error"), READ.items(), ids=range(len(READ)))
def test_an_error_reads_well_at_three_in_the_morning(text, error):
    assert str(error) == text


def test_a_timeout_is_a_timeout_for_handlers_that_know_only_that():
    error = TimeoutExceededError("quote", 2.0)
    assert isinstance(error, TimeoutError)
    assert (error.seconds, error.limit, error.errno) == (2.0, "timeout", None)


def test_a_wrong_setting_is_a_value_error_for_handlers_that_know_only_that():
    assert isinstance(EXAMPLES[1], ValueError)


def test_a_long_result_is_shown_in_part():
    assert len(str(RetryExhaustedError("poll", 3, "x" * 5000))) < 300


def test_a_response_stays_behind_when_its_error_is_pickled():
    error = HTTPStatusError("payments", 503, 2.0, "GET", "https://example.com/cards")
    error.response = object()
    error.add_note("retried")
    again = pickle.loads(pickle.dumps(error))
    assert (again.response, again.status, again.__notes__) == (None, 503, ["retried"])


def test_an_error_of_ones_own_may_be_marked_as_not_retryable_and_pickled():
    again = pickle.loads(pickle.dumps(CardRefusedError("no", 402)))
    assert isinstance(again, NotRetryable)
    assert again.args == ("no", 402)


class CardRefusedError(NotRetryable, ValueError):
    """The bank said no."""
