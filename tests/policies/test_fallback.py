"""An alternative answer when everything inside has failed."""

from __future__ import annotations

import asyncio
import functools

import pytest

import everkeel
from everkeel import (
    CircuitOpenError,
    ConfigError,
    NotRetryable,
    RejectedError,
    TimeoutExceededError,
    events,
    explain,
    fallback,
    pipeline,
    policies_of,
    retry,
)
from everkeel.policies.fallback import FallbackConfig
from everkeel.testing import Flaky


def test_a_call_that_succeeds_is_left_alone(guarded):
    policy = fallback("other", name="f")
    assert guarded(policy, Flaky("answer"))() == "answer"
    assert (policy.snapshot()["success"], policy.snapshot()["used"]) == (1, 0)


@pytest.mark.parametrize("value", ["other", None, 0, [], {"a": 1}, {}])
def test_a_value_answers_in_place_of_a_failed_call(guarded, value):
    assert guarded(fallback(value, name="f"), Flaky(ConnectionError))() == value


def test_a_function_answers_with_the_arguments_of_the_call(guarded):
    other = fallback(lambda city, *, units: (city, units), name="f")
    assert guarded(other, Flaky(ConnectionError))("Oslo", units="m") == ("Oslo", "m")


@pytest.mark.parametrize("name", ["error", "exception", "exc", "err"])
def test_a_function_gets_the_exception_if_it_asks_for_it(guarded, name):
    namespace: dict[str, object] = {}
    exec(f"def other(city, {name}): return city, {name}", namespace)
    error = ConnectionError("refused")
    assert guarded(fallback(namespace["other"], name="f"), Flaky(error))("Oslo") == ("Oslo", error)


def test_a_function_that_asks_for_the_exception_alone_gets_no_arguments(guarded):
    assert guarded(fallback(lambda error: str(error), name="f"), Flaky(ConnectionError("refused")))("Oslo") == "refused"


def test_a_function_without_parameters_is_called_with_none(guarded):
    assert guarded(fallback(lambda: "other", name="f"), Flaky(ConnectionError))("Oslo") == "other"


def test_a_builtin_that_does_not_say_what_it_takes_gets_the_arguments(guarded):
    assert guarded(fallback(max, name="f"), Flaky(ConnectionError))(3, 7) == 7


def test_a_coroutine_function_answers_for_an_async_call(awaited):
    async def other(city: str, error: Exception) -> str:
        await asyncio.sleep(1)
        return f"{city}: {error}"

    assert awaited(fallback(other, name="f"), Flaky(ConnectionError("refused")))("Oslo") == "Oslo: refused"


def test_whatever_a_function_hands_out_to_be_awaited_is_awaited(awaited):
    async def other() -> str:
        return "other"

    for alternative in (lambda: other(), functools.partial(other)):
        assert awaited(fallback(alternative), Flaky(ConnectionError))() == "other"


def test_a_value_that_could_be_awaited_stays_a_value(awaited):
    class Ticket:
        def __await__(self):
            raise AssertionError("nobody asked for it")
            yield

    ticket = Ticket()
    policy = fallback(ticket, name="f")
    call = awaited.guarded(policy, Flaky(ConnectionError).async_())

    async def main() -> bool:
        return await call() is ticket

    assert awaited.clock.run(main)


def test_a_coroutine_function_cannot_answer_for_a_sync_call(threaded):
    async def other() -> None: ...

    with pytest.raises(ConfigError) as raised:
        threaded(fallback(other, name="f"), Flaky("answer"))()
    assert str(raised.value) == (
        "fallback 'f': alternatives must not be coroutine functions where the guarded call is sync (got one)"
    )


def test_it_says_so_when_decorating_and_not_when_it_is_needed(clock):
    async def other() -> None: ...

    with pytest.raises(ConfigError, match="must not be coroutine functions"):

        @fallback(other, name="f")
        def fetch() -> None: ...


# ------------------------------------------------------------------ what it answers to


def test_an_error_that_on_does_not_name_passes(guarded):
    policy = fallback("other", name="f", on=OSError)
    with pytest.raises(ValueError):
        guarded(policy, Flaky(ValueError))()
    assert (policy.snapshot()["ignored"], policy.snapshot()["used"]) == (1, 0)


def test_ignore_wins_over_on(guarded):
    with pytest.raises(ConnectionRefusedError):
        guarded(fallback("other", name="f", on=OSError, ignore=ConnectionRefusedError), Flaky(ConnectionRefusedError))()


def test_on_takes_a_predicate(guarded):
    policy = fallback("other", name="f", on=lambda error: "busy" in str(error))
    assert guarded(policy, Flaky(OSError("busy")))() == "other"


def test_causes_lets_on_look_along_the_chain(guarded):
    wrapped = RuntimeError("could not load")
    wrapped.__cause__ = ConnectionError("refused")
    assert guarded(fallback("other", name="f", on=ConnectionError, causes=True), Flaky(wrapped))() == "other"


@pytest.mark.parametrize(
    "error",
    [RejectedError("x", 1.0), CircuitOpenError("x", 1.0, 0.5, 10), TimeoutExceededError("x", 1.0), NotRetryable("no")],
    ids=lambda error: type(error).__name__,
)
def test_rejections_and_business_errors_are_failures_like_any_other(guarded, error):
    assert guarded(fallback("other", name="f"), Flaky(error))() == "other"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_is_never_replaced(threaded, interruption):
    policy = fallback("other", name="f", on=lambda error: True)
    with pytest.raises(interruption):
        threaded(policy, Flaky(interruption))()
    assert policy.snapshot()["failure"] == 0


def test_cancellation_is_never_replaced(awaited):
    call = awaited.guarded(fallback("other", name="f", on=lambda error: True), Flaky("late", takes=9).async_())

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(), 1)

    awaited.clock.run(main)


def test_a_result_may_count_as_a_failure(guarded):
    policy = fallback("other", name="f", on_result=lambda result: result is None)
    call = guarded(policy, Flaky(None, "answer"))
    assert [call(), call()] == ["other", "answer"]
    assert (policy.snapshot()["used"], policy.snapshot()["success"]) == (1, 1)


def test_a_function_that_replaces_a_result_gets_no_exception(guarded):
    policy = fallback(lambda error: ("other", error), name="f", on_result=lambda result: result is None)
    assert guarded(policy, Flaky(None))() == ("other", None)


def test_it_sees_what_is_left_after_everything_inside_it(guarded):
    fetch = Flaky(ConnectionError)
    assert guarded(pipeline(fallback("other", name="f"), retry("r", backoff=0)), fetch)() == "other"
    assert fetch.calls == 3


def test_inside_a_retry_it_leaves_nothing_to_retry(guarded):
    fetch = Flaky(ConnectionError)
    assert guarded(pipeline(retry("r", backoff=0), fallback("other", name="f")), fetch)() == "other"
    assert fetch.calls == 1


# ------------------------------------------------------------------ tables and chains


def test_a_table_chooses_by_exception_type_in_its_order(guarded):
    table = {ConnectionRefusedError: "refused", OSError: lambda error: type(error).__name__}
    call = guarded(fallback(table, name="f"), Flaky(ConnectionRefusedError, TimeoutError, KeyError("x")))
    assert [call(), call()] == ["refused", "TimeoutError"]
    with pytest.raises(KeyError):
        call()


def test_an_error_the_table_does_not_name_is_not_a_failure_of_ours(guarded):
    policy = fallback({OSError: "other"}, name="f")
    with pytest.raises(KeyError):
        guarded(policy, Flaky(KeyError("x")))()
    assert (policy.snapshot()["failure"], policy.snapshot()["ignored"]) == (0, 1)


def test_a_table_with_something_behind_it_covers_the_rest(guarded):
    call = guarded(fallback({OSError: "table"}, "rest", name="f"), Flaky(OSError, KeyError("x")))
    assert [call(), call()] == ["table", "rest"]


def test_a_result_is_never_answered_by_a_table(guarded):
    call = guarded(fallback({OSError: "table"}, "rest", name="f", on_result=lambda result: True), Flaky(None))
    assert call() == "rest"


def test_a_dictionary_that_is_not_a_table_is_a_value(guarded):
    assert guarded(fallback({"status": "unknown"}, name="f"), Flaky(OSError))() == {"status": "unknown"}


def test_where_one_alternative_raises_the_next_is_asked(guarded):
    tried = []

    def replica(error: Exception) -> None:
        tried.append(error)
        raise TimeoutError("replica")

    original = ConnectionError("primary")
    assert guarded(fallback(replica, "last resort", name="f"), Flaky(original))() == "last resort"
    assert tried == [original]


def test_the_next_alternative_is_told_why_the_one_before_failed(guarded):
    def replica() -> None:
        raise TimeoutError("replica")

    assert guarded(fallback(replica, lambda error: str(error), name="f"), Flaky(ConnectionError))() == "replica"


def test_a_later_table_is_asked_about_the_latest_error(guarded):
    def replica() -> None:
        raise TimeoutError("replica")

    policy = fallback(replica, {ConnectionError: "wrong", TimeoutError: "right"}, name="f")
    assert guarded(policy, Flaky(ConnectionError))() == "right"


def test_when_all_alternatives_fail_the_last_error_leaves_with_the_original_as_context(guarded, heard):
    def replica() -> None:
        raise TimeoutError("replica")

    policy, original = fallback(replica, name="f"), ConnectionError("primary")
    with pytest.raises(TimeoutError, match="replica") as raised:
        guarded(policy, Flaky(original))()
    assert raised.value.__context__ is original
    assert str(explain(raised.value)) == "fallback 'f' gave up: its alternatives failed too"
    assert (policy.snapshot()["used"], policy.snapshot()["exhausted"]) == (0, 1)
    assert heard.of(events.FellBack) == []


def test_the_original_error_stays_reachable_through_a_whole_chain(guarded):
    def one() -> None:
        raise TimeoutError("one")

    def two() -> None:
        raise KeyError("two")

    original = ConnectionError("primary")
    with pytest.raises(KeyError) as raised:
        guarded(fallback(one, two, name="f"), Flaky(original))()
    chain, link = [], raised.value
    while link is not None:
        chain.append(type(link))
        link = link.__context__
    assert chain[0] is KeyError
    assert chain[-1] is ConnectionError


def test_an_alternatives_error_that_is_not_a_failure_leaves_at_once(guarded):
    def replica() -> None:
        raise KeyError("no such city")

    with pytest.raises(KeyError):
        guarded(fallback(replica, "last resort", name="f", on=OSError), Flaky(OSError))()


def test_an_alternative_may_itself_be_retried(guarded):
    replica = Flaky(TimeoutError, "replica")
    other = retry("replica", backoff=0)(replica.async_() if guarded.awaited else replica)
    assert guarded(fallback(other, name="f"), Flaky(ConnectionError))() == "replica"


# ------------------------------------------------------------------ streams


def test_a_stream_that_fails_before_its_first_item_is_replaced(streamed):
    def feed():
        raise ConnectionError
        yield

    assert streamed(fallback(lambda: iter([7, 8]), name="f"), feed)() == [7, 8]
    assert streamed(fallback([1, 2], name="g"), feed)() == [1, 2]


def test_a_stream_that_fails_in_the_middle_is_not(streamed):
    def feed():
        yield 1
        raise ConnectionError

    got: list[int] = []
    with pytest.raises(ConnectionError):
        streamed(fallback([7, 8], name="f"), feed)(into=got)
    assert got == [1]


def test_a_stream_that_works_is_left_alone(streamed):
    def feed(*args: int):
        yield from args

    policy = fallback([7], name="f")
    assert streamed(policy, feed)(1, 2) == [1, 2]
    assert streamed(policy, feed)() == []
    assert policy.snapshot()["success"] == 2


def test_an_error_not_to_fall_back_on_leaves_a_stream(streamed):
    def feed():
        raise ValueError
        yield

    with pytest.raises(ValueError):
        streamed(fallback([7], name="f", on=OSError), feed)()


def test_an_async_generator_function_replaces_an_async_stream(clock):
    async def other(error: Exception):
        yield "other"
        yield str(error)

    @fallback(other, name="f")
    async def feed():
        raise ConnectionError("refused")
        yield

    async def main() -> list[str]:
        return [item async for item in feed()]

    assert clock.run(main) == ["other", "refused"]


def test_an_async_stream_is_closed_when_its_consumer_stops(clock):
    closed = []

    @fallback([], name="f")
    async def feed():
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def main() -> None:
        items = feed()
        assert await anext(items) == 1
        await items.aclose()

    clock.run(main)
    assert closed == [True]


# ------------------------------------------------------------------ watching and changing it


def test_every_use_is_counted_and_told(guarded, heard):
    policy, error = fallback("other", name="f"), ConnectionError("refused")
    guarded(policy, Flaky(error))()
    assert heard.of(events.FellBack) == [events.FellBack(policy="f", policy_type="fallback", error=error)]
    snapshot = policy.snapshot()
    assert (snapshot["failure"], snapshot["used"], snapshot["success"]) == (1, 1, 0)


def test_a_replaced_result_is_told(guarded, heard):
    guarded(fallback("other", name="f", on_result=lambda result: result == "bad"), Flaky("bad"))()
    assert [(event.error, event.result) for event in heard.of(events.FellBack)] == [(None, "bad")]


def test_a_listener_that_raises_harms_nobody(guarded, caplog):
    policy = fallback("other", name="f")

    def broken(event: object) -> None:
        raise RuntimeError("broken listener")

    policy.subscribe(broken)
    assert guarded(policy, Flaky(ConnectionError))() == "other"
    assert "a listener raised on FellBack" in caplog.text


def test_a_shadow_passes_every_outcome_on_and_counts(guarded, heard):
    policy = fallback("other", name="f", mode="shadow", on_result=lambda result: result == "bad")
    call = guarded(policy, Flaky(ConnectionError, "bad", "good"))
    with pytest.raises(ConnectionError):
        call()
    assert [call(), call()] == ["bad", "good"]
    assert (policy.snapshot()["would"], policy.snapshot()["used"]) == ({"fall_back": 2}, 0)
    assert [event.action for event in heard.of(events.WouldHave)] == ["fall_back", "fall_back"]


def test_the_mode_may_change_at_run_time(guarded):
    policy = fallback("other", name="f")
    call = guarded(policy, Flaky(ConnectionError))
    assert call() == "other"
    policy.mode = "off"
    with pytest.raises(ConnectionError):
        call()
    policy.mode = "enforce"
    assert call() == "other"


def test_disabled_it_is_a_plain_call(guarded):
    everkeel.disable()
    with pytest.raises(ConnectionError):
        guarded(fallback("other", name="f"), Flaky(ConnectionError))()


def test_the_alternatives_may_change_at_run_time(guarded):
    policy = fallback("other", name="f")
    call = guarded(policy, Flaky(ConnectionError))
    policy.reconfigure(alternatives=("another",))
    assert call() == "another"


def test_on_result_may_come_at_run_time(guarded):
    policy = fallback("other", name="f")
    call = guarded(policy, Flaky("bad"))
    assert call() == "bad"
    policy.reconfigure(on_result=lambda result: result == "bad")
    assert call() == "other"


def test_a_derived_fallback_has_its_own_settings(guarded):
    derived = fallback("other", name="f").derive("g", alternatives=("derived",))
    assert guarded(derived, Flaky(ConnectionError))() == "derived"


def test_it_cannot_be_a_block(clock):
    with pytest.raises(TypeError, match=r"^fallback 'f' cannot be a block: a block has no value to replace; decorate"):
        with fallback("other", name="f"):
            pass


def test_it_takes_the_name_of_its_function(clock):
    @fallback("other")
    def fetch() -> None: ...

    assert policies_of(fetch)[0].name == f"{__name__}.{fetch.__qualname__}"


ERRORS = "must be exception classes or predicates on an exception"
WRONG = [
    (
        {"alternatives": ()},
        "alternatives must be at least one: a value, a function, or a table from error class to either (got ())",
    ),
    ({"on": "OSError"}, f"on {ERRORS}, not 'OSError' (got 'OSError')"),
    ({"ignore": 3}, f"ignore {ERRORS}, not 3, or None (nothing) (got 3)"),
    ({"on_result": 1}, "on_result must be a function of the result, or None (every result is fine) (got 1)"),
    ({"causes": "yes"}, "causes must be True or False (got 'yes')"),
    ({"mode": True}, "mode must be 'enforce' or 'shadow' or 'off' (got True)"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=[next(iter(settings)) for settings, _ in WRONG])
def test_a_wrong_value_says_what_is_allowed_when_the_policy_is_made(clock, settings, message):
    alternatives = settings.get("alternatives", ("other",))
    others = {name: value for name, value in settings.items() if name != "alternatives"}
    with pytest.raises(ConfigError) as raised:
        fallback(*alternatives, name="f", **others)
    assert str(raised.value) == f"fallback 'f': {message}"


def test_every_parameter_has_its_test():
    assert {next(iter(settings)) for settings, _ in WRONG} == set(FallbackConfig.names())
