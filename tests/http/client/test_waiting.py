"""What servers say about when to come back, honest or not, and what the clients make of it."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from everkeel import Clock, RateLimitedError


class Patience(Clock):
    """Real time but for sleeping, which is written down and takes none."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.sleep = self.slept.append

    async def asleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock() -> Patience:
    return Patience()


def test_retry_after_is_obeyed_to_the_second(agent, service, reply, clock):
    assert agent(clock=clock).get(service.will("/busy", reply(503, {"Retry-After": "7"}))).status == 200
    assert clock.slept == [7.0]


def test_milliseconds_win_over_seconds(agent, service, reply, clock):
    told = reply(429, {"Retry-After": "1", "X-RateLimit-Retry-After-Ms": "250"})
    assert agent(clock=clock).get(service.will("/busy", told)).status == 200
    assert clock.slept == [0.25]


def test_a_date_is_measured_by_the_servers_own_clock(agent, nuisance, clock):
    # This server lives in 2015, and its clock is right about the five seconds.
    url = nuisance.says(
        "/old",
        "HTTP/1.1 503 Busy\r\nDate: Wed, 21 Oct 2015 07:28:00 GMT\r\nRetry-After: Wed, 21 Oct 2015 07:28:05 GMT\r\n"
        "Content-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    )
    assert agent(clock=clock).get(url).status == 200
    assert clock.slept == [5.0]


def test_a_date_without_a_date_of_the_server_is_measured_by_ours(agent, nuisance, clock):
    then = formatdate(clock.time() + 30, usegmt=True)
    url = nuisance.says(
        "/undated",
        f"HTTP/1.1 503 Busy\r\nRetry-After: {then}\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    )
    assert agent(clock=clock).get(url).status == 200
    assert 20 < clock.slept[0] <= 30


def test_a_date_that_has_passed_means_now(agent, service, reply, clock):
    told = reply(503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
    assert agent(clock=clock).get(service.will("/busy", told)).status == 200
    assert clock.slept == []


@pytest.mark.parametrize("wait", ["61", "1e300", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_asked_to_wait_for_longer_than_it_may_it_gives_up_with_the_response(agent, service, reply, clock, wait):
    answer = agent(clock=clock).get(service.will("/busy", reply(503, {"Retry-After": wait})))
    if wait == "1e300":  # no number that the standard knows: as if nothing had been said
        assert answer.status == 200
    else:
        assert answer.status == 503
        assert len(service.seen) == 1
    assert clock.slept == []


@pytest.mark.parametrize("wait", ["-5", "soon", "", "NaN", "inf", "1,2", "Wed, 99 Foo 2015", "0x10", "\uff11\uff12"])
def test_a_retry_after_that_is_none_is_ignored(agent, nuisance, clock, wait):
    url = nuisance.says(
        "/odd",
        b"HTTP/1.1 503 Busy\r\nRetry-After: " + wait.encode() + b"\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    )
    assert agent(clock=clock).get(url).status == 200
    assert clock.slept == []


def test_too_many_requests_without_a_retry_after_wait_for_the_reset(agent, service, reply, clock):
    told = reply(429, {"RateLimit": '"default";r=0;t=3', "RateLimit-Policy": '"default";q=10;w=10'})
    assert agent(clock=clock, rate_limit=False).get(service.will("/busy", told)).status == 200
    assert clock.slept == [3.0]


@pytest.mark.parametrize(
    "said",
    [
        {"RateLimit": '"default";r=0;t=30'},
        {"RateLimit": "limit=10, remaining=0, reset=30"},
        {"RateLimit-Limit": "10", "RateLimit-Remaining": "0", "RateLimit-Reset": "30"},
        {"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"},
    ],
    ids=["draft 10", "draft 7", "trio", "x-trio"],
)
def test_with_nothing_left_no_further_request_is_made(agent, service, reply, said):
    client = agent(rate_limit={"max_wait": 0.0})
    assert client.get(service.will("/last", reply(200, said))).status == 200
    with pytest.raises(RateLimitedError) as caught:
        client.get(service.will("/last"))
    assert 25 < caught.value.retry_after <= 30
    assert caught.value.origin == "local"
    assert len(service.seen) == 1


def test_what_is_left_is_what_is_let_through(agent, service, reply):
    client = agent(rate_limit={"queue": 0})
    said = {"RateLimit": '"default";r=2;t=3600', "RateLimit-Policy": '"default";q=10;w=36000'}
    client.get(service.will("/first", reply(200, said)))
    client.get(service.will("/second"))
    client.get(service.will("/third"))
    with pytest.raises(RateLimitedError):
        client.get(service.will("/fourth"))


def test_a_limit_is_for_one_origin_alone(agent, service, nuisance, reply):
    client = agent(rate_limit={"queue": 0})
    client.get(service.will("/last", reply(200, {"RateLimit": '"default";r=0;t=30'})))
    assert client.get(nuisance.says("/well", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")).status == 200


def test_a_server_that_says_never_is_believed_for_a_minute_at_most(agent, service, reply):
    client = agent(rate_limit={"queue": 0})
    client.get(service.will("/lie", reply(200, {"RateLimit": '"default";r=0;t=999999999999'})))
    with pytest.raises(RateLimitedError) as caught:
        client.get(service.will("/lie"))
    assert caught.value.retry_after <= 60


@pytest.mark.parametrize(
    "said",
    [
        {"RateLimit": '"default";r=0;t='},
        {"RateLimit": '"default";r=-1;t=5'},
        {"RateLimit": "limit=10, remaining=zero"},
        {"RateLimit-Remaining": "none", "RateLimit-Reset": "30"},
        {"X-Backpressure": "1e9", "RateLimit-Policy": "((("},
    ],
    ids=str,
)
def test_broken_headers_are_ignored(agent, service, reply, said):
    client = agent(rate_limit={"queue": 0})
    client.get(service.will("/odd", reply(200, said)))
    assert client.get(service.will("/odd")).status == 200


def test_a_limit_of_ones_own_holds_without_a_word_of_the_server(agent, service):
    client = agent(rate_limit={"permits": 2, "per": 60, "queue": 0})
    for _ in range(2):
        client.get(service.will("/x"))
    with pytest.raises(RateLimitedError):
        client.get(service.will("/x"))
