"""The envelope: what CloudEvents 1.0 says, checked against its SDK, and errors that say what is wrong."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from uuid import UUID

import msgspec
import pydantic
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary, from_structured, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel import EventError
from everkeel.messaging import Event
from everkeel.messaging.rows import event_of, row_of


def placed(**more) -> Event:
    options = {"source": "/orders", "id": "e-1", "time": "2026-01-02T03:04:05Z", **more}
    return Event("com.example.order.placed", options.pop("data", {"order": 7}), **options)


FULL = {
    "key": "order-7", "subject": "orders/7", "schema": "https://example.com/order", "correlation_id": "c-1",
    "causation_id": "e-0", "sequence": "000042",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "vendor=1", "saga_id": "s-1", "saga_type": "checkout", "saga_step": "pay", "replay_epoch": 2,
    "extensions": {"tenant": "Zoë & Co"},
}  # fmt: skip


# ------------------------------------------------------------------ against the standard's SDK


def sdk_attributes(event: CloudEvent) -> dict[str, str]:
    found = {name: value for name, value in event.get_attributes().items() if value is not None}
    return {name: value.isoformat() if isinstance(value, datetime) else str(value) for name, value in found.items()}


def ours(event: Event) -> dict[str, str]:
    named = {"specversion": "1.0", "id": event.id, "source": event.source, "type": event.type, **event.attributes}
    return {name: str(value).replace("Z", "+00:00") if name == "time" else str(value) for name, value in named.items()}


@pytest.mark.parametrize("event", [placed(), placed(**FULL), placed(data=None), placed(data={"näme": "Ø"})])
def test_the_sdk_reads_our_structured_mode(event):
    read = from_structured(HTTPMessage({"content-type": "application/cloudevents+json"}, event.to_json()), JSONFormat())
    assert sdk_attributes(read) == ours(event)
    assert read.get_data() == event.data


@pytest.mark.parametrize("event", [placed(), placed(**FULL), placed(data=None), placed(data={"näme": "Ø"})])
def test_the_sdk_reads_our_binary_mode(event):
    read = from_binary(HTTPMessage(*event.to_binary()), JSONFormat())
    assert sdk_attributes(read) == ours(event)
    assert read.get_data() == event.data


@pytest.mark.parametrize("data", [{"order": 7}, None, b"\x00\xff", "plain text"])
@pytest.mark.parametrize("write", [to_binary, to_structured])
def test_we_read_what_the_sdk_writes(write, data):
    attributes = {
        "id": "e 1", "source": "/örders", "type": "placed", "subject": "100%", "time": datetime(2026, 1, 2, tzinfo=UTC),
        "partitionkey": "k",
    }  # fmt: skip
    if data is not None:
        attributes["datacontenttype"] = {dict: "application/json", bytes: "image/png", str: "text/plain"}[type(data)]
    message = write(CloudEvent(dict(attributes), data), JSONFormat())
    read = Event.from_http(message.headers, message.body)
    assert (read.id, read.source, read.type, read.subject, read.key) == ("e 1", "/örders", "placed", "100%", "k")
    assert read.time == attributes["time"]
    assert read.data == data


# ------------------------------------------------------------------ there and back

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(str.strip)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
EVENTS = st.builds(
    Event,
    TEXT,
    JSON_VALUES | st.binary(),
    source=TEXT,
    id=TEXT,
    key=st.none() | TEXT,
    subject=st.none() | TEXT,
    time=st.datetimes(datetime(1970, 1, 1), datetime(9990, 1, 1), timezones=st.just(timezone(timedelta(hours=2)))),
    replay_epoch=st.integers(0, 5),
    extensions=st.dictionaries(
        st.text("uvxyz0123456789", min_size=1, max_size=10), TEXT | st.booleans() | st.integers(0, 100), max_size=2
    ),
)


@settings(max_examples=150)
@given(EVENTS)
def test_structured_mode_and_the_columns_of_the_outbox_lose_nothing(event):
    assert Event.from_json(event.to_json()) == event
    assert event_of(row_of(event, "topic")) == event


@settings(max_examples=150)
@given(EVENTS, st.sampled_from(["ce-", "ce_", "cloudEvents_"]))
def test_binary_mode_loses_nothing_but_the_types_of_extensions(event, prefix):
    headers, body = event.to_binary(prefix)
    read = Event.from_binary(headers, body, prefix)
    assert (read.id, read.source, read.type, read.key, read.data) == (
        event.id, event.source, event.type, event.key, event.data,
    )  # fmt: skip
    assert read.replay_epoch == event.replay_epoch
    if prefix == "ce-":
        assert all(value.isascii() for value in headers.values())


@settings(max_examples=200)
@given(st.binary() | st.builds(lambda value: json.dumps(value).encode(), JSON_VALUES))
def test_bytes_from_anywhere_are_an_event_or_an_event_error(text):
    try:
        event = Event.from_json(text)
    except EventError:
        return
    assert event.id


# ------------------------------------------------------------------ data of all kinds


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    item: str
    price: Decimal


@dataclass
class Order:
    id: UUID
    at: datetime
    lines: list[Line] = field(default_factory=list)
    note: str | None = None
    colour: Colour = Colour.RED


class OrderModel(pydantic.BaseModel):
    id: UUID
    at: datetime
    price: Decimal


class OrderStruct(msgspec.Struct):
    id: UUID
    at: datetime
    price: Decimal


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SOME = UUID(int=7)


@pytest.mark.parametrize(
    "value",
    [
        Order(SOME, NOW, [Line("tea", Decimal("9.90"))], colour=Colour.RED),
        OrderModel(id=SOME, at=NOW, price=Decimal("9.90")),
        OrderStruct(SOME, NOW, Decimal("9.90")),
    ],
    ids=["dataclass", "pydantic", "msgspec"],
)
def test_classes_go_in_and_come_out(value):
    read = Event.from_json(placed(data=value).to_json())
    assert isinstance(read.data, dict)
    assert read.data_as(type(value)) == value


def test_models_inside_of_plain_values_are_written_too():
    data = {"order": OrderModel(id=SOME, at=NOW, price=Decimal(1)), "days": [date(2026, 1, 2)], "took": timedelta(1)}
    assert placed(data=data).data == {
        "order": {"id": str(SOME), "at": "2026-01-02T03:04:05Z", "price": "1"},
        "days": ["2026-01-02"],
        "took": 86400.0,
    }


def test_fields_of_a_newer_producer_are_left_out():
    assert placed(data={"item": "tea", "price": "1", "new": True}).data_as(Line) == Line("tea", Decimal(1))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"item": "tea"}, "data lacks price of Line"),
        ({"item": 3, "price": "1"}, r"data.item must be str \(got 3\)"),
        ({"item": "tea", "price": "cheap"}, "data.price must be Decimal"),
        ([], "must be an object with the fields of Line"),
        (None, "must be an object with the fields of Line"),
    ],
)
def test_data_that_does_not_fit_a_class_says_where(data, message):
    with pytest.raises(EventError, match=message):
        placed(data=data).data_as(Line)


def test_a_model_that_refuses_says_so_as_an_event_error():
    with pytest.raises(EventError, match="its data is no OrderModel"):
        placed(data={"id": 1}).data_as(OrderModel)
    with pytest.raises(EventError, match="its data is no OrderStruct"):
        placed(data={"id": 1}).data_as(OrderStruct)


def test_changing_the_object_afterwards_does_not_change_the_event():
    data = {"order": 7}
    event = placed(data=data)
    data["order"] = 8
    assert event.data == {"order": 7}


# ------------------------------------------------------------------ what is none

LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Event("", source="/s"), "event '': needs type, a text that is not empty"),
        (lambda: Event("t", source="/s", id=""), r"event 't': needs id, a text that is not empty \(got ''\)"),
        (lambda: Event("t", source="  "), "event 't': needs source"),
        (lambda: Event("t", source=None), r"event 't': needs source, .* \(got None\)"),
        (lambda: Event("t", object(), source="/s"), "cannot be written as JSON: object is nothing that JSON knows"),
        (lambda: Event("t", float("nan"), source="/s"), "cannot be written as JSON: Out of range float"),
        (lambda: Event("t", LOOP, source="/s"), "cannot be written as JSON: Circular"),
        (lambda: Event("t", "\ud800", source="/s"), "cannot be written as JSON"),
        (lambda: Event("t", source="/s", time=datetime(2026, 1, 1)), "time must be a moment with a time zone"),
        (lambda: Event("t", source="/s", time="yesterday"), r"as RFC 3339 writes it \(got 'yesterday'\)"),
        (lambda: Event("t", source="/s", extensions={"Wrong-Name": "x"}), "names are lower-case letters and digits"),
        (lambda: Event("t", source="/s", extensions={"nested": {}}), "nested must be text, a whole number or a truth"),
        (lambda: Event("t", source="/s", extensions={"id": "x"}), "has the attribute 'id' already"),
        (lambda: Event("t", source="/s", subject=""), "subject must not be empty"),
        (lambda: Event("t", source="/s", id="a\0b"), r"id must not have control characters \(got 'a\\x00b'\)"),
        (lambda: Event("t", source="/s", key="a\r\nb"), "partitionkey must not have control characters"),
        (lambda: Event("t", source="/s", subject="\ud800"), "subject must not have control characters"),
        (lambda: Event("t", source="/s", key="ü" * 257), r"key may have 512 bytes \(got 514: 'ü"),
        (lambda: Event("t", source="/s", id="x" * 513), r"id may have 512 bytes \(got 513: 'x"),
        (
            lambda: Event.from_json('{"specversion": "1.0", "id": "1", "type": "t", "source": "/%s"}' % ("s" * 512)),
            r"source may have 512 bytes \(got 513: '/s",
        ),
        (lambda: Event.from_json(b"{"), "is not JSON"),
        (lambda: Event.from_json(b"[]"), "must be a JSON object"),
        (lambda: Event.from_json(b'{"specversion":"1.0","type":"t","source":"/s"}'), "needs id"),
        (lambda: Event.from_json(b'{"specversion":"1.0","id":"1","source":"/s"}'), "needs type"),
        (lambda: Event.from_json(b'{"specversion":"0.3","id":"1","type":"t","source":"/s"}'), "specversion 1.0"),
        (
            lambda: Event.from_json(b'{"specversion":"1.0","id":"1","type":"t","source":"/s","data_base64":"#"}'),
            "not base64",
        ),
        (lambda: Event.from_binary({"ce-id": "1"}, b""), r"specversion 1.0 \(got None\)"),
    ],
)
def test_what_is_no_event_is_an_error_that_says_why(make, message):
    with pytest.raises(EventError, match=message):
        make()


def test_data_that_is_not_the_json_it_says_it_is_can_still_be_carried():
    event = Event.from_binary({**placed().to_binary()[0]}, b"{not json")
    with pytest.raises(EventError, match="not the JSON it should be"):
        _ = event.data
    assert event_of(row_of(event, "t")).body == b"{not json"


# ------------------------------------------------------------------ a value


def test_an_event_does_not_change():
    with pytest.raises(AttributeError, match="does not change"):
        placed().id = "other"
    with pytest.raises(TypeError):
        placed().attributes["subject"] = "x"


def test_an_event_is_equal_to_its_copies_and_hashable():
    event = placed(**FULL)
    assert copy.copy(event) == copy.deepcopy(event) == pickle.loads(pickle.dumps(event)) == event
    assert len({event, placed(**FULL)}) == 1
    assert event != placed()


def test_what_an_event_causes_belongs_to_the_same_story():
    first = placed(**FULL)
    paid = first.caused("paid", {"amount": 1}, source="/payments")
    assert (paid.correlation_id, paid.causation_id, paid.key) == ("c-1", "e-1", "order-7")
    assert (paid.saga_id, paid.traceparent, paid.source) == ("s-1", first.traceparent, "/payments")
    assert placed().caused("paid").correlation_id == "e-1"  # the first of a story names it


def test_a_replayed_event_keeps_its_identity():
    again = placed().replayed().replayed()
    assert (again.id, again.source, again.replay_epoch) == ("e-1", "/orders", 2)


@pytest.mark.parametrize("data", [b"NaN", b"[Infinity]", b'{"x": "\\ud800"}'])
def test_data_that_python_reads_and_json_does_not_know_is_an_event_error(data):
    with pytest.raises(EventError, match="JSON"):
        Event.from_json(b'{"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": %b}' % data)


@pytest.mark.parametrize(("epoch", "read"), [(-5, 0), ("x", 0), (10**30, 0), (7, 7), ("8", 8)])
def test_an_epoch_that_is_not_ours_counts_as_none(epoch, read):
    assert Event("t", source="/s", replay_epoch=epoch).replay_epoch == read


def test_extensions_that_are_no_mapping_are_refused():
    with pytest.raises(EventError, match="extensions must be a mapping"):
        Event("t", source="/s", extensions=["x"])
