"""Which policies there are."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from everkeel.control import configuration
from everkeel.control.access import Role
from everkeel.control.problems import ProblemError
from everkeel.control.section import Endpoint, Exchange, Parameter, Section
from everkeel.runtime.configured import AnyConfigured
from everkeel.runtime.keyed import Keyed
from everkeel.runtime.policy import AnyPolicy

MODES = ["enforce", "shadow", "off"]
MOST_KEYS = 100

POLICY = {
    "type": "object",
    "required": ["type", "name", "mode", "state", "keyed"],
    "properties": {
        "type": {"type": "string"},
        "name": {"type": "string"},
        "mode": {"enum": MODES},
        "state": {"type": ["string", "null"], "description": "Of circuits and gates: closed, open, half_open."},
        "keyed": {"type": "boolean", "description": "Has it a state for each key?"},
    },
}
_DETAILS = {
    "type": "object",
    "required": ["type", "name", "mode", "settings", "version", "shut_keys"],
    "properties": {
        **POLICY["properties"],  # type: ignore[dict-item]  # a dict in a dict
        "settings": {"type": "object"},
        "version": {"type": "string", "description": "The entity tag of the settings, for If-Match."},
        "shut_keys": {
            "type": "object",
            "description": f"Keys that are not closed, and their state; at most {MOST_KEYS}.",
            "additionalProperties": {"type": "string"},
        },
    },
}
_LIST = {
    "type": "object",
    "required": ["total", "policies"],
    "properties": {
        "total": {"type": "integer", "description": "How many fit the filter, on all pages."},
        "policies": {"type": "array", "items": {"$ref": "#/components/schemas/Policy"}},
    },
}

FILTERS = (
    Parameter("type", {"type": "string"}, "Only policies of this type."),
    Parameter("name", {"type": "string"}, "Only names that fit this pattern: `*` stands for anything."),
    Parameter("mode", {"enum": MODES}, "Only policies in this mode."),
    Parameter("state", {"type": "string"}, "Only policies in this state, such as `open`."),
)
_PAGE = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 10_000}, "How many at most (1,000 by default)."),
    Parameter("offset", {"type": "integer", "minimum": 0}, "How many to leave out at the beginning."),
)


def policy_of(exchange: Exchange, policy_type: str | None = None) -> AnyPolicy:
    """The policy that the path names; a problem where there is none."""
    kind, name = policy_type or exchange.path["type"], exchange.path["name"]
    policy = exchange.plane.registry.get(kind, name)
    if policy is None:
        raise ProblemError(404, "no-such-policy", f"there is no {kind} named {name!r}")
    return policy


def state_of(policy: AnyConfigured) -> str | None:
    """The state of a circuit or a gate; None for policies that have none, or one per key."""
    phase = getattr(getattr(policy, "state", None), "phase", None)
    return getattr(phase, "name", None)


def described(policy: AnyPolicy) -> dict[str, Any]:
    """A policy in a list."""
    keyed = isinstance(policy.state, Keyed) or getattr(policy, "key_of", None) is not None
    return {
        "type": policy.type,
        "name": policy.name,
        "mode": policy.mode,
        "state": state_of(policy),
        "keyed": keyed,
    }


def fits(policy: AnyConfigured, query: dict[str, Any]) -> bool:
    """Does the filter let it through?"""
    return (
        query.get("type") in (None, policy.type)
        and fnmatchcase(str(policy.name), query.get("name", "*"))
        and query.get("mode") in (None, policy.config.mode)
        and query.get("state") in (None, state_of(policy))
    )


async def list_policies(exchange: Exchange) -> Any:
    """In the order in which they were made."""
    query = exchange.query
    fitting = [policy for policy in exchange.plane.registry if fits(policy, query)]
    start = query.get("offset", 0)
    page = fitting[start : start + query.get("limit", 1_000)]
    return {"total": len(fitting), "policies": [described(policy) for policy in page]}


async def one_policy(exchange: Exchange) -> Any:
    """With its settings, and the keys that are in trouble."""
    policy = policy_of(exchange)
    return {
        **described(policy),
        "settings": configuration.settings_of(policy),
        "version": configuration.version_of(policy),
        "shut_keys": _shut_keys(policy),
    }


def _shut_keys(policy: AnyPolicy) -> dict[str, str]:
    if not isinstance(policy.state, Keyed):
        return {}
    states = policy.state.states.copy().items()
    named = ((str(key)[:200], getattr(getattr(one, "phase", None), "name", "closed")) for key, one in states)
    return dict(islice((pair for pair in named if pair[1] != "closed"), MOST_KEYS))


def section() -> Section:
    """The part that lists policies."""
    return Section(
        "policies",
        "The named policies of this process.",
        [
            Endpoint(
                "GET", "/policies", list_policies, Role.VIEWER, "All policies, or those that fit a filter",
                answer=_LIST, parameters=(*FILTERS, *_PAGE),
            ),
            Endpoint("GET", "/policies/{type}/{name}", one_policy, Role.VIEWER, "One policy", answer=_DETAILS),
        ],
        {"Policy": POLICY},
    )  # fmt: skip
