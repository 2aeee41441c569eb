"""Wrong settings fail when they are written, with the policy, the parameter, the value and what is allowed."""

from __future__ import annotations

import functools
from datetime import timedelta

import pytest

from everkeel import ConfigError, Retry, policies_of, registry, retry
from everkeel.policies.retry.config import RetryConfig

BACKOFF = (
    "must be a Backoff (constant, linear, exponential, fibonacci), seconds, a sequence of seconds, "
    "a function of the attempt, or a table from error class to one of these"
)
JITTER = 'must be "full", "equal", "decorrelated", seconds to add at most, or None'
SECONDS = "must be seconds as a number, or a timedelta"
ERRORS = "must be exception classes or predicates on an exception"


async def afunction(value: object) -> None: ...


WRONG = [
    ({"attempts": 0}, "attempts must be at least 1, or None (no bound but time) (got 0)"),
    ({"attempts": 2.0}, "attempts must be a whole number of at least 1, or None (no bound but time) (got 2.0)"),
    ({"attempts": True}, "attempts must be a whole number of at least 1, or None (no bound but time) (got True)"),
    ({"on": "OSError"}, f"on {ERRORS}, not 'OSError' (got 'OSError')"),
    ({"on": int}, f"on {ERRORS}, not <class 'int'> (got <class 'int'>)"),
    ({"on": [OSError]}, f"on {ERRORS}, not [<class 'OSError'>] (got [<class 'OSError'>])"),
    (
        {"on": SystemExit},
        "on must not name SystemExit: it is never retried, counted or replaced (got <class 'SystemExit'>)",
    ),
    ({"ignore": 3}, f"ignore {ERRORS}, not 3, or None (nothing) (got 3)"),
    ({"on_result": "x"}, "on_result must be a function of the result, or None (every result is fine) (got 'x')"),
    ({"causes": 1}, "causes must be True or False (got 1)"),
    ({"backoff": "1s"}, f"backoff {BACKOFF} (got '1s')"),
    ({"backoff": -1}, f"backoff {BACKOFF} (got -1)"),
    ({"backoff": []}, "backoff must not be an empty sequence (got [])"),
    ({"backoff": [1, -1]}, "backoff must be a sequence of seconds, none of them negative (got [1, -1])"),
    ({"backoff": {}}, "backoff must not be an empty table (got {})"),
    ({"backoff": {"x": 1}}, "backoff must have exception classes as the keys of its table, not 'x' (got {'x': 1})"),
    ({"jitter": "half"}, f"jitter {JITTER}, or None (no randomness) (got 'half')"),
    ({"jitter": -0.5}, f"jitter {JITTER}, or None (no randomness) (got -0.5)"),
    ({"max_retry_after": -1}, "max_retry_after must not be negative (got -1)"),
    ({"max_retry_after": None}, f"max_retry_after {SECONDS} (got None)"),
    ({"obey_retry_after": 1}, "obey_retry_after must be True or False (got 1)"),
    ({"cut_short": None}, "cut_short must be True or False (got None)"),
    ({"rejections": "retry"}, "rejections must be 'no_evidence' or 'failure' (got 'retry')"),
    ({"max_duration": 0}, "max_duration must be more than 0 seconds, or None (no bound) (got 0)"),
    ({"max_duration": "2s"}, f"max_duration {SECONDS}, or None (no bound) (got '2s')"),
    (
        {"attempt_timeout": timedelta(0)},
        "attempt_timeout must be more than 0 seconds, or None (no bound) (got datetime.timedelta(0))",
    ),
    ({"attempt_timeout": float("nan")}, f"attempt_timeout {SECONDS}, or None (no bound) (got nan)"),
    ({"runs": "thread"}, "runs must be 'worker' or 'inline' (got 'thread')"),
    ({"budget": 0.2}, "budget must be a RetryBudget, or None (no budget) (got 0.2)"),
    ({"exhausted": 1}, "exhausted must be a function of the last Outcome, or None (raise the original error) (got 1)"),
    ({"before_retry": 1}, "before_retry must be a function of the next Attempt, or None (no hook) (got 1)"),
    ({"nested": "inner"}, "nested must be 'each' or 'outermost' (got 'inner')"),
    ({"max_abandoned": 0}, "max_abandoned must be at least 1 (got 0)"),
    ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=[str(settings) for settings, _ in WRONG])
def test_a_wrong_value_says_what_is_allowed_when_the_policy_is_made(clock, settings, message):
    with pytest.raises(ConfigError) as raised:
        retry("x", **settings)
    assert str(raised.value) == f"retry 'x': {message}"
    assert raised.value.parameter == next(iter(settings))


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=[str(settings) for settings, _ in WRONG])
def test_a_wrong_value_says_the_same_in_a_reconfiguration_and_changes_nothing(clock, settings, message):
    policy = retry("x")
    before = policy.config
    with pytest.raises(ConfigError) as raised:
        policy.reconfigure(**settings)
    assert str(raised.value) == f"retry 'x': {message}"
    assert policy.config is before


def test_every_parameter_has_its_test():
    assert {next(iter(settings)) for settings, _ in WRONG} == set(RetryConfig.names())


def test_a_coroutine_function_where_nobody_would_await_it_is_refused(clock):
    for parameter in ("on_result", "exhausted"):
        with pytest.raises(
            ConfigError, match=f"^retry 'x': {parameter} must be a plain function .* nobody needs to await"
        ):
            retry("x", **{parameter: afunction})


def test_a_backoff_function_must_take_the_attempt(clock):
    with pytest.raises(
        ConfigError, match="backoff must be a function of the attempt, or of the attempt and the outcome"
    ):
        retry("x", backoff=lambda: 1)


def test_an_unnamed_policy_is_called_by_its_type(clock):
    with pytest.raises(ConfigError, match=r"^retry: attempts must be at least 1"):
        retry(attempts=0)


@pytest.mark.parametrize("name", ["", 7])
def test_a_name_is_a_string_with_something_in_it(clock, name):
    with pytest.raises(ConfigError) as raised:
        retry(name)
    assert str(raised.value) == f"retry: name must be a non-empty string (got {name!r})"


def test_a_setting_that_does_not_exist_names_the_one_that_was_meant(clock):
    with pytest.raises(ConfigError) as raised:
        retry("x").reconfigure(attemps=3)
    assert str(raised.value) == "retry 'x': has no setting 'attemps'; did you mean 'attempts'?"


def test_a_setting_that_resembles_nothing_is_told_what_there_is(clock):
    with pytest.raises(ConfigError, match=r"^retry 'x': has no setting 'zzz'; it has attempt_timeout, attempts, "):
        retry("x").reconfigure(zzz=3)


def test_derived_policies_are_checked_too(clock):
    with pytest.raises(ConfigError, match=r"^retry 'y': attempts must be at least 1"):
        retry("x").derive("y", attempts=0)


def test_a_second_policy_of_the_same_name_is_refused(clock):
    kept = retry("x")
    with pytest.raises(ConfigError) as raised:
        retry("x")
    assert str(raised.value) == (
        "retry 'x': a policy of this type and name exists already; choose another name, or pass replace=True"
    )
    assert registry.get("retry", "x") is kept


def test_replace_takes_the_name(clock):
    first = retry("x")
    second = retry("x", replace=True)
    assert registry.get("retry", "x") is second
    assert first.name == "x"


def test_durations_may_be_timedeltas(clock):
    policy = retry("x", max_duration=timedelta(minutes=1), max_retry_after=timedelta(seconds=5), jitter=timedelta(0, 1))
    assert (policy.config.max_duration, policy.config.max_retry_after, policy.config.jitter) == (60.0, 5.0, 1.0)


# ------------------------------------------------------------------ what can be decorated


def test_without_parentheses_it_says_so(clock):
    with pytest.raises(ConfigError) as raised:

        @retry
        def fetch() -> None: ...

    assert str(raised.value) == "retry: is used with parentheses: @retry()"


def test_a_class_cannot_be_guarded(clock):
    with pytest.raises(ConfigError) as raised:

        @retry("x")
        class Client: ...

    assert str(raised.value) == (
        "retry 'x': cannot guard the class "
        "test_a_class_cannot_be_guarded.<locals>.Client: decorate its methods, or use guard"
    )


def test_a_property_cannot_be_guarded(clock):
    with pytest.raises(ConfigError) as raised:
        retry("x")(property(lambda self: 1))
    assert str(raised.value) == "retry 'x': cannot guard a property: decorate the function inside it"


def test_what_cannot_be_called_cannot_be_guarded(clock):
    with pytest.raises(ConfigError) as raised:
        retry("x")("fetch")
    assert str(raised.value) == "retry 'x': cannot guard 'fetch': it is not callable"


class Client:
    """Every kind of method."""

    def __init__(self) -> None:
        self.calls = 0

    @retry(backoff=0)
    def method(self) -> tuple[object, int]:
        self.calls += 1
        if self.calls == 1:
            raise ConnectionError
        return self, self.calls

    @retry(backoff=0)
    @staticmethod
    def decorated_static(log: list[int]) -> list[int]:
        return fail_once(log)

    @staticmethod
    @retry(backoff=0)
    def static(log: list[int]) -> list[int]:
        return fail_once(log)

    @retry(backoff=0)
    @classmethod
    def decorated_class_method(cls, log: list[int]) -> list[int]:
        assert cls is Client
        return fail_once(log)

    @classmethod
    @retry(backoff=0)
    def class_method(cls, log: list[int]) -> list[int]:
        assert cls is Client
        return fail_once(log)

    @retry(backoff=0)
    async def coroutine(self, log: list[int]) -> list[int]:
        return fail_once(log)

    @retry(backoff=0)
    def stream(self, log: list[int]):
        yield from fail_once(log)

    @retry(backoff=0)
    async def astream(self, log: list[int]):
        for item in fail_once(log):
            yield item


def fail_once(log: list[int]) -> list[int]:
    log.append(len(log))
    if len(log) == 1:
        raise ConnectionError
    return log


def test_a_method_is_retried_with_its_self(clock):
    client = Client()
    assert client.method() == (client, 2)


@pytest.mark.parametrize("name", ["decorated_static", "static", "decorated_class_method", "class_method"])
def test_static_and_class_methods_are_retried_either_way_round(clock, name):
    assert getattr(Client(), name)([]) == [0, 1]
    assert getattr(Client, name)([]) == [0, 1]


def test_coroutine_methods_and_generator_methods_are_retried(clock):
    async def collect() -> list[int]:
        return [item async for item in Client().astream([])]

    assert clock.run(Client().coroutine([])) == [0, 1]
    assert list(Client().stream([])) == [0, 1]
    assert clock.run(collect()) == [0, 1]


def test_a_partial_a_lambda_and_a_callable_object_are_retried(clock):
    class Fetch:
        def __call__(self, log: list[int]) -> list[int]:
            return fail_once(log)

    log: list[int] = []
    for fn in (functools.partial(fail_once, []), lambda: fail_once(log), functools.partial(Fetch(), [])):
        assert retry(backoff=0)(fn)() == [0, 1]


def test_an_object_with_an_async_call_and_a_partial_of_a_coroutine_function_are_retried(clock):
    # stamina and redress miss the object; backoff and pyresilience raise AttributeError on `__name__`.
    class Fetch:
        async def __call__(self, log: list[int]) -> list[int]:
            return fail_once(log)

    async def fetch(log: list[int]) -> list[int]:
        return fail_once(log)

    for fn in (Fetch(), functools.partial(fetch), functools.partial(Fetch())):
        assert clock.run(retry(backoff=0)(fn)([])) == [0, 1]


def test_a_decorated_function_keeps_its_name_doc_and_signature(clock):
    import inspect

    @retry("x")
    def fetch(url: str, /, *args: int, timeout: float = 1.5, **headers: str) -> bytes:
        """Fetch it."""
        return b""

    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetch it.")
    assert (
        str(inspect.signature(fetch))
        == "(url: 'str', /, *args: 'int', timeout: 'float' = 1.5, **headers: 'str') -> 'bytes'"
    )
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        fetch()


def test_an_unnamed_policy_takes_the_name_of_the_first_function_it_decorates(clock):
    policy = retry()
    assert policy.name is None

    def fetch() -> None: ...

    policy(fetch)
    assert policy.name == f"{__name__}.{fetch.__qualname__}"
    assert registry.get("retry", policy.name) is policy


def test_two_functions_of_the_same_name_get_names_of_their_own(clock):
    one, two = retry(), retry()
    for policy in (one, two):

        @policy
        def fetch() -> None: ...

    assert two.name == f"{one.name}#2"


def test_policies_of_a_decorated_function_are_reachable(clock):
    inner, outer = retry("inner"), retry("outer")
    assert policies_of(outer(inner(fail_once))) == (outer, inner)
    assert policies_of(fail_once) == ()
    assert isinstance(policies_of(Client.method)[0], Retry)


def test_call_with_a_coroutine_function_is_refused(clock):
    with pytest.raises(TypeError) as raised:
        retry("x").call(afunction, 1)
    assert str(raised.value) == "retry 'x': call() got a coroutine function, which it cannot guard; use acall()"
