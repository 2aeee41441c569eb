"""Who is let in where. The routes are taken from the plane's own table, so that none can be forgotten."""

from __future__ import annotations

import logging
import threading

import pytest

from everkeel import circuit_breaker, disable, retry
from everkeel.control import ControlPlane, Endpoint, Principal, Role, Section, Token

ROUTES = [(one.method, one.path, one.role) for one in ControlPlane(tokens=[]).endpoints]
PAGE = {("GET", "/"), ("GET", "/assets/{file}"), ("GET", "/whoami")}  # nothing in them is a secret
OPEN = {("GET", "/liveness"), ("POST", "/session"), *PAGE}
CLOSED = [(method, path, role) for method, path, role in ROUTES if (method, path) not in OPEN]
STREAMS = {"/events", "/stream"}


def real(path: str) -> str:
    kind = "circuit_breaker" if "circuit_breaker" in path else "retry"
    return path.replace("{type}", kind).replace("{name}", "fetch").replace("{id}", "1").replace("{file}", "app.js")


@pytest.fixture(autouse=True)
def policies():
    return retry("fetch"), circuit_breaker("fetch")


def test_only_liveness_and_the_beginning_of_a_session_are_open():
    assert {(method, path) for method, path, role in ROUTES if role is None} | PAGE == OPEN


def test_everything_that_changes_something_needs_more_than_a_viewer():
    own = {("DELETE", "/session")}
    weak = {(method, path) for method, path, role in CLOSED if method != "GET" and role < Role.OPERATOR}
    assert weak == own


@pytest.mark.parametrize(("method", "path", "role"), CLOSED)
def test_without_a_token_nobody_gets_in(method, path, role, plane, client_of):
    answer = client_of(plane, None).request(method, real(path))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["type"] == "urn:everkeel:problem:no-credentials"


@pytest.mark.parametrize(("method", "path", "role"), CLOSED)
def test_a_wrong_token_is_no_better_than_none(method, path, role, plane, client_of, caplog):
    client = client_of(plane, None)
    client.headers["Authorization"] = "Bearer a-wrong-secret-of-some-length"
    answer = client.request(method, real(path))
    assert answer.status_code == 401
    assert "a-wrong-secret" not in answer.text
    assert "a-wrong-secret" not in caplog.text
    assert "wrong credentials" in caplog.text


@pytest.mark.parametrize(("method", "path", "role"), CLOSED)
@pytest.mark.parametrize("name", ["viewer", "operator", "admin"])
def test_a_role_suffices_where_it_must_and_nowhere_else(method, path, role, name, plane, client_of):
    if path in STREAMS:
        assert role is Role.VIEWER  # they never end: test_streams.py reads them
        return
    answer = client_of(plane, name).request(method, real(path))
    if Role.of(name) < role:
        assert answer.status_code == 403
        assert answer.json()["type"] == "urn:everkeel:problem:role-does-not-suffice"
    else:
        assert answer.status_code not in (401, 403, 405, 500)


@pytest.mark.parametrize(("method", "path", "role"), [one for one in ROUTES if one[1] != "/liveness"])
def test_without_any_credentials_configured_only_liveness_answers(method, path, role, client_of, caplog, secrets):
    with caplog.at_level(logging.WARNING):
        plane = ControlPlane(strangers_per_second=1000)
    assert "EVERKEEL_CONTROL_TOKENS" in caplog.text
    for headers in ({}, {"Authorization": f"Bearer {secrets['admin']}"}, {"Authorization": "Bearer "}):
        client = client_of(plane, None)
        client.headers.update(headers)
        answer = client.request(method, real(path))
        assert answer.status_code == 401
        assert answer.json()["type"] == "urn:everkeel:problem:closed"
    assert client.get("/liveness").json() == {"status": "alive"}
    assert client.post("/session", json={"token": secrets["admin"]}).status_code == 401


def test_a_section_of_others_is_guarded_like_our_own(plane, client_of):
    async def letters(exchange):
        return {"asked_by": exchange.who}

    plane.add_section(
        Section(
            "letters",
            "",
            [Endpoint("GET", "/letters", letters, Role.OPERATOR, "", answer={"type": "object"})],
        )
    )
    assert client_of(plane, None).get("/letters").status_code == 401
    assert client_of(plane, "viewer").get("/letters").status_code == 403
    assert client_of(plane, "operator").get("/letters").json() == {"asked_by": "operator"}


# ------------------------------------------------------------------ where tokens come from


def test_tokens_come_from_the_environment(monkeypatch, client_of, secrets):
    monkeypatch.setenv("EVERKEEL_CONTROL_TOKENS", f"ann:admin:{secrets['admin']}, vic:viewer:{secrets['viewer']}")
    plane = ControlPlane()
    assert client_of(plane, "admin").get("/session").json() == {"name": "ann", "role": "admin"}
    assert client_of(plane, "viewer").get("/session").json() == {"name": "vic", "role": "viewer"}


def test_the_application_may_say_who_it_is_sync_or_async(make_plane, client_of):
    where = []

    def sync(request):
        where.append(threading.current_thread() is threading.main_thread())
        return Principal("ann", Role.ADMIN) if request.headers.get("x-user") == "ann" else None

    async def awaited(request):
        return sync(request)

    for authenticate in (sync, awaited):
        client = client_of(make_plane(tokens=(), authenticate=authenticate), None)
        assert client.get("/session").status_code == 401
        assert client.get("/session", headers={"x-user": "ann"}).json() == {"name": "ann", "role": "admin"}
    assert not where[0]  # a function that may block does not run on the event loop


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Cookie": "shop=ann"}, 403),
        ({"Authorization": "Basic YW5uOmFubg=="}, 403),
        ({"Authorization": "Bearer a-token-of-the-shop"}, 200),
        ({"Cookie": "shop=ann", "X-Everkeel-Request": "1"}, 200),
        ({"Cookie": "shop=ann", "X-Everkeel-Request": "1", "Origin": "http://evil.example"}, 403),
    ],
)
def test_what_browsers_send_by_themselves_does_not_let_other_pages_change_anything(
    headers, status, make_plane, client_of
):
    client = client_of(make_plane(tokens=(), authenticate=lambda request: Principal("ann", Role.ADMIN)), None)
    assert client.post("/control/retry/fetch/shadow", headers=headers).status_code == status
    assert client.get("/policies", headers=headers).status_code == 200


@pytest.mark.parametrize("answer", [True, "admin", ValueError("no database")])
def test_an_application_that_answers_nonsense_lets_nobody_in(answer, make_plane, client_of, caplog):
    async def authenticate(request):
        if isinstance(answer, Exception):
            raise answer
        return answer

    client = client_of(make_plane(tokens=(), authenticate=authenticate), None)
    assert client.get("/health").status_code == 401
    assert "authenticate=" in caplog.text


# ------------------------------------------------------------------ how much may be asked


def test_a_caller_who_asks_too_often_is_told_when_to_come_back(virtual_time, make_plane, client_of):
    plane = make_plane(requests_per_second=5)
    client = client_of(plane, "viewer")
    answers = [client.get("/session") for _ in range(12)]
    assert [one.status_code for one in answers] == [200] * 10 + [429] * 2
    assert int(answers[-1].headers["retry-after"]) == 1
    assert client_of(plane, "admin").get("/session").status_code == 200  # everybody has a limit of their own


def test_guessing_is_slow_and_harms_nobody_who_has_a_token(virtual_time, make_plane, client_of):
    plane = make_plane(strangers_per_second=1)
    guesser = client_of(plane, None)
    guesser.headers["Authorization"] = "Bearer guess-guess-guess-guess"
    assert [guesser.get("/health").status_code for _ in range(6)] == [401] * 4 + [429] * 2
    assert [guesser.post("/session", json={"token": "g" * 20}).status_code for _ in range(2)] == [429] * 2
    assert client_of(plane, "viewer").get("/health").status_code == 200  # from the same address
    assert guesser.get("/liveness").status_code == 200  # a flood must not make an orchestrator kill the process


def test_the_limit_holds_while_policies_are_switched_off(virtual_time, make_plane, client_of):
    plane = make_plane(requests_per_second=1)
    disable()
    client = client_of(plane, "viewer")
    assert [client.get("/session").status_code for _ in range(3)] == [200, 200, 429]


def test_a_body_that_is_too_large_is_not_read(make_plane, client_of):
    client = client_of(make_plane(max_body=100))
    told = client.put("/config/retry/fetch", json={"attempts": 5, "x": "y" * 200})
    assert (told.status_code, told.json()["type"]) == (413, "urn:everkeel:problem:body-too-large")
    read = []

    def endless():
        for _ in range(1000):
            read.append(1)
            yield b" " * 60

    chunked = client.put("/config/retry/fetch", content=endless(), headers={"content-type": "application/json"})
    assert chunked.status_code == 413


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b'{"attempts": NaN}', "application/json", 400),
        (b"[" * 60_000, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"", "application/json", 400),
        (b'{"attempts": 5}', "text/plain", 415),
        (b"attempts=5", "application/x-www-form-urlencoded", 415),
        (b'{"attempts": 5}', "", 415),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(content, kind, status, admin):
    answer = admin.put("/config/retry/fetch", content=content, headers={"content-type": kind} if kind else {})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert admin.get("/config/retry/fetch").json()["settings"]["attempts"] == 3


def test_the_secret_is_in_no_output_and_in_no_log(make_plane, client_of, secrets, caplog):
    caplog.set_level(logging.DEBUG)
    plane = make_plane()
    client = client_of(plane)
    texts = [client.get(path).text for path in ("/health", "/audit", "/openapi.json", "/session", "/config")]
    client.put("/config/retry/fetch", json={"attempts": 5})
    texts += [client.get("/audit").text, caplog.text, repr(Token("ops", "admin", secrets["admin"])), repr(vars(plane))]
    assert not any(secrets["admin"] in text for text in texts)
