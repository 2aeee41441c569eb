"""Who changed what, and the way back."""

from __future__ import annotations

import asyncio
from typing import Any

from everkeel.control import configuration
from everkeel.control.access import Role
from everkeel.control.audit import Entry
from everkeel.control.problems import ProblemError
from everkeel.control.section import Endpoint, Exchange, Parameter, Section

ENTRY = {
    "type": "object",
    "required": ["id", "time", "who", "action", "type", "name", "before", "after", "can_roll_back"],
    "properties": {
        "id": {"type": "integer"},
        "time": {"type": "string", "format": "date-time"},
        "who": {"type": "string"},
        "action": {"type": "string"},
        "type": {"type": ["string", "null"]},
        "name": {"type": ["string", "null"]},
        "before": {"type": "object"},
        "after": {"type": "object"},
        "can_roll_back": {"type": "boolean"},
    },
}
_LIST = {
    "type": "object",
    "required": ["entries"],
    "properties": {"entries": {"type": "array", "items": {"$ref": "#/components/schemas/AuditEntry"}}},
}


async def entries(exchange: Exchange) -> Any:
    """The newest first."""
    query = exchange.query
    found = [
        entry.plain()
        for entry in reversed(exchange.plane.audit.entries())
        if query.get("type") in (None, entry.type)
        and query.get("name") in (None, entry.name)
        and query.get("who") in (None, entry.who)
    ]
    return {"entries": found[: query.get("limit", 100)]}


async def roll_back(exchange: Exchange) -> Any:
    """Give the settings of one change the values they had before it."""
    text = exchange.path["id"]
    entry = exchange.plane.audit.find(int(text)) if text.isascii() and text.isdecimal() and len(text) < 18 else None
    if entry is None:
        raise ProblemError(404, "no-such-entry", f"there is no entry {text!r}, or it is no longer kept")
    if entry.undo is None or entry.type is None or entry.name is None:
        raise ProblemError(
            409, "no-way-back", f"{entry.action!r} is not a change of settings, and cannot be taken back"
        )
    policy = configuration.find(exchange.plane.registry, entry.type, entry.name)
    if policy is None:
        raise ProblemError(404, "no-such-policy", f"there is no {entry.type} named {entry.name!r} any more")
    force = (exchange.body or {}).get("force", False)
    change = await asyncio.to_thread(_undo, policy, entry, force)
    note = exchange.plane.note(
        exchange, f"rollback of {entry.id}", policy.type, policy.name, change.before, change.after, change.undo
    )
    return note.plain()


def _undo(policy: Any, entry: Entry, force: bool) -> configuration.Change:
    def still_there(now: dict[str, Any]) -> None:
        others = [name for name, value in entry.after.items() if now.get(name) != value]
        if others and not force:
            detail = (
                f"{', '.join(others)} of {policy.label} changed again since; pass force to take it back all the same"
            )
            raise ProblemError(409, "changed-since", detail)

    return configuration.change(policy, entry.undo or {}, check=still_there)


def section() -> Section:
    """The part that remembers."""
    return Section(
        "audit",
        "The last changes made through the control plane; the log has all of them.",
        [
            Endpoint(
                "GET", "/audit", entries, Role.VIEWER, "Who changed what, newest first", answer=_LIST,
                parameters=(
                    Parameter("type", {"type": "string"}, "Only about policies of this type."),
                    Parameter("name", {"type": "string"}, "Only about the policy of this name."),
                    Parameter("who", {"type": "string"}, "Only by this caller."),
                    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "How many (100)."),
                ),
            ),
            Endpoint(
                "POST", "/audit/{id}/rollback", roll_back, Role.ADMIN, "Take a change of settings back",
                description="409 where the same settings changed again since, unless `force` is true.",
                answer={"$ref": "#/components/schemas/AuditEntry"}, body_required=False, problems=(409, 422),
                body={
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"force": {"type": "boolean"}},
                },
                parts=("control",),
            ),
        ],
        {"AuditEntry": ENTRY},
    )  # fmt: skip
