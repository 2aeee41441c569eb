"""Events, recorded."""

from __future__ import annotations

from everkeel import events, retry
from everkeel.runtime import events as hub
from everkeel.testing import EventRecorder, Flaky, VirtualClock, record_events


def test_a_recorder_keeps_events_in_their_order(virtual_time: VirtualClock, record_events: EventRecorder) -> None:
    retry(attempts=2).call(Flaky(OSError, "answer"))
    assert record_events.names() == ["Retrying", "RetrySucceeded", "Succeeded"]
    assert [type(event) for event in record_events] == [events.Retrying, events.RetrySucceeded, events.Succeeded]
    assert isinstance(record_events[-1], events.Succeeded)
    assert len(record_events[:2]) == 2


def test_events_are_found_by_type_and_by_policy(virtual_time: VirtualClock, fresh_everkeel: object) -> None:
    with record_events() as recorded:
        retry("one").call(Flaky(OSError, "answer"))
        retry("two").call(Flaky("answer"))
    assert [event.policy for event in recorded.of(events.Succeeded)] == ["one", "two"]
    assert [type(event).__name__ for event in recorded.about("two")] == ["PolicyAdded", "Succeeded"]


def test_a_recorder_of_some_types_hears_no_others(virtual_time: VirtualClock) -> None:
    with record_events(events.Retrying) as recorded:
        retry().call(Flaky(OSError, "answer"))
    assert recorded.names() == ["Retrying"]


def test_a_recorder_can_forget(virtual_time: VirtualClock, record_events: EventRecorder) -> None:
    retry().call(Flaky("answer"))
    record_events.clear()
    assert len(record_events) == 0


def test_after_its_block_a_recorder_hears_nothing(virtual_time: VirtualClock) -> None:
    with record_events() as recorded:
        pass
    retry().call(Flaky("answer"))
    assert list(recorded) == []
    assert hub.everywhere == ()


def test_a_recorder_shows_what_it_heard(virtual_time: VirtualClock, record_events: EventRecorder) -> None:
    retry().call(Flaky("answer"))
    assert "<EventRecorder with 1 events>\n  Succeeded(policy=None, policy_type='retry'" in repr(record_events)
