"""Every `>>>` example in a docstring of the package runs, in virtual time, and answers what it says.

A module is one test.
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import everkeel
from everkeel.testing import VirtualClock

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(everkeel.__path__, "everkeel.")
    if not module.name.endswith("__main__")  # importing it would run it
)


@pytest.mark.parametrize("name", ["everkeel", *MODULES])
def test_the_docstring_examples_of_this_module_run(
    name: str, clock: VirtualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name)):
        runner.run(test)
    if runner.failures:
        pytest.fail(capsys.readouterr().out, pytrace=False)
