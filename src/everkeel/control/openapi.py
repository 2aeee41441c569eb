"""The OpenAPI 3.1 document, made from the sections: what is not in their tables does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import everkeel
from everkeel.control import problems
from everkeel.control.section import Endpoint, Parameter, Section

_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_SAID = {
    400: "The request is not what this document says.",
    401: "No credentials, or wrong ones.",
    403: "The role does not suffice, or a page of another origin asks.",
    404: "There is no such thing.",
    405: "The path does not have this method.",
    409: "It is not in a state in which this can be done.",
    412: "Somebody else changed it first: read it again.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The settings are not allowed, and nothing was changed.",
    429: "Too many requests; `Retry-After` says when to come back.",
    503: "Not ready, or too many live streams.",
}
_PATH = {
    "type": ("The type of a policy.", "circuit_breaker"),
    "name": ("The name of a policy; slashes are percent-encoded or not.", "payments"),
}


def document(sections: Iterable[Section], prefix: str) -> dict[str, Any]:
    """The whole document; paths are relative to `servers`, which is the prefix."""
    sections = list(sections)
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Problem": problems.SCHEMA}
    for section in sections:
        schemas.update(section.schemas)
        for endpoint in section.endpoints:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(section.name, endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Everkeel control plane",
            "version": everkeel.__version__,
            "description": "See the resilience policies of a running service, and change them.",
        },
        "servers": [{"url": prefix or "/"}],
        "tags": [{"name": section.name, "description": section.description} for section in sections],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A token with a role."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "everkeel_session",
                    "description": (
                        "Of a page, begun with POST /session; where the address has a port, _PORT follows its name. "
                        "Changes also need X-Everkeel-Request."
                    ),
                },
            },
        },
    }


def _operation(tag: str, endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.operation,
        "tags": [tag],
        "summary": endpoint.summary,
        "responses": _responses(endpoint),
    }
    role = "" if endpoint.role is None else f"Needs the role `{endpoint.role}`."
    if description := "\n\n".join(filter(None, [endpoint.description, role])):
        operation["description"] = description
    parameters = [_in_path(name) for name in endpoint.path_parameters] + [_declared(one) for one in endpoint.parameters]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        content = {"application/json": {"schema": endpoint.body}}
        operation["requestBody"] = {"required": endpoint.body_required, "content": content}
    operation["security"] = [] if endpoint.role is None else [{"bearer": []}, {"session": []}]
    if endpoint.role is not None:
        operation["x-role"] = str(endpoint.role)
    return operation


def _in_path(name: str) -> dict[str, Any]:
    description, example = _PATH.get(name, (f"Which {name}.", None))
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    parameter = {"name": name, "in": "path", "required": True, "description": description, "schema": schema}
    return parameter if example is None else {**parameter, "example": example}


def _declared(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    fine: dict[str, Any] = {"description": "Done." if endpoint.changes else "The answer."}
    if endpoint.answer is not None:
        fine["content"] = {endpoint.media: {"schema": endpoint.answer}}
    elif endpoint.status != 204:
        fine["content"] = {endpoint.media: {"schema": {"type": "string"}}}
    if endpoint.headers:
        fine["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in endpoint.headers.items()
        }
    statuses = set(endpoint.problems)
    statuses |= {400} if endpoint.probe or not endpoint.limited else {400, 429}
    if endpoint.role is None and not endpoint.probe:
        statuses |= {401}  # where no credentials are configured
    if endpoint.role is not None:
        statuses |= {401, 403}
    if endpoint.path_parameters:
        statuses |= {404}
    if endpoint.body is not None:
        statuses |= {413, 415}
    answers = {str(endpoint.status): fine}
    for status in sorted(statuses):
        answers[str(status)] = {"description": _SAID.get(status, "A problem."), "content": _PROBLEM}
    return answers
