"""Reading a document: its operations, its references, and errors that say where."""

from __future__ import annotations

from typing import Any

import pytest

from everkeel import ConfigError
from everkeel.openapi.document import Document
from everkeel.openapi.resilience import plain, policies_by_operation


def document(paths: dict[str, Any] | None = None, **more: Any) -> Document:
    return Document({"openapi": "3.1.0", "info": {"title": "T", "version": "1"}, "paths": paths or {}, **more})


def test_operations_come_in_the_documents_order_and_have_ids() -> None:
    found = document({"/b": {"post": {"operationId": "makeB"}, "get": {}}, "/a": {"get": {"operationId": "a"}}})
    assert [(one.id, one.method, one.at) for one in found.operations()] == [
        ("get_b", "get", "#/paths/~1b/get"),
        ("makeB", "post", "#/paths/~1b/post"),
        ("a", "get", "#/paths/~1a/get"),
    ]


@pytest.mark.parametrize(
    ("root", "where", "says"),
    [
        ({"openapi": "2.0", "info": {}}, "#/openapi", "3.0 or 3.1"),
        ({"openapi": 3.1, "info": {}}, "#/openapi", "3.0 or 3.1"),
        ({"openapi": "3.1.0"}, "#/info", "title"),
        ({"openapi": "3.1.0", "info": {}, "paths": []}, "#/paths", "mapping"),
    ],
)
def test_what_is_no_openapi_document_is_refused(root: dict[str, Any], where: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        Document(root)
    assert caught.value.parameter == where


@pytest.mark.parametrize(
    ("paths", "where", "says"),
    [
        ({"orders": {}}, "#/paths/orders", "begin with '/'"),
        ({"/x": []}, "#/paths/~1x", "mapping of methods"),
        ({"/x": {"get": 1}}, "#/paths/~1x/get", "mapping"),
        ({"/x": {"get": {"operationId": ""}}}, "#/paths/~1x/get/operationId", "not empty"),
        ({"/x": {"get": {"operationId": "a"}, "put": {"operationId": "a"}}}, "#/paths/~1x/put/operationId", "unique"),
        ({"/x": {"$ref": "#/components/nowhere"}}, "#/paths/~1x/$ref", "lead to something"),
        ({"/x": {"$ref": "http://elsewhere/x.json"}}, "#/paths/~1x/$ref", "nothing is fetched"),
        ({"/x": {"$ref": 5}}, "#/paths/~1x/$ref", "reference"),
    ],
)
def test_a_wrong_place_is_named(paths: dict[str, Any], where: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        document(paths).operations()
    assert caught.value.parameter == where


def test_references_are_followed_over_several_hops_but_not_in_circles() -> None:
    found = document(
        {"/x": {"$ref": "#/components/pathItems/a~1b"}},
        components={"pathItems": {"a/b": {"$ref": "#/components/pathItems/c"}, "c": {"get": {"operationId": "x"}}}},
    )
    assert [one.id for one in found.operations()] == ["x"]
    circle = document({"/x": {"$ref": "#/components/a"}}, components={"a": {"$ref": "#/components/a"}})
    with pytest.raises(ConfigError, match="back to itself"):
        circle.operations()


# ------------------------------------------------------------------ x-resilience


def written(described: Document) -> dict[str, Any]:
    """The policies of each operation, without their places."""
    return {operation: plain(policies) for operation, policies in policies_by_operation(described).items()}


def test_the_nearer_level_wins_setting_by_setting() -> None:
    found = written(
        document(
            {
                "/x": {
                    "x-resilience": {"retry": {"attempts": 4}},
                    "get": {"operationId": "get", "x-resilience": {"retry": {"jitter": None}, "timeout": None}},
                    "put": {"operationId": "put"},
                },
            },
            **{"x-resilience": {"retry": {"attempts": 2, "jitter": "full"}, "timeout": {"seconds": 1}}},
        )
    )
    assert found == {
        "get": {"retry": {"attempts": 4, "jitter": None}},
        "put": {"retry": {"attempts": 4, "jitter": "full"}, "timeout": {"seconds": 1}},
    }


def test_a_reference_may_stand_for_policies() -> None:
    found = written(
        document(
            {"/x": {"get": {"operationId": "x", "x-resilience": {"$ref": "#/components/x-policies/careful"}}}},
            components={
                "x-policies": {
                    "careful": {"retry": True, "timeout": {"$ref": "#/components/x-short"}},
                },
                "x-short": {"seconds": 1},
            },
        )
    )
    assert found == {"x": {"retry": {}, "timeout": {"seconds": 1}}}


def test_the_telstra_dialect_is_understood() -> None:
    resiliency = {
        "ratelimit": {
            "enabled": True,
            "max_executions": 5000,
            "per_time_secs": 60,
            "bucket_size": 500,
            "p95_baseline": 1.0,
        },
        "retry": {"attempts": 3, "delay": 0.5, "backoff": 2.0, "max_delay": 30.0, "exceptions": ["ConnectionError"]},
        "circuitbreaker": {"failure_threshold": 5, "recovery_timeout": 30, "half_open_requests": 3},
        "timeout": {},
        "bulkhead": {"max_concurrent": 10, "max_queued": 50},
        "failfast": {"failure_threshold": 3},
        "featuretoggle": {"enabled": False},
        "cache": {"ttl": 300, "max_size": 1000},
    }
    found = written(document({"/x": {"get": {"operationId": "x", "x-telstra": {"resiliency": resiliency}}}}))
    assert found["x"] == {
        "rate_limit": {"enabled": True, "permits": 5000, "per": 60, "burst": 500},
        "retry": {
            "attempts": 3, "on": ["ConnectionError"],
            "backoff": {"exponential": {"first": 0.5, "factor": 2.0, "max": 30.0}},
        },
        "circuit_breaker": {"open_for": 30, "probes": 3, "failure_rate": 1.0, "window": 5, "minimum_calls": 5},
        "timeout": {"seconds": 30.0},
        "bulkhead": {"limit": 10, "queue": 50},
        "fail_fast": {"failures": 3},
        "feature_toggle": {"enabled": False},
        "cache": {"ttl": 300, "max_size": 1000},
    }  # fmt: skip


def test_our_own_words_win_over_the_dialect() -> None:
    both = {"x-telstra": {"resiliency": {"timeout": {"seconds": 9}}}, "x-resilience": {"timeout": {"seconds": 1}}}
    assert written(document({"/x": {"get": {"operationId": "x", **both}}})) == {"x": {"timeout": {"seconds": 1}}}


@pytest.mark.parametrize(
    ("given", "where"),
    [([], "#/paths/~1x/get/x-resilience"), ({"retry": 3}, "#/paths/~1x/get/x-resilience/retry")],
)
def test_policies_of_the_wrong_shape_are_refused_at_their_place(given: Any, where: str) -> None:
    with pytest.raises(ConfigError, match="mapping") as caught:
        policies_by_operation(document({"/x": {"get": {"operationId": "x", "x-resilience": given}}}))
    assert caught.value.parameter == where
