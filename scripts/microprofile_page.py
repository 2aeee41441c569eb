"""Write docs/guide/microprofile-conformance.md: every rule of the MicroProfile face, with the tests that hold it.

Rules come from tests/conformance/microprofile/rules.toml, tests from `@pytest.mark.rule("MP-RETRY-01", ...)` in the
files beside it, found by reading them, not by running them. `--check` writes nothing and tells what is wrong.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "conformance" / "microprofile"
PAGE = ROOT / "docs" / "guide" / "microprofile-conformance.md"


class Rule(NamedTuple):
    id: str
    area: str
    text: str
    basis: str


class Book(NamedTuple):
    """What rules.toml holds."""

    specification: str
    notice: str
    areas: dict[str, str]
    rules: dict[str, Rule]
    missing: dict[str, str]


class Mark(NamedTuple):
    """One test that holds one rule."""

    rule: str
    file: str
    test: str
    weak: bool  # it may be skipped, or is expected to fail


def read_rules(folder: Path = TESTS) -> Book:
    """The rules, in their order."""
    with (folder / "rules.toml").open("rb") as file:
        written = tomllib.load(file)
    rules = {
        id: Rule(id, area, rule["text"], rule["basis"])
        for area, held in written["area"].items()
        for id, rule in held["rules"].items()
    }
    areas = {area: held["title"] for area, held in written["area"].items()}
    return Book(written["specification"], written["notice"].strip(), areas, rules, written["missing"])


def read_marks(folder: Path = TESTS) -> list[Mark]:
    """Every mark of every test, in the order of files and lines."""
    return [mark for path in sorted(folder.glob("**/test_*.py")) for mark in _marks_in(path, folder)]


def _marks_in(path: Path, folder: Path) -> Iterator[Mark]:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    file = path.relative_to(folder).as_posix()
    everywhere = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_pytestmark(node)]
    for node in tree.body:
        yield from _marks_of(node, everywhere, file)


def _marks_of(node: ast.stmt, around: list[ast.expr], file: str) -> Iterator[Mark]:
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            yield from _marks_of(inner, [*around, *node.decorator_list], file)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
        said = [*around, *node.decorator_list]
        weak = any(_mark_name(inner) in ("skip", "skipif", "xfail") for one in said for inner in ast.walk(one))
        for rule in dict.fromkeys(rule for one in said for rule in _rules_in(one)):
            yield Mark(rule, file, node.name, weak)


def _rules_in(expression: ast.expr) -> Iterator[str]:
    """Also those of `pytest.param(..., marks=...)`."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and _mark_name(node.func) == "rule":
            for argument in node.args:
                yield str(argument.value) if isinstance(argument, ast.Constant) else ast.unparse(argument)


def _mark_name(node: ast.AST) -> str | None:
    """`rule` of `pytest.mark.rule`."""
    held = node.value if isinstance(node, ast.Attribute) else None
    is_mark = isinstance(held, ast.Attribute) and held.attr == "mark"
    return node.attr if is_mark and isinstance(node, ast.Attribute) else None


def _is_pytestmark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def problems(book: Book, marks: list[Mark]) -> list[str]:
    """What is wrong with the two together."""
    unknown = [mark for mark in marks if mark.rule not in book.rules]
    found = [f"{mark.file}::{mark.test} names {mark.rule}, which is no rule" for mark in unknown]
    found += [f"{mark.file}::{mark.test} may be skipped or fail, and holds nothing" for mark in marks if mark.weak]
    tested = {mark.rule for mark in marks}
    found += [f"{id} has no test: {rule.text}" for id, rule in book.rules.items() if id not in {*tested, *book.missing}]
    found += [f"{id} is said to be missing, and has a test" for id in book.missing if id in tested]
    found += [f"{id} is said to be missing, and is no rule" for id in book.missing if id not in book.rules]
    return found


def page(book: Book, marks: list[Mark]) -> str:
    """The page."""
    standard = [rule for rule in book.rules.values() if rule.area != "SR"]
    met = [rule for rule in standard if rule.id not in book.missing]
    traps = [rule for rule in standard if rule.area == "MP-AMBIG"]
    tests = {(mark.file, mark.test) for mark in marks}
    lines = [
        "# MicroProfile: conformance",
        "",
        "<!-- written by scripts/microprofile_page.py; change rules.toml or the tests, and run it again -->",
        "",
        f"`everkeel.microprofile` is held to {len(standard) - len(traps)} rules taken from {book.specification} and to",
        f"{len(traps)} resolutions of what it leaves open, each by at least one test in `tests/conformance`:",
        f"{len(met)} of {len(standard)} are met. With the extras there are {len(tests)} tests. The wording is our own.",
        "Nobody has certified this: the conformance suite of the standard is written in",
        "Java and cannot run here.",
        "",
        "*Basis* is where a rule comes from: S the specification, A the documentation of the annotations, T the",
        "conformance suite, R an implementation where the specification is silent, P what Python makes of it.",
        "",
        "| area | rules | tests |",
        "|---|---|---|",
    ]
    count = Counter(rule.area for rule in book.rules.values())
    for area, title in book.areas.items():
        of_area = {(mark.file, mark.test) for mark in marks if book.rules[mark.rule].area == area}
        lines.append(f"| [{title}](#{_anchor(title)}) | {count[area]} | {len(of_area)} |")
    for area, title in book.areas.items():
        lines += ["", f"## {title}", "", "| rule | what it says | basis | state | tests |", "|---|---|---|---|---|"]
        for rule in (rule for rule in book.rules.values() if rule.area == area):
            held = "<br>".join(f"`{mark.file}::{mark.test}`" for mark in marks if mark.rule == rule.id)
            why = book.missing.get(rule.id)
            state = "met" if why is None else f"not offered: {why}"
            lines.append(f"| {rule.id} | {rule.text.replace('|', chr(92) + '|')} | {rule.basis} | {state} | {held} |")
    lines += ["", "## Notice", "", book.notice, ""]
    return "\n".join(lines)


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def main() -> int:
    book, marks = read_rules(), read_marks()
    wrong = problems(book, marks)
    if not wrong:
        written = page(book, marks)
        if "--check" not in sys.argv:
            PAGE.write_text(written, encoding="utf-8")
        elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != written:
            wrong = [f"{PAGE.name} is stale: run python scripts/microprofile_page.py"]
    for one in wrong:
        print(one)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
