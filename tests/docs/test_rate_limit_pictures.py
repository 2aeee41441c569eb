"""The pictures of rate limits are what scripts/draw_rate_limits.py draws, and fit to be shown."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["rate-limit-what-passes.svg", "rate-limit-waiting.svg", "rate-limit-warm-up.svg"]


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
        import draw_rate_limits

    return draw_rate_limits


def test_every_picture_is_listed(drawing: ModuleType) -> None:
    assert list(drawing.PICTURES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_this_picture_is_what_the_code_draws(drawing: ModuleType, name: str) -> None:
    drawn, kept = drawing.PICTURES[name](), (drawing.IMAGES / name).read_text(encoding="utf-8")
    assert drawn == kept, "run `python scripts/draw_rate_limits.py` and look at the pictures"


@pytest.mark.parametrize("name", NAMES)
def test_this_picture_reads_on_light_and_dark_and_says_what_it_shows(drawing: ModuleType, name: str) -> None:
    root = ElementTree.parse(drawing.IMAGES / name).getroot()
    assert root.attrib["aria-label"]
    colours = {value for one in root.iter() for key, value in one.attrib.items() if key in ("fill", "stroke")}
    assert not colours & {"black", "white", "#000", "#fff", "#000000", "#ffffff"}


def test_the_numbers_of_the_picture_are_what_the_guide_says(drawing: ModuleType) -> None:
    passed = {name: drawing.decided(algorithm, drawing.traffic())[0] for name, algorithm in drawing.ALGORITHMS}
    assert {name: (len(granted), drawing.most_in_a_second(granted)) for name, granted in passed.items()} == {
        "token bucket": (39, 9),
        "leaky bucket": (27, 5),
        "fixed window": (38, 10),
        "sliding window log": (33, 5),
        "sliding window counter": (31, 6),
    }
