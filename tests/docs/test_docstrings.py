"""Every `>>>` example in a docstring of the package runs and answers what it says. A module is one test."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import everkeel

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(everkeel.__path__, "everkeel.")
    if not module.name.endswith("__main__")  # importing it would run it
)


def run_examples(test: doctest.DocTest, runner: doctest.DocTestRunner) -> None:
    """Run the examples of one docstring. The place to wrap for another clock."""
    runner.run(test)


@pytest.mark.parametrize("name", ["everkeel", *MODULES])
def test_the_docstring_examples_of_this_module_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name)):
        run_examples(test, runner)
    if runner.failures:
        pytest.fail(capsys.readouterr().out, pytrace=False)
