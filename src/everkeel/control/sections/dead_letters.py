"""Events that were given up on: look, replay, discard. Added by `plane.add_section(dead_letters_section(letters))`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any, TypeVar

from everkeel.control.access import Role
from everkeel.control.moments import iso
from everkeel.control.problems import ProblemError
from everkeel.control.section import Answer, Endpoint, Exchange, Parameter, Section
from everkeel.control.versions import if_match, version_of
from everkeel.engines.letters import LetterFilter, Status
from everkeel.errors import (
    ConfigError,
    DeadLetterConflictError,
    DeadLetterError,
    DeadLetterNotFoundError,
    EventError,
    ReplayLimitError,
)
from everkeel.messaging.dead_letters import DeadLetters
from everkeel.messaging.dead_letters.letter import MOST_LISTED, DeadLetter, ReplayReport

T = TypeVar("T")
log = logging.getLogger("everkeel.dead_letters")

_TIMES = ("first_failed_at", "failed_at", "updated_at")
_TEXT = {"type": ["string", "null"]}
LETTER = {
    "type": "object",
    "required": [
        "id",
        "status",
        "version",
        "consumer",
        "topic",
        "reason",
        "error_type",
        "attempts",
        "replays",
        "event",
    ],
    "properties": {
        "id": {"type": "string"},
        "status": {"enum": [status.value for status in Status]},
        "version": {"type": "integer", "description": "What its entity tag holds."},
        "consumer": {"type": "string", "description": "Who gave up; `outbox`: it never left."},
        "topic": {"type": "string"},
        "key": _TEXT,
        "reason": {"type": "string"},
        "error_type": {"type": "string"},
        "attempts": {"type": "integer"},
        "replays": {"type": "integer"},
        "epoch": {"type": "integer"},
        "behind": {**_TEXT, "description": "The letter of the same key that it waits for."},
        "saga_id": _TEXT,
        "correlation_id": _TEXT,
        **{name: {"type": "string", "format": "date-time"} for name in _TIMES},
        "event": {"type": "object"},
        "newer": {
            "type": "object",
            "description": (
                "Of a single letter: events of its key that its consumer `handled` since, and those `waiting` behind "
                "it. Not `exact`: there may be more handled ones that this store knows nothing of."
            ),
            "required": ["handled", "waiting", "exact"],
            "properties": {
                "handled": {"type": "integer"},
                "waiting": {"type": "integer"},
                "exact": {"type": "boolean"},
            },
        },
        "untrusted": {
            "type": "object",
            "description": "What came from outside: error, traceback, attributes, data; of a single letter also "
            "`text`, its data as JSON, in which no number is rounded.",
        },
    },
}
_LIST = {
    "type": "object",
    "required": ["letters", "next"],
    "properties": {
        "letters": {"type": "array", "items": {"$ref": "#/components/schemas/DeadLetter"}},
        "next": {**_TEXT, "description": "The cursor of the next page; null on the last one."},
    },
}
_AUDIT = {
    "type": "object",
    "required": ["entries"],
    "properties": {"entries": {"type": "array", "items": {"type": "object"}}},
}
_REASON = {"type": "string", "minLength": 1, "maxLength": 500}
_WORDS = ("consumer", "type", "error", "topic", "key", "saga", "correlation", "reason", "source", "event_id")
FILTERS = (
    Parameter("status", {"enum": [status.value for status in Status]}, "Only letters in this state."),
    Parameter("from", {"type": "number"}, "Failed last at or after this moment, in seconds since 1970."),
    Parameter("until", {"type": "number"}, "Failed last before this moment."),
    *(
        Parameter(word, {"type": "string", "maxLength": 500}, f"Only letters of this {word.replace('_', ' ')}.")
        for word in _WORDS
    ),
)
_PAGE = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 500}, "How many (50)."),
    Parameter("cursor", {"type": "string", "maxLength": 500}, "The `next` of the page before."),
)
_FILTER_BODY = {
    "type": "object",
    "additionalProperties": False,
    "properties": {word: {"type": "string", "maxLength": 500} for word in _WORDS},
}


def shown(letter: DeadLetter, *, most_data: int | None = None) -> dict[str, Any]:
    """A letter as JSON has it."""
    plain = letter.to_dict(most_data=most_data)
    return {**plain, **{name: iso(plain[name]) for name in _TIMES}}


def _tagged(letter: DeadLetter) -> Answer:
    return Answer(shown(letter), {"ETag": f'"{letter.version}"'})


def _wanted(query: dict[str, Any]) -> LetterFilter:
    status = query.get("status")
    return LetterFilter(
        status=None if status is None else (Status(status),), since=query.get("from"), until=query.get("until"),
        **{word: query.get(word) for word in _WORDS},
    )  # fmt: skip


async def _answered(act: Awaitable[T], version: int | None = None) -> T:
    """What was asked for, its errors as problems."""
    try:
        return await act
    except DeadLetterNotFoundError as error:
        raise ProblemError(404, "no-such-letter", str(error)) from None
    except ReplayLimitError as error:
        raise ProblemError(409, "replay-limit", str(error)) from None
    except DeadLetterConflictError as error:
        status = 409 if version is None else 412
        raise ProblemError(status, "version-conflict", str(error)) from None
    except DeadLetterError as error:
        raise ProblemError(409, "illegal-transition", str(error)) from None
    except (ConfigError, EventError) as error:
        raise ProblemError(422, "invalid-event", str(error)) from None


class _Letters:
    """The handlers, around one service of dead letters."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters
        self._replays: set[asyncio.Task[Any]] = set()

    async def list(self, exchange: Exchange) -> Any:
        """A page of them, the newest failure first."""
        limit, cursor = exchange.query.get("limit", 50), exchange.query.get("cursor")
        try:
            page = await self._letters.list(_wanted(exchange.query), limit=limit, cursor=cursor)
        except ValueError as error:
            raise ProblemError(400, "invalid-parameter", str(error)) from None
        return {"letters": [shown(letter, most_data=MOST_LISTED) for letter in page.letters], "next": page.next}

    async def count(self, exchange: Exchange) -> Any:
        """How many fit."""
        return {"count": await self._letters.count(_wanted(exchange.query))}

    async def one(self, exchange: Exchange) -> Any:
        """The whole letter, and what came behind it."""
        letter = await _answered(self._letters.get(exchange.path["id"]))
        answer = _tagged(letter)
        answer.value["newer"] = asdict(await self._letters.newer(letter))
        untrusted = answer.value["untrusted"]
        untrusted["text"] = json.dumps(untrusted["data"], indent=2, ensure_ascii=False)
        return answer

    async def audit(self, exchange: Exchange) -> Any:
        """Who did what to it."""
        rows = await self._letters.audit(exchange.path["id"])
        if not rows:
            await _answered(self._letters.get(exchange.path["id"]))
        return {"entries": [{**asdict(row), "at": iso(row.at)} for row in rows]}

    async def replay(self, exchange: Exchange) -> Any:
        """Send one again."""
        body, version, id = exchange.body or {}, version_of(exchange, "letter"), exchange.path["id"]
        act = self._letters.replay(
            id, actor=exchange.who, reason=body.get("reason", ""), data=body.get("edit"),
            key=body.get("key"), force=body.get("force", False), version=version,
        )  # fmt: skip
        letter = await _answered(act, version)
        told = {"edited": "edit" in body, **({"key": body["key"]} if "key" in body else {})}
        exchange.plane.note(exchange, "replay", "dead_letter", id, {}, told)
        return _tagged(letter)

    async def replay_many(self, exchange: Exchange) -> Any:
        """All that fit: what it would do, or do it, in the background and at a rate."""
        body = exchange.body or {}
        wanted = _wanted(dict(body.get("filter", {})))
        plan = await self._letters.plan_replay(wanted, limit=int(body.get("limit", 1000)))  # to JSON 5.0 is 5
        told = {**plan.to_dict(), "dry_run": body.get("dry_run", True)}
        told["sample"] = [shown(letter, most_data=MOST_LISTED) for letter in plan.letters[:5]]
        if told["dry_run"]:
            return told
        act = self._letters.apply(plan, actor=exchange.who, reason=body.get("reason", ""), rate=body.get("rate", 10.0))
        task = asyncio.get_running_loop().create_task(
            self._reported(act, exchange.who), name="everkeel replay of dead letters"
        )
        self._replays.add(task)
        task.add_done_callback(self._replays.discard)
        exchange.plane.note(exchange, "replay many", "dead_letter", None, {}, {"count": told["count"]})
        return told

    async def _reported(self, act: Awaitable[ReplayReport], who: str) -> None:
        """Whoever asked has gone: the log says how it ended."""
        try:
            report = await act
        except Exception:
            log.exception("a replay of dead letters by %s ended early; those not yet replayed still wait", who)
            return
        told = (who, len(report.replayed), len(report.changed), len(report.failed_again), len(report.left))
        log.log(
            logging.WARNING if report.left else logging.INFO,
            "replay of dead letters by %s: %d replayed, %d changed by others, %d failed again, %d left alone", *told,
        )  # fmt: skip

    async def reopen(self, exchange: Exchange) -> Any:
        """Let one wait again whose replay got lost."""
        id, reason = exchange.path["id"], exchange.body["reason"]
        letter = await _answered(self._letters.reopen(id, actor=exchange.who, reason=reason))
        exchange.plane.note(exchange, "reopen", "dead_letter", id, {}, {"reason": reason})
        return _tagged(letter)

    async def discard(self, exchange: Exchange) -> Any:
        """Give up on one for good."""
        version, id, reason = version_of(exchange, "letter"), exchange.path["id"], exchange.query["reason"]
        letter = await _answered(self._letters.discard(id, actor=exchange.who, reason=reason, version=version), version)
        exchange.plane.note(exchange, "discard", "dead_letter", id, {}, {"reason": reason})
        return _tagged(letter)


def dead_letters_section(letters: DeadLetters) -> Section:
    """The part about events that were given up on: `plane.add_section(dead_letters_section(letters))`."""
    acts = _Letters(letters)
    letter = {"$ref": "#/components/schemas/DeadLetter"}
    tag = {"ETag": "The version of the letter."}
    return Section(
        "dead_letters",
        "Events that were given up on: look, replay, discard.",
        [
            Endpoint(
                "GET", "/dlq", acts.list, Role.VIEWER, "Dead letters, newest failure first", answer=_LIST,
                parameters=(*FILTERS, *_PAGE),
            ),
            Endpoint(
                "GET", "/dlq/count", acts.count, Role.VIEWER, "How many dead letters there are", parameters=FILTERS,
                answer={"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}},
            ),
            Endpoint(
                "POST", "/dlq/replay", acts.replay_many, Role.OPERATOR, "Replay all pending letters that fit a filter",
                description=(
                    "A dry run unless `dry_run` is false: how many, of what, a few of them. Else they are then "
                    "replayed in the background, `rate` a second, and no more once three have failed again."
                ),
                answer={"type": "object"}, body_required=False, problems=(422,), parts=("control",),
                body={
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "filter": _FILTER_BODY,
                        "dry_run": {"type": "boolean"},
                        "rate": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000},
                        "limit": {"type": "integer", "minimum": 1, "maximum": 10_000},
                        "reason": _REASON,
                    },
                },
            ),
            Endpoint("GET", "/dlq/{id}", acts.one, Role.VIEWER, "One dead letter, whole", answer=letter, headers=tag),
            Endpoint("GET", "/dlq/{id}/audit", acts.audit, Role.VIEWER, "Who did what to it, and why", answer=_AUDIT),
            Endpoint(
                "POST", "/dlq/{id}/replay", acts.replay, Role.OPERATOR, "Send its event to its consumer again",
                description=(
                    "`edit`: other data in place of the event's; hidden fields that still say `***` are as they were. "
                    "`key`: another key; those that waited behind it in its old one follow. "
                    "`force`: beyond the limit of replays, or out of turn."
                ),
                answer=letter, body_required=False, parameters=(if_match("letter"),), problems=(409, 412, 422),
                parts=("control",), headers=tag,
                body={
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "reason": _REASON,
                        "edit": {"type": ["object", "array", "string", "number", "boolean"]},
                        "key": {"type": "string", "minLength": 1, "maxLength": 512},
                        "force": {"type": "boolean"},
                    },
                },
            ),
            Endpoint(
                "POST", "/dlq/{id}/reopen", acts.reopen, Role.OPERATOR, "Let it wait again: its replay got lost",
                description="If it did not get lost, the consumer's inbox sees to it that nothing happens twice.",
                answer=letter, problems=(409, 422), parts=("control",), headers=tag,
                body={
                    "type": "object",
                    "required": ["reason"],
                    "additionalProperties": False,
                    "properties": {"reason": _REASON},
                },
            ),
            Endpoint(
                "DELETE", "/dlq/{id}", acts.discard, Role.OPERATOR, "Discard it, with a reason", answer=letter,
                parameters=(
                    Parameter("reason", _REASON, "Why nobody needs it any more.", required=True), if_match("letter"),
                ),
                problems=(409, 412, 422), parts=("control",), headers=tag,
            ),
        ],
        {"DeadLetter": LETTER},
    )  # fmt: skip
