"""Where a plane lives, what can be added to it, and what its configuration says."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
from urllib.parse import urljoin

import pytest
from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from everkeel import config, retry
from everkeel.config.control_options import ROLES
from everkeel.control import Answer, ControlPlane, Endpoint, Parameter, ProblemError, Role, Section
from everkeel.control.configuration import control_table
from everkeel.control.section import PAGE_HEADERS
from everkeel.errors import ConfigError
from everkeel.http import Everkeel


async def answer(exchange):
    return {"path": exchange.path, "query": exchange.query, "body": exchange.body, "who": exchange.who}


def section(*endpoints: Endpoint) -> Section:
    return Section("letters", "Letters nobody wanted.", endpoints)


LETTERS = Endpoint(
    "GET",
    "/letters/{queue}/{name}",
    answer,
    Role.VIEWER,
    "One letter",
    answer={"type": "object"},
    parameters=(Parameter("page", {"type": "integer", "minimum": 1}, "Which page."),),
)
BURY = Endpoint(
    "POST",
    "/letters/{queue}",
    answer,
    Role.OPERATOR,
    "Bury one",
    answer={"type": "object"},
    body={"type": "object", "required": ["why"], "properties": {"why": {"type": "string"}}},
)


# ------------------------------------------------------------------ sections of others


def test_a_section_adds_routes_and_its_part_of_the_document(plane, admin):
    plane.add_section(section(LETTERS, BURY))
    got = admin.get("/letters/orders/a/b", params={"page": "3"}).json()
    assert got == {"path": {"queue": "orders", "name": "a/b"}, "query": {"page": 3}, "body": None, "who": "admin"}
    assert admin.get("/letters/orders/a", params={"page": "0"}).status_code == 400
    assert admin.post("/letters/orders", json={"why": "old"}).json()["body"] == {"why": "old"}
    wrong = admin.post("/letters/orders", json={"why": 3})
    assert (wrong.status_code, wrong.json()["errors"]) == (400, [{"pointer": "/why", "detail": "must be a string"}])
    document = admin.get("/openapi.json").json()
    assert document["paths"]["/letters/{queue}"]["post"]["x-role"] == "operator"
    assert {"name": "letters", "description": "Letters nobody wanted."} in document["tags"]


def test_two_sections_cannot_have_the_same_endpoint_and_the_second_adds_nothing(plane, admin):
    fresh = Endpoint("GET", "/fresh", answer, Role.VIEWER, "", answer={})
    taken = Endpoint("GET", "/health", answer, None, "", answer={})
    with pytest.raises(ConfigError, match="GET /health is there already"):
        plane.add_section(section(fresh, taken))
    assert admin.get("/fresh").status_code == 404


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "HEAD"}, "method must be one of GET, POST"),
        ({"path": "letters"}, "path must be made of /words"),
        ({"path": "/Letters/{Queue}"}, "path must be made of /words"),
        ({"body": {"oneOf": []}}, "'oneOf' is not checked"),
    ],
)
def test_an_endpoint_that_would_not_work_says_so_at_once(change, message):
    given = {"method": "POST", "path": "/x", "handle": answer, "role": Role.ADMIN, "summary": "", **change}
    with pytest.raises(ConfigError, match=message):
        Endpoint(**given)


def test_a_page_has_a_policy_of_its_own_that_allows_nothing_inline(plane, client_of):
    async def page(exchange):
        return Response("<script src=app.js></script>", media_type="text/html", headers=PAGE_HEADERS)

    plane.add_section(
        Section("page", "", [Endpoint("GET", "/notes", page, None, "The page", media="text/html")]),
    )
    got = client_of(plane, None).get("/notes")
    assert got.status_code == 200
    assert "script-src 'self'" in got.headers["content-security-policy"]
    assert "unsafe" not in got.headers["content-security-policy"]
    assert got.headers["x-content-type-options"] == "nosniff"


def test_the_prefix_itself_is_a_path_too():
    assert all(Endpoint("GET", "/", answer, None, "").pattern().fullmatch(path) for path in ("", "/"))


def test_what_a_handler_raises_is_a_problem_and_says_nothing_about_the_inside(plane, admin, caplog):
    async def broken(exchange):
        raise KeyError("the password of the database")

    async def refused(exchange):
        raise ConfigError("letters", "page", "must be at least 1", "0")

    async def busy(exchange):
        raise ProblemError(503, "busy", "come back later", {"queue": 7}, {"Retry-After": "3"})

    async def accepted(exchange):
        return Answer({"job": 1}, {"Location": "/jobs/1"}, status=202)

    for name, handle in (("broken", broken), ("refused", refused), ("busy", busy), ("accepted", accepted)):
        plane.add_section(Section(name, "", [Endpoint("GET", f"/{name}", handle, Role.VIEWER, "", answer={})]))
    got = admin.get("/broken")
    assert (got.status_code, got.json()["type"]) == (500, "urn:everkeel:problem:internal")
    assert "password" not in got.text
    assert "KeyError" in caplog.text
    assert admin.get("/refused").status_code == 422
    got = admin.get("/busy")
    assert (got.status_code, got.json()["queue"], got.headers["retry-after"]) == (503, 7, "3")
    got = admin.get("/accepted")
    assert (got.status_code, got.headers["location"]) == (202, "/jobs/1")


def test_a_problem_survives_pickling_and_copying():
    problem = ProblemError(404, "no-such-letter", "there is no letter 7", {"letter": 7}, {"X": "y"})
    for again in (pickle.loads(pickle.dumps(problem)), copy.copy(problem), copy.deepcopy(problem)):
        assert (again.status, str(again), again.body(), again.headers) == (
            404,
            "there is no letter 7",
            problem.body(),
            {"X": "y"},
        )
        assert again.policy is None


# ------------------------------------------------------------------ where it lives


async def home(request):
    return PlainTextResponse("the shop")


def ask(app, path: str, secrets) -> Response:
    return TestClient(app).get(path, headers={"Authorization": f"Bearer {secrets['viewer']}"})


def test_it_lives_below_its_prefix_and_only_there(make_plane, secrets):
    plane = make_plane(prefix="/ops/ek")
    assert ask(plane, "/ops/ek/health", secrets).status_code == 200
    for path in ("/health", "/ops/health", "/ops/ekk/health", "/ops", "/"):
        assert ask(plane, path, secrets).status_code == 404
    assert ask(make_plane(prefix=""), "/health", secrets).status_code == 200


@pytest.mark.parametrize(
    ("mounted", "path"),
    [("/everkeel", "/everkeel/health"), ("/api", "/api/everkeel/health"), ("/api/everkeel", "/api/everkeel/health")],
)
def test_mounted_at_its_prefix_or_elsewhere_it_expects_the_prefix_once(make_plane, secrets, mounted, path):
    app = Starlette(routes=[Route("/", home), Mount(mounted, make_plane())])
    assert ask(app, path, secrets).json()["status"] == "up"
    assert ask(app, "/", secrets).text == "the shop"


def test_behind_a_proxy_that_strips_a_path_it_is_found_too(make_plane, secrets):
    client = TestClient(make_plane(), root_path="/shop")
    headers = {"Authorization": f"Bearer {secrets['viewer']}"}
    assert client.get("/everkeel/health", headers=headers).status_code == 200
    client = TestClient(make_plane(), root_path="/ever")  # which its own prefix begins with
    assert client.get("/everkeel/health", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("mounted", "root", "prefix"),
    [("/shop", "", "/shop/everkeel"), ("/everkeel", "", "/everkeel"), ("/shop", "/gate", "/gate/shop/everkeel")],
)
def test_below_a_mount_and_a_proxy_the_page_and_its_session_stay_there(make_plane, secrets, mounted, root, prefix):
    app = Starlette(routes=[Mount(mounted, make_plane())])
    client = TestClient(app, root_path=root, follow_redirects=False)
    begun = client.post(f"{prefix}/session", json={"token": secrets["viewer"]})
    assert f"; Path={prefix}; " in begun.headers["set-cookie"]
    moved = client.get(prefix)
    assert moved.status_code in (307, 200)  # Starlette itself adds the slash to a mount's own path
    assert urljoin(f"http://testserver{prefix}", moved.headers.get("location", f"{prefix}/")).endswith(f"{prefix}/")


def test_beside_an_application_it_leaves_all_else_alone(make_plane, secrets):
    plane = make_plane()
    app = plane.beside(Starlette(routes=[Route("/", home), Route("/everkeel-fans", home)]))
    assert ask(app, "/everkeel/health", secrets).status_code == 200
    assert ask(app, "/everkeel-fans", secrets).text == "the shop"
    assert ask(app, "/", secrets).text == "the shop"


def test_it_is_part_of_a_protected_application(secrets, make_plane):
    app = Starlette(routes=[Route("/", home)])
    Everkeel(app).with_control_plane(make_plane())
    assert ask(app, "/everkeel/health", secrets).status_code == 200
    assert ask(app, "/", secrets).text == "the shop"


def test_it_goes_through_a_lifespan_and_refuses_websockets(plane):
    sent = []

    async def talk(scope, *messages):
        coming = iter(messages)

        async def receive():
            return next(coming)

        async def send(one):
            sent.append(one["type"])

        await plane(scope, receive, send)

    asyncio.run(talk({"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}))
    asyncio.run(talk({"type": "websocket", "path": "/everkeel/events"}))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


def test_head_is_get_without_the_body(admin):
    got = admin.head("/health")
    assert (got.status_code, got.content) == (200, b"")


def test_a_stream_has_no_head(admin):
    assert admin.head("/events").status_code == 405


def test_beside_an_application_it_needs_a_place_of_its_own(make_plane):
    with pytest.raises(ConfigError, match="must not be empty beside an application"):
        make_plane(prefix="").beside(home)


@pytest.mark.parametrize("prefix", ["everkeel", "/everkeel/", "/"])
def test_a_prefix_that_would_not_work_is_refused(prefix):
    with pytest.raises(ConfigError, match="prefix must be empty, or begin with /"):
        ControlPlane(prefix=prefix)


# ------------------------------------------------------------------ what the configuration says


def loaded(**table):
    return config.load({"control": table}, env={})


def test_tokens_and_switches_come_from_the_configuration(client_of, secrets, monkeypatch):
    monkeypatch.setenv("OPS", secrets["admin"])
    loaded(
        tokens=[{"name": "ann", "role": "admin", "token_env": "OPS"}],
        enable_metrics=False,
        enable_control=False,
        readiness=["circuit_breaker/*"],
        public_readiness=True,
    )
    plane = ControlPlane()
    client = client_of(plane)
    assert client.get("/session").json() == {"name": "ann", "role": "admin"}
    assert client.get("/metrics").status_code == 404
    assert client.post("/control/retry/fetch/disable").status_code == 404
    assert client_of(plane, None).get("/readiness").status_code == 200
    assert ControlPlane(enable_metrics=True).enabled == {"metrics": True, "control": False}  # code wins


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"token": "x"}, r"control.token is no option of the control plane; did you mean 'tokens'\?"),
        ({"enable_metrics": "yes"}, "enable_metrics must be true or false"),
        ({"tokens": [{"name": "a", "role": "admin", "token": "short"}]}, "at least 16 characters"),
        ({"tokens": [{"name": "a", "role": "boss", "token": "x" * 20}]}, "role must be one of viewer, operator, admin"),
        ({"tokens": [{"name": "a", "role": "admin", "secret": "x" * 20}]}, "it has name, role, token, token_env"),
        ({"tokens": [{"name": "a", "role": "admin", "token": "x" * 20}] * 2}, "different for each token"),
        ({"tokens": "x" * 20}, "must be a list of tables"),
        ({"tokens": ["x" * 20]}, "must be a table with"),
        ({"tokens": [{"role": "admin", "sha256": "x" * 64}]}, "sha256 must be 64 hexadecimal digits"),
        ({"tokens": [{"role": "admin", "token": "x" * 20}]}, "name must be a text"),
        ({"tokens": [{"name": "a", "role": "admin", "token_env": 5}]}, "token_env must be a text"),
        ({"tokens": [{"name": "a", "role": "admin", "token": "x" * 20, "token_env": "T"}]}, "exactly one of"),
        ({"readiness": ["payments"]}, "must be patterns of type/name"),
    ],
)
def test_a_configuration_that_is_wrong_is_refused_with_its_file_and_opens_nothing(table, message):
    with pytest.raises(ConfigError, match=message) as caught:
        loaded(**table)
    assert "xxxx" not in str(caught.value)
    assert not Draft202012Validator(config.schema()).is_valid({"control": table}) or "different" in message
    assert "tokens" not in control_table()


def test_what_only_the_process_knows_is_refused_by_the_plane(monkeypatch):
    monkeypatch.delenv("NOT_THERE", raising=False)
    loaded(tokens=[{"name": "a", "role": "admin", "token_env": "NOT_THERE"}])
    with pytest.raises(ConfigError, match="names 'NOT_THERE', which is not set"):
        ControlPlane()


def test_the_roles_of_files_are_those_there_are():
    assert [str(role) for role in Role] == list(ROLES)


def test_a_file_that_is_not_about_the_control_plane_changes_nothing(caplog):
    config.load({"retry": {"fetch": {"attempts": 5}}}, env={})
    with caplog.at_level(logging.WARNING):
        ControlPlane()
    assert "only /liveness answers" in caplog.text
    assert retry("fetch").config.attempts == 5


def test_without_starlette_it_says_what_to_install_and_the_command_line_still_works():
    import subprocess
    import sys

    program = (
        "import sys; sys.modules['starlette'] = None\n"
        "import everkeel.control, everkeel.cli.policies\n"
        "try:\n    everkeel.control.ControlPlane\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "everkeel.control needs starlette: pip install everkeel[starlette]\n"
