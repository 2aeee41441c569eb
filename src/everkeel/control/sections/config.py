"""Settings: read them, and change them all or none."""

from __future__ import annotations

import asyncio
from typing import Any

from everkeel.control import configuration
from everkeel.control.access import Role
from everkeel.control.problems import ProblemError
from everkeel.control.section import Answer, Endpoint, Exchange, Parameter, Section
from everkeel.control.sections.policies import FILTERS, fits
from everkeel.runtime.configured import AnyConfigured

CONFIG = {
    "type": "object",
    "required": ["type", "name", "settings", "sources", "version"],
    "properties": {
        "type": {"type": "string"},
        "name": {"type": "string"},
        "settings": {
            "type": "object",
            "description": "Every setting as it is in force, in the form in which a file would write it.",
        },
        "sources": {
            "type": "object",
            "description": "Where each comes from: default, code, a line of a file, a variable, or live.",
            "additionalProperties": {"type": "string"},
        },
        "version": {"type": "string", "description": "What the entity tag of these settings holds."},
    },
}
_LIST = {
    "type": "object",
    "required": ["policies"],
    "properties": {"policies": {"type": "array", "items": {"$ref": "#/components/schemas/Config"}}},
}
_SETTINGS = {
    "type": "object",
    "minProperties": 1,
    "description": "The settings to change; those that are not named stay as they are.",
    "examples": [{"attempts": 5}],
}
_MANY = {
    "type": "object",
    "minProperties": 1,
    "description": "By type and name of the policies, as in a file: the settings to change.",
    "examples": [{"retry": {"orders.fetch": {"attempts": 5}}}],
}
_TAG = {"ETag": "The version of the settings."}
IF_MATCH = Parameter(
    "If-Match",
    {"type": "string"},
    "Change only if the settings are still this version; otherwise 412, and nothing changes.",
    "header",
)


def shown(policy: AnyConfigured) -> dict[str, Any]:
    """The settings of a policy."""
    settings = configuration.settings_of(policy)
    return {
        "type": policy.type,
        "name": policy.name,
        "settings": settings,
        "sources": configuration.sources_of(policy),
        "version": configuration.version_of(policy, settings),
    }


async def all_settings(exchange: Exchange) -> Any:
    """Of every policy, outbox, relay and consumer that fits the filter."""
    found = []
    for number, policy in enumerate(configuration.all_of(exchange.plane.registry), 1):
        if fits(policy, exchange.query):
            found.append(shown(policy))
        if number % 10 == 0:  # others get the event loop in between
            await asyncio.sleep(0)
    body = {"policies": found}
    if exchange.query:
        return body
    version = configuration.version_of_all(one["version"] for one in found)
    return Answer(body, {"ETag": f'"{version}"'})


async def put_all_settings(exchange: Exchange) -> Any:
    """Of several policies, all or none."""
    plane = exchange.plane
    changes = []
    for policy_type, sections in exchange.body.items():
        for name, settings in _table(sections, f"/{policy_type}").items():
            policy = _named(exchange, policy_type, name)
            changes.append((policy, _table(settings, f"/{policy_type}/{name}")))
    made = await asyncio.to_thread(
        configuration.change_all, changes, configuration.all_of(plane.registry), exchange.headers.get("If-Match")
    )
    for (policy, _), one in zip(changes, made, strict=True):
        plane.note(exchange, "config", policy.type, policy.name, one.before, one.after, one.undo)
    return {"policies": [shown(policy) for policy, _ in changes]}


def _named(exchange: Exchange, kind: str, name: str) -> AnyConfigured:
    found = configuration.find(exchange.plane.registry, kind, name)
    if found is None:
        raise ProblemError(404, "no-such-policy", f"there is no {kind} named {name!r}")
    return found


def _table(value: Any, pointer: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ProblemError(400, "invalid-body", f"{pointer}: must be an object that is not empty")
    return value


async def settings(exchange: Exchange) -> Any:
    """Of one policy, with the entity tag that a change can insist on."""
    policy = _named(exchange, exchange.path["type"], exchange.path["name"])
    return _tagged(policy)


async def put_settings(exchange: Exchange) -> Any:
    """Validated as a whole, swapped at once, state kept."""
    policy = _named(exchange, exchange.path["type"], exchange.path["name"])
    change = await asyncio.to_thread(configuration.change, policy, exchange.body, exchange.headers.get("If-Match"))
    exchange.plane.note(exchange, "config", policy.type, policy.name, change.before, change.after, change.undo)
    return _tagged(policy)


def _tagged(policy: AnyConfigured) -> Answer:
    body = shown(policy)
    return Answer(body, {"ETag": f'"{body["version"]}"'})


def section() -> Section:
    """The part about settings."""
    return Section(
        "config",
        "Settings in force, and live changes of them.",
        [
            Endpoint(
                "GET", "/config", all_settings, Role.VIEWER, "The settings of all policies", answer=_LIST,
                parameters=FILTERS, headers={"ETag": "The version of all settings; not where a filter is given."},
            ),
            Endpoint(
                "PUT", "/config", put_all_settings, Role.ADMIN, "Change settings of several policies, all or none",
                answer=_LIST, body=_MANY, parameters=(IF_MATCH,), problems=(404, 412, 422), parts=("control",),
            ),
            Endpoint(
                "GET", "/config/{type}/{name}", settings, Role.VIEWER, "The settings of one policy",
                answer={"$ref": "#/components/schemas/Config"}, headers=_TAG,
            ),
            Endpoint(
                "PUT", "/config/{type}/{name}", put_settings, Role.ADMIN, "Change settings, all or none",
                answer={"$ref": "#/components/schemas/Config"}, body=_SETTINGS, parameters=(IF_MATCH,),
                problems=(412, 422), parts=("control",), headers=_TAG,
            ),
        ],
        {"Config": CONFIG},
    )  # fmt: skip
