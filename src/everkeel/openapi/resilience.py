"""Which policies an operation has, with which settings: `x-resilience` of the root, its path and itself.

The nearer one wins, setting by setting; a policy set to `null` or `false` nearer by is not inherited.
`x-telstra: resiliency:` is understood as well, its names for policies and parameters mapped to ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from everkeel.openapi.document import Document

__all__ = ["OURS", "TELSTRA", "Placed", "plain", "policies_by_operation"]

OURS, TELSTRA = "x-resilience", "x-telstra"

Settings: TypeAlias = dict[str, Any]

# ------------------------------------------------------------------ the other dialect

_NAMES = {
    "ratelimit": "rate_limit", "circuitbreaker": "circuit_breaker", "failfast": "fail_fast",
    "featuretoggle": "feature_toggle",
}  # fmt: skip
_RENAMED: dict[str, dict[str, str | None]] = {
    "rate_limit": {"max_executions": "permits", "per_time_secs": "per", "bucket_size": "burst"},
    "retry": {"exceptions": "on"},
    "circuit_breaker": {"recovery_timeout": "open_for", "half_open_requests": "probes"},
    "bulkhead": {"max_concurrent": "limit", "max_queued": "queue"},
    "fail_fast": {"failure_threshold": "failures"},
    "hedge": {"timeout": None},
}  # fmt: skip
# Parameters of its Retry-After strategies. Ours says the moment the next permit is there, which needs none of them.
_WITHOUT_EFFECT = {
    "rate_limit": {
        "retry_after_strategy", "p95_baseline", "min_latency", "min_retry_delay", "max_retry_penalty",
        "gradient_sensitivity",
    },
}  # fmt: skip


def _translated(document: Document, at: str, word: str, given: Settings) -> tuple[str, Settings]:
    kind = _NAMES.get(word, word)
    names = _RENAMED.get(kind, {})
    settings: Settings = {}
    for key, value in given.items():
        if key in _WITHOUT_EFFECT.get(kind, ()):
            continue
        if (new := names.get(key, key)) is None:
            raise document.error(f"{at}/{key}", "has no counterpart: a timeout policy limits each attempt", value)
        settings[new] = value
    if kind == "rate_limit":
        settings.setdefault("permits", 100)
        settings.setdefault("per", 60)
    elif kind == "retry":
        _backoff(settings)
    elif kind == "circuit_breaker" and "failure_threshold" in settings:
        # So many failures, whatever the rate: a window of that many calls, all of them failures.
        failures = settings.pop("failure_threshold")
        settings |= {"failure_rate": 1.0, "window": failures, "minimum_calls": failures}
    elif kind == "timeout":
        settings.setdefault("seconds", 30.0)
    return kind, settings


def _backoff(settings: Settings) -> None:
    """`delay`, `backoff` (a factor) and `max_delay` are one setting of ours."""
    if not {"delay", "backoff", "max_delay"} & settings.keys():
        return
    settings["backoff"] = {
        "exponential": {
            "first": settings.pop("delay", 1.0),
            "factor": settings.pop("backoff", 2.0),
            "max": settings.pop("max_delay", 60.0),
        }
    }


# ------------------------------------------------------------------ reading


@dataclass
class Placed:
    """The settings of one policy of an operation, each with the place it was written at."""

    at: str
    settings: dict[str, tuple[Any, str]] = field(default_factory=dict)

    @property
    def plain(self) -> Settings:
        """The settings without their places."""
        return {setting: value for setting, (value, _) in self.settings.items()}


Level: TypeAlias = dict[str, Placed | None]
Dialect: TypeAlias = Callable[[str, str, Settings], tuple[str, Settings]]


def policies_by_operation(document: Document) -> dict[str, dict[str, Placed]]:
    """For each operation id the policies it has and the settings of each, as written; nothing is validated yet."""
    everywhere = _at(document, document.root, "#")
    found = {}
    for operation in document.operations():
        path = _at(document, operation.path_item, operation.at.rpartition("/")[0])
        found[operation.id] = _joined(everywhere, path, _at(document, operation.node, operation.at))
    return found


def plain(policies: Mapping[str, Placed]) -> dict[str, Settings]:
    """The policies of an operation as a document would write them in one place."""
    return {kind: placed.plain for kind, placed in policies.items()}


def _joined(*levels: Level) -> dict[str, Placed]:
    found: dict[str, Placed] = {}
    for level in levels:
        for kind, placed in level.items():
            if placed is None:
                found.pop(kind, None)
            else:
                before = found[kind].settings if kind in found else {}
                found[kind] = Placed(placed.at, {**before, **placed.settings})
    return found


def _at(document: Document, node: Mapping[str, Any], at: str) -> Level:
    found = _read(document, node.get(OURS), f"{at}/{OURS}", lambda _, word, given: (word, given))
    theirs = node.get(TELSTRA)
    if isinstance(theirs, Mapping) and "resiliency" in theirs:
        other = _read(document, theirs["resiliency"], f"{at}/{TELSTRA}/resiliency", partial(_translated, document))
        found = {**other, **found}
    return found


def _read(
    document: Document, written: Any, at: str, understood: Callable[[str, str, Settings], tuple[str, Settings]]
) -> Level:
    written = document.follow(written, at)
    if written is None:
        return {}
    if not isinstance(written, Mapping):
        raise document.error(at, "must be a mapping of policies, such as {retry: {attempts: 3}}", written)
    found: Level = {}
    for word, given in written.items():
        place = f"{at}/{word}"
        given = document.follow(given, place)
        if given is not None and not isinstance(given, Mapping | bool):
            raise document.error(place, "must be a mapping of settings, true, or null", given)
        settings = {str(key): value for key, value in given.items()} if isinstance(given, Mapping) else {}
        kind, settings = understood(place, str(word), settings)
        wanted = given is not None and given is not False
        found[kind] = (
            Placed(place, {key: (value, f"{place}/{key}") for key, value in settings.items()}) if wanted else None
        )
    return found
