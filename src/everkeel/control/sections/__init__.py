"""The control plane's own parts, each a `Section` like any that others add."""

from __future__ import annotations

from everkeel.control.section import Section
from everkeel.control.sections import audit, config, control, events, health, metrics, page, policies, session


def own_sections(*, public_readiness: bool) -> list[Section]:
    """Every part that a plane has by itself."""
    return [
        health.section(public_readiness),
        policies.section(),
        config.section(),
        control.section(),
        metrics.section(),
        events.section(),
        audit.section(),
        session.section(),
        page.section(),
    ]
