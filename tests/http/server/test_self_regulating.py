"""The self-regulating pair, end to end: a real server, a spike of load, clients that listen and clients that do not."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[3]
LENGTH = 5.0


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("self_regulating", ROOT / "examples" / "self_regulating.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def days(example: ModuleType) -> dict[str, tuple[list[Any], dict[str, float]]]:
    """A day with each kind of client: what happened, and what became of the spike."""
    found = {}
    for kind in (example.polite, example.rude):
        moments = asyncio.run(example.a_day(kind, LENGTH))
        found[kind.__name__] = (moments, example.summary(moments, LENGTH))
    return found


def test_clients_that_listen_and_the_server_find_an_equilibrium(example: ModuleType, days: Any) -> None:
    """Clients want three times what there is: they ask for little more than they get, and nearly all is served."""
    moments, found = days["polite"]
    wanted = [moment.wanted for moment in example.in_spike(moments, LENGTH)]
    assert min(wanted) > 2.5 * example.TILLS / example.SERVICE_TIME
    assert found["requests per second"] < min(wanted) / 2  # the load came down to what can be served
    assert found["share refused"] < 0.45
    assert found["backpressure"] < 0.75
    assert found["backpressure at the end"] < 0.4  # and it is at ease again when the spike is over


def test_rude_clients_find_none(days: Any) -> None:
    polite, rude = days["polite"][1], days["rude"][1]
    assert rude["share refused"] > 0.5
    assert rude["share refused"] > 1.5 * polite["share refused"]
    assert rude["requests per second"] > 1.5 * polite["requests per second"]
    assert rude["backpressure"] > polite["backpressure"]


def test_the_server_serves_as_much_as_it_can_in_either_case(days: Any) -> None:
    """What is too much is shed before it costs anything."""
    for _, found in days.values():
        assert found["orders per second"] > 10  # of 40, on a machine that may have other things to do


def test_the_more_is_refused_the_longer_the_server_asks_to_wait(days: Any) -> None:
    def told(moments: list[Any]) -> float:
        refused = sum(one.refused for one in moments)
        return sum(one.retry_after * one.refused for one in moments) / max(1, refused)

    assert told(days["rude"][0]) > told(days["polite"][0])


# ------------------------------------------------------------------ the picture of the guide


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
        import draw_self_regulating

    return draw_self_regulating


def test_the_picture_is_drawn_from_the_run_that_is_kept(drawing: ModuleType) -> None:
    kept = (drawing.IMAGES / drawing.PICTURE).read_text(encoding="utf-8")
    assert drawing.picture() == kept, "run `python scripts/draw_self_regulating.py` and look at the picture"
    root = ElementTree.fromstring(kept)
    assert root.attrib["aria-label"]


def test_the_run_that_is_kept_shows_what_the_guide_says(drawing: ModuleType, example: ModuleType) -> None:
    run = json.loads((drawing.IMAGES / drawing.RUN).read_text(encoding="utf-8"))
    found = {
        kind: example.summary([example.Moment(**one) for one in moments], run["seconds"])
        for kind, moments in run["runs"].items()
    }
    assert found["polite"]["share refused"] < 0.25
    assert found["rude"]["share refused"] > 0.75
    assert found["polite"]["orders per second"] >= found["rude"]["orders per second"]
