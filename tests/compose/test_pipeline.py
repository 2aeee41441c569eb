"""Several policies as one, outermost first as written."""

from __future__ import annotations

import asyncio
import functools

import pytest

import everkeel
from everkeel import ConfigError, events, fallback, pipeline, policies_of, retry
from everkeel.compose.chain import source, weave
from everkeel.testing import Flaky


def test_the_first_is_the_outermost(guarded, heard):
    policies = pipeline(retry("outer", attempts=2, backoff=0), retry("inner", attempts=3, backoff=0))
    fetch = Flaky(ConnectionError)
    with pytest.raises(ConnectionError):
        guarded(policies, fetch)()
    assert fetch.calls == 6
    assert [event.policy for event in heard.of(events.RetryGaveUp)] == ["inner", "inner", "outer"]


def test_stacked_decorators_nest_as_written(clock):
    fetch = Flaky(ConnectionError)

    @retry("outer", attempts=2, backoff=0)
    @retry("inner", attempts=3, backoff=0)
    def call() -> object:
        return fetch()

    with pytest.raises(ConnectionError):
        call()
    assert fetch.calls == 6
    assert [policy.name for policy in policies_of(call)] == ["outer", "inner"]


def test_pipelines_inside_are_taken_apart(clock):
    one, two, three = retry("one"), retry("two"), fallback("x", name="three")
    nested = pipeline(three, pipeline(one, pipeline(two)))
    assert nested.policies == (three, one, two)
    assert list(nested) == [three, one, two]
    assert len(nested) == 3


def test_it_prints_its_order_in_one_line(clock):
    policies = pipeline(fallback("x", name="cached"), retry("fetch", mode="shadow"), retry())
    assert str(policies) == "fallback 'cached' > retry 'fetch' (shadow) > retry"
    assert repr(policies) == f"<pipeline {policies}>"


def test_a_pipeline_of_nothing_is_a_plain_call(guarded):
    policies = pipeline()
    assert guarded(policies, Flaky("answer"))() == "answer"
    assert str(policies) == "(no policy)"


def test_arguments_go_through(guarded):
    policies = pipeline(fallback("x", name="f"), retry("r", backoff=0))
    fetch = Flaky(ConnectionError, "answer")
    assert guarded(policies, fetch)("/orders", page=2) == "answer"
    assert fetch.arguments == [(("/orders",), {"page": 2})] * 2


def test_its_policies_keep_their_state_of_their_own(guarded):
    shared = retry("shared", backoff=0)
    guarded(pipeline(fallback("x", name="f"), shared), Flaky("answer"))()
    guarded(pipeline(shared), Flaky("answer"))()
    assert shared.snapshot()["success"] == 2


def test_a_policy_may_be_in_it_twice(guarded):
    again, fetch = retry("again", attempts=2, backoff=0), Flaky(ConnectionError)
    with pytest.raises(ConnectionError):
        guarded(pipeline(again, again), fetch)()
    assert fetch.calls == 4


def test_a_policy_that_is_off_leaves_the_others_in_place(guarded):
    outer, inner = retry("outer", attempts=2, backoff=0), retry("inner", attempts=3, backoff=0)
    fetch = Flaky(ConnectionError)
    call = guarded(pipeline(outer, inner), fetch)
    outer.mode = "off"
    with pytest.raises(ConnectionError):
        call()
    assert fetch.calls == 3


def test_disabled_it_is_a_plain_call(guarded):
    fetch = Flaky(ConnectionError)
    call = guarded(pipeline(fallback("x", name="f"), retry("r", backoff=0)), fetch)
    everkeel.disable()
    with pytest.raises(ConnectionError):
        call()
    assert fetch.calls == 1


def test_names_in_the_function_never_collide_with_names_in_the_woven_code(clock):
    policies = pipeline(fallback("x", name="f"), retry("r", backoff=0), retry("s", backoff=0))
    failures = [OSError()]

    @policies
    def fetch(run, retry, result, error, ok, *, tick, fn, fallback, sleep=1, ambient=2, next=3, none=4):
        if failures:
            raise failures.pop()
        return run, retry, result, error, ok, tick, fn, fallback, sleep, ambient, next, none

    assert fetch(1, 2, 3, 4, 5, tick=6, fn=7, fallback=8) == (1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4)


def test_defaults_stay_the_very_objects_they_are(clock):
    default = object()

    @pipeline(fallback("x", name="f"), retry("r"))
    def fetch(one=default, *, two=default):
        return one is default, two is default

    assert fetch() == (True, True)


def test_streams_pass_through_all_of_them(streamed):
    calls = []

    def feed():
        calls.append(1)
        raise ConnectionError
        yield

    policies = pipeline(fallback(["other"], name="f"), retry("r", attempts=2, backoff=0))
    assert streamed(policies, feed)() == ["other"]
    assert len(calls) == 2


def test_methods_of_every_kind_can_be_decorated(clock):
    policies = pipeline(fallback("x", name="f"), retry("r", backoff=0))

    class Client:
        @policies
        def method(self) -> object:
            return self

        @policies
        @classmethod
        def class_method(cls) -> object:
            return cls

        @policies
        @staticmethod
        def static() -> str:
            return "static"

    client = Client()
    assert (client.method(), client.class_method(), client.static()) == (client, Client, "static")


def test_a_partial_may_be_decorated(guarded):
    policies = pipeline(fallback("x", name="f"), retry("r", backoff=0))
    fetch = functools.partial(Flaky("answer").async_() if guarded.awaited else Flaky("answer"), 1)
    assert guarded(policies, fetch)() == "answer"


def test_cancellation_passes_through_all_of_them(awaited):
    call = awaited.guarded(pipeline(fallback("x", name="f"), retry("r")), Flaky("late", takes=9).async_())

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(), 1)

    awaited.clock.run(main)


def test_what_is_not_a_policy_is_refused_with_its_position(clock):
    with pytest.raises(ConfigError) as raised:
        pipeline(retry("r"), "retry")
    assert str(raised.value) == "pipeline: policy 2 must be a policy or a pipeline, outermost first (got 'retry')"


def test_what_cannot_be_guarded_is_refused(clock):
    with pytest.raises(ConfigError) as raised:
        pipeline(retry("r"))(7)
    assert str(raised.value) == "pipeline: cannot guard 7: it is not callable"


def test_it_cannot_be_a_block(clock):
    with pytest.raises(TypeError, match=r"^a pipeline cannot be a block: decorate a function, or use call"):
        with pipeline(retry("r")):
            pass


def test_call_with_a_coroutine_function_is_refused(clock):
    async def fetch() -> None: ...

    with pytest.raises(TypeError, match=r"^pipeline: call\(\) got a coroutine function"):
        pipeline(retry("r")).call(fetch)


# ------------------------------------------------------------------ the woven function, for reading


def test_the_source_of_a_woven_function_can_be_read(clock):
    @pipeline(fallback("x", name="f"), retry("r"))
    def fetch(url: str) -> str:
        return url

    text = source(fetch)
    assert text.startswith("def fetch(url):\n")
    compile(text, "woven", "exec")


def test_there_is_no_source_where_nothing_is_woven(clock):
    @retry("r")
    def feed():
        yield 1

    assert source(feed) == ""
    assert source(len) == ""


def test_weaving_can_be_done_ahead_of_the_first_call(clock):
    @retry("r")
    def fetch() -> str:
        return "answer"

    assert weave(fetch) is fetch
    assert fetch() == "answer"
    assert weave(len) is len


def test_an_error_from_a_woven_function_has_a_traceback_with_its_lines(clock):
    import traceback

    @retry("r", attempts=1)
    def fetch() -> None:
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError) as raised:
        fetch()
    text = "".join(traceback.format_exception(raised.value))
    assert "result = fn()" in text
