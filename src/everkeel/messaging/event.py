"""The envelope of an event between services: CloudEvents 1.0, immutable, its data already JSON."""

from __future__ import annotations

import builtins
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Self, TypeAlias, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

from everkeel.errors import EventError
from everkeel.messaging.data import from_json, to_json
from everkeel.runtime.clock import DEFAULT

T = TypeVar("T")
Attribute: TypeAlias = str | int | bool

JSON = "application/json"
STRUCTURED = "application/cloudevents+json"

MOST_NAME = 512
"""Bytes of an id, a source, a key or a topic: they stand in indexes, which have no room for more."""

_MOST_EPOCH = 2**31 - 1  # what databases keep of it
_NAME = re.compile(r"[a-z0-9]+\Z")  # what CloudEvents allows as the name of an attribute
_JSON_TYPE = re.compile(r"[a-z]+/([\w.\-]+\+)?json\s*(;|$)", re.IGNORECASE)
_CORE = frozenset({"id", "source", "type", "specversion", "data", "data_base64"})
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # not in any attribute: databases and headers refuse them
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class Event:
    """Something that happened, for others to know: what, about what, and where it came from.

    The data is turned into JSON when the event is made, so a value that has none is an error there and then, and
    changing the object afterwards does not change the event. `source` and `id` together identify it: whoever sees the
    same pair again sees a duplicate.

    Args:
        type: What happened, as `com.example.order.placed`.
        data: A dict, a dataclass, a pydantic model, a msgspec struct, anything JSON knows; or bytes, as they are.
        source: The logical producer, as `/orders`.
        id: Its identity within the source; made up where it is not given.
        key: Events of one topic with the same key are delivered in order; the extension `partitionkey`.
        subject: What it is about within the source.
        time: When it happened; now where it is not given.
        content_type: What the data is, where it is not JSON.
        schema: Where the data's schema is described.
        correlation_id: What it belongs to: a request, an order, a saga.
        causation_id: The id of the event that caused it; see `caused`.
        sequence: Its place among the events of its source, comparable as text.
        traceparent: W3C trace context of where it began.
        tracestate: The same, of vendors.
        saga_id: The saga it belongs to.
        saga_type: What kind of saga that is.
        saga_step: Which of its steps it belongs to.
        replay_epoch: How often it was replayed.
        extensions: Any other extension attributes.

    >>> placed = Event("order.placed", {"order": 7}, source="/orders", id="e-1", key="order-7")
    >>> placed.data
    {'order': 7}
    >>> placed.key
    'order-7'
    """

    __slots__ = ("_data", "attributes", "body", "id", "source", "type")

    id: str
    source: str
    type: str
    body: bytes | None
    """The data as it travels; None: there is none."""
    _data: Any
    attributes: Mapping[str, Attribute]
    """All other attributes by their CloudEvents names, extensions included."""

    def __init__(
        self,
        type: str,
        data: Any = None,
        *,
        source: str,
        id: str | None = None,
        key: str | None = None,
        subject: str | None = None,
        time: datetime | str | None = None,
        content_type: str | None = None,
        schema: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        sequence: str | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
        saga_id: str | None = None,
        saga_type: str | None = None,
        saga_step: str | None = None,
        replay_epoch: int = 0,
        extensions: Mapping[str, Attribute] | None = None,
    ) -> None:
        owner = f"event {type!r}"
        named = {
            "subject": subject,
            "time": _moment(time, owner),
            "datacontenttype": content_type,
            "dataschema": schema,
            "partitionkey": key,
            "correlationid": correlation_id,
            "causationid": causation_id,
            "sequence": sequence,
            "traceparent": traceparent,
            "tracestate": tracestate,
            "sagaid": saga_id,
            "sagatype": saga_type,
            "sagastep": saga_step,
            "replayepoch": replay_epoch or None,
        }
        attributes: dict[str, Attribute] = {name: value for name, value in named.items() if value is not None}
        if not isinstance(extensions, Mapping | None):
            raise EventError(owner, f"extensions must be a mapping from names to values (got {extensions!r})")
        for name, value in (extensions or {}).items():
            if name in named or name in _CORE:
                raise EventError(owner, f"has the attribute {name!r} already; it is no extension of yours")
            attributes[name] = value
        body: bytes | None = None
        if isinstance(data, bytes | bytearray | memoryview):
            body = bytes(data)
            attributes.setdefault("datacontenttype", "application/octet-stream")
        elif data is not None:
            try:
                body = to_json(data)
            except (TypeError, ValueError, RecursionError) as error:
                raise EventError(owner, f"its data cannot be written as JSON: {error}") from error
            attributes.setdefault("datacontenttype", JSON)
        self._set(str(uuid4()) if id is None else id, source, type, attributes, body)
        fits(id=self.id, source=self.source, key=self.key, owner=owner)

    def _set(self, id: Any, source: Any, type: Any, attributes: Mapping[str, Any], body: bytes | None) -> None:
        owner = f"event {type!r}"
        for name, value in (("type", type), ("id", id), ("source", source)):
            if not isinstance(value, str) or not value.strip():
                raise EventError(owner, f"needs {name}, a text that is not empty (got {value!r})")
            if _UNFIT.search(value):
                raise EventError(owner, f"{name} must not have control characters (got {value!r})")
        for name, value in attributes.items():
            if not _NAME.match(name):
                raise EventError(owner, f"has an attribute {name!r}; names are lower-case letters and digits")
            if not isinstance(value, str | int | bool):
                raise EventError(owner, f"{name} must be text, a whole number or a truth value (got {value!r})")
            if value == "":
                raise EventError(owner, f"{name} must not be empty; leave it out")
            if isinstance(value, str) and _UNFIT.search(value):
                raise EventError(owner, f"{name} must not have control characters (got {value!r})")
        for name, value in (("id", id), ("source", source), ("type", type), ("body", body), ("_data", _UNREAD)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "attributes", MappingProxyType(dict(attributes)))

    @classmethod
    def _made(cls, id: Any, source: Any, type: Any, attributes: Mapping[str, Any], body: bytes | None) -> Self:
        event = cls.__new__(cls)
        event._set(id, source, type, attributes, body)
        return event

    # ------------------------------------------------------------------ what it says

    def _text(self, name: str) -> str | None:
        value = self.attributes.get(name)
        return None if value is None else str(value)

    @property
    def data(self) -> Any:
        """The data: plain values where it is JSON, text where it is text, otherwise bytes."""
        if self._data is _UNREAD:
            object.__setattr__(self, "_data", self._read())
        return self._data

    def _read(self) -> Any:
        if self.body is None:
            return None
        if self.is_json:
            try:
                return json.loads(self.body)
            except ValueError as error:
                raise EventError(f"event {self.type!r}", f"its data is not the JSON it should be: {error}") from error
        return self.body.decode() if str(self.content_type).startswith("text/") else self.body

    def data_as(self, wanted: builtins.type[T]) -> T:
        """The data as a dataclass, a pydantic model or a msgspec struct of yours.

        The class is the reader's choice and never comes from the event.
        """
        try:
            return from_json(self.body or b"null", wanted)
        except (ValueError, TypeError) as error:
            what = getattr(wanted, "__qualname__", repr(wanted))
            raise EventError(f"event {self.type!r}", f"its data is no {what}: {error}") from error

    @property
    def is_json(self) -> bool:
        """Is the data JSON?"""
        return self.content_type is None or bool(_JSON_TYPE.match(self.content_type))

    @property
    def content_type(self) -> str | None:
        """What the data is."""
        return self._text("datacontenttype")

    @property
    def schema(self) -> str | None:
        """Where the data's schema is described."""
        return self._text("dataschema")

    @property
    def subject(self) -> str | None:
        """What it is about."""
        return self._text("subject")

    @property
    def time(self) -> datetime | None:
        """When it happened."""
        text = self._text("time")
        return None if text is None else datetime.fromisoformat(text)

    @property
    def key(self) -> str | None:
        """Events of one topic with the same key keep their order."""
        return self._text("partitionkey")

    @property
    def correlation_id(self) -> str | None:
        """What it belongs to."""
        return self._text("correlationid")

    @property
    def causation_id(self) -> str | None:
        """The id of the event that caused it."""
        return self._text("causationid")

    @property
    def sequence(self) -> str | None:
        """Its place among the events of its source."""
        return self._text("sequence")

    @property
    def traceparent(self) -> str | None:
        """The trace it began in."""
        return self._text("traceparent")

    @property
    def tracestate(self) -> str | None:
        """The same, of vendors."""
        return self._text("tracestate")

    @property
    def saga_id(self) -> str | None:
        """The saga it belongs to."""
        return self._text("sagaid")

    @property
    def saga_type(self) -> str | None:
        """What kind of saga that is."""
        return self._text("sagatype")

    @property
    def saga_step(self) -> str | None:
        """Which of its steps it belongs to."""
        return self._text("sagastep")

    @property
    def replay_epoch(self) -> int:
        """How often it was replayed."""
        try:
            epoch = int(self.attributes.get("replayepoch", 0))
        except ValueError:
            return 0
        return epoch if 0 <= epoch <= _MOST_EPOCH else 0  # whoever wrote that did not mean ours

    # ------------------------------------------------------------------ others made of it

    def changed(self, **attributes: Attribute | None) -> Self:
        """The same event with other attributes, by their CloudEvents names; None takes one away."""
        merged = {name: value for name, value in {**self.attributes, **attributes}.items() if value is not None}
        return self._made(self.id, self.source, self.type, merged, self.body)

    def unread(self) -> Self:
        """The same event, whose data is read anew: what somebody does to a dict in it, the others do not see."""
        event = self.__class__.__new__(self.__class__)
        for name in ("id", "source", "type", "body", "attributes"):
            object.__setattr__(event, name, getattr(self, name))
        object.__setattr__(event, "_data", _UNREAD)
        return event

    def replayed(self, epoch: int | None = None) -> Self:
        """The same event once more, on purpose: the same identity, with a higher epoch."""
        return self.changed(replayepoch=self.replay_epoch + 1 if epoch is None else epoch)

    def caused(self, type: str, data: Any = None, **more: Any) -> Event:
        """An event that happens because of this one: same correlation, this as its cause, and the same saga and trace.

        >>> placed = Event("order.placed", source="/orders", id="e-1")
        >>> placed.caused("order.paid", source="/payments").causation_id
        'e-1'
        """
        inherited = {
            "source": self.source,
            "key": self.key,
            "correlation_id": self.correlation_id or self.id,
            "causation_id": self.id,
            "traceparent": self.traceparent,
            "tracestate": self.tracestate,
            "saga_id": self.saga_id,
            "saga_type": self.saga_type,
        }
        return Event(type, data, **{**inherited, **more})

    # ------------------------------------------------------------------ structured mode: one JSON object

    def to_json(self) -> bytes:
        """The whole event as one JSON object: CloudEvents' structured mode, `application/cloudevents+json`."""
        whole: dict[str, Any] = {"specversion": "1.0", "id": self.id, "source": self.source, "type": self.type}
        whole |= self.attributes
        head = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
        if self.body is None:
            return head
        if self.is_json:
            return b'%b,"data":%b}' % (head[:-1], self.body)  # it is JSON already: not read, not written again
        return b'%b,"data_base64":"%b"}' % (head[:-1], b64encode(self.body))

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """The event that a JSON object in structured mode describes; an `EventError` where it describes none."""
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EventError("event", f"is not JSON: {error}") from error
        if not isinstance(whole, dict):
            raise EventError("event", f"must be a JSON object (got {type(whole).__name__})")
        attributes = {name: value for name, value in whole.items() if name not in _CORE and value is not None}
        body: bytes | None = None
        if whole.get("data_base64") is not None:
            try:
                body = b64decode(whole["data_base64"], validate=True)
            except (ValueError, TypeError) as error:
                raise EventError(f"event {whole.get('type')!r}", f"its data_base64 is not base64: {error}") from error
        elif "data" in whole and whole["data"] is not None:
            content_type = attributes.get("datacontenttype")
            plain_text = isinstance(whole["data"], str) and content_type and not _JSON_TYPE.match(str(content_type))
            try:
                body = whole["data"].encode() if plain_text else to_json(whole["data"])
            except (
                TypeError,
                ValueError,
                RecursionError,
            ) as error:  # NaN, half a surrogate
                what = f"its data cannot be written as JSON: {error}"
                raise EventError(f"event {whole.get('type')!r}", what) from error
        return cls._read_in(whole, attributes, body)

    # ------------------------------------------------------------------ binary mode: headers and a body

    def to_binary(self, prefix: str = "ce-", *, quoted: bool | None = None) -> tuple[dict[str, str], bytes]:
        """The event as headers and a body: CloudEvents' binary mode.

        The prefix is `ce-` for HTTP and NATS, `ce_` for Kafka, `cloudEvents_` for AMQP. Header values are
        percent-encoded where the protocol needs it, which is HTTP.
        """
        quoted = prefix == "ce-" if quoted is None else quoted
        headers = {f"{prefix}specversion": "1.0"}
        named: dict[str, Attribute] = {"id": self.id, "source": self.source, "type": self.type, **self.attributes}
        for name, value in named.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if name == "datacontenttype":
                headers["content-type"] = text
            else:
                headers[prefix + name] = quote(text, safe=_SAFE) if quoted else text
        return headers, self.body or b""

    @classmethod
    def from_binary(
        cls, headers: Mapping[str, str], body: bytes, prefix: str = "ce-", *, quoted: bool | None = None
    ) -> Self:
        """The event that headers and a body in binary mode describe; an `EventError` where they describe none."""
        quoted = prefix == "ce-" if quoted is None else quoted
        attributes: dict[str, Any] = {}
        for header, value in headers.items():
            name = header.lower()
            if name == "content-type":
                attributes["datacontenttype"] = value
            elif name.startswith(prefix.lower()):
                attributes[name[len(prefix) :]] = unquote(value) if quoted else value
        whole = {name: attributes.pop(name, None) for name in ("specversion", "id", "source", "type")}
        return cls._read_in(whole, attributes, body if body or "datacontenttype" in attributes else None)

    @classmethod
    def from_http(cls, headers: Mapping[str, str], body: bytes) -> Self:
        """The event of an HTTP request or response, in either mode."""
        content_type = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
        if content_type.partition(";")[0].strip().lower() == STRUCTURED:
            return cls.from_json(body)
        return cls.from_binary(headers, body)

    @classmethod
    def _read_in(cls, whole: Mapping[str, Any], attributes: Mapping[str, Any], body: bytes | None) -> Self:
        if whole.get("specversion") != "1.0":
            found = whole.get("specversion")
            raise EventError(f"event {whole.get('type')!r}", f"must have specversion 1.0 (got {found!r})")
        if "time" in attributes:
            attributes = {**attributes, "time": _moment(attributes["time"], f"event {whole.get('type')!r}")}
        event = cls._made(whole.get("id"), whole.get("source"), whole.get("type"), attributes, body)
        fits(id=event.id, source=event.source, key=event.key, owner=f"event {event.type!r}")
        return event

    # ------------------------------------------------------------------ a value

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an Event does not change; make another with `changed`")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.source, self.id))

    def _fields(self) -> tuple[Any, ...]:
        return self.id, self.source, self.type, dict(self.attributes), self.body

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        return f"Event({self.type!r}, source={self.source!r}, id={self.id!r}{key})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Event.from_json, (self.to_json(),)


_UNREAD: Any = object()


def fits(*, owner: str, **names: str | None) -> None:
    """An `EventError` for a name too long to be found by: databases cannot have it in an index."""
    for name, value in names.items():
        if value is not None and len(value) > MOST_NAME // 4 and (size := len(value.encode())) > MOST_NAME:
            raise EventError(owner, f"{name} may have {MOST_NAME} bytes (got {size}: {value[:40]!r}...)")


def checked_topic(topic: Any, owner: str) -> str:
    """A topic that every store can keep; an `EventError` for any other."""
    if not isinstance(topic, str) or not topic:
        raise EventError(owner, f"has no topic to go to (got {topic!r})")
    if _UNFIT.search(topic):
        raise EventError(owner, f"topic must not have control characters (got {topic!r})")
    fits(topic=topic, owner=owner)
    return topic


def _moment(value: Any, owner: str) -> str:
    if value is None:
        value = datetime.fromtimestamp(DEFAULT.time(), UTC)
    elif isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise EventError(owner, f"time must be a moment as RFC 3339 writes it (got {value!r})") from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise EventError(owner, f"time must be a moment with a time zone (got {value!r})")
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
