"""Sagas: look, and help those that are stuck. Added by `plane.add_section(sagas_section(orchestrator))`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from everkeel.control.access import Role
from everkeel.control.moments import iso
from everkeel.control.problems import ProblemError
from everkeel.control.section import Answer, Endpoint, Exchange, Handler, Parameter, Section
from everkeel.control.versions import if_match, version_of
from everkeel.engines.letters import LetterFilter
from everkeel.engines.sagas import STOPPED, SagaState
from everkeel.errors import ConfigError, SagaConflictError, SagaNotFoundError, SagaStateError
from everkeel.messaging.dead_letters import DeadLetters
from everkeel.sagas.hiding import fields, hidden
from everkeel.sagas.record import Entry, StepStatus
from everkeel.sagas.service import Sagas
from everkeel.sagas.view import SagaSummary, SagaView

T = TypeVar("T")

_TIMES = ("created_at", "updated_at", "deadline_at", "ended_at")
_TEXT = {"type": ["string", "null"]}
_MOMENT = {"type": ["string", "null"], "format": "date-time"}
_SUMMARY: dict[str, Any] = {
    "id": {"type": "string"},
    "type": {"type": "string"},
    "version": {"type": "integer", "description": "Of the definition it began with."},
    "kind": {"enum": ["orchestrated", "choreographed"]},
    "state": {"enum": [state.value for state in SagaState]},
    "cause": {**_TEXT, "description": "Why it turned back or stopped."},
    "step": {**_TEXT, "description": "Where it is; several are separated by commas."},
    "correlation_id": _TEXT,
    "timed_out": {"type": "boolean"},
    "attention": {
        "type": "boolean",
        "description": "It waits for an operator: stopped, or ended with a late step that could not be undone.",
    },
    "owner": {**_TEXT, "description": "The process that works on it."},
    "revision": {"type": "integer", "description": "Grows with every change; what its entity tag holds."},
    "now": {"type": "string", "format": "date-time", "description": "When this was said."},
    **dict.fromkeys(_TIMES, _MOMENT),
}
SUMMARY = {"type": "object", "required": ["id", "type", "state", "revision"], "properties": _SUMMARY}
SAGA = {
    "type": "object",
    "required": ["id", "type", "state", "revision", "steps", "timeline", "actions", "untrusted"],
    "properties": {
        **_SUMMARY,
        "error": _TEXT,
        "failed_step": _TEXT,
        "committed": {"type": "boolean", "description": "Past its pivot: it can only go forward."},
        "steps": {"type": "array", "items": {"type": "object"}, "description": "In the order of the definition."},
        "timeline": {"type": "array", "items": {"type": "object"}, "description": "What happened, the first first."},
        "actions": {"type": "array", "items": {"type": "object"}, "description": "What can be done to it now."},
        "dead_letters": {
            "type": ["array", "null"],
            "description": "Events of it that were given up on; null: unknown.",
        },
        "untrusted": {"type": "object", "description": "What came from outside: input, data, result, results."},
    },
}
_LIST = {
    "type": "object",
    "required": ["sagas", "next"],
    "properties": {
        "sagas": {"type": "array", "items": {"$ref": "#/components/schemas/SagaSummary"}},
        "next": {**_TEXT, "description": "The cursor of the next page; null on the last one."},
    },
}
_WORDS = ("type", "correlation", "cause", "step")
FILTERS = (
    Parameter("state", {"enum": [state.value for state in SagaState]}, "Only sagas in this state."),
    Parameter(
        "attention",
        {"type": "boolean"},
        "true: only those that wait for an operator, ended ones included; false: the others.",
    ),
    Parameter("active", {"type": "boolean"}, "true: only those that have not ended; false: only those that have."),
    Parameter("timed_out", {"type": "boolean"}, "Only those whose time was over before they were, or the others."),
    Parameter("from", {"type": "number"}, "Started at or after this moment, in seconds since 1970."),
    Parameter("until", {"type": "number"}, "Started before this moment."),
    *(Parameter(word, {"type": "string", "maxLength": 500}, f"Only sagas of this {word}.") for word in _WORDS),
)
_PAGE = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 500}, "How many (50)."),
    Parameter("cursor", {"type": "string", "maxLength": 500}, "The `next` of the page before."),
)
_REASON = {"type": "string", "minLength": 1, "maxLength": 500, "pattern": r"\S"}
_STEP = {"type": "string", "minLength": 1, "maxLength": 500}

ACTIONS = {
    "retry-compensation": ("Try a failed compensation again", True, False),
    "skip-step": ("Leave a step as it is, although it could not be undone", True, True),
    "mark-done": ("A step was undone by hand", True, True),
    "cancel": ("Turn back: undo what was done", False, False),
    "resume": ("Go on with a parked saga where it stopped", False, False),
    "fail": ("Give up on a parked or blocked saga for good", False, True),
}
"""What each does, whether it is about a step, and whether a reason is needed."""


def possible(saga: SagaView) -> list[dict[str, Any]]:
    """What an operator can do to a saga in this state."""
    found: list[dict[str, Any]] = []

    def add(action: str, **more: Any) -> None:
        found.append({"action": action, "reason": "required" if ACTIONS[action][2] else "optional", **more})

    stuck = [name for name, step in saga.steps.items() if step.status is StepStatus.UNDO_FAILED]
    if stuck and saga.state in (SagaState.COMPENSATION_BLOCKED, SagaState.COMPENSATING, SagaState.COMPENSATED):
        for action in ("retry-compensation", "mark-done", "skip-step"):
            add(action, steps=stuck)
    if saga.state is SagaState.PARKED:
        add("resume")
    turned = any(entry.what == "compensating" for entry in saga.timeline)
    forward = saga.state in (SagaState.PENDING, SagaState.RUNNING) or (saga.state is SagaState.PARKED and not turned)
    if forward and not saga.committed:
        add("cancel")
    if saga.state in STOPPED:
        add("fail")
    return found


def _wanted(query: Mapping[str, Any]) -> dict[str, Any]:
    wanted: dict[str, Any] = {word: query.get(word) for word in (*_WORDS, "active", "timed_out", "attention", "until")}
    return {**wanted, "since": query.get("from"), "state": query.get("state")}


async def _answered(act: Awaitable[T], *, seen: int | None = None) -> T:
    """What was asked for, its errors as problems; `seen` is the revision it was asked of."""
    try:
        return await act
    except SagaNotFoundError as error:
        raise ProblemError(404, "no-such-saga", str(error)) from None
    except SagaStateError as error:
        raise ProblemError(409, "illegal-transition", str(error)) from None
    except SagaConflictError as error:
        raise ProblemError(409 if seen is None else 412, "version-conflict", str(error)) from None


class _Sagas:
    """The handlers, around one store of sagas."""

    def __init__(self, sagas: Sagas, letters: DeadLetters | None, redact: Collection[str]) -> None:
        self._sagas, self._letters = sagas, letters
        self._redact = fields("sagas_section", redact)

    async def list(self, exchange: Exchange) -> Any:
        """A page of them, the newest first."""
        limit, cursor = exchange.query.get("limit", 50), exchange.query.get("cursor")
        try:
            page = await self._sagas.list(limit=limit, cursor=cursor, **_wanted(exchange.query))
        except ConfigError as error:
            raise ProblemError(400, "invalid-parameter", str(error)) from None
        return {"sagas": [self._summary(exchange, saga) for saga in page.sagas], "next": page.next}

    async def count(self, exchange: Exchange) -> Any:
        """How many fit."""
        return {"count": await self._sagas.count(**_wanted(exchange.query))}

    async def one(self, exchange: Exchange) -> Any:
        """The whole saga."""
        return await self._tagged(exchange, await _answered(self._sagas.get(exchange.path["name"])))

    def act(self, action: str) -> Handler:
        """The handler of one action."""

        async def handle(exchange: Exchange) -> Any:
            body, id, seen = exchange.body or {}, exchange.path["name"], version_of(exchange, "saga")
            before = await _answered(self._sagas.get(id))
            words = {"actor": exchange.who, "reason": body.get("reason", "")}
            about = {} if "step" not in body else {"step": body["step"]}
            acting = _method(self._sagas, action)(id, **about, **words, revision=seen)
            after = await _answered(acting, seen=seen)
            exchange.plane.note(
                exchange, action, "saga", id, {"state": before.state.value},
                {"state": after.state.value, **about, "reason": words["reason"]},
            )  # fmt: skip
            return await self._tagged(exchange, after)

        return handle

    # ------------------------------------------------------------------ as JSON has it

    def _summary(self, exchange: Exchange, saga: SagaSummary) -> dict[str, Any]:
        plain = asdict(saga)
        times = {name: None if plain[name] is None else iso(plain[name]) for name in _TIMES}
        return {**plain, **times, "now": iso(exchange.plane.clock.time())}

    async def _tagged(self, exchange: Exchange, saga: SagaView) -> Answer:
        saga = hidden(saga, self._redact)
        outside = {
            "input": saga.input,
            "data": dict(saga.data),
            "result": saga.result,
            "results": {name: step.result for name, step in saga.steps.items() if step.result is not None},
        }
        whole = {
            **self._summary(exchange, saga.summary),
            "error": saga.error,
            "failed_step": saga.failed_step,
            "committed": saga.committed,
            "steps": [_step(name, step) for name, step in saga.steps.items()],
            "timeline": [_entry(entry) for entry in saga.timeline],
            "actions": possible(saga),
            "dead_letters": await self._letters_of(saga.id),
            "untrusted": outside,
        }
        return Answer(whole, {"ETag": f'"{saga.summary.revision}"'})

    async def _letters_of(self, id: str) -> Any:
        if self._letters is None:
            return None
        page = await self._letters.list(LetterFilter(saga=id), limit=20)
        told = ("id", "status", "consumer", "error_type", "attempts", "replays")
        return [
            {**{name: letter.to_dict()[name] for name in told}, "event_type": letter.event.type}
            for letter in page.letters
        ]  # fmt: skip


def _method(sagas: Sagas, action: str) -> Callable[..., Awaitable[SagaView]]:
    methods: dict[str, Callable[..., Awaitable[SagaView]]] = {
        "retry-compensation": sagas.retry,
        "skip-step": sagas.skip,
        "mark-done": sagas.mark_done,
        "cancel": sagas.cancel,
        "resume": sagas.resume,
        "fail": sagas.fail,
    }
    return methods[action]


def _step(name: str, step: Any) -> dict[str, Any]:
    moments = {what: getattr(step, what) for what in ("started_at", "ended_at", "not_before")}
    return {
        "name": name,
        "status": step.status.value,
        "attempts": step.attempts,
        "undo_attempts": step.undo_attempts,
        "error": step.error,
        **{what: None if at is None else iso(at) for what, at in moments.items()},
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "at": iso(entry.at)}


def _service(where: Any) -> Sagas:
    """Whatever the application has at hand: an orchestrator, `Sagas`, or the engine they are on."""
    if isinstance(where, Sagas):
        return where
    found = getattr(where, "sagas", None)
    if isinstance(found, Sagas):
        return found
    if found is None:
        raise ConfigError("sagas_section", None, "must be an Orchestrator, Sagas, or an engine", repr(where)[:200])
    return Sagas(where)


def sagas_section(where: Any, *, dead_letters: DeadLetters | None = None, redact: Collection[str] = ()) -> Section:
    """The part about sagas: `plane.add_section(sagas_section(orchestrator))`.

    Args:
        where: An `Orchestrator`, which hears at once what is wanted of sagas in its hands; or `Sagas`, or an engine:
            then what is wanted is written down, and whoever works on the saga carries it out. An orchestrator must run
            on the event loop that serves the plane; give its engine where it does not.
        dead_letters: With it, a saga shows its events that were given up on.
        redact: Names of fields in input, data and results that nobody may see here, also in error texts, besides those
            that the sagas' own definitions hide.
    """
    acts = _Sagas(_service(where), dead_letters, redact)
    saga, tag = {"$ref": "#/components/schemas/Saga"}, {"ETag": "The revision of the saga."}
    count = {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}}
    return Section(
        "sagas",
        "Transactions over several services: look, and help those that cannot go on by themselves.",
        [
            Endpoint(
                "GET", "/sagas", acts.list, Role.VIEWER, "Sagas, the newest first", answer=_LIST,
                parameters=(*FILTERS, *_PAGE),
            ),
            Endpoint(
                "GET", "/sagas/count", acts.count, Role.VIEWER, "How many sagas there are", parameters=FILTERS,
                answer=count,
            ),
            Endpoint(
                "GET", "/sagas/{name}", acts.one, Role.VIEWER, "One saga by its id: steps, timeline, what can be done",
                operation="get_saga", answer=saga, headers=tag, problems=(404,),
            ),
            *(_action(word, acts.act(word), saga, tag) for word in ACTIONS),
        ],
        {"Saga": SAGA, "SagaSummary": SUMMARY},
    )  # fmt: skip


def _action(word: str, handle: Handler, saga: Mapping[str, Any], tag: Mapping[str, str]) -> Endpoint:
    summary, about_step, needs_reason = ACTIONS[word]
    required = (["step"] if about_step else []) + (["reason"] if needs_reason else [])
    properties = {"reason": _REASON, **({"step": _STEP} if about_step else {})}
    body = {"type": "object", "additionalProperties": False, "required": required, "properties": properties}
    return Endpoint(
        "POST", f"/sagas/{{name}}/{word}", handle, Role.OPERATOR, summary,
        operation=f"saga_{word.replace('-', '_')}", answer=saga, body=body, body_required=bool(required),
        parameters=(if_match("saga"),), problems=(404, 409, 412), parts=("control",), headers=tag,
    )  # fmt: skip
