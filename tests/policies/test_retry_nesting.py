"""A retry inside a retry multiplies the attempts: it is noticed, and can be left to the outer one."""

from __future__ import annotations

import asyncio

import pytest

from everkeel import current_attempt, deadline, events, explain, fallback, pipeline, retry
from everkeel.testing import Flaky


def nest(form, inner, outer, fetch):
    """`fetch` in `inner`, in a function of its own, in `outer`: both in the same form."""
    if not form.awaited:
        return form.guarded(outer, form.guarded(inner, fetch))
    return form(outer, form.guarded(inner, fetch.async_()))


def apart(form, inner, outer, fetch):
    """The same with a function of the user's between the two."""
    if not form.awaited:
        call = form.guarded(inner, fetch)

        def between() -> object:
            return call()

        return form.guarded(outer, between)
    acall = form.guarded(inner, fetch.async_())

    async def abetween() -> object:
        return await acall()

    return form(outer, abetween)


@pytest.fixture(params=[nest, apart])
def nested(request):
    return request.param


def test_two_retries_multiply(retried, nested):
    fetch = Flaky(ConnectionError)
    with pytest.raises(ConnectionError):
        nested(retried, retry("inner", backoff=0), retry("outer", backoff=0), fetch)()
    assert fetch.calls == 9


def test_an_inner_retry_notices_an_outer_one_past_its_first_attempt(retried, nested, heard):
    with pytest.raises(ConnectionError):
        nested(
            retried,
            retry("inner", attempts=2, backoff=0),
            retry("outer", attempts=2, backoff=0),
            Flaky(ConnectionError),
        )()
    told = [(event.policy, event.outer) for event in heard.of(events.Retrying)]
    first = "outer" if retried.style == "block" else None  # a block is marked from its first attempt on
    assert told == [("inner", first), ("outer", None), ("inner", "outer")]


def test_outermost_leaves_retrying_to_the_outer(retried, nested, heard):
    fetch = Flaky(ConnectionError)
    with pytest.raises(ConnectionError) as raised:
        nested(retried, retry("inner", backoff=0, nested="outermost"), retry("outer", backoff=0), fetch)()
    assert fetch.calls == 3
    assert {(event.policy, event.reason) for event in heard.of(events.RetryGaveUp)} == {
        ("inner", "nested"),
        ("outer", "attempts"),
    }
    assert "left to the retry around it, 'outer'" in str(explain(raised.value))


def test_outermost_retries_when_there_is_no_outer(retried):
    fetch = Flaky(ConnectionError, "answer")
    assert retried(retry("inner", backoff=0, nested="outermost"), fetch)() == "answer"


def test_outermost_retries_under_a_deadline_too(retried):
    fetch = Flaky(ConnectionError, "answer")
    call = retried(retry("inner", backoff=0, nested="outermost"), fetch)
    with deadline(5):
        assert call() == "answer"


def test_outermost_retries_results_too(retried):
    fetch = Flaky("pending", "answer")
    policy = retry("inner", backoff=0, nested="outermost", on_result=lambda result: result == "pending")
    assert retried(policy, fetch)() == "answer"


def test_outermost_retries_with_somebody_listening(retried, heard):
    fetch = Flaky(ConnectionError, "answer")
    assert retried(retry("inner", backoff=0, nested="outermost"), fetch)() == "answer"


def test_a_time_limit_does_not_hide_the_outer_retry(guarded, nested):
    fetch = Flaky(ConnectionError)
    inner = retry("inner", backoff=0, nested="outermost", max_duration=5, runs="inline")
    with pytest.raises(ConnectionError):
        nested(guarded, inner, retry("outer", backoff=0, max_duration=5, runs="inline"), fetch)()
    assert fetch.calls == 3


def test_two_retries_in_one_pipeline_see_each_other(guarded):
    fetch = Flaky(ConnectionError)
    with pytest.raises(ConnectionError):
        guarded(pipeline(retry("outer", backoff=0), retry("inner", backoff=0, nested="outermost")), fetch)()
    assert fetch.calls == 3


def test_the_outer_of_two_in_one_pipeline_retries_though_it_is_outermost_too(guarded):
    fetch = Flaky(ConnectionError)
    outer, inner = (retry(name, backoff=0, nested="outermost") for name in ("outer", "inner"))
    with pytest.raises(ConnectionError):
        guarded(pipeline(outer, inner), fetch)()
    assert fetch.calls == 3


def test_what_is_around_a_retry_in_one_pipeline_does_not_make_it_nested(guarded):
    fetch = Flaky(ConnectionError, "answer")
    policies = pipeline(fallback("other", name="f"), retry("inner", backoff=0, nested="outermost"))
    assert guarded(policies, fetch)() == "answer"


def test_the_second_call_of_one_outer_attempt_is_inside_it_too(threaded):
    inner = retry("inner", backoff=0, nested="outermost")
    good, bad = Flaky("fine"), Flaky(ConnectionError)
    one, two = threaded.guarded(inner, good), threaded.guarded(inner, bad)

    def both() -> None:
        one()
        two()

    with pytest.raises(ConnectionError):
        threaded.guarded(retry("outer", backoff=0), both)()
    assert bad.calls == 3


def test_a_retry_around_itself_counts_as_around(threaded):
    policy, calls = retry("walk", backoff=0, nested="outermost"), []

    def walk(depth: int) -> None:
        calls.append(depth)
        if depth == 0:
            raise ConnectionError
        call(depth - 1)

    call = threaded.guarded(policy, walk)
    with pytest.raises(ConnectionError):
        call(1)
    assert calls == [1, 0] * 3


def test_a_task_started_by_an_outer_attempt_past_the_first_is_inside_it(clock):
    inner, outer = retry("inner", backoff=0, nested="outermost"), retry("outer", attempts=2, backoff=0)
    fetch = Flaky(ConnectionError)

    async def work() -> None:
        await asyncio.gather(inner.acall(fetch.async_()))

    async def main() -> None:
        with pytest.raises(ConnectionError):
            await outer.acall(work)

    clock.run(main)
    assert fetch.calls == 3 + 1  # in the first attempt the other task sees neither stack nor mark


def test_the_inner_attempt_gives_way_to_the_outer_one_when_it_ends(retried, nested):
    seen = []

    def between() -> None:
        seen.append(current_attempt() and current_attempt().policy)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        retried(retry("outer", attempts=2, backoff=0), lambda: retry(attempts=2, backoff=0).call(between))()
    assert seen == [None, None, "outer", None]
    assert current_attempt() is None
