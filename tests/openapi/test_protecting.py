"""The policies of a document on a running app: found by operation id, checked whole, answered as problems."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from everkeel import ConfigError, RateLimitedError, config, policies_of, timeout
from everkeel.openapi import Document, answered, operations_of, protect, protection

pytestmark = pytest.mark.usefixtures("fresh_everkeel")


def document(**operations: dict[str, Any]) -> dict[str, Any]:
    paths = {
        f"/{name}": {"get": {"operationId": name, "x-resilience": policies}} for name, policies in operations.items()
    }
    return {"openapi": "3.1.0", "info": {"title": "T", "version": "1"}, "paths": paths}


def types(policies: Any) -> list[str]:
    return [policy.type for policy in policies]


def test_every_way_of_naming_an_operation_is_understood() -> None:
    app, inner = FastAPI(), APIRouter(prefix="/inner")

    @app.get("/one", operation_id="explicit")
    async def one() -> str:
        return "one"

    @app.get("/two")
    def by_name() -> str:
        return "two"

    @inner.get("/three/{number}")
    async def three(number: int) -> int:
        return number

    deeper = APIRouter()

    @deeper.get("/four", operation_id="four")
    async def deep() -> str:
        return "four"

    inner.include_router(deeper, prefix="/deep")
    app.include_router(inner, prefix="/outer")
    described = document(
        explicit={"timeout": {"seconds": 1}}, by_name={"retry": {"attempts": 2}}, four={"bulkhead": {"limit": 2}}
    )
    described["paths"]["/outer/inner/three/{n}"] = {"get": {"x-resilience": {"cache": {"ttl": "1m"}}}}
    app.openapi()  # whether or not the app has looked at its own routes before
    found = protect(app, described)
    assert {name: types(policies) for name, policies in found.items()} == {
        "explicit": ["timeout"], "by_name": ["retry"], "four": ["bulkhead"], "get_outer/inner/three/{n}": ["cache"],
    }  # fmt: skip
    client = TestClient(app)
    assert [client.get(path).json() for path in ("/one", "/two", "/outer/inner/three/7", "/outer/inner/deep/four")] == [
        "one", "two", 7, "four",
    ]  # fmt: skip
    assert (
        sum(
            policy.snapshot()["success"] for policies in found.values() for policy in policies if policy.type != "cache"
        )
        == 3
    )
    assert types(operations_of(app)["explicit"]) == ["timeout"]


def test_a_rejection_is_a_problem_document_and_says_when_to_come_back() -> None:
    app = FastAPI()

    @app.get("/quote")
    async def quote() -> str:
        return "ten"

    protect(app, document(quote={"rate_limit": {"permits": 1, "per": "1m"}}))
    client = TestClient(app)
    assert client.get("/quote").status_code == 200
    refused = client.get("/quote")
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert 1 <= int(refused.headers["retry-after"]) <= 60


def test_an_answer_below_500_opens_no_circuit_and_is_not_retried() -> None:
    app, calls = FastAPI(), []

    @app.get("/find")
    async def find() -> str:
        calls.append(1)
        raise HTTPException(404, "no such order")

    policies = protect(
        app, document(find={"circuit_breaker": {"window": 4, "minimum_calls": 2}, "retry": {"attempts": 3}})
    )
    client = TestClient(app)
    assert [client.get("/find").status_code for _ in range(6)] == [404] * 6
    assert len(calls) == 6
    made = next(policy for policy in policies["find"] if policy.type == "circuit_breaker")
    assert made.snapshot()["state"] == "closed"


def test_what_is_an_answer_and_what_is_trouble() -> None:
    assert answered(HTTPException(404))
    assert answered(HTTPException(501))
    assert not answered(HTTPException(503))
    assert not answered(ValueError())


def test_a_starlette_app_is_protected_under_its_mounts_too() -> None:
    async def inside(request: Request) -> PlainTextResponse:
        return PlainTextResponse("inside")

    app = Starlette(routes=[Mount("/api", routes=[Route("/inside", inside, name="inside")])])
    found = protect(app, document(inside={"rate_limit": {"permits": 1, "per": 60}}))
    assert types(found["inside"]) == ["rate_limit"]
    client = TestClient(app)
    assert [client.get("/api/inside").status_code for _ in range(2)] == [200, 429]


def test_an_operation_the_app_does_not_have_is_an_error_or_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="must be an operation of the app") as caught:
        protect(FastAPI(), document(missing={"timeout": {"seconds": 1}}))
    assert caught.value.parameter == "#/paths/~1missing/get"
    with caplog.at_level(logging.WARNING, "everkeel.openapi"):
        assert protect(FastAPI(), document(missing={"timeout": {"seconds": 1}}), strict=False) == {}
    assert "missing" in caplog.text


@pytest.mark.parametrize(
    ("policies", "where", "says"),
    [
        ({"retri": {}}, "/x-resilience/retri", "did you mean 'retry'"),
        ({"retry": {"atempts": 3}}, "/x-resilience/retry", "did you mean 'attempts'"),
        ({"retry": {"attempts": 0}}, "/x-resilience/retry/attempts", "at least 1"),
        ({"timeout": {"seconds": "soon"}}, "/x-resilience/timeout/seconds", "must"),
        ({"timeout": {}}, "/x-resilience/timeout", "seconds"),
        ({"retry": {"on": ["os.system"]}}, "/x-resilience/retry/on", "must"),
        ({"rate_limit": {"permits": 1, "key": "nobody_registered_this"}}, "/x-resilience/rate_limit/key", "registered"),
        ({"circuit_breaker": {"window": 5, "minimum_calls": 10}}, "/x-resilience/circuit_breaker", "must"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_at_its_place_and_nothing_is_changed(policies: Any, where: str, says: str) -> None:
    app = FastAPI()

    @app.get("/good")
    async def good() -> str:
        return "good"

    @app.get("/bad")
    async def bad() -> str:
        return "bad"

    with pytest.raises(ConfigError, match=says) as caught:
        protect(app, document(good={"timeout": {"seconds": 1}}, bad=policies))
    assert caught.value.parameter is not None
    assert caught.value.parameter.startswith(f"#/paths/~1bad/get{where}")
    assert policies_of(good) == ()
    assert all(not found for found in operations_of(app).values())


def test_a_name_that_is_taken_is_refused_before_anything_is_changed() -> None:
    app = FastAPI()

    @app.get("/first")
    async def first() -> str:
        return "first"

    @app.get("/second")
    async def second() -> str:
        return "second"

    taken = timeout(1, "second")
    described = document(first={"timeout": {"seconds": 1}}, second={"timeout": {"seconds": 1}})
    with pytest.raises(ConfigError, match="timeout 'second': a policy of this type and name exists already"):
        protect(app, described)
    assert operations_of(app)["first_first_get"] == []
    assert taken.name == "second"


def test_a_file_says_the_line(tmp_path: Any) -> None:
    app = FastAPI()

    @app.get("/x")
    async def x() -> str:
        return "x"

    path = tmp_path / "api.yaml"
    path.write_text(
        "openapi: 3.1.0\ninfo: {title: T, version: '1'}\npaths:\n  /x:\n    get:\n      operationId: x\n"
        "      x-resilience:\n        retry:\n          attempts: 0\n"
        "      responses:\n        200: {description: a number as a key is usual}\n"
    )
    where = "api.yaml:9: #/paths/~1x/get/x-resilience/retry/attempts must be at least 1"
    with pytest.raises(ConfigError, match=where):
        protect(app, path)
    path.write_text(path.read_text().replace("attempts: 0", "attempts: 2"))
    assert types(protect(app, path)["x"]) == ["retry"]


def test_a_file_that_cannot_be_read_says_why(tmp_path: Any) -> None:
    for name, content, says in [
        ("a.yaml", "a: [", "is not YAML"),
        ("a.json", '{"a": 1, "a": 2}', "stands twice"),
        ("a.txt", "", "must be named"),
        ("b.yaml", "a: &a [1]\nb: !!python/object:os.system x", "tag"),
    ]:
        (tmp_path / name).write_text(content)
        with pytest.raises(ConfigError, match=says):
            Document.read(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be read"):
        Document.read(tmp_path / "nowhere.yaml")


def test_configuration_overrides_what_the_document_says() -> None:
    @protection("getQuote", {"retry": {"attempts": 2}})
    def quote() -> str:
        raise ConnectionError

    config.load({"retry": {"getQuote": {"attempts": 5, "backoff": 0}}}, env={})
    assert policies_of(quote)[0].config.attempts == 5  # type: ignore[attr-defined]


def test_a_registered_function_may_be_the_key() -> None:
    config.register("tenant_of", lambda tenant: tenant)

    @protection("perTenant", {"rate_limit": {"permits": 1, "per": 60, "key": "tenant_of", "name": "tenants"}})
    async def answer(tenant: str) -> str:
        return tenant

    async def story() -> None:
        assert [await answer("a"), await answer("b")] == ["a", "b"]
        with pytest.raises(RateLimitedError) as caught:
            await answer("a")
        assert caught.value.policy == "tenants"

    asyncio.run(story())


def test_a_wrong_decorator_says_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match=r"x-resilience: retry.attempts must be at least 1, or null \(got 0\)"):
        protection("x", {"retry": {"attempts": 0}})
