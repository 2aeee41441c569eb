"""Every rule has a test, every mark names a rule, and the page says so."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
        import microprofile_page

    return microprofile_page


def test_every_rule_has_a_test_and_every_mark_a_rule(script: ModuleType) -> None:
    assert script.problems(script.read_rules(), script.read_marks()) == []


def test_the_page_is_what_the_script_writes(script: ModuleType) -> None:
    written = script.page(script.read_rules(), script.read_marks())
    assert script.PAGE.read_text(encoding="utf-8") == written, "run python scripts/microprofile_page.py"


def test_there_are_as_many_rules_as_in_the_catalogue(script: ModuleType) -> None:
    rules = script.read_rules().rules.values()
    traps = [rule for rule in rules if rule.area == "MP-AMBIG"]
    extras = [rule for rule in rules if rule.area == "SR"]
    assert (len(rules) - len(traps) - len(extras), len(traps), len(extras)) == (239, 22, 16)


def test_the_page_keeps_the_notice(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    assert "Copyright (c) 2016, 2024 Eclipse Foundation AISBL." in page
    assert "not itself a technical specification" in page


BOOK = """
specification = "S"
notice = "N"
[missing]
[area."X"]
title = "Things"
[area."X".rules."X-01"]
text = "One."
basis = "S"
[area."X".rules."X-02"]
text = "Two."
basis = "T"
"""

TESTS = """
import pytest
pytestmark = pytest.mark.rule("X-01")

def test_plain(): ...

class TestMore:
    @pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.rule("X-02"))])
    async def test_inside(self, a): ...

@pytest.mark.rule("X-01")
def not_a_test(): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.toml").write_text(BOOK, encoding="utf-8")
    (tmp_path / "test_things.py").write_text(TESTS, encoding="utf-8")
    return tmp_path


def test_marks_are_found_on_modules_classes_tests_and_parameters(script: ModuleType, folder: Path) -> None:
    found = {(mark.rule, mark.test) for mark in script.read_marks(folder)}
    assert found == {("X-01", "test_plain"), ("X-01", "test_inside"), ("X-02", "test_inside")}


def test_a_rule_without_a_test_is_a_problem(script: ModuleType, folder: Path) -> None:
    alone = "import pytest\n@pytest.mark.rule('X-01')\ndef test_a(): ...\n"
    (folder / "test_things.py").write_text(alone, encoding="utf-8")
    assert script.problems(script.read_rules(folder), script.read_marks(folder)) == ["X-02 has no test: Two."]


def test_a_mark_without_a_rule_is_a_problem(script: ModuleType, folder: Path) -> None:
    more = "\n@pytest.mark.rule('X-99')\ndef test_a(): ...\n"
    (folder / "test_things.py").write_text(TESTS + more, encoding="utf-8")
    problems = script.problems(script.read_rules(folder), script.read_marks(folder))
    assert problems == ["test_things.py::test_a names X-99, which is no rule"]


@pytest.mark.parametrize("weak", ["skip", "skipif(True, reason='x')", "xfail"])
def test_a_test_that_may_not_run_holds_nothing(script: ModuleType, folder: Path, weak: str) -> None:
    more = f"\n@pytest.mark.{weak}\n@pytest.mark.rule('X-02')\ndef test_a(): ...\n"
    (folder / "test_things.py").write_text(TESTS + more, encoding="utf-8")
    problems = script.problems(script.read_rules(folder), script.read_marks(folder))
    assert "test_things.py::test_a may be skipped or fail, and holds nothing" in problems
