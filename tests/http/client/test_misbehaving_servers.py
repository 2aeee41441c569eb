"""A slow, dribbling, resetting and half-dead server against every client; and that everything is given back."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import time

import pytest

from everkeel import CircuitOpenError, TimeoutExceededError, deadline

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def _reset(writer: asyncio.StreamWriter) -> str:
    """Close so that the other side gets a reset, and no orderly end."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return "close"


def _after(times: int, trouble, then=OK):
    """Trouble so many times, and then an answer."""
    left = [times]

    async def act(writer: asyncio.StreamWriter):
        if left[0]:
            left[0] -= 1
            return await trouble(writer)
        writer.write(then)
        await writer.drain()

    return act


async def _resets(writer):
    return _reset(writer)


async def _hangs_up(writer):
    writer.close()
    return "close"


async def _hangs_up_in_the_headers(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    await writer.drain()
    writer.close()
    return "close"


async def _dribbles(writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(40):
        writer.write(b"X-Wait-%d: on\r\n" % number)
        await writer.drain()
        await asyncio.sleep(0.02)
    return "close"


async def _says_nothing(writer):
    for _ in range(3000):
        if writer._reader.at_eof() or writer._reader.exception() is not None:
            break
        await asyncio.sleep(0.01)
    return "close"


def _gone_soon(nuisance) -> bool:
    """The server sees no connection any more, or soon."""
    until = time.monotonic() + 20
    while nuisance.open and time.monotonic() < until:
        time.sleep(0.1)
        gc.collect()  # urllib3 closes a pool's connections when it is collected
    return not nuisance.open


def _not_told_by_requests(client, trouble):
    """http.client takes headers that end in the middle for a complete answer, and so does requests."""
    return type(client).__name__ == "RequestsAgent" and trouble == "hang up in the headers"


TROUBLES = {
    "reset": _resets,
    "hang up": _hangs_up,
    "hang up in the headers": _hangs_up_in_the_headers,
}


@pytest.mark.parametrize("trouble", list(TROUBLES))
def test_a_broken_connection_is_tried_again(agent, nuisance, trouble):
    client, url = agent(), nuisance.does("/shaky", _after(2, TROUBLES[trouble]))
    if _not_told_by_requests(client, trouble):
        assert client.get(url).body == b""
    else:
        assert client.get(url).body == b"ok"
        assert nuisance.asked == ["/shaky"] * 3


@pytest.mark.parametrize("trouble", list(TROUBLES))
def test_the_librarys_own_error_leaves_when_attempts_run_out(agent, nuisance, trouble, library_errors):
    client, url = agent(attempts=2), nuisance.does("/dead", TROUBLES[trouble])
    if _not_told_by_requests(client, trouble):
        return
    with pytest.raises(library_errors) as caught:
        client.get(url)
    assert nuisance.asked == ["/dead"] * 2, "no attempt more: neither ours nor one that the library makes by itself"
    assert any("gave up after 2 attempts" in note for note in caught.value.__notes__)


def test_a_broken_post_is_not_tried_again(agent, nuisance, library_errors):
    client = agent()
    with pytest.raises(library_errors):
        client.request("POST", nuisance.does("/orders", _resets), body=b"x")
    assert nuisance.asked == ["/orders"]


def test_no_one_listening_is_tried_again_and_opens_the_breaker(agent, library_errors):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = agent(circuit_breaker={"minimum_calls": 3, "failure_rate": 1.0}, attempts=3)
    with pytest.raises(library_errors):
        client.get(f"http://127.0.0.1:{port}/")
    with pytest.raises(CircuitOpenError):
        client.get(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("slow", [_says_nothing, _dribbles])
def test_an_attempt_that_takes_too_long_is_ended_and_made_again(agent, nuisance, slow):
    url = nuisance.does("/slow", _after(1, slow))
    assert agent(attempt_timeout=0.15, attempts=20, budget=None).get(url).body == b"ok"
    assert len(nuisance.asked) >= 2  # more where this machine is slow itself


@pytest.mark.parametrize("slow", [_says_nothing, _dribbles])
def test_the_whole_call_ends_on_time(agent, nuisance, slow):
    began = time.monotonic()
    client = agent(max_duration=0.2)
    with pytest.raises(TimeoutExceededError):
        client.get(nuisance.does("/slow", slow))
    assert time.monotonic() - began < 5, "and not after the timeouts of the library, which a dribble never trips"


def test_the_whole_call_ends_on_time_with_an_end_for_each_attempt_too(agent, nuisance):
    client = agent(max_duration=0.6, attempt_timeout=0.12, attempts=10)
    with pytest.raises(TimeoutExceededError):
        client.get(nuisance.does("/slow", _dribbles))
    assert 2 <= len(nuisance.asked) <= 5


def test_a_post_that_takes_too_long_is_not_made_again(agent, nuisance):
    client = agent(attempt_timeout=0.15)
    with pytest.raises(TimeoutExceededError):
        client.request("POST", nuisance.does("/slow", _says_nothing), body=b"x")
    assert nuisance.asked == ["/slow"]


def test_a_server_that_hangs_opens_the_breaker(agent, nuisance):
    client = agent(attempt_timeout=0.1, attempts=2, circuit_breaker={"minimum_calls": 2, "failure_rate": 1.0})
    url = nuisance.does("/hung", _says_nothing)
    with pytest.raises(TimeoutExceededError):
        client.get(url)
    with pytest.raises(CircuitOpenError):
        client.get(url)


def test_a_deadline_ends_a_call_and_is_told_to_the_server(agent, service, reply, library_errors):
    url = service.will("/slow", reply(delay=2))
    client = agent()
    with deadline(0.6), pytest.raises((TimeoutError, *library_errors)):
        client.get(url)
    assert 0 < int(service.seen[0].headers["x-request-timeout-ms"]) <= 600


def test_a_body_lost_in_the_middle_is_retried_when_it_is_buffered(agent, nuisance):
    async def half(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")
        await writer.drain()
        writer.close()
        return "close"

    client = agent(buffer=True)
    url = nuisance.does("/half", _after(1, half))
    assert client.get(url).body == b"ok"
    assert nuisance.asked == ["/half"] * 2


def test_a_body_lost_in_the_middle_is_an_error_when_it_is_not(agent, nuisance, library_errors):
    async def half(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")
        await writer.drain()
        writer.close()
        return "close"

    client = agent()
    with pytest.raises(library_errors):
        client.get(nuisance.does("/half", half))
    assert nuisance.asked == ["/half"]


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_a_response_that_is_not_wanted_gives_its_connection_back(agent, nuisance, size):
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n" % size
    if size == 10:
        busy += b"0123456789"
    client = agent()
    url = nuisance.says("/busy", busy, busy, OK)
    assert client.get(url).body == b"ok"
    assert client.connections() == 0


def test_a_small_response_is_read_so_that_its_connection_is_used_again(agent, nuisance):
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: 10\r\n\r\n0123456789"
    connected = []
    client = agent()
    url = nuisance.says("/busy", busy, busy, OK)
    plain = nuisance.acts["/busy"]

    async def act(writer):
        connected.append(writer)
        return await plain(writer)

    nuisance.does("/busy", act)
    assert client.get(url).body == b"ok"
    assert len(set(connected)) == 1


def test_the_rest_of_a_response_is_not_waited_for(agent, nuisance):
    """It says that it is small, and sends it a byte at a time: a new connection costs less than that."""

    async def drips(writer):
        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    client, began = agent(), time.monotonic()
    assert client.get(nuisance.does("/drips", _after(1, drips))).body == b"ok"
    assert time.monotonic() - began < 20, "all of it takes 50 seconds"


def test_an_answer_that_comes_too_late_is_closed(agent, nuisance):
    async def late(writer):
        await asyncio.sleep(0.4)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        await writer.drain()

    client = agent(attempt_timeout=0.15, attempts=1)
    with pytest.raises(TimeoutExceededError):
        client.get(nuisance.does("/late", late))
    until = time.monotonic() + 5
    while client.connections() and time.monotonic() < until:
        client.run(asyncio.sleep(0.01)) if hasattr(client, "run") else time.sleep(0.01)
    assert client.connections() == 0


def test_nothing_stays_open_when_all_is_closed(agent, nuisance, library_errors):
    assert _gone_soon(nuisance), nuisance.open
    client = agent(attempt_timeout=0.1, attempts=2)
    for path, act in {"/a": _resets, "/b": _says_nothing, "/c": _dribbles, "/d": _hangs_up}.items():
        with pytest.raises((TimeoutError, *library_errors)):
            client.get(nuisance.does(path, act))
    assert client.get(nuisance.says("/e", OK)).body == b"ok"
    client.client.close() if not hasattr(client, "run") else client.run(_close(client.client))
    assert _gone_soon(nuisance), nuisance.open


async def _close(client):
    await (client.aclose() if hasattr(client, "aclose") else client.close())
