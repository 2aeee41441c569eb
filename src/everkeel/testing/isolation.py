"""A process that has not seen any policy yet, for the time of a test."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from everkeel.config import process
from everkeel.policies.chaos import permission
from everkeel.runtime import events, policy, settings, switch
from everkeel.runtime.configured import no_parts, override_with
from everkeel.runtime.registry import Registry, registry


@contextmanager
def fresh_everkeel() -> Generator[Registry]:
    """An empty registry, and every policy as on its first day; afterwards everything is as it was.

    What the block leaves behind is undone too: subscriptions to every policy, configuration that it loaded or changed,
    what it registered for configuration, the process-wide switches. In pytest, the fixture of the same name does this
    for a whole test.

    >>> from everkeel import retry
    >>> with fresh_everkeel() as registry:
    ...     fetch = retry("docs.fresh")
    ...     [policy.name for policy in registry]
    ['docs.fresh']
    """
    on, overrides, heard = switch.on, settings.overrides, events.everywhere
    chaotic, traced = permission.on, policy._traced
    try:
        with registry.fresh(), no_parts(), process.fresh():
            if settings.overrides is not settings.no_overrides:
                override_with(None)  # the registry is empty: this is about the policies to come
            yield registry
    finally:
        for subscription in events.everywhere:
            if subscription not in heard:
                subscription.cancel()
        if policy._traced is not traced:
            policy.trace_with(traced)
        if settings.overrides is not overrides:
            override_with(overrides)
        if switch.on != on:
            (switch.enable if on else switch.disable)()
        if permission.on != chaotic:
            (permission.enable_chaos if chaotic else permission.disable_chaos)()
