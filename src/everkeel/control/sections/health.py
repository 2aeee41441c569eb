"""Is it alive, is it ready, how is it?"""

from __future__ import annotations

from collections import Counter
from typing import Any

import everkeel
from everkeel.control.access import Role
from everkeel.control.moments import iso
from everkeel.control.section import Answer, Endpoint, Exchange, Section
from everkeel.runtime import switch

_STATUS = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}, "reasons": {"type": "array", "items": {"type": "string"}}},
}
_HEALTH = {
    "type": "object",
    "required": ["status", "policies", "active_policies", "modes", "version", "uptime", "timestamp", "live_streams"],
    "properties": {
        "status": {"enum": ["up", "not_ready", "disabled"]},
        "policies": {"type": "integer", "description": "How many there are."},
        "active_policies": {"type": "integer", "description": "How many are not off."},
        "modes": {"type": "object", "additionalProperties": {"type": "integer"}},
        "open": {"type": "array", "items": {"type": "string"}, "description": "What rejects calls now: `type/name`."},
        "version": {"type": "string"},
        "uptime": {"type": "number"},
        "timestamp": {"type": "string", "format": "date-time"},
        "live_streams": {"type": "integer"},
    },
}


async def liveness(exchange: Exchange) -> Any:
    """The event loop turns, which is all that liveness may mean: a restart cures nothing else."""
    return {"status": "alive"}


async def readiness(exchange: Exchange) -> Any:
    """What the readiness patterns of the plane say. Reasons are for those who may read."""
    reasons = exchange.plane.readiness.reasons(exchange.plane.registry)
    body: dict[str, Any] = {"status": "not_ready" if reasons else "ready"}
    if exchange.principal is not None:
        body["reasons"] = reasons
    return Answer(body, status=503 if reasons else 200)


async def health(exchange: Exchange) -> Any:
    """Counts, and what is shut."""
    plane = exchange.plane
    modes: Counter[str] = Counter()
    shut = []
    for policy in plane.registry:
        modes[policy.mode] += 1
        state = getattr(getattr(policy.state, "phase", None), "name", None)
        if state == "open":
            shut.append(f"{policy.type}/{policy.name}")
    reasons = plane.readiness.reasons(plane.registry)
    return {
        "status": "disabled" if not switch.on else "not_ready" if reasons else "up",
        "policies": sum(modes.values()),
        "active_policies": sum(modes.values()) - modes["off"] if switch.on else 0,
        "modes": {mode: modes[mode] for mode in ("enforce", "shadow", "off")},
        "open": shut,
        "version": everkeel.__version__,
        "uptime": round(plane.clock.monotonic() - plane.started_at, 3),
        "timestamp": iso(plane.clock.time()),
        "live_streams": plane.feed.readers,
    }


def section(public_readiness: bool) -> Section:
    """The part that probes ask."""
    return Section(
        "health",
        "Probes for orchestrators, and how many policies are active.",
        [
            Endpoint("GET", "/health", health, Role.VIEWER, "How the policies are, in one look", answer=_HEALTH),
            Endpoint(
                "GET", "/liveness", liveness, None, "Is the process alive? Needs no credentials", answer=_STATUS,
                probe=True,
            ),
            Endpoint(
                "GET", "/readiness", readiness, None if public_readiness else Role.VIEWER,
                "Should this instance get traffic?", answer=_STATUS, probe=public_readiness,
                description="503, with the same body, while a policy that counts for readiness is open.",
                problems=(503,),
            ),
        ],
    )  # fmt: skip
