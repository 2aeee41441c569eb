"""Adaptive clients and functions: in virtual time, and against a real server through every library."""

from __future__ import annotations

import asyncio
import pickle

import aiohttp
import httpx
import httpx2
import pytest
import requests

from everkeel import RateLimitedError, RetryExhaustedError, deadline
from everkeel.http.adaptive import Adaptive, AdaptiveClient, AsyncAdaptiveClient, adaptive, adaptive_state


def _later(seconds: float = 2, **more: str) -> httpx2.Response:
    return httpx2.Response(429, headers={"Retry-After": str(seconds), **more})


def _script(*responses: httpx2.Response):
    """A function that gives these responses, the last one again and again; and how often it was called."""
    left, calls = list(responses), []

    def next_one(*args: object) -> httpx2.Response:
        calls.append(args)
        return left.pop(0) if len(left) > 1 else left[0]

    return next_one, calls


# ---------------------------------------------------------------------- queue


def test_queue_waits_as_long_as_the_server_asks_and_tries_again(virtual_time):
    answer, calls = _script(_later(2), _later(3), httpx2.Response(200))
    assert adaptive(answer)().status_code == 200
    assert virtual_time.sleeps == [2.0, 3.0]
    assert len(calls) == 3


async def test_queue_does_so_in_a_coroutine(virtual_time):
    answer, calls = _script(_later(2), httpx2.Response(200))

    @adaptive
    async def fetch() -> httpx2.Response:
        return answer()

    assert (await fetch()).status_code == 200
    assert virtual_time.monotonic() == 2.0
    assert len(calls) == 2


def test_others_wait_too_while_the_server_wants_to_be_left_alone(virtual_time):
    pace = Adaptive(max_retries=0)
    with pytest.raises(RetryExhaustedError):
        pace.call(lambda: _later(5))
    assert pace.is_rate_limited
    assert pace.retry_after_seconds == 5.0
    assert pace.call(lambda: httpx2.Response(200)).status_code == 200
    assert virtual_time.monotonic() == 5.0
    assert not pace.is_rate_limited


def test_when_attempts_run_out_the_error_has_their_number_and_the_last_wait(virtual_time):
    answer, calls = _script(_later(1), _later(2), _later(7))
    pace = Adaptive("orders", max_retries=2)
    with pytest.raises(RetryExhaustedError) as caught:
        pace.call(answer)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.attempts, error.last_wait, error.retry_after, error.policy) == (3, 7.0, 7.0, "orders")
    assert len(calls) == 3
    assert virtual_time.sleeps == [1.0, 2.0]


def test_a_wait_beyond_the_longest_is_not_begun(virtual_time):
    answer, calls = _script(_later(61))
    with pytest.raises(RateLimitedError) as caught:
        Adaptive(max_wait=60).call(answer)
    assert (caught.value.retry_after, caught.value.origin) == (61.0, "remote")
    assert virtual_time.sleeps == []
    assert len(calls) == 1


def test_nor_one_that_does_not_fit_before_the_deadline(virtual_time):
    pace = Adaptive()
    with deadline(1.0), pytest.raises(RetryExhaustedError):
        pace.call(lambda: _later(5))
    with deadline(1.0), pytest.raises(RetryExhaustedError) as caught:
        pace.call(lambda: httpx2.Response(200))
    assert caught.value.retry_after == 5.0
    assert virtual_time.sleeps == []


def test_the_multiplier_makes_waits_longer(virtual_time):
    answer, _ = _script(_later(2), httpx2.Response(200))
    Adaptive(backoff_multiplier=1.5).call(answer)
    assert virtual_time.sleeps == [3.0]


def test_other_failures_are_none_of_its_business(virtual_time):
    pace = Adaptive()
    assert pace.call(lambda: httpx2.Response(500)).status_code == 500
    with pytest.raises(ZeroDivisionError):
        pace.call(lambda: 1 // 0)
    assert virtual_time.sleeps == []


def test_503_with_a_wait_is_a_refusal_too(virtual_time):
    answer, calls = _script(httpx2.Response(503, headers={"Retry-After": "4"}), httpx2.Response(200))
    assert Adaptive().call(answer).status_code == 200
    assert virtual_time.sleeps == [4.0]
    assert len(calls) == 2


# ---------------------------------------------------------------------- reject


def test_reject_raises_with_the_wait_and_the_pressure(virtual_time):
    pace = Adaptive("orders", strategy="reject")
    with pytest.raises(RateLimitedError) as caught:
        pace.call(lambda: _later(30, **{"X-Backpressure": "0.9", "RateLimit": '"a";r=0;t=30'}))
    error = caught.value
    assert (error.retry_after, error.backpressure, error.origin, error.remaining) == (30.0, 0.9, "remote", 0)
    assert virtual_time.sleeps == []


def test_reject_makes_no_call_until_the_wait_is_over(virtual_time):
    answer, calls = _script(_later(30), httpx2.Response(200))
    pace = Adaptive(strategy="reject")
    for wait in (30.0, 20.0):
        with pytest.raises(RateLimitedError) as caught:
            pace.call(answer)
        assert caught.value.retry_after == wait
        virtual_time.sleep(10)
    assert len(calls) == 1
    virtual_time.sleep(10)
    assert pace.call(answer).status_code == 200


def test_strategy_and_retries_can_be_changed_while_it_runs(virtual_time):
    pace = Adaptive(strategy="reject")
    pace.set_strategy("queue")
    pace.set_max_retries(1)
    answer, calls = _script(_later(1))
    with pytest.raises(RetryExhaustedError):
        pace.call(answer)
    assert len(calls) == 2
    with pytest.raises(ValueError, match="strategy must be 'queue' or 'reject'"):
        pace.set_strategy("wait")
    with pytest.raises(ValueError, match="max_retries must be a whole number of at least 0"):
        pace.set_max_retries(-1)


# ---------------------------------------------------------------------- before it is told to


def test_it_slows_down_under_pressure(virtual_time):
    pace = Adaptive()
    pace.call(lambda: httpx2.Response(200, headers={"X-Backpressure": "1.0"}))
    assert (pace.backpressure, virtual_time.sleeps) == (1.0, [])
    pace.call(lambda: httpx2.Response(200, headers={"X-Backpressure": "0.1"}))
    assert virtual_time.sleeps == [1.0]
    pace.call(lambda: httpx2.Response(200))
    assert virtual_time.sleeps == [1.0]


def test_it_stops_before_the_limit(virtual_time):
    pace, calls = Adaptive(), []

    def answer() -> httpx2.Response:
        calls.append(virtual_time.monotonic())
        return httpx2.Response(200, headers={"RateLimit": f'"a";r={max(0, 3 - len(calls))};t=10'})

    for _ in range(4):
        assert pace.call(answer).status_code == 200
    assert calls == [0.0, 0.0, 0.0, 10.0]
    assert pace.remaining_tokens == 0


def test_calls_under_way_count_against_what_is_left(virtual_time):
    pace = Adaptive()
    pace.call(lambda: httpx2.Response(200, headers={"RateLimit": '"a";r=5;t=10'}))
    seen = []
    pace.call(lambda: seen.append(pace.remaining_tokens) or httpx2.Response(200))
    assert seen == [4]


# ---------------------------------------------------------------------- methods, clients


def test_each_instance_has_a_state_of_its_own(virtual_time):
    class Api:
        def __init__(self, *answers: httpx2.Response) -> None:
            self.answer, _ = _script(*answers)

        @adaptive(strategy="reject")
        def fetch(self) -> httpx2.Response:
            return self.answer()

    busy, idle = Api(_later(9)), Api(httpx2.Response(200))
    with pytest.raises(RateLimitedError):
        busy.fetch()
    assert idle.fetch().status_code == 200
    assert adaptive_state(busy.fetch).is_rate_limited
    assert adaptive_state(Api.fetch, busy).retry_after_seconds == 9.0
    assert not adaptive_state(idle.fetch).is_rate_limited


def test_instances_that_cannot_be_told_apart_share_one(virtual_time):
    class Api(dict):  # not hashable
        @adaptive(strategy="reject")
        def fetch(self) -> httpx2.Response:
            return _later(9)

    one = Api()
    with pytest.raises(RateLimitedError):
        one.fetch()
    assert adaptive_state(Api().fetch).is_rate_limited


def test_an_adaptive_method_of_a_client_shares_its_state_and_is_counted_once(virtual_time):
    answers, calls = _script(_later(3), httpx2.Response(200, headers={"RateLimit": '"a";r=7;t=10'}))

    class Orders(AdaptiveClient):
        @adaptive
        def place(self) -> httpx2.Response:
            return self.send_request("POST", "/orders", item="book")

    with httpx2.Client(transport=httpx2.MockTransport(answers)) as client:
        orders = Orders("http://a.test", client=client)
        assert orders.place().status_code == 200
        assert len(calls) == 2
        assert orders.remaining_tokens == 7
        assert adaptive_state(orders.place) is orders.adaptive
        orders.place()
        assert orders.remaining_tokens == 7


def test_a_function_that_is_not_adaptive_has_no_state():
    with pytest.raises(TypeError, match="'len' is not decorated with @adaptive"):
        adaptive_state(len)


def test_wrong_settings_fail_when_decorating():
    with pytest.raises(ValueError, match="backpressure_threshold must be a share"):
        adaptive(backpressure_threshold=80)(lambda: None)


def test_a_client_sends_json_and_queries(service):
    with AdaptiveClient(service.url) as client:
        assert client.send_request("POST", "/orders", item="book", count=2).status_code == 200
        assert client.send_request("get", "orders", page="3").status_code == 200
    assert service.seen[0].body == b'{"item":"book","count":2}'
    assert [one.path for one in service.seen] == ["/orders", "/orders"]
    assert service.seen[1].body == b""


def test_an_async_client_does_too(service, reply):
    service.will("/orders", reply(429, {"X-RateLimit-Retry-After-Ms": "20", "X-Backpressure": "0.5"}))

    async def main() -> None:
        async with AsyncAdaptiveClient(service.url) as client:
            assert (await client.send_request("POST", "/orders", item="book")).status_code == 200
            assert client.backpressure == 0.5
            assert not client.is_rate_limited
            assert client.retry_after_seconds == 0
            client.set_strategy("reject")
            client.set_max_retries(5)

    asyncio.run(main())
    assert len(service.seen) == 2


def test_an_async_client_may_be_aiohttp_and_gives_refused_responses_back(service, reply):
    service.will("/orders", reply(429, {"X-RateLimit-Retry-After-Ms": "20"}))

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            client = AsyncAdaptiveClient(service.url, client=session)
            response = await client.send_request("POST", "/orders", item="book")
            assert response.status == 200
            assert len(session.connector._acquired) <= 1
            await response.read()

    asyncio.run(main())


# ---------------------------------------------------------------------- what `raise_for_status` raises


def _sync(library: object):
    def fetch(url: str) -> object:
        response = library.get(url)
        response.raise_for_status()
        return response.status_code

    return fetch


@pytest.mark.parametrize("library", [httpx2, httpx, requests], ids=lambda one: one.__name__)
@pytest.mark.parametrize("strategy", ["queue", "reject"])
def test_the_errors_of_sync_libraries_are_understood(service, reply, library, strategy):
    url = service.will("/busy", reply(429, {"Retry-After": "1", "X-RateLimit-Retry-After-Ms": "30"}))
    fetch = adaptive(strategy=strategy)(_sync(library))
    if strategy == "queue":
        assert fetch(url) == 200
    else:
        with pytest.raises(RateLimitedError) as caught:
            fetch(url)
        assert (caught.value.retry_after, caught.value.origin) == (0.03, "remote")
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize("strategy", ["queue", "reject"])
def test_the_errors_of_aiohttp_are_understood(service, reply, strategy):
    url = service.will("/busy", reply(429, {"X-RateLimit-Retry-After-Ms": "30"}))

    @adaptive(strategy=strategy)
    async def fetch(session: aiohttp.ClientSession) -> int:
        async with session.get(url, raise_for_status=True) as response:
            return response.status

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            if strategy == "queue":
                assert await fetch(session) == 200
            else:
                with pytest.raises(RateLimitedError) as caught:
                    await fetch(session)
                assert caught.value.retry_after == 0.03

    asyncio.run(main())
