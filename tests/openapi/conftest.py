"""Documents the tests share."""

from __future__ import annotations

from typing import Any

import pytest

RESOURCES = (
    "order", "invoice", "customer", "payment-method", "shipment", "warehouse", "product", "price list", "return",
    "webhook",
)  # fmt: skip


def reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def answer(status: str, schema: Any = None) -> dict[str, Any]:
    content = {} if schema is None else {"content": {"application/json": {"schema": schema}}}
    return {status: {"description": "fine", **content}}


def schemas_of(title: str) -> dict[str, Any]:
    properties = {
        "id": {"type": "string", "format": "uuid"},
        "name": {"type": "string", "minLength": 1, "maxLength": 80},
        "created-at": {"type": "string", "format": "date-time"},
        "date": {"type": ["string", "null"], "format": "date"},
        "total": {"type": "number", "minimum": 0},
        "state": reference(f"{title}State"),
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 20},
        "related": {"type": "array", "items": reference(title)},
        "meta": {"type": "object", "additionalProperties": {"type": "string"}},
        "class": {"type": "string"},
        "model_kind": {"type": "string"},
        "address": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}},
    }
    note = {"type": "object", "required": ["note"], "properties": {"note": {"type": "string", "default": "none"}}}
    patch = {"name": {"type": "string"}, "state": reference(f"{title}State")}
    return {
        title: {"type": "object", "required": ["id", "name"], "properties": properties},
        f"{title}State": {"type": "string", "enum": ["new", "in progress", "done", "2nd"]},
        f"{title}Patch": {"type": "object", "properties": patch, "additionalProperties": False},
        f"{title}Detail": {"allOf": [reference(title), note]},
    }


def paths_of(name: str, title: str) -> dict[str, Any]:
    slug = name.replace(" ", "-") + "s"
    listing = [
        {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}},
        {"name": "state", "in": "query", "schema": reference(f"{title}State")},
        {"name": "ids", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
        {"name": "X-Tenant", "in": "header", "required": True, "schema": {"type": "string"}},
    ]
    words = [{"name": "q", "in": "query", "required": True, "schema": {"type": "string", "minLength": 2}}]
    item = [{"name": f"{slug}-id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}]
    body = {"content": {"application/json": {"schema": reference(title)}}}
    patch = {"content": {"application/json": {"schema": reference(f"{title}Patch")}}}
    hits = {"type": "object", "properties": {"hits": {"type": "array", "items": reference(title)}}}
    backoff = {"exponential": {"first": "100ms", "factor": 2, "max": "1s"}}
    operations: dict[str, dict[str, Any]] = {
        f"/{slug}": {
            "get": {
                "operationId": f"list-{slug}",
                "summary": f"List {slug}",
                "parameters": listing,
                "responses": answer("200", {"type": "array", "items": reference(title)}),
                "x-resilience": {"rate_limit": {"permits": 1000, "per": "1m"}},
            },
            "post": {
                "operationId": f"create{title}",
                "requestBody": {"required": True, **body},
                "responses": answer("201", reference(title)),
                "x-telstra": {"resiliency": {"circuitbreaker": {"failure_threshold": 5, "recovery_timeout": 30}}},
            },
        },
        f"/{slug}/{{{slug}-id}}": {
            "parameters": item,
            "get": {
                "operationId": f"get{title}",
                "responses": answer("200", reference(f"{title}Detail")),
                "x-resilience": {
                    "retry": {"attempts": 3, "backoff": backoff},
                    "circuit_breaker": {"failure_rate": 0.5},
                },
            },
            "patch": {
                "operationId": f"patch{title}",
                "requestBody": patch,
                "responses": answer("200", {"oneOf": [reference(title), reference(f"{title}Detail")]}),
            },
            "delete": {"operationId": f"delete{title}", "responses": answer("204")},
        },
        f"/{slug}/search": {
            "get": {"operationId": f"search{title}", "parameters": words, "responses": answer("200", hits)},
        },
    }
    for methods in operations.values():
        for method, operation in methods.items():
            if method != "parameters":
                operation["tags"] = [name]
    return operations


@pytest.fixture
def large() -> dict[str, Any]:
    """A document of realistic size: sixty-odd operations over ten resources, with most of what OpenAPI offers."""
    paths: dict[str, Any] = {
        "/files/{name}": {
            "put": {
                "operationId": "upload",
                "requestBody": {"required": True, "content": {"application/octet-stream": {}}},
                "responses": answer("204"),
            },
            "get": {
                "operationId": "download",
                "responses": {"200": {"description": "fine", "content": {"application/octet-stream": {}}}},
            },
        }
    }
    schemas: dict[str, Any] = {}
    for name in RESOURCES:
        title = "".join(word.capitalize() for word in name.replace("-", " ").split())
        paths |= paths_of(name, title)
        schemas |= schemas_of(title)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Back Office", "version": "2.3", "description": "All of it."},
        "x-resilience": {"timeout": {"seconds": "5s"}},
        "paths": paths,
        "components": {"schemas": schemas},
    }


@pytest.fixture
def small() -> dict[str, Any]:
    """One resource, in the older version of the standard."""
    order = {
        "type": "object",
        "required": ["item"],
        "properties": {
            "item": {"type": "string"},
            "count": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "default": 1},
            "note": {"type": "string", "nullable": True},
        },
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": "Orders", "version": "1"},
        "paths": {
            "/orders/{order-id}": {
                "get": {
                    "operationId": "getOrder",
                    "parameters": [{"name": "order-id", "in": "path", "required": True, "schema": {"type": "integer"}}],
                    "responses": answer("200", reference("Order")),
                    "x-resilience": {"retry": {"attempts": 2, "backoff": 0}},
                },
                "put": {
                    "operationId": "putOrder",
                    "requestBody": {"required": True, "content": {"application/json": {"schema": reference("Order")}}},
                    "responses": answer("204"),
                },
            }
        },
        "components": {"schemas": {"Order": order}},
    }
