"""Every ```python block of README.md and docs/ runs. A page is one program: its blocks share a namespace, in order.

A block that cannot run here is left out by a comment right before it, and counted in the summary:

    <!-- no-test: needs a server -->

A text block after a Python block is what that one prints (`...` stands for anything), if it is announced:

    <!-- prints -->
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import io
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from everkeel.testing import VirtualClock, VirtualLoop

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if "_build" not in page.parts]

FENCE = re.compile(r"^\s*(?P<fence>`{3,}|~{3,})\s*(?P<language>[^\s`]*)")
NO_TEST = re.compile(r"^\s*<!--\s*no-test\b.*-->\s*$")
PRINTS = re.compile(r"^\s*<!--\s*prints\s*-->\s*$")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int  # of its first line of code, counted from 1
    source: str
    excluded: bool
    prints: str | None = None  # what it must print; None: whatever it likes

    def compile(self) -> types.CodeType:
        # Padded, so that a traceback points at the line of the page.
        padded = "\n" * (self.line - 1) + self.source
        return compile(padded, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def fences(page: Path) -> Iterator[tuple[str, int, str, str]]:
    """Every fenced block: its language, the line it begins at, its text, and the last line with words before it."""
    lines = page.read_text(encoding="utf-8").splitlines()
    last_words = ""
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        number += 1
        if not opening:
            last_words = lines[number - 1] if lines[number - 1].strip() else last_words
            continue
        start, fence = number, opening["fence"]
        while number < len(lines) and not re.match(rf"^\s*{fence}{fence[0]}*\s*$", lines[number]):
            number += 1
        yield opening["language"], start + 1, textwrap.dedent("\n".join(lines[start:number])), last_words
        last_words = ""
        number += 1


def python_blocks(page: Path) -> list[Block]:
    blocks: list[Block] = []
    for language, line, text, last_words in fences(page):
        if language == "python":
            blocks.append(Block(page, line, text, excluded=bool(NO_TEST.match(last_words))))
        elif PRINTS.match(last_words):
            blocks[-1] = replace(blocks[-1], prints=text)
    return blocks


def run_page(blocks: list[Block], clock: VirtualClock) -> None:
    """Run the blocks of one page, in order, in one namespace and in virtual time; `await` at top level is allowed."""
    page = types.ModuleType("example_page")
    sys.modules[page.__name__] = page  # dataclasses, pickle and get_type_hints look there
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
            for block in blocks:
                code, printed = block.compile(), io.StringIO()
                with redirect_stdout(printed):
                    if code.co_flags & inspect.CO_COROUTINE:
                        runner.run(types.FunctionType(code, vars(page))())
                    else:
                        exec(code, vars(page))
                if block.prints is not None:
                    must_print(block, printed.getvalue())
    finally:
        del sys.modules[page.__name__]


def must_print(block: Block, printed: str) -> None:
    promised = (block.prints or "").strip() + "\n"
    if not doctest.OutputChecker().check_output(promised, printed.strip() + "\n", doctest.ELLIPSIS):
        place = f"{block.page.relative_to(ROOT)}:{block.line}"
        pytest.fail(f"{place} says that it prints\n\n{promised}\nbut it prints\n\n{printed}", pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_this_page_run(page: Path, clock: VirtualClock, record_property: pytest.RecordProperty) -> None:
    blocks = python_blocks(page)
    record_property("excluded_examples", sum(block.excluded for block in blocks))
    run_page([block for block in blocks if not block.excluded], clock)


TESTS = [
    block
    for page in PAGES
    for block in python_blocks(page)
    if re.search(r"^(async )?def test_", block.source, re.MULTILINE)
]


@pytest.mark.parametrize("block", TESTS, ids=lambda block: f"{block.page.relative_to(ROOT)}:{block.line}")
def test_the_tests_in_this_block_pass(block: Block, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(block.source)
    outcomes = pytester.runpytest("-p", "no:randomly", "-p", "no:cacheprovider").parseoutcomes()
    assert outcomes == {"passed": len(re.findall(r"^(?:async )?def test_", block.source, re.MULTILINE))}
