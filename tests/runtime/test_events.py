"""Who hears what happened, and that listening harms nobody."""

from __future__ import annotations

import dataclasses

import pytest

from everkeel import RejectedError, events, subscribe
from everkeel.compose import source
from everkeel.runtime import events as hub


def names(heard: list[events.Event]) -> list[str]:
    return [type(event).__name__ for event in heard]


def test_a_listener_hears_the_events_of_its_policy(gate):
    policy, heard = gate("payments"), []
    policy.subscribe(heard.append)
    policy.call(len, "")
    assert names(heard) == ["Succeeded"]
    assert (heard[0].policy, heard[0].policy_type) == ("payments", "gate")


def test_it_does_not_hear_those_of_another(gate):
    heard = []
    gate("payments").subscribe(heard.append)
    gate("orders").call(len, "")
    assert heard == []


def test_it_hears_only_the_types_it_asked_for(gate):
    policy, heard = gate("payments"), []
    policy.subscribe(heard.append, events.Failed, events.ModeChanged)
    policy.call(len, "")
    with pytest.raises(TypeError):
        policy.call(len, 3)
    policy.mode = "shadow"
    assert names(heard) == ["Failed", "ModeChanged"]


def test_a_type_brings_its_subtypes(gate):
    policy, heard = gate("payments"), []
    policy.subscribe(heard.append, events.Event)
    policy.call(len, "")
    assert names(heard) == ["Succeeded"]


def test_a_cancelled_subscription_hears_no_more(gate):
    policy, heard = gate("payments"), []
    subscription = policy.subscribe(heard.append)
    subscription.cancel()
    subscription.cancel()
    policy.call(len, "")
    assert heard == []
    assert not policy.heard()


def test_a_subscription_is_a_block_too(gate):
    policy, heard = gate("payments"), []
    with policy.subscribe(heard.append):
        policy.call(len, "")
    policy.call(len, "")
    assert names(heard) == ["Succeeded"]


def test_the_same_listener_may_listen_twice_and_stop_once(gate):
    policy, heard = gate("payments"), []
    first = policy.subscribe(heard.append)
    policy.subscribe(heard.append)
    first.cancel()
    policy.call(len, "")
    assert names(heard) == ["Succeeded"]


def test_a_listener_that_raises_harms_nobody(gate, caplog):
    policy, heard = gate("payments"), []

    def raising(event: events.Event) -> None:
        raise ZeroDivisionError("the listener is wrong")

    policy.subscribe(raising)
    policy.subscribe(heard.append)
    assert policy.call(len, "abc") == 3
    assert names(heard) == ["Succeeded"]
    assert "a listener raised on Succeeded" in caplog.text
    assert "the listener is wrong" in caplog.text


def test_a_listener_that_raises_does_not_replace_the_error_of_the_call(gate):
    policy = gate("payments")
    policy.subscribe(lambda event: 1 / 0)
    with pytest.raises(TypeError):
        policy.call(len, 3)


def test_a_listener_may_cancel_itself_while_it_hears(gate):
    policy, heard = gate("payments"), []

    def once(event: events.Event) -> None:
        heard.append(event)
        subscription.cancel()

    subscription = policy.subscribe(once)
    policy.call(len, "")
    policy.call(len, "")
    assert names(heard) == ["Succeeded"]


def test_a_listener_may_call_the_policy_it_listens_to(gate):
    policy, depth = gate("payments"), []

    def calling(event: events.Event) -> None:
        depth.append(len(depth))
        if len(depth) < 3:
            policy.call(len, "")

    policy.subscribe(calling)
    policy.call(len, "")
    assert depth == [0, 1, 2]


# ------------------------------------------------------------------ every policy


def test_a_listener_to_every_policy_hears_those_made_before_and_after(gate):
    before, heard = gate("before"), []
    with subscribe(heard.append, events.Succeeded):
        before.call(len, "")
        gate("after").call(len, "")
    before.call(len, "")
    assert [event.policy for event in heard] == ["before", "after"]


def test_those_who_listen_to_one_policy_hear_first(gate):
    policy, order = gate("payments"), []
    with subscribe(lambda event: order.append("everywhere"), events.Succeeded):
        policy.subscribe(lambda event: order.append("here"), events.Succeeded)
        policy.call(len, "")
    assert order == ["here", "everywhere"]


def test_nobody_listens_when_all_subscriptions_are_cancelled(gate):
    policy = gate("payments")
    with subscribe(print):
        assert policy.heard()
    assert not policy.heard()
    assert hub.everywhere == ()


# ------------------------------------------------------------------ the layer that reports endings


@pytest.mark.parametrize(
    ("types", "tapped"),
    [
        ((), True),
        ((events.Succeeded,), True),
        ((events.Failed,), True),
        ((events.Event,), True),
        ((events.ModeChanged,), False),
        ((events.Retrying, events.CallRejected), False),
    ],
)
def test_the_layer_that_reports_endings_exists_only_while_somebody_hears_them(gate, types, tapped):
    policy = gate("payments")
    guarded = policy(lambda: None)
    subscription = policy.subscribe(print, *types)
    assert ("tap" in source(guarded)) is tapped
    assert len(policy.layers()) == 1 + tapped
    subscription.cancel()
    assert "tap" not in source(guarded)
    assert len(policy.layers()) == 1


def test_a_decorated_function_that_ran_before_is_heard_too(gate):
    policy, heard = gate("payments"), []
    guarded = policy(lambda: "answer")
    guarded()
    with policy.subscribe(heard.append):
        guarded()
    guarded()
    assert names(heard) == ["Succeeded"]


def test_an_ending_tells_how_long_the_call_took(gate, virtual_time):
    policy, heard = gate("payments"), []
    policy.subscribe(heard.append)
    policy.call(virtual_time.sleep, 2.5)
    with pytest.raises(ValueError):
        policy.call(virtual_time.sleep, -1)
    assert [event.duration for event in heard] == [2.5, 0.0]
    assert isinstance(heard[1].error, ValueError)


def test_a_rejection_of_its_own_is_not_told_as_an_ending(gate):
    policy, heard = gate("payments", limit=1), []
    policy.subscribe(heard.append)

    def inside() -> None:
        with pytest.raises(RejectedError):
            policy.call(len, "")

    policy.call(inside)
    assert names(heard) == ["Succeeded"]


def test_a_rejection_by_another_is_told_as_failed_or_ignored(gate):
    outer, inner, heard = gate("outer"), gate("inner", limit=1), []
    outer.subscribe(heard.append)

    def call() -> None:
        inner.call(lambda: outer.call(inner.call, len, ""))

    with pytest.raises(RejectedError):
        call()
    assert names(heard) == ["Failed"]


# ------------------------------------------------------------------ the events themselves


def test_an_event_is_a_frozen_value():
    event = events.Succeeded(policy="payments", policy_type="gate", duration=1.0)
    assert event == events.Succeeded(policy="payments", policy_type="gate", duration=1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.duration = 2.0


def test_every_event_says_which_policy_it_is_about():
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)]
    assert len(kinds) > 10
    for kind in kinds:
        assert {"policy", "policy_type"} <= {field.name for field in dataclasses.fields(kind)}
