"""The page that says which test holds which claim names only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guide" / "correctness.md"
CITED = sorted(set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(("file", "test"), CITED, ids=[test for _, test in CITED])
def test_this_test_exists(file: str, test: str) -> None:
    path = ROOT / "tests" / file
    assert path.exists(), f"{PAGE.name} names tests/{file}, which does not exist"
    assert re.search(rf"\bdef {test}\(", path.read_text(encoding="utf-8")), f"tests/{file} has no {test}"


def test_every_line_of_a_table_names_a_test() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| (?!claim)", line)]
    assert [row for row in rows if "::test_" not in row] == []
    assert len(rows) > 20
