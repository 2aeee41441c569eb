"""The one place where the control plane reads and changes settings."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from everkeel.control.board import plain
from everkeel.control.problems import ProblemError
from everkeel.errors import ConfigError
from everkeel.runtime.policy import AnyPolicy

_changing = threading.Lock()
"""Held from the look at the version to the end of the change, so that of two writers with one version one loses.
Changes made by the program itself do not take it: `If-Match` is between people."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a change did, as the policy has it and (`before`, `after`) as JSON does."""

    before: dict[str, Any]
    after: dict[str, Any]
    undo: dict[str, Any]
    version: str


def settings_of(policy: AnyPolicy) -> dict[str, Any]:
    """Every setting as JSON has it; what JSON cannot say (a function, a class) as text."""
    return {name: plain(getattr(policy.config, name)) for name in sorted(policy.config.names())}


def version_of(policy: AnyPolicy) -> str:
    """What the settings' entity tag holds: equal settings, equal version."""
    text = json.dumps([policy.type, policy.name, settings_of(policy)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def change(
    policy: AnyPolicy,
    settings: Mapping[str, Any],
    if_match: str | None = None,
    check: Callable[[dict[str, Any]], object] | None = None,
) -> Change:
    """Change some settings, all or none, unless somebody else did since the caller looked. Blocks: not for a loop.

    `check` is told the settings as they are right before the change, and may raise.
    """
    with _changing:
        _must_match(policy, if_match)
        if check is not None:
            check(settings_of(policy))
        config = policy.config
        known = [name for name in settings if name in config.names()]
        undo = {name: getattr(config, name) for name in known}
        before = {name: plain(value) for name, value in undo.items()}
        try:
            policy.reconfigure(**settings)
        except ConfigError as error:
            raise refused(error) from None
        after = {name: plain(getattr(policy.config, name)) for name in known}
        return Change(before, after, undo, version_of(policy))


def _must_match(policy: AnyPolicy, if_match: str | None) -> None:
    if if_match is None or if_match.strip() == "*":
        return
    now = version_of(policy)
    if now not in [tag.strip().strip('"') for tag in if_match.split(",")]:
        raise ProblemError(
            412,
            "changed-meanwhile",
            f"the settings of {policy.label} are no longer those you read; read them again",
            headers={"ETag": f'"{now}"'},
        )


def refused(error: ConfigError) -> ProblemError:
    """The answer to settings that are not allowed."""
    one = {"detail": str(error)}
    if error.parameter:
        one["pointer"] = f"/{error.parameter}"
    return ProblemError(422, "settings-not-allowed", str(error), {"errors": [one]})
