"""Live streams: what happens, what changes, and readers that are slow, gone or silent."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass

import httpx2
import pytest

from everkeel import RateLimitedError, circuit_breaker, events, rate_limit, registry, retry
from everkeel.control import stream as streams
from everkeel.control.ear import HEALTHY, MOST_RARE, RARE, Ear, heard_types
from everkeel.control.stream import EventStream, Reader, message
from everkeel.runtime import events as hub
from everkeel.runtime.clock import DEFAULT


class Wire:
    """An ASGI connection in memory: what was sent, and a client that reads when it is let."""

    def __init__(self, path: str, secret: str, query: str = "") -> None:
        self.scope = {
            "type": "http", "method": "GET", "path": path, "root_path": "", "query_string": query.encode(),
            "headers": [(b"authorization", f"Bearer {secret}".encode())], "client": ("10.0.0.1", 5),
            "scheme": "http", "server": ("t", 80),
        }  # fmt: skip
        self.status, self.data, self.ended = 0, b"", False
        self.reading = asyncio.Event()
        self.reading.set()
        self.hung_up = asyncio.Event()

    async def receive(self):
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, one):
        if one["type"] == "http.response.start":
            self.status = one["status"]
            return
        await self.reading.wait()
        self.data += one["body"]
        self.ended = not one.get("more_body", False)

    def told(self, event: str) -> list:
        found = []
        for block in self.data.decode().split("\n\n"):
            fields = dict(
                line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":")
            )
            if fields.get("event") == event:
                found.append(json.loads(fields["data"]))
        return found


@pytest.fixture
def connect(plane, secrets):
    def connecting(path: str, query: str = "") -> tuple[Wire, asyncio.Task]:
        wire = Wire("/everkeel" + path, secrets["viewer"], query)
        return wire, asyncio.ensure_future(plane(wire.scope, wire.receive, wire.send))

    return connecting


async def over(task: asyncio.Task, wire: Wire) -> None:
    wire.hung_up.set()
    await task


async def test_what_happens_is_told(connect, payments, virtual_time):
    wire, task = connect("/events")
    await asyncio.sleep(0.1)
    payments.force_open()
    await asyncio.sleep(1)
    opened, forced = wire.told("happened")
    assert (opened["event"], opened["type"], opened["name"]) == ("circuit_opened", "circuit_breaker", "payments")
    assert (opened["details"]["reason"], opened["count"]) == ("forced", 1)
    assert forced["event"] == "circuit_forced"
    await over(task, wire)


async def test_a_flood_of_rejections_is_counted_and_does_not_hide_what_is_rare(connect, payments, virtual_time):
    limit = rate_limit(1, "search", per=3600)
    wire, task = connect("/events")
    await asyncio.sleep(0.1)
    limit.acquire()
    for _ in range(5000):
        with pytest.raises(RateLimitedError):
            limit.acquire()
    payments.force_open()
    await asyncio.sleep(0.5)
    happened = {one["event"]: one for one in wire.told("happened")}
    assert happened["call_rejected"]["count"] == 5000
    assert "circuit_opened" in happened
    assert len(wire.told("happened")) == 3
    await over(task, wire)


async def test_a_stream_is_filtered_by_type_name_and_event(connect, payments, fetch, virtual_time):
    wires = [connect("/events", query) for query in ("type=retry", "name=pay*&event=circuit_open*", "event=nothing")]
    await asyncio.sleep(0.1)
    payments.force_open()
    fetch.mode = "off"
    await asyncio.sleep(0.5)
    told = [[one["event"] for one in wire.told("happened")] for wire, _ in wires]
    assert told == [["mode_changed", "reconfigured"], ["circuit_opened"], []]
    for wire, task in wires:
        await over(task, wire)


async def test_nobody_is_listened_to_while_nobody_reads(connect, fetch, virtual_time):
    before = hub.everywhere
    wire, task = connect("/events")
    await asyncio.sleep(1)
    assert len(hub.everywhere) == len(before) + 1
    assert len(fetch.layers()) == 1  # and a healthy call costs what it always does
    await over(task, wire)
    await asyncio.sleep(20)
    assert hub.everywhere != before  # a page that is reloaded must not make every function be woven anew
    await asyncio.sleep(20)
    assert hub.everywhere == before
    wire, task = connect("/events")  # and again
    await asyncio.sleep(0.1)
    fetch.mode = "off"
    await asyncio.sleep(1)
    assert wire.told("happened")
    await over(task, wire)


def test_events_of_healthy_calls_are_not_listened_for_and_unknown_ones_are_counted():
    assert not HEALTHY & set(heard_types())
    assert not RARE & {kind.__name__ for kind in HEALTHY}
    assert all(hasattr(events, name) for name in RARE)

    @dataclass(frozen=True, kw_only=True, slots=True)
    class LetterBuried(events.Event):
        number: int

    ear = Ear(DEFAULT)
    ear.open()
    for number in range(3):
        hub.tell(LetterBuried(policy="dlq", policy_type="dead_letters", number=number), ())
    (told,) = ear.take()
    assert (told["event"], told["count"], told["details"]) == ("letter_buried", 3, {"number": 0})
    ear.close()


async def test_the_ear_has_bounded_memory_and_says_what_it_lost(virtual_time):
    ear = Ear(DEFAULT)
    ear.open()
    limit = rate_limit(5, "b")
    ear.take()
    for _ in range(MOST_RARE + 10):
        limit.drain()
    taken = ear.take()
    assert len(taken) == MOST_RARE + 1
    assert (taken[-1]["event"], taken[-1]["count"]) == ("events_lost", 10)
    assert ear.take() == []
    ear.close()


# ------------------------------------------------------------------ the numbers


async def test_a_dashboard_gets_everything_once_and_then_only_changes(connect, virtual_time):
    policies = [retry(f"p{number}") for number in range(120)]
    wire, task = connect("/stream")
    await asyncio.sleep(0.1)
    pieces = wire.told("snapshot")
    assert [len(one["policies"]) for one in pieces] == [50, 50, 20]
    assert [one["complete"] for one in pieces] == [False, False, True]
    await asyncio.sleep(5)
    assert wire.told("changes") == []  # nothing changed, nothing sent
    for _ in range(10):
        policies[3].call(int)
    registry.remove("retry", "p7")
    await asyncio.sleep(2.1)
    first, second = wire.told("changes")
    assert [(one["name"], one["metrics"]["success"]) for one in first["policies"]] == [("p3", 10)]
    assert first["policies"][0]["rates"]["success"] > 0
    assert first["gone"] == [{"type": "retry", "name": "p7"}]
    assert [(one["name"], one["rates"]["success"]) for one in second["policies"]] == [("p3", 0.0)]
    assert [one["event"] for one in wire.told("happened")] == ["policy_removed"]
    await over(task, wire)


async def test_what_changes_while_the_first_snapshot_is_sent_is_not_missed(connect, plane, virtual_time):
    policies = [retry(f"p{number}") for number in range(120)]
    wire, task = connect("/stream")
    wire.reading.clear()
    await asyncio.sleep(0.1)
    policies[110].call(int)
    plane.feed.look(policies[110])  # somebody else asks, in between
    wire.reading.set()
    await asyncio.sleep(3)
    mine = {one["name"]: one["metrics"]["success"] for piece in wire.told("snapshot") for one in piece["policies"]}
    mine |= {one["name"]: one["metrics"]["success"] for news in wire.told("changes") for one in news["policies"]}
    assert mine["p110"] == 1
    await over(task, wire)


async def test_an_empty_service_has_an_empty_snapshot(connect, virtual_time):
    wire, task = connect("/stream")
    await asyncio.sleep(0.1)
    assert wire.told("snapshot") == [{"version": 0, "total": 0, "complete": True, "policies": []}]
    late = retry("late")
    await asyncio.sleep(3)
    assert [one["name"] for news in wire.told("changes") for one in news["policies"]][:1] == ["late"]
    assert late.name == "late"
    await over(task, wire)


async def test_a_quiet_stream_sends_a_sign_of_life(connect, virtual_time):
    wire, task = connect("/events")
    await asyncio.sleep(40)
    assert wire.data.count(b": still here") == 2
    await over(task, wire)


# ------------------------------------------------------------------ slow, silent and too many


def test_a_queue_that_is_full_is_emptied_and_ends_with_a_notice():
    async def fill() -> list[bytes]:
        reader = Reader("ann", 0.0)
        for number in range(10_000):
            reader.offer(message("happened", {"n": number}))
            assert len(reader._queue) <= streams.MOST_MESSAGES
        return [one async for one in reader.messages()]

    (notice,) = asyncio.run(fill())
    assert notice.startswith(b"event: dropped\n")
    assert b"too slowly" in notice


def test_a_queue_is_bounded_in_bytes_too():
    async def fill() -> int:
        reader = Reader("ann", 0.0)
        for _ in range(20):
            reader.offer(b"x" * 1024 * 1024)
        return sum(map(len, reader._queue))

    assert asyncio.run(fill()) < 1000


async def test_a_reader_that_never_reads_is_dropped_with_a_notice_and_others_notice_nothing(
    connect, plane, payments, virtual_time, caplog
):
    silent, silent_task = connect("/events")
    good, good_task = connect("/events")
    await asyncio.sleep(0.1)
    silent.reading.clear()
    for _ in range(300):
        payments.force_open()
        payments.reset()
        await asyncio.sleep(0.25)
        if silent_task.done():
            break
    assert silent_task.done()  # given up: one write took too long
    assert plane.feed.readers == 1
    assert "did not read for 30 s" in caplog.text
    assert good.told("dropped") == []
    assert len(good.told("happened")) > 200
    await over(good_task, good)


async def test_a_burst_is_no_reason_to_drop_a_reader(connect, virtual_time):
    """As when a shared dependency fails and a thousand circuits open at once."""
    circuits = [circuit_breaker(f"c{number}") for number in range(1000)]
    wire, task = connect("/events", "event=circuit_opened")
    await asyncio.sleep(0.1)
    for circuit in circuits:
        circuit.force_open()
    await asyncio.sleep(1)
    assert len({one["name"] for one in wire.told("happened")}) == 1000
    assert wire.told("dropped") == []
    await over(task, wire)


async def test_a_reader_that_comes_back_after_being_dropped_reads_that_it_was(
    connect, payments, virtual_time, monkeypatch
):
    monkeypatch.setattr(streams, "MOST_MESSAGES", 20)
    slow, task = connect("/events")
    await asyncio.sleep(0.1)
    slow.reading.clear()
    for _ in range(40):
        payments.force_open()
        payments.reset()
        await asyncio.sleep(0.25)
    slow.reading.set()
    await task
    (notice,) = slow.told("dropped")
    assert "too slowly" in notice["reason"]
    assert slow.ended


def test_a_client_on_a_real_socket_that_never_reads_costs_bounded_memory(plane, serve, secrets, monkeypatch):
    """uvicorn and the kernel buffer some; after that the queue fills, is dropped, and stays empty."""
    monkeypatch.setattr(streams, "MOST_MESSAGES", 20)
    monkeypatch.setattr("everkeel.control.feed.ROUND", 0.005)
    limit = rate_limit(5, "x" * 60_000, key=str)
    readers: list[Reader] = []
    join = plane.feed.join
    monkeypatch.setattr(plane.feed, "join", lambda *args: readers.append(join(*args)) or readers[-1])
    head = f"GET /everkeel/events HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {secrets['viewer']}\r\n\r\n".encode()
    with serve(plane) as url, ExitStack() as stack:
        host, port = url.removeprefix("http://").split(":")
        silent = stack.enter_context(socket.create_connection((host, int(port))))
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.sendall(head)
        assert b"200 OK" in silent.recv(200)
        with httpx2.stream(
            "GET", f"{url}/everkeel/events", headers={"Authorization": f"Bearer {secrets['viewer']}"}
        ) as good:
            lines = good.iter_lines()
            next(line for line in lines if line == ": listening")
            deadline = threading.Event()
            timer = threading.Timer(30, deadline.set)
            timer.start()
            while not readers[0].dropped and not deadline.is_set():
                limit.drain(key="k")
                next(line for line in lines if line.startswith("data: "))
            timer.cancel()
            assert readers[0].dropped
            assert len(readers[0]._queue) <= 1
            limit.drain(key="last")
            assert '"key":"last"' in next(line for line in lines if '"last"' in line)


async def test_there_are_only_so_many_streams(make_plane, secrets, virtual_time):
    plane = make_plane(max_streams=4)
    roles = ["viewer"] * 3 + ["operator", "admin", "admin"]  # and nobody takes them all
    wires = [Wire("/everkeel/events", secrets[role]) for role in roles]
    tasks = [asyncio.ensure_future(plane(wire.scope, wire.receive, wire.send)) for wire in wires]
    await asyncio.sleep(0.1)
    assert [wire.status for wire in wires] == [200, 200, 503, 200, 200, 503]
    for wire, task in zip(wires, tasks, strict=True):
        await over(task, wire)
    await asyncio.sleep(1)
    assert plane.feed.readers == 0


async def test_a_stream_ends_after_an_hour_so_that_its_reader_shows_again_who_it_is(connect, virtual_time):
    wire, task = connect("/events")
    await task
    assert 3600 <= virtual_time.monotonic() < 3602
    assert wire.told("bye") == [{"reason": "an hour is over: connect again", "again": True}]


async def test_a_server_that_stops_is_not_held_up_by_streams(connect, virtual_time, monkeypatch):
    wire, task = connect("/stream")
    await asyncio.sleep(0.1)
    monkeypatch.setattr(streams, "server_is_stopping", lambda: True)
    await task
    assert wire.ended
    assert wire.told("bye") == [{"reason": "the server is stopping", "again": False}]


def test_a_stopping_uvicorn_is_recognised(monkeypatch):
    import signal

    import uvicorn

    server = uvicorn.Server(uvicorn.Config(lambda: None))
    assert not streams.server_is_stopping()
    monkeypatch.setattr(signal, "getsignal", lambda number: server.handle_exit)
    assert not streams.server_is_stopping()
    server.handle_exit(signal.SIGTERM, None)
    assert streams.server_is_stopping()


async def test_an_error_of_ours_in_a_stream_is_not_swallowed(virtual_time):
    async def broken():
        yield b"x"
        raise ZeroDivisionError

    left = []
    wire = Wire("/", "x")
    response = EventStream(Reader("ann", 0.0), broken(), {}, left.append)
    with pytest.raises(ZeroDivisionError):
        await response(wire.scope, wire.receive, wire.send)
    assert len(left) == 1
