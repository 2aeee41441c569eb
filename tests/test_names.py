"""The top-level names: what type checkers are told is what there is, and nothing is loaded before it is used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import everkeel


def _told_to_type_checkers() -> dict[str, str]:
    """Name to module, from the imports that only type checkers read."""
    tree = ast.parse(Path(inspect.getfile(everkeel)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_type_checkers_are_told_where_each_name_lives() -> None:
    told = _told_to_type_checkers()
    assert told.pop("events") == "everkeel"
    assert told == everkeel._HOME


def test_every_public_name_is_listed_once_and_sorted() -> None:
    assert everkeel.__all__ == sorted({*everkeel._HOME, "events"})


@pytest.mark.parametrize("name", everkeel.__all__)
def test_a_public_name_is_the_one_of_its_home(name: str) -> None:
    home = everkeel._HOME.get(name)
    expected = import_module("everkeel.events") if home is None else getattr(import_module(home), name)
    assert getattr(everkeel, name) is expected


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'everkeel' has no attribute 'rety'"):
        everkeel.__getattr__("rety")


def test_dir_shows_names_that_are_not_loaded_yet() -> None:
    assert set(everkeel.__all__) <= set(dir(everkeel))


def test_importing_everkeel_loads_no_policy_and_a_policy_only_what_it_needs() -> None:
    script = (
        "import sys, everkeel\n"
        "assert not [name for name in sys.modules if name.startswith('everkeel.')]\n"
        "everkeel.retry\n"
        "assert 'everkeel.policies.circuit_breaker.policy' not in sys.modules\n"
        "assert 'everkeel.events' not in sys.modules and 'asyncio' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
