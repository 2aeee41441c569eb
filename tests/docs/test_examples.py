"""Every ```python block of README.md and docs/ runs. A page is one program: its blocks share a namespace, in order.

A block that cannot run here is left out by a comment right before it, and counted in the summary:

    <!-- no-test: needs a server -->
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if "_build" not in page.parts]

FENCE = re.compile(r"^\s*(?P<fence>`{3,}|~{3,})\s*(?P<language>[^\s`]*)")
NO_TEST = re.compile(r"^\s*<!--\s*no-test\b.*-->\s*$")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int  # of its first line of code, counted from 1
    source: str
    excluded: bool

    def compile(self) -> types.CodeType:
        # Padded, so that a traceback points at the line of the page.
        padded = "\n" * (self.line - 1) + self.source
        return compile(padded, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def python_blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    last_words = ""  # the last line with something on it before the block
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
        if opening["language"] == "python":
            source = textwrap.dedent("\n".join(lines[start:number]))
            yield Block(page, start + 1, source, excluded=bool(NO_TEST.match(last_words)))
        last_words = ""
        number += 1


def run_page(blocks: list[Block]) -> None:
    """Run the blocks of one page, in order, in one namespace; `await` at top level is allowed.

    This is the place to wrap when the pages shall run under another clock or event loop.
    """
    page = types.ModuleType("example_page")
    sys.modules[page.__name__] = page  # dataclasses, pickle and get_type_hints look there
    try:
        with asyncio.Runner() as runner:
            for block in blocks:
                code = block.compile()
                if code.co_flags & inspect.CO_COROUTINE:
                    runner.run(types.FunctionType(code, vars(page))())
                else:
                    exec(code, vars(page))
    finally:
        del sys.modules[page.__name__]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_this_page_run(page: Path, record_property: pytest.RecordProperty) -> None:
    blocks = list(python_blocks(page))
    record_property("excluded_examples", sum(block.excluded for block in blocks))
    run_page([block for block in blocks if not block.excluded])
