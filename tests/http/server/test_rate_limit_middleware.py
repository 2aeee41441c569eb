"""The rate limit middleware, on a real server."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import websockets

from everkeel import ConfigError, disable, enable, rate_limit, rate_limit_chain
from everkeel.http import Admission, RateLimitMiddleware, by_address, by_api_key, by_route, by_user
from everkeel.http.headers import Limit, Quota, write_rate_limit, write_rate_limit_policy
from everkeel.http.server.keys import digest
from everkeel.http.server.standing import standing_headers
from everkeel.ratelimit.policy import Standing


def test_a_caller_over_its_limit_gets_a_problem_document_that_says_when_to_come_back(serve: Any, hello: Any) -> None:
    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, 2, per=60, name="api")) as service:
            assert [(await service.get()).status_code for _ in range(2)] == [200, 200]
            refused = await service.get()
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        problem = refused.json()
        assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
        assert (problem["status"], problem["error"]) == (429, "rate_limited")
        assert problem["message"] == problem["detail"]
        assert problem["violated-policies"] == ["api"]
        assert problem["client_id"] == digest("ip:127.0.0.1")
        # the next permit is there 30 s after the first was taken: some milliseconds have passed since
        assert 29_000 < problem["retry_after_ms"] <= 30_000
        assert problem["retry_after_seconds"] == -(-problem["retry_after_ms"] // 1000)
        assert refused.headers["retry-after"] == str(problem["retry_after_seconds"])
        assert refused.headers["x-ratelimit-retry-after-ms"] == str(problem["retry_after_ms"])
        assert refused.headers["ratelimit-policy"] == '"api";q=2;w=60'
        assert refused.headers["ratelimit"].startswith('"api";r=0;t=')

    asyncio.run(main())


def test_every_response_says_how_the_caller_stands(serve: Any, hello: Any) -> None:
    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, 10, per=60, name="api")) as service:
            first, second = await service.get(), await service.get()
        assert first.headers["ratelimit"] == '"api";r=9;t=6'
        assert second.headers["ratelimit"].startswith('"api";r=8;t=12')
        assert first.headers["ratelimit-policy"] == '"api";q=10;w=60'
        assert first.headers["content-length"] == str(len(first.content))
        for name in ("ratelimit-limit", "x-client-id", "x-backpressure", "retry-after"):
            assert name not in first.headers

    asyncio.run(main())


def test_older_headers_and_the_client_id_are_sent_where_they_are_asked_for(serve: Any, hello: Any) -> None:
    async def main() -> None:
        app = RateLimitMiddleware(hello, 1, per=60, older_headers=True, send_client_id=True)
        async with serve(app) as service:
            passed, refused = await service.get(), await service.get()
        for response, left in ((passed, "0"), (refused, "0")):
            assert response.headers["ratelimit-limit"] == "1"
            assert response.headers["ratelimit-remaining"] == left
            assert response.headers["ratelimit-reset"] == "60"
            assert response.headers["x-client-id"] == digest("ip:127.0.0.1")
        assert passed.headers["ratelimit"] == '"default";r=0;t=60'

    asyncio.run(main())


def test_quickly_written_headers_are_those_of_the_one_writer() -> None:
    one, two = Standing(100, 59.5, 7, 1.2), Standing(1000, 86_400.0, 0, 40.0)
    headers = dict(standing_headers([(b'"a"', one), (b'"b"', two)], older=True))
    limits = [Limit("a", one.remaining, one.reset_after), Limit("b", two.remaining, two.reset_after)]
    assert headers[b"ratelimit"].decode() == write_rate_limit(*limits)
    quotas = [Quota("a", one.permits, one.per), Quota("b", two.permits, two.per)]
    assert headers[b"ratelimit-policy"].decode() == write_rate_limit_policy(*quotas)
    assert dict(standing_headers([(b'"a"', one)], older=False))[b"ratelimit"].decode() == write_rate_limit(limits[0])
    assert headers[b"ratelimit-remaining"] == b"0"  # of the tightest


def test_each_api_key_has_a_limit_of_its_own_and_is_shown_nowhere(
    serve: Any, hello: Any, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "sk-live-0123456789"
    seen: list[Admission] = []
    limit = rate_limit(1, "keys", per=60, key=by_api_key())

    async def main() -> None:
        app = RateLimitMiddleware(hello, limit, send_client_id=True, on_rejected=seen.append)
        async with serve(app) as service:
            headers = {"X-API-Key": secret}
            first, again = await service.get(headers=headers), await service.get(headers=headers)
            other = await service.get(headers={"X-API-Key": "sk-live-another"})
        assert [first.status_code, again.status_code, other.status_code] == [200, 429, 200]
        told = [again.text, str(again.headers), str(first.headers), str(seen[0].error), repr(seen[0].client_id)]
        assert not [text for text in told if secret in text]
        assert again.json()["client_id"] == digest(f"key:{digest(secret)}")

    from everkeel.telemetry import log_events

    with caplog.at_level(logging.DEBUG), log_events():
        asyncio.run(main())
    records = [str(vars(record)) for record in caplog.records if record.name.startswith("everkeel")]
    assert any("keys" in text for text in records)
    assert secret not in caplog.text
    assert not [text for text in records if secret in text]


def test_keys_that_are_not_known_count_by_address_so_that_inventing_them_gains_nothing(serve: Any, hello: Any) -> None:
    limit = rate_limit(2, per=60, key=by_api_key(known=["right"]))

    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, limit)) as service:
            invented = [await service.get(headers={"X-API-Key": f"invented {n}"}) for n in range(4)]
            known = await service.get(headers={"X-API-Key": "right"})
        assert [one.status_code for one in invented] == [200, 200, 429, 429]
        assert known.status_code == 200

    asyncio.run(main())


def test_users_come_from_the_scope_and_strangers_count_by_address() -> None:
    class User:
        is_authenticated = True
        identity = "ann"

    class Stranger:
        is_authenticated = False

    key = by_user()
    assert key({"user": User()}) == "user:ann"
    assert key({"user": Stranger(), "client": ("192.0.2.7", 1), "headers": []}) == "ip:192.0.2.7"
    assert key({"client": None, "headers": []}) == "ip:unknown"


def test_routes_have_limits_of_their_own_and_exclusions_none(serve: Any, hello: Any) -> None:
    async def main() -> None:
        app = RateLimitMiddleware(
            hello,
            1,
            per=60,
            routes={"POST /orders/{id}": rate_limit(2, "orders", per=60, key=by_address()), "/free": None},
            exclude=["/health", "/static/*"],
        )
        async with serve(app) as service:
            orders = [(await service.post(f"/orders/{n}")).status_code for n in range(3)]
            plain = [(await service.get(f"/orders/{n}")).status_code for n in range(2)]
            for path in ("/health", "/free", "/static/logo.svg"):
                answers = [await service.get(path) for _ in range(3)]
                assert [one.status_code for one in answers] == [200, 200, 200]
                assert "ratelimit" not in answers[0].headers
        assert orders == [200, 200, 429]  # /orders/0, /1 and /2 are one route
        assert plain == [200, 429]

    asyncio.run(main())


def test_a_request_costs_what_it_costs(serve: Any, hello: Any) -> None:
    def cost(scope: Any) -> int:
        return 5 if scope["path"] == "/export" else 1

    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, 10, per=60, cost=cost)) as service:
            answers = [await service.get(path) for path in ("/export", "/export", "/")]
        assert [one.status_code for one in answers] == [200, 200, 429]
        assert answers[0].headers["ratelimit"].startswith('"default";r=5')

    asyncio.run(main())


def test_a_chain_takes_all_or_nothing_and_tells_of_each(serve: Any, hello: Any) -> None:
    everybody = rate_limit(100, "everybody", per=60)
    each = rate_limit(1, "each", per=60, key=by_api_key())

    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, rate_limit_chain(everybody, each))) as service:
            passed = await service.get(headers={"X-API-Key": "ann"})
            refused = await service.get(headers={"X-API-Key": "ann"})
        assert passed.headers["ratelimit-policy"] == '"everybody";q=100;w=60, "each";q=1;w=60'
        assert (refused.status_code, refused.json()["violated-policies"]) == (429, ["each"])
        assert everybody.remaining() == 99

    asyncio.run(main())


def test_callbacks_hear_of_both_and_one_that_raises_harms_nobody(
    serve: Any, hello: Any, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[str, bool]] = []

    async def passed(admission: Admission) -> None:
        await asyncio.sleep(0)
        heard.append(("passed", admission.allowed))

    def rejected(admission: Admission) -> None:
        heard.append(("rejected", admission.allowed))
        raise RuntimeError("a bug in a callback")

    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, 1, on_passed=passed, on_rejected=rejected)) as service:
            assert [(await service.get()).status_code for _ in range(2)] == [200, 429]

    asyncio.run(main())
    assert heard == [("passed", True), ("rejected", False)]
    assert "a callback raised" in caplog.text


def test_a_websocket_handshake_counts_and_is_denied_with_the_same_document(serve: Any, hello: Any) -> None:
    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, 1, per=60, name="sockets")) as service:
            address = f"ws://127.0.0.1:{service.port}/"
            async with websockets.connect(address) as socket:
                await socket.send("ahoy")
                assert await socket.recv() == "ahoy"
                assert socket.response is not None
                assert socket.response.headers["RateLimit-Policy"] == '"sockets";q=1;w=60'
            with pytest.raises(websockets.InvalidStatus) as denied:
                await websockets.connect(address)
        response = denied.value.response
        assert response.status_code == 429
        assert response.headers["Retry-After"] == "60"
        assert b'"error":"rate_limited"' in response.body

    asyncio.run(main())


def test_a_server_that_cannot_deny_a_websocket_closes_it() -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it must not get here")

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    limit = rate_limit(1, per=60)
    limit.acquire()
    scope = {"type": "websocket", "path": "/", "headers": [], "client": ("192.0.2.7", 1)}
    asyncio.run(RateLimitMiddleware(app, limit)(scope, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1013, "reason": "Too Many Requests"}]


def test_lifespan_passes_untouched(hello: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    seen: list[Any] = []
    scope: Any = {"type": "lifespan"}
    arguments: tuple[Any, Any, Any] = (scope, object(), object())
    asyncio.run(RateLimitMiddleware(app, 1)(*arguments))
    assert seen == [arguments]


def test_shadow_mode_lets_pass_and_counts_and_switched_off_it_is_not_there(serve: Any, hello: Any) -> None:
    limit = rate_limit(1, per=60, mode="shadow", key=by_address())

    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, limit)) as service:
            assert [(await service.get()).status_code for _ in range(3)] == [200, 200, 200]
            assert limit.snapshot()["would"] == {"reject": 2}
            limit.mode = "enforce"
            assert (await service.get()).status_code == 429
            disable()
            try:
                free = await service.get()
            finally:
                enable()
            assert free.status_code == 200
            assert "ratelimit" not in free.headers

    asyncio.run(main())


def test_a_limit_can_be_changed_while_the_server_runs(serve: Any, hello: Any) -> None:
    limit = rate_limit(1, "live", per=60, key=by_address())

    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, limit)) as service:
            await service.get()
            limit.reconfigure(permits=5)
            answer = await service.get()
        assert answer.status_code == 200
        assert answer.headers["ratelimit-policy"] == '"live";q=5;w=60'

    asyncio.run(main())


def test_backpressure_is_told_where_it_is_measured(serve: Any, hello: Any) -> None:
    limit = rate_limit(2, per=60, key=by_address(), backpressure=True)

    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, limit)) as service:
            answers = [await service.get() for _ in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 429]
        assert [one.headers["x-backpressure"] for one in answers] == ["0", "0", "0"]

    asyncio.run(main())


def test_requests_wait_in_line_and_who_hangs_up_leaves_it(serve: Any, hello: Any, until: Any) -> None:
    limit = rate_limit(1, per=3600, key=by_address(), queue=5)

    async def main() -> None:
        async with serve(RateLimitMiddleware(hello, limit)) as service:
            await service.get()
            _, writer = await service.connection()
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            await until(lambda: limit.snapshot()["waiting"] == 1)
            writer.close()
            await until(lambda: limit.snapshot()["waiting"] == 0)

    asyncio.run(main())


def test_who_waited_in_line_is_served_with_its_body(serve: Any) -> None:
    limit = rate_limit(20, per=1, burst=1, key=by_address(), queue=5)

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def main() -> None:
        async with serve(RateLimitMiddleware(echo, limit), lifespan="off") as service:
            answers = await asyncio.gather(*(service.post(content=bytes([65 + n]) * 200_000) for n in range(3)))
        assert [one.status_code for one in answers] == [200, 200, 200]
        assert [one.content for one in answers] == [bytes([65 + n]) * 200_000 for n in range(3)]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"limit": 0}, "permits must be at least 1"),
        ({"limit": "5"}, "permits must be a whole number"),
        ({"limit": 5, "exclude": "/health"}, "exclude must be a list of routes"),
        ({"limit": 5, "exclude": ["health"]}, "route must be a path"),
        ({"limit": 5, "routes": {"/x": 5}}, "limit must be a number, or a rate_limit"),
        ({"limit": rate_limit(5), "per": 60}, "per must be set on the rate_limit itself"),
        ({"limit": rate_limit_chain(rate_limit(5), rate_limit(6))}, "must have limits with names"),
        ({"limit": rate_limit(5, "naïve")}, r"name must be printable ASCII to stand in a header \(got 'naïve'\)$"),
    ],
)
def test_wrong_settings_fail_when_they_are_written(hello: Any, options: Any, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        RateLimitMiddleware(hello, **options)


def test_paths_that_belong_to_no_route_share_one_limit() -> None:
    key = by_route(by_address(), templates=["/orders/{id}"])
    scopes = [
        {"path": path, "client": ("192.0.2.7", 1), "headers": []} for path in ("/orders/1", "/orders/2", "/x", "/y")
    ]
    assert [key(scope) for scope in scopes] == [
        "route:/orders/{id} ip:192.0.2.7",
        "route:/orders/{id} ip:192.0.2.7",
        "route:elsewhere ip:192.0.2.7",
        "route:elsewhere ip:192.0.2.7",
    ]


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: by_address(header="X-Real-IP"), "must be 'X-Forwarded-For' or 'Forwarded'"),  # type: ignore[arg-type]
        (lambda: by_address(ipv6_prefix=0), "must be a whole number from 1 to 128"),
        (lambda: by_api_key(known="secret"), "must be a collection of keys"),
    ],
)
def test_wrong_keys_fail_when_they_are_written_and_show_no_secret(make: Any, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong) as raised:
        make()
    assert "secret" not in str(raised.value)


def test_a_user_that_is_a_name_or_has_another_word_for_it_is_found_too() -> None:
    class Starlettes:
        is_authenticated = True
        display_name = "ann"

        @property
        def identity(self) -> str:
            raise NotImplementedError

    assert by_user()({"user": Starlettes()}) == "user:ann"
    assert by_user()({"user": "bob"}) == "user:bob"
    assert by_user(lambda scope: None)({"client": ("192.0.2.7", 1), "headers": []}) == "ip:192.0.2.7"


def test_a_header_that_comes_twice_is_worth_nothing() -> None:
    key = by_api_key()
    twice = [(b"x-api-key", b"one"), (b"x-api-key", b"two")]
    assert key({"client": ("192.0.2.7", 1), "headers": twice}) == "ip:192.0.2.7"
    assert key({"client": ("192.0.2.7", 1), "headers": [(b"x-api-key", b"x" * 9000)]}) == "ip:192.0.2.7"
