"""What is wrong with a definition is said when it is written, naming saga and step."""

from __future__ import annotations

from typing import Any

import pytest

from everkeel.engines import MemoryEngine
from everkeel.errors import ConfigError
from everkeel.sagas import (
    NOTHING,
    Choreography,
    Compensation,
    CompensationRegistry,
    Orchestrator,
    Parallel,
    Reaction,
    Saga,
    Step,
)


async def do(context: Any) -> None:
    """Something."""


async def undo(context: Any) -> None:
    """The opposite."""


def reaction(name: str = "pay", **more: Any) -> Reaction:
    events = {"done": f"{name}.done", "compensation": f"{name}.undo", "undone": f"{name}.undone"}
    return Reaction(name, **{**events, **more})


WRONG = {
    "no compensation": (lambda: Saga("s", Step("a", do)), "saga 's': step 'a' has no compensation"),
    "no compensation before the pivot": (
        lambda: Saga("s", Step("a", do), Step("b", do, undo, pivot=True)), "saga 's': step 'a' has no compensation",
    ),
    "no compensation beside the pivot": (
        lambda: Saga("s", Parallel(Step("a", do), Step("b", do, pivot=True))), "step 'a' has no compensation",
    ),
    "twice": (lambda: Saga("s", Step("a", do, undo), Step("a", do, undo)), "saga 's': step 'a' is there twice"),
    "a cycle": (
        lambda: Saga("s", Step("a", do, undo, after="c"), Step("b", do, undo), Step("c", do, undo)),
        "waits for itself: a after c after b after a",
    ),
    "itself": (lambda: Saga("s", Step("a", do, undo, after="a")), "step 'a' waits for itself: a after a"),
    "after nobody": (lambda: Saga("s", Step("a", do, undo, after="z")), "step 'a' waits for 'z', which is no step"),
    "two pivots": (
        lambda: Saga("s", Step("a", do, pivot=True), Step("b", do, pivot=True)),
        "step 'b' is a second pivot, after 'a'",
    ),
    "no steps": (lambda: Saga("s"), "saga 's': steps must be at least one"),
    "no step": (lambda: Saga("s", do), "steps must be steps and groups"),
    "no name": (lambda: Saga("", Step("a", do, undo)), "saga: name must be a printable text"),
    "a name with a mark": (lambda: Step("a:b", do), "step: name must be a printable text without commas and colons"),
    "version": (lambda: Saga("s", Step("a", do, undo), version=0), "saga 's': version must be at least 1"),
    "deadline": (lambda: Saga("s", Step("a", do, undo), deadline=0), "saga 's': deadline must be more than 0"),
    "on_blocked": (lambda: Saga("s", Step("a", do, undo), on_blocked="panic"), "on_blocked must be 'stop' or"),
    "attempts": (lambda: Step("a", do, attempts=0), "step 'a': attempts must be at least 1"),
    "timeout": (lambda: Step("a", do, timeout=-1), "step 'a': timeout must be more than 0"),
    "backoff": (lambda: Step("a", do, backoff="soon"), "step 'a': backoff"),
    "policies": (lambda: Step("a", do, policies=3), "step 'a': policies must be a policy, a pipeline or a guard"),
    "on_unknown": (lambda: Step("a", do, on_unknown="guess"), "step 'a': on_unknown must be 'retry' or 'compensate'"),
    "no function": (lambda: Step("a", 3), "step 'a': action must be a function of the context"),
    "itself as compensation": (lambda: Step("a", do, do), "step 'a': compensation must not be the action itself"),
    "a group of one": (lambda: Parallel(Step("a", do)), "parallel: steps must be two steps or more"),
    "after in a group": (lambda: Parallel(Step("a", do, after="b"), Step("b", do)), "parallel: after is not for steps"),
    "jitter": (lambda: Step("a", do, jitter="some"), "step 'a': jitter must be"),
    "a list of rejections": (lambda: Step("a", do, rejects=[ValueError]), "step 'a': rejects must be an exception"),
    "a rejection in quotes": (lambda: Step("a", do, rejects="ValueError"), "step 'a': rejects must be an exception"),
    "a condition that is none": (lambda: Step("a", do, when=True), "step 'a': when must be a function of the context"),
    "a pivot in words": (lambda: Step("a", do, pivot="yes"), "step 'a': pivot must be True or False (got 'yes')"),
    "after a number": (lambda: Step("a", do, after=3), "step 'a': after must be a name, or a list of names (got 3)"),
    "an input that is no class": (lambda: Saga("s", Step("a", do, undo), input="A"), "saga 's': input must be a class"),
    "a result nobody makes": (lambda: Saga("s", Step("a", do, undo), returns=3), "saga 's': returns must be a funct"),
    "two choreographed pivots": (
        lambda: Choreography("c", reaction("a", pivot=True), reaction("b", pivot=True), starts="S"),
        "choreography 'c': step 'b' is a second pivot, after 'a'",
    ),
    "beside the choreographed pivot": (
        lambda: Choreography("c", reaction("a", pivot=True), Reaction("b", done="B", after=()), starts="S"),
        "choreography 'c': step 'b' has no compensation",
    ),
    "an event without a type": (lambda: Reaction("a", done=""), "step 'a': done must be the type of an event"),
    "a beginning without a type": (
        lambda: Choreography("c", reaction("a"), starts=""),
        "choreography 'c': starts must be the type of an event",
    ),
    "a choreography without compensation": (
        lambda: Choreography("c", Reaction("a", done="A"), starts="S"),
        "choreography 'c': step 'a' has no compensation",
    ),
    "a compensation nobody confirms": (
        lambda: Reaction("a", done="A", compensation="UndoA"),
        "step 'a': compensation and undone belong together",
    ),
    "an event with two meanings": (
        lambda: Choreography("c", reaction("a", done="X"), reaction("b", done="X"), starts="S"),
        "choreography 'c': type 'X' is the event of two",
    ),
    "a choreographed cycle": (
        lambda: Choreography("c", reaction("a", after="b"), reaction("b"), starts="S"),
        "waits for itself: a after b after a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_definition_is_refused(case):
    make, message = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)


def test_a_step_without_effect_and_one_past_the_pivot_need_no_compensation():
    saga = Saga("s", Step("look", do, NOTHING), Step("pay", do, pivot=True), Step("mail", do))
    assert [step.undoable for step in saga.steps] == [False, False, False]


async def test_two_definitions_of_one_version_are_refused(virtual_time):
    with pytest.raises(ConfigError, match="saga 's': version 1 has a definition already"):
        Orchestrator(MemoryEngine(), Saga("s", Step("a", do, undo)), Saga("s", Step("b", do, undo)))
    with pytest.raises(ConfigError, match="orchestrator 'x': definitions must be sagas"):
        Orchestrator(MemoryEngine(), do, name="x")
    with pytest.raises(ConfigError, match="orchestrator 'x': lease must be more than 0"):
        Orchestrator(MemoryEngine(), name="x", lease=0)


def test_the_registry_says_what_undoes_what_and_who_does_it():
    saga = Saga("trip", Step("book", do, undo), Step("look", do, NOTHING))
    last = reaction("ship", compensation=None, undone=None, pivot=True)
    chor = Choreography("order", reaction("pay", by="bank"), last, starts="Placed")
    registry = CompensationRegistry(saga, chor)
    registry.register("MailSent", undone_by="ApologySent", by="mail", note="nobody can unsend a mail")
    assert registry["pay.done"] == Compensation(
        event="pay.done", undone_by="pay.undo", confirmed_by="pay.undone", by="bank", saga="order", step="pay"
    )
    assert (registry["do"].undone_by, registry["do"].saga, registry["do"].step) == ("undo", "trip", "book")
    assert "MailSent" in registry
    assert "ship.done" not in registry
    assert len(registry) == len(list(registry)) == 3
    assert "| order | pay | pay.done | pay.undo | pay.undone | bank |" in registry.markdown()
    with pytest.raises(LookupError, match=r"nothing is registered that undoes 'ship\.done'"):
        registry["ship.done"]
    with pytest.raises(ConfigError, match="event 'MailSent' is undone by 'ApologySent' already, not by 'X'"):
        registry.register("MailSent", undone_by="X")


def test_a_definition_of_many_groups_and_many_steps_is_checked_in_no_time():
    groups = [Parallel(*(Step(f"{group}-{one}", do, undo) for one in range(4))) for group in range(40)]
    wide = Saga("wide", *groups, Step("pay", do, pivot=True))
    assert len(wide.shape.behind["0-0"]) == 39 * 4 + 1
    long = Saga("long", *(Step(str(number), do, undo) for number in range(2000)))
    assert len(long.shape.behind["0"]) == 1999
