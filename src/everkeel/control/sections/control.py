"""What an operator does in an incident: modes for every policy, and for some types what only they can do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from everkeel.control import configuration
from everkeel.control.access import Role
from everkeel.control.problems import ProblemError
from everkeel.control.section import Endpoint, Exchange, Handler, Section
from everkeel.control.sections.policies import POLICY, described, policy_of
from everkeel.runtime.keyed import Keyed
from everkeel.runtime.policy import AnyPolicy

MODES = {
    "enable": ("enforce", "Let a policy act"),
    "disable": ("off", "Switch a policy off: its calls are plain calls"),
    "shadow": ("shadow", "Let a policy only watch: it counts what it would have done"),
}
_ANSWER = {
    "type": "object",
    "required": ["type", "name", "mode", "state", "changed"],
    "properties": {
        **POLICY["properties"],  # type: ignore[dict-item]  # a dict in a dict
        "changed": {
            "type": "object",
            "required": ["before", "after"],
            "properties": {"before": {"type": "object"}, "after": {"type": "object"}},
        },
    },
}
_KEY = {"type": ["string", "number", "boolean"], "description": "One key of a policy that has a state for each."}
_SECONDS = {"type": "number", "minimum": 0, "maximum": 86_400, "description": "For how long."}
_REASON = {"type": "string", "minLength": 1, "maxLength": 200, "description": "What rejected callers are told."}


class Act(NamedTuple):
    """Something that can be done to policies of one type."""

    policy_type: str
    word: str
    summary: str
    do: Callable[[AnyPolicy, Any, dict[str, Any]], object]
    """Told the policy, the key (None: it has none) and the body."""
    properties: dict[str, Any]
    new_keys: bool = False
    """May it name a key that has not been seen yet?"""


def _breaker(word: str, summary: str, method: str, *, new_keys: bool = False) -> Act:
    def do(policy: Any, key: Any, body: dict[str, Any]) -> None:
        getattr(policy, method)(key=key)

    return Act("circuit_breaker", word, summary, do, {"key": _KEY}, new_keys)


ACTS = [
    _breaker("force_open", "Reject every call until told otherwise", "force_open", new_keys=True),
    _breaker("force_closed", "Let every call pass until told otherwise", "force_closed", new_keys=True),
    _breaker("half_open", "Let the probes find out now", "half_open"),
    _breaker("close", "Close it; from then on it judges as ever", "reset"),
    _breaker("reset", "Close it and forget what it saw; the same as close", "reset"),
    Act(
        "fail_fast", "force_open", "Reject every call until it is reset",
        lambda policy, key, body: policy.force_open(body.get("reason", "opened by hand"), key=key),  # type: ignore[attr-defined]
        {"key": _KEY, "reason": _REASON}, new_keys=True,
    ),
    Act(
        "fail_fast", "reset", "Let calls pass again",
        lambda policy, key, body: policy.reset(key=key),  # type: ignore[attr-defined]
        {"key": _KEY},
    ),
    Act(
        "rate_limit", "drain", "Grant nothing for a while; without `seconds`, empty it and no longer",
        lambda policy, key, body: policy.drain(body.get("seconds"), key=key),  # type: ignore[attr-defined]
        {"key": _KEY, "seconds": _SECONDS}, new_keys=True,
    ),
    Act(
        "cache", "clear", "Forget every answer",
        lambda policy, key, body: policy.clear(),  # type: ignore[attr-defined]
        {},
    ),
    Act(
        "chaos", "stop", "No more faults until it is resumed",
        lambda policy, key, body: policy.stop("from the control plane"),  # type: ignore[attr-defined]
        {},
    ),
    Act(
        "chaos", "resume", "Faults again, after a stop",
        lambda policy, key, body: policy.resume(),  # type: ignore[attr-defined]
        {},
    ),
]  # fmt: skip

SWITCHES = {"turn_on": (True, "Give the feature to those who may have it"), "turn_off": (False, "Give it to nobody")}


def _set(settings: dict[str, Any], word: str, policy_type: str | None = None) -> Handler:
    """A handler that changes settings: a mode, or a toggle."""

    async def handle(exchange: Exchange) -> Any:
        policy = policy_of(exchange, policy_type)
        change = await asyncio.to_thread(configuration.change, policy, settings)
        exchange.plane.note(exchange, word, policy.type, policy.name, change.before, change.after, change.undo)
        return {**described(policy), "changed": {"before": change.before, "after": change.after}}

    return handle


def _perform(act: Act) -> Handler:
    async def handle(exchange: Exchange) -> Any:
        policy = policy_of(exchange, act.policy_type)
        body = exchange.body or {}
        key = _key(policy, body.get("key"), act)
        before = _seen(policy, key)
        try:
            await asyncio.to_thread(act.do, policy, key, body)
        except (RuntimeError, TypeError) as error:  # it is isolated; it has keys and none was named, or the other way
            kind = "conflict" if isinstance(error, RuntimeError) else "key"
            raise ProblemError(409 if kind == "conflict" else 400, kind, str(error)) from None
        after = {**_seen(policy, key), **{name: value for name, value in body.items() if name != "key"}}
        exchange.plane.note(exchange, act.word, policy.type, policy.name, before, after)
        return {**described(policy), "changed": {"before": before, "after": after}}

    return handle


def _key(policy: AnyPolicy, key: Any, act: Act) -> Any:
    """The key as the policy knows it: on a command line, 42 is text."""
    if not isinstance(policy.state, Keyed):
        if key is not None and getattr(policy, "key_of", None) is None:
            raise ProblemError(400, "key", f"{policy.label} has no keys")
        return key
    if key is None:
        raise ProblemError(400, "key", f"{policy.label} has a state for each key: say which")
    states = policy.state.states
    if key in states:
        return key
    for known in list(states):
        if str(known) == str(key):
            return known
    if act.new_keys:
        return key
    raise ProblemError(404, "no-such-key", f"{policy.label} has not seen the key {key!r}")


def _seen(policy: AnyPolicy, key: Any) -> dict[str, Any]:
    """What an act on a circuit or a gate changes."""
    state = policy.state
    if isinstance(state, Keyed):
        one = state.states.get(key)
        name = getattr(getattr(one, "phase", None), "name", None)
        return {"key": str(key), "state": name}
    if key is not None:
        return {"key": str(key)}
    name = getattr(getattr(state, "phase", None), "name", None)
    return {} if name is None else {"state": name}


def _endpoint(path: str, handle: Handler, summary: str, properties: dict[str, Any], **more: Any) -> Endpoint:
    body = {"type": "object", "additionalProperties": False, "properties": properties}
    return Endpoint(
        "POST",
        path,
        handle,
        Role.OPERATOR,
        summary,
        answer=_ANSWER,
        body=body,
        body_required=False,
        parts=("control",),
        **more,
    )


def section() -> Section:
    """The part that acts."""
    endpoints = [
        _endpoint(f"/control/{{type}}/{{name}}/{word}", _set({"mode": mode}, word), summary, {}, problems=(422,))
        for word, (mode, summary) in MODES.items()
    ]
    endpoints += [
        _endpoint(
            f"/control/feature_toggle/{{name}}/{word}", _set({"enabled": on}, word, "feature_toggle"), summary, {},
            problems=(422,),
        )
        for word, (on, summary) in SWITCHES.items()
    ]  # fmt: skip
    endpoints += [
        _endpoint(
            f"/control/{act.policy_type}/{{name}}/{act.word}", _perform(act), act.summary, act.properties,
            problems=(409, 422),
        )
        for act in ACTS
    ]  # fmt: skip
    return Section("control", "Modes, circuits, limits and toggles, by hand.", endpoints)
