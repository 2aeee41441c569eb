"""Pictures of sagas and registries: everything that is defined is in them, and text stays text."""

from __future__ import annotations

import functools
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel.sagas import NOTHING, Choreography, CompensationRegistry, Parallel, Reaction, Saga, Step
from everkeel.sagas.diagram import named, picture_of, to_mermaid, to_svg, to_text

SVG = "{http://www.w3.org/2000/svg}"


def do(context: Any) -> None: ...
def release(context: Any) -> None: ...
def refund(context: Any) -> None: ...
def recall(context: Any) -> None: ...
def is_abroad(context: Any) -> bool:
    return True


@pytest.fixture
def order() -> Saga[Any, Any, Any]:
    return Saga(
        "order",
        Step("check", do, NOTHING),
        Parallel(Step("reserve", do, release), Step("authorise", do, refund)),
        Step("customs", do, recall, when=is_abroad),
        Step("capture", do, pivot=True),
        Step("mail", do, after=["capture", "reserve"]),
        version=2,
        deadline=60,
    )


def test_mermaid_has_every_step_its_compensation_the_way_forward_and_the_way_back(order: Saga[Any, Any, Any]) -> None:
    assert (
        to_mermaid(order)
        == """\
flowchart TD
    %% saga order
    subgraph g0["at the same time"]
        s1["reserve"]
        c1(["release"])
        s2["authorise"]
        c2(["refund"])
    end
    s0["check<br/>nothing to undo"]
    s3["customs<br/>only if is_abroad"]
    c3(["recall"])
    s4["capture<br/>PIVOT<br/>no way back once it is done"]
    s5["mail<br/>tried until it is done"]
    s0 --> s1
    s0 --> s2
    s1 --> s3
    s2 --> s3
    s3 --> s4
    s4 --> s5
    s1 --> s5
    s1 -.-|undone by| c1
    s2 -.-|undone by| c2
    s3 -.-|undone by| c3
    c3 -.-> c1
    c3 -.-> c2
    classDef pivot stroke-width:4px
    classDef undo stroke-dasharray:5 4
    class s4 pivot
    class c1,c2,c3 undo
"""
    )


def test_text_has_the_same(order: Saga[Any, Any, Any]) -> None:
    assert (
        to_text(order)
        == """\
saga order (version 2, deadline 60 s)
  1. check      nothing to undo
  2. reserve    undone by release
   + authorise  undone by refund; at the same time
  3. customs    undone by recall; only if is_abroad
  4. capture    PIVOT; no way back once it is done
  5. mail       tried until it is done; after capture, reserve"""
    )


def words(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    return [
        (float(element.get("x", "")), float(element.get("y", "")), float(element.get("width", "")),
         float(element.get("height", "")))
        for element in ET.fromstring(svg).iter(f"{SVG}rect")
        if element.get("class", "").split()[0] in ("step", "undo")
    ]  # fmt: skip


def test_svg_has_the_same_and_is_a_document_that_loads_nothing(order: Saga[Any, Any, Any]) -> None:
    svg = to_svg(order)
    said = words(svg)
    for word in ("saga order", "check", "reserve", "release", "authorise", "refund", "customs", "only if is_abroad",
                 "recall", "capture", "pivot", "mail", "at the same time"):  # fmt: skip
        assert word in said
    root = ET.fromstring(svg)
    assert root.find(f"{SVG}title") is not None
    assert "capture after customs, the pivot" in (root.findtext(f"{SVG}desc") or "")
    assert "prefers-color-scheme: dark" in svg
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "desc", "style", "defs", "marker", "path", "rect", "text", "g",
    }  # fmt: skip
    assert not re.search(r"href|url\((?!#)|@import|<script|\son\w+=", svg)
    ways = [element.get("class") for element in root.iter(f"{SVG}path") if element.get("marker-end")]
    assert (ways.count("way"), ways.count("back")) == (7, 2)


letters = st.characters(exclude_characters=",:@", exclude_categories=["C", "Z"])
names = st.text(letters, min_size=1, max_size=60).filter(str.isprintable)


@st.composite
def sagas(draw: st.DrawFn) -> Saga[Any, Any, Any]:
    found: list[str] = []
    steps = []
    for name in draw(st.lists(names, min_size=1, max_size=8, unique=True)):
        after = draw(st.none() | st.lists(st.sampled_from(found), unique=True)) if found else None
        undo = draw(st.sampled_from([NOTHING, release, refund]))
        steps.append(Step(name, do, undo, after=after, when=draw(st.sampled_from([None, is_abroad]))))
        found.append(name)
    return Saga(draw(names), *steps)


@settings(max_examples=60, deadline=None)
@given(sagas())
def test_whatever_is_defined_is_drawn_inside_the_picture_and_not_over_something_else(saga: Saga[Any, Any, Any]) -> None:
    svg = to_svg(saga)
    root = ET.fromstring(svg)  # well-formed, whatever the names are
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    found = boxes(svg)
    undone = sum(step.undoable for step in saga.steps)
    assert len(found) == len(saga.steps) + undone
    for index, (x, y, wide, high) in enumerate(found):
        assert 0 <= x <= x + wide <= width
        assert 0 <= y <= y + high <= height
        for other_x, other_y, other_wide, other_high in found[:index]:
            apart = x >= other_x + other_wide or other_x >= x + wide or y >= other_y + other_high or other_y >= y + high
            assert apart
    for text in root.iter(f"{SVG}text"):
        if text.get("text-anchor") is None:  # title, legend, captions: letters are narrower than 6.5 points on average
            assert float(text.get("x", "")) + 6.5 * len(text.text or "") <= width
    mermaid = to_mermaid(saga)
    for line in mermaid.splitlines():  # labels end where they should: two quotes, or none
        assert line.count('"') in (0, 2)
    assert mermaid.count(" --> ") == sum(len(after) for after in saga.after.values())
    below = {cell.key: index for index, row in enumerate(picture_of(saga).ranks) for cell in row}
    assert all(below[name] > below[other] for name, after in saga.after.items() for other in after)
    assert len(to_text(saga).splitlines()) == 1 + len(saga.steps)


def test_names_are_text_and_nothing_else() -> None:
    evil = 'x"]; click s0 "javascript:alert(1)"</text><script>alert(1)</script>&`**b**`#quot;\n%%{init}\x1b[2J\x00'
    registry = CompensationRegistry()
    registry.register(evil, undone_by=evil, by=evil)
    mermaid = to_mermaid(registry)
    assert not re.search(r"<script|%%\{|^\s*click", mermaid, re.MULTILINE)
    (label,) = re.findall(r'^    s0\["(.*)"\]$', mermaid, re.MULTILINE)
    assert not set('"<>`') & set(label)
    root = ET.fromstring(to_svg(registry))
    assert root.find(f".//{SVG}script") is None
    assert "<script>" in "".join(root.itertext())  # it is there, as text
    assert "\x1b" not in to_text(registry)
    assert len(to_text(registry).splitlines()) == 2


@pytest.fixture
def booking() -> Choreography:
    return Choreography(
        "booking",
        Reaction("room", done="RoomHeld", rejected="NoRoom", compensation="FreeRoom", undone="RoomFreed", by="hotel"),
        Reaction("pay", done="Paid", by="bank", pivot=True),
        starts="TripBooked",
    )


def test_a_choreography_says_who_says_what(booking: Choreography) -> None:
    assert (
        to_text(booking)
        == """\
saga booking (choreographed, version 1, deadline 30 s)
  1. room  undone by FreeRoom; confirmed by RoomFreed; on TripBooked; hotel says RoomHeld; or no: NoRoom
  2. pay   PIVOT; bank says Paid; no way back once it is done"""
    )
    assert "FreeRoom" in words(to_svg(booking))
    assert 'c0(["FreeRoom<br/>confirmed by RoomFreed"])' in to_mermaid(booking)


def test_a_registry_says_which_event_undoes_which_and_by_whom(
    booking: Choreography, order: Saga[Any, Any, Any]
) -> None:
    registry = CompensationRegistry(booking, order)
    registry.register("RoomHeld", undone_by="FreeRoom", by="front desk", note="on paper")  # the same event, elsewhere
    mermaid = to_mermaid(registry)
    assert 's0["RoomHeld<br/>in booking room"]' in mermaid
    assert 'c0(["FreeRoom<br/>by hotel<br/>confirmed by RoomFreed"])' in mermaid
    assert 's4["RoomHeld<br/>on paper"]' in mermaid
    assert 'c4(["FreeRoom<br/>by front desk"])' in mermaid
    assert mermaid.count("undone by") == len(registry) == 5
    assert " --> " not in mermaid
    said = words(to_svg(registry))
    assert said.count("RoomHeld") == 2
    assert "by hotel" in said
    assert len(boxes(to_svg(registry))) == 10
    assert "RoomHeld  undone by FreeRoom; by hotel; confirmed by RoomFreed; in booking room" in to_text(registry)
    assert ET.fromstring(to_svg(CompensationRegistry())) is not None  # nothing is registered yet
    assert to_text(CompensationRegistry()) == "What undoes what (0 registered)"


def test_functions_are_named_as_their_authors_know_them() -> None:
    class Bank:
        def refund(self, context: Any) -> None: ...

        def __call__(self, context: Any) -> None: ...

    assert named(Bank().refund) == "Bank.refund"
    assert named(Bank()).endswith("Bank")
    assert named(functools.partial(functools.partial(refund), 1)) == "refund"
    assert named(lambda context: True, "its condition holds") == "its condition holds"


def test_nothing_else_can_be_drawn() -> None:
    with pytest.raises(TypeError, match="can be drawn"):
        to_svg("order")  # type: ignore[arg-type] # that is the point


def test_the_way_back_to_steps_side_by_side_passes_through_none_of_them() -> None:
    group = Parallel(Step("a", do, release), Step("b", do, refund))
    saga: Saga[Any, Any, Any] = Saga("order", group, Step("look", do, NOTHING), Step("c", do, recall))
    root = ET.fromstring(to_svg(saga))
    ways = [path.get("d", "") for path in root.iter(f"{SVG}path") if path.get("marker-end") == "url(#back)"]
    from_below = ["H" not in way.rsplit("V", 1)[1] for way in ways]
    assert sorted(from_below) == [False, True], "to the one on the right from its side, to the other from below"
