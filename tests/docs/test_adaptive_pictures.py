"""The pictures of adaptive limits and hedges are what scripts/draw_adaptive.py draws, and fit to be shown."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["limit-step-down.svg", "limit-not-ours.svg", "hedge-tail.svg"]


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
        import draw_adaptive

    return draw_adaptive


def test_every_picture_is_listed(drawing: ModuleType) -> None:
    assert list(drawing.PICTURES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_this_picture_is_what_the_code_draws(drawing: ModuleType, name: str) -> None:
    drawn, kept = drawing.PICTURES[name](), (drawing.IMAGES / name).read_text(encoding="utf-8")
    assert drawn == kept, "run `python scripts/draw_adaptive.py` and look at the pictures"


@pytest.mark.parametrize("name", NAMES)
def test_this_picture_reads_on_light_and_dark_and_says_what_it_shows(drawing: ModuleType, name: str) -> None:
    root = ElementTree.parse(drawing.IMAGES / name).getroot()
    assert root.attrib["aria-label"]
    colours = {value for one in root.iter() for key, value in one.attrib.items() if key in ("fill", "stroke")}
    assert not colours & {"black", "white", "#000", "#fff", "#000000", "#ffffff"}
