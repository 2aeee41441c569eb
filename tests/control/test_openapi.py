"""The plane against its own OpenAPI document: whatever the document allows is answered as the document says."""

from __future__ import annotations

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    missing_required_header,
    negative_data_rejection,
    positive_data_acceptance,
)
from starlette.testclient import TestClient

from everkeel import cache, chaos, circuit_breaker, fail_fast, feature_toggle, rate_limit, retry
from everkeel.control import ControlPlane, Token
from everkeel.control.shapes import faults, from_text, must_be_checkable

SECRET = "the-secret-of-the-schema-tests"
PLANE = ControlPlane(
    tokens=[Token("tester", "admin", SECRET)], requests_per_second=1_000_000, strangers_per_second=1_000_000
)
SCHEMA = schemathesis.openapi.from_dict(PLANE.openapi())
SCHEMA.app = PLANE
FINITE = SCHEMA.exclude(path=["/stream", "/events"])  # those never end: test_streams.py reads them
OPEN = {one.path for one in PLANE.endpoints if one.role is None}
SLOW = (ignored_auth,)  # asks everything again without credentials, which a test below does for every path


@pytest.fixture(autouse=True)
def policies(fresh_everkeel):
    """Policies under the names that the document gives as examples, so that many requests find one."""
    return [
        make("payments")
        for make in (
            retry,
            circuit_breaker,
            fail_fast,
            feature_toggle,
            lambda name: rate_limit(5, name),
            lambda name: cache(60, name),
            lambda name: chaos(name, error=OSError),
        )
    ]


@FINITE.parametrize()
@settings(
    max_examples=7,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
def test_with_credentials_every_answer_is_what_the_document_says(case):
    case.call_and_validate(
        headers={"Authorization": f"Bearer {SECRET}"}, excluded_checks=[*SLOW, positive_data_acceptance]
    )


@FINITE.parametrize()
@settings(
    max_examples=3, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
)
def test_without_credentials_every_answer_is_what_the_document_says(case):
    response = case.call_and_validate(
        excluded_checks=[*SLOW, positive_data_acceptance, negative_data_rejection, missing_required_header]
    )
    if case.operation.path not in OPEN:
        assert response.status_code in (401, 405)


# ------------------------------------------------------------------ the document


@pytest.fixture
def document() -> dict:
    return PLANE.openapi()


def test_it_is_openapi_3_1_with_a_schema_of_its_own_dialect(document):
    assert document["openapi"].startswith("3.1")
    assert document["servers"] == [{"url": "/everkeel"}]
    for name, schema in document["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema), name
    json.dumps(document, allow_nan=False)


def test_every_reference_leads_somewhere(document):
    def references(node):
        if isinstance(node, dict):
            if "$ref" in node:
                yield node["$ref"]
            for one in node.values():
                yield from references(one)
        elif isinstance(node, list):
            for one in node:
                yield from references(one)

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


def test_operations_have_different_names_and_the_document_is_what_is_served(document):
    operations = [one["operationId"] for item in document["paths"].values() for one in item.values()]
    assert len(set(operations)) == len(operations)
    client = TestClient(PLANE, headers={"Authorization": f"Bearer {SECRET}"})
    assert client.get("/everkeel/openapi.json").json() == document


def test_the_document_says_which_role_each_operation_needs(document):
    assert document["paths"]["/config/{type}/{name}"]["put"]["x-role"] == "admin"
    assert document["paths"]["/liveness"]["get"]["security"] == []


# ------------------------------------------------------------------ the schemas that requests are checked by

SCALARS = st.sampled_from(
    [
        {"type": "string", "minLength": 2, "maxLength": 4},
        {"type": "string", "pattern": "^a"},
        {"type": "integer", "minimum": 1, "maximum": 5},
        {"type": "number", "exclusiveMinimum": 0},
        {"type": ["string", "null"]},
        {"type": ["string", "number", "boolean"]},
        {"type": "boolean"},
        {"enum": ["a", "b"]},
        {"const": "x"},
        {},
    ]
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(
            lambda properties, required, closed: {
                "type": "object",
                "properties": properties,
                "required": sorted(required),
                "minProperties": 1,
                **({"additionalProperties": False} if closed else {}),
            },
            st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            st.sets(st.sampled_from("abc"), max_size=2),
            st.booleans(),
        ),
    ),
    max_leaves=4,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 7) | st.floats(-1, 7) | st.sampled_from(["", "a", "b", "x", "abcde"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=4,
)


@given(SCHEMAS, VALUES)
@settings(max_examples=300)
def test_a_value_is_right_exactly_where_json_schema_says_so(schema, value):
    must_be_checkable(schema, "it")
    assert (not list(faults(schema, value))) == Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("schema", [{"oneOf": []}, {"properties": {"a": {"multipleOf": 3}}}, {"items": {"not": {}}}])
def test_a_schema_that_would_not_be_kept_is_refused(schema):
    with pytest.raises(ValueError, match="is not checked"):
        must_be_checkable(schema, "it")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "5", 5),
        ("integer", "5.0", "5.0"),
        ("integer", "\u0665", "\u0665"),  # a digit, elsewhere
        ("integer", "9" * 30, "9" * 30),
        ("number", "-1.5", -1.5),
        ("number", "nan", "nan"),
        ("boolean", "true", True),
        ("boolean", "True", "True"),
        ("string", "5", "5"),
    ],
)
def test_text_of_a_query_is_what_its_schema_says_or_stays_text(kind, text, value):
    assert from_text({"type": kind}, text) == value
