"""What goes out: headers about the call, bodies that are sent again, races, streams; and what is released."""

from __future__ import annotations

import asyncio
import io
import re
import ssl
import time

import aiohttp
import httpx2
import pytest
import requests

import everkeel
from everkeel import CircuitOpenError, RateLimitedError, ShedError, TimeoutExceededError, deadline, priority
from everkeel.http.aiohttp import ResilientMiddleware
from everkeel.http.httpx2 import AsyncResilientTransport, ResilientTransport, request_options
from everkeel.http.requests import ResilientAdapter

# ---------------------------------------------------------------------- headers


def test_the_first_attempt_says_so_and_nothing_that_is_not_known(agent, service):
    agent().get(service.will("/x"))
    said = {name: value for name, value in service.seen[0].headers.items() if name.startswith("x-request")}
    assert said == {"x-request-attempt": "1"}


def test_the_remaining_time_is_sent_and_gets_less(agent, service):
    client = agent()
    with deadline(10):
        client.get(service.will("/x", 503))
    left = [int(one.headers["x-request-timeout-ms"]) for one in service.seen]
    assert 0 < left[1] <= left[0] <= 10_000


def test_the_end_of_one_attempt_is_the_remaining_time_too(agent, service):
    agent(attempt_timeout=7).get(service.will("/x"))
    assert 0 < int(service.seen[0].headers["x-request-timeout-ms"]) <= 7000


def test_the_priority_is_the_requests_the_contexts_or_the_clients(agent, service):
    client = agent(priority="low")
    client.get(service.will("/x"))
    with priority("high"):
        client.get(service.will("/x"))
        client.get(service.will("/x"), priority="batch")
    assert [one.headers["x-request-priority"] for one in service.seen] == ["low", "high", "batch"]


def test_a_priority_that_is_no_header_is_not_sent(agent, service):
    client = agent()
    with priority("very high!"):
        assert client.get(service.will("/x")).status == 200
    assert "x-request-priority" not in service.seen[0].headers


def test_what_the_application_says_itself_stays(agent, service):
    mine = {"X-Request-Timeout-Ms": "5", "X-Request-Priority": "mine", "traceparent": "mine"}
    client = agent(priority="low")
    with deadline(10):
        client.get(service.will("/x"), headers=mine)
    sent = service.seen[0].headers
    assert {name: sent[name.lower()] for name in mine} == mine


def test_headers_may_be_off(agent, service):
    client = agent(send_headers=False, priority="low")
    with deadline(10):
        client.get(service.will("/x"))
    assert not [name for name in service.seen[0].headers if name.startswith("x-request")]


def test_the_trace_goes_along_where_there_is_one(agent, service):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("test")
    client = agent()
    with tracer.start_as_current_span("call") as span:
        client.get(service.will("/x", 503))
    client.get(service.will("/x"))
    traces = [one.headers.get("traceparent") for one in service.seen]
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-9]", traces[0])
    assert trace.format_trace_id(span.get_span_context().trace_id) in traces[0]
    assert traces[1] == traces[0]
    assert traces[2] is None


# ---------------------------------------------------------------------- bodies


def test_a_body_in_memory_is_sent_again(agent, service):
    assert agent().request("PUT", service.will("/x", 503), body=b"all of it").status == 200
    assert [one.body for one in service.seen] == [b"all of it"] * 2


def test_an_iterator_cannot_be_and_is_not(agent, service):
    client = agent()

    def chunks():
        yield b"one "
        yield b"two"

    async def achunks():
        yield b"one "
        yield b"two"

    body = achunks() if hasattr(client, "arequest") else chunks()
    assert client.request("PUT", service.will("/x", 503), body=body).status == 503
    assert [one.body for one in service.seen] == [b"one two"]


def test_requests_rewinds_a_file(service):
    session = requests.Session()
    session.mount("http://", ResilientAdapter(backoff=0))
    file = io.BytesIO(b"skip this: the rest")
    file.seek(11)
    assert session.put(service.will("/x", 503, 503), data=file).status_code == 200
    assert [one.body for one in service.seen] == [b"the rest"] * 3
    session.close()


def test_httpx_sends_a_form_with_files_again(service):
    with httpx2.Client(transport=ResilientTransport(backoff=0)) as client:
        response = client.put(service.will("/x", 503), files={"file": ("a.txt", io.BytesIO(b"content"))})
    assert response.status_code == 200
    assert service.seen[0].body == service.seen[1].body
    assert b"content" in service.seen[1].body


def test_httpx_does_not_send_a_pipe_again(service):
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with httpx2.Client(transport=ResilientTransport(backoff=0)) as client:
        assert client.put(service.will("/x", 503), files={"file": ("a.txt", Pipe(b"content"))}).status_code == 503
    assert len(service.seen) == 1


def test_aiohttp_sends_a_form_again(service):
    async def main() -> int:
        async with aiohttp.ClientSession(middlewares=[ResilientMiddleware(backoff=0)]) as session:
            async with session.put(service.will("/x", 503), json={"a": 1}) as response:
                return response.status

    assert asyncio.run(main()) == 200
    assert [one.body for one in service.seen] == [b'{"a": 1}'] * 2


# ---------------------------------------------------------------------- streams


def test_a_stream_is_retried_before_its_body_is_handed_over(service, reply):
    url = service.will("/big", 503, reply(200, body=b"x" * 300_000, chunked=True))
    with httpx2.Client(transport=ResilientTransport(backoff=0)) as client:
        with client.stream("GET", url) as response:
            assert sum(len(chunk) for chunk in response.iter_raw()) == 300_000
    session = requests.Session()
    session.mount("http://", ResilientAdapter(backoff=0, buffer=True))
    service.will("/big", 503, reply(200, body=b"x" * 300_000, chunked=True))
    with session.get(url, stream=True) as response:
        assert len(response.raw.read()) == 300_000, "and not read before, whatever `buffer` says"
    session.close()
    assert len(service.seen) == 4


def test_an_async_stream_is_too(service, reply):
    async def main() -> None:
        url = service.will("/big", 503, reply(200, body=b"x" * 300_000, chunked=True))
        async with httpx2.AsyncClient(transport=AsyncResilientTransport(backoff=0)) as client:
            async with client.stream("GET", url) as response:
                assert sum([len(chunk) async for chunk in response.aiter_raw()]) == 300_000
        service.will("/big", 503, reply(200, body=b"x" * 300_000, chunked=True))
        async with aiohttp.ClientSession(middlewares=[ResilientMiddleware(backoff=0)]) as session:
            async with session.get(url) as response:
                assert sum([len(chunk) async for chunk in response.content.iter_any()]) == 300_000

    asyncio.run(main())
    assert len(service.seen) == 4


def test_a_stream_that_breaks_in_the_middle_is_not_begun_again(nuisance):
    async def half(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")
        await writer.drain()
        writer.close()
        return "close"

    got = []
    with httpx2.Client(transport=ResilientTransport(backoff=0)) as client:
        with client.stream("GET", nuisance.does("/half", half)) as response:
            with pytest.raises(httpx2.RemoteProtocolError):
                got.extend(response.iter_raw())
    assert b"".join(got) == b"half of it"
    assert nuisance.asked == ["/half"]


# ---------------------------------------------------------------------- races


def test_a_slow_safe_request_is_made_a_second_time_and_the_first_answer_wins(agent, service, reply):
    url = service.will("/slow", reply(200, body=b"slow", delay=9), reply(200, body=b"quick"))
    client = agent(hedge={"delay": 0.15})
    assert client.get(url).body == b"quick"
    assert [one.headers["x-request-attempt"] for one in service.seen] == ["1", "2"]
    assert client.part.hedge.snapshot()["won"] == {2: 1}


def test_an_unsafe_one_is_not(agent, service, reply):
    client = agent(hedge={"delay": 0.01})
    client.request("PUT", service.will("/slow", reply(delay=0.1)), body=b"x")
    client.request("POST", service.will("/slow", reply(delay=0.1)), body=b"x", idempotent=True)
    assert len(service.seen) == 2


def test_one_request_may_do_without(agent, service, reply):
    agent(hedge={"delay": 0.01}).get(service.will("/slow", reply(delay=0.1)), hedge=False)
    assert len(service.seen) == 1


def test_a_loser_gives_its_connection_back(agent, service, reply):
    client = agent(hedge={"delay": 0.05})
    client.get(service.will("/slow", reply(200, body=b"x" * 100_000, delay=0.3), reply(200, body=b"quick")))
    until = time.monotonic() + 5
    while client.connections() and time.monotonic() < until:
        client.run(asyncio.sleep(0.02)) if hasattr(client, "run") else time.sleep(0.02)
    assert client.connections() == 0


# ---------------------------------------------------------------------- limits and live changes


def test_a_concurrency_limit_sheds_what_is_too_much(async_agent, service, reply):
    client = async_agent(concurrency_limit={"initial": 2, "ceiling": 2, "queue": 0}, attempts=1)
    service.will("/slow", *[reply(delay=0.2)] * 2)

    async def main():
        return await asyncio.gather(
            *(client.arequest("GET", service.url + "/slow") for _ in range(5)), return_exceptions=True
        )

    outcomes = client.run(main())
    assert sum(isinstance(one, ShedError) for one in outcomes) == 3
    assert len(service.seen) == 2


@pytest.mark.parametrize("status", [429, 503])
def test_a_concurrency_limit_shrinks_when_the_server_says_too_much(agent, service, status):
    client = agent(concurrency_limit={"algorithm": "aimd", "initial": 100}, attempts=1)
    client.get(service.will("/x", status))
    assert client.part.concurrency_limit.snapshot()["limit"] < 100


def test_it_shrinks_when_the_server_is_too_slow(agent, service, reply):
    client = agent(concurrency_limit={"algorithm": "aimd", "initial": 100}, attempts=1, attempt_timeout=0.1)
    with pytest.raises(TimeoutExceededError):
        client.get(service.will("/x", reply(delay=1)))
    assert client.part.concurrency_limit.snapshot()["limit"] < 100


def test_with_the_usual_queue_they_wait_instead(async_agent, service, reply):
    client = async_agent(concurrency_limit={"initial": 2, "ceiling": 2}, attempts=1)
    service.will("/slow", *[reply(delay=0.02)] * 6)

    async def main():
        return await asyncio.gather(*(client.arequest("GET", service.url + "/slow") for _ in range(6)))

    assert {one.status for one in client.run(main())} == {200}


def test_settings_can_change_while_the_client_runs(agent, service):
    client = agent()
    client.part.retry.reconfigure(attempts=5)
    assert client.get(service.will("/x", 503, 503, 503, 503)).status == 200


def test_switched_off_it_is_a_plain_client(agent, service):
    client = agent()
    everkeel.disable()
    try:
        assert client.get(service.will("/x", 503)).status == 503
    finally:
        everkeel.enable()
    assert len(service.seen) == 1


def test_the_number_of_origins_is_bounded(sync_agent):
    client = sync_agent(max_origins=3, attempts=1)
    for port in range(1, 8):
        with pytest.raises(Exception, match=r"."):
            client.get(f"http://127.0.0.1:{port}/")
    assert client.part.circuit_breaker.snapshot()["keys"] <= 3


def test_one_request_may_have_an_end_of_its_own(agent, service, reply):
    client = agent()
    with pytest.raises(TimeoutExceededError) as caught:
        client.get(service.will("/slow", *[reply(delay=1)] * 3), attempt_timeout=0.05, attempts=2)
    # Not what the service has seen: on a busy machine an attempt may end before it gets there.
    assert any("gave up after 2 attempts" in note for note in caught.value.__notes__)
    with pytest.raises(TimeoutExceededError):
        client.get(service.will("/slower", reply(delay=1)), max_duration=0.05)


# ---------------------------------------------------------------------- cancellation


def test_a_cancelled_request_is_not_retried_and_leaks_nothing(async_agent, service, reply):
    client = async_agent()
    service.will("/slow", reply(delay=5))

    async def main():
        task = asyncio.create_task(client.arequest("GET", service.url + "/slow"))
        while not service.seen:  # noqa: ASYNC110 - the server is in another thread
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)

    client.run(main())
    assert len(service.seen) == 1
    assert client.connections() == 0
    assert client.part.circuit_breaker.snapshot()["failure"] == 0


def test_cancelled_while_it_waits_it_holds_no_connection(async_agent, service, reply):
    client = async_agent()
    service.will("/busy", reply(503, {"Retry-After": "30"}, b"x" * 1000))

    async def main():
        task = asyncio.create_task(client.arequest("GET", service.url + "/busy"))
        while not service.seen:  # noqa: ASYNC110 - the server is in another thread
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        assert client.connections() == 0, "given back before the wait, not after it"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    client.run(main())


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"statuses": [99]}, "statuses must be a collection of status codes"),
        ({"statuses": 503}, "statuses must be a collection of status codes"),
        ({"methods": "GET"}, "methods must be a collection of HTTP methods"),
        ({"circuit_breaker": "yes"}, "circuit_breaker must be True, False, or a table"),
        ({"circuit_breaker": {"failure_rate": 2}}, "failure_rate must be a share"),
        ({"idempotency_keys": "k"}, "idempotency_keys must be True, False, or a function"),
        ({"priority": "very high!"}, "a priority must be up to 64"),
        ({"on_status": "ignore"}, "on_status must be 'return' or 'raise'"),
        ({"max_origins": 0}, "max_origins must be at least 1"),
        ({"tries": 3}, "tries"),
    ],
)
def test_a_wrong_setting_fails_when_it_is_written(settings, message):
    with pytest.raises(ValueError, match=message):
        ResilientTransport(**settings)


def test_options_around_a_block_are_checked_where_they_are_written():
    with pytest.raises(ValueError, match="attempts must be at least 1"):
        with request_options(attempts=0):
            pass


def test_options_that_are_no_table_are_refused(service):
    with httpx2.Client(transport=ResilientTransport()) as client:
        with pytest.raises(ValueError, match=r"extensions\['everkeel'\] must be a table"):
            client.get(service.will("/x"), extensions={"everkeel": 1})


def test_a_name_may_be_taken_once(service):
    first = ResilientTransport(name="test.names")
    with pytest.raises(ValueError, match=r"test\.names"):
        ResilientTransport(name="test.names")
    ResilientTransport(name="test.names", replace=True).close()
    first.close()


def test_an_open_circuit_is_not_retried(agent, service):
    client = agent()
    client.part.circuit_breaker.force_open(key=("http", "127.0.0.1", int(service.url.rpartition(":")[2])))
    with pytest.raises(CircuitOpenError):
        client.get(service.will("/x"))
    assert service.seen == []


def test_an_unknown_setting_of_a_policy_is_named():
    with pytest.raises(ValueError, match=r"http client: circuit_breaker must have known settings: .*failure_rat"):
        ResilientTransport(circuit_breaker={"failure_rat": 0.5})


def test_what_counts_as_a_failure_may_be_said_otherwise(agent, service):
    client = agent(attempts=1, circuit_breaker={"minimum_calls": 1, "failure_rate": 1.0, "on": ZeroDivisionError})
    for _ in range(3):
        assert client.get(service.will("/x", 500)).status == 500


def test_a_predicate_that_raises_does_not_repeat_a_request(agent, service, nuisance, library_errors):
    def broken(request, outcome):
        raise ZeroDivisionError

    client = agent(retry_if=broken)
    assert client.request("POST", service.will("/x", 503), body=b"x").status == 503
    assert len(service.seen) == 1
    assert client.get(service.will("/y", 503)).status == 200, "and decides as usual otherwise"


def test_a_field_in_several_lines_is_one_field(agent, nuisance):
    client = agent(rate_limit={"queue": 0})
    url = nuisance.says(
        "/two",
        'HTTP/1.1 200 OK\r\nRateLimit: "burst";r=50;t=30\r\nRateLimit: "daily";r=0;t=30\r\nContent-Length: 0\r\n\r\n',
    )
    client.get(url)
    with pytest.raises(RateLimitedError):
        client.get(url)


def test_a_websocket_is_neither_buffered_nor_made_twice(uvicorn_at):
    async def echo(scope, receive, send):
        if scope["type"] == "websocket":
            connections.append(scope["path"])
            await receive()
            await asyncio.sleep(0.1)
            await send({"type": "websocket.accept"})
            message = await receive()
            await send({"type": "websocket.send", "text": message["text"]})
            await receive()

    connections = []
    url = uvicorn_at(echo, ws="websockets-sansio")

    async def main() -> str:
        part = ResilientMiddleware(buffer=True, hedge={"delay": 0.01})
        async with aiohttp.ClientSession(middlewares=[part]) as session:
            async with session.ws_connect(url + "/ws") as socket:
                await socket.send_str("hello")
                return await socket.receive_str()

    assert asyncio.run(main()) == "hello"
    assert connections == ["/ws"]


def test_a_hook_may_return_another_request(service):
    def elsewhere(request, attempt):
        return httpx2.Request("GET", service.url + "/other")

    with httpx2.Client(transport=ResilientTransport(backoff=0, before_retry=elsewhere)) as client:
        assert client.get(service.will("/x", 503)).status_code == 200
    assert [one.path for one in service.seen] == ["/x", "/other"]


def _untrusted() -> Exception:
    try:
        try:
            raise ssl.SSLCertVerificationError("self-signed certificate")
        except ssl.SSLCertVerificationError as error:
            raise OSError("as a library wraps it") from error
    except OSError as error:
        return error


def test_a_certificate_that_is_not_accepted_is_not_tried_again():
    calls = []

    def httpx_handler(request):
        calls.append(request)
        raise httpx2.ConnectError("certificate verify failed") from _untrusted()

    with httpx2.Client(transport=ResilientTransport(httpx2.MockTransport(httpx_handler))) as client:
        with pytest.raises(httpx2.ConnectError):
            client.get("https://a.test")

    class Adapter(requests.adapters.HTTPAdapter):
        def send(self, request, **options):
            calls.append(request)
            raise requests.exceptions.SSLError("certificate verify failed") from _untrusted()

    session = requests.Session()
    session.mount("https://", ResilientAdapter(Adapter()))
    with pytest.raises(requests.exceptions.SSLError):
        session.get("https://a.test")
    assert len(calls) == 2


def test_a_connection_that_breaks_while_it_is_secured_is_tried_again():
    calls = []

    def handler(request):
        calls.append(request)
        raise httpx2.ConnectError("EOF occurred in violation of protocol") from ssl.SSLEOFError()

    with httpx2.Client(transport=ResilientTransport(httpx2.MockTransport(handler), backoff=0)) as client:
        with pytest.raises(httpx2.ConnectError):
            client.get("https://a.test")
    assert len(calls) == 3
