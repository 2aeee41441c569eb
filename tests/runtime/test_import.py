"""`import everkeel` pulls in nothing it does not need."""

from __future__ import annotations

import pytest

LOADED = """
import sys
before = set(sys.modules)
import everkeel
{act}
print(*sorted(set(sys.modules) - before))
"""


@pytest.fixture
def loaded_by(in_a_new_process):
    """The modules that importing everkeel, and then doing something, brings along."""
    return lambda act="pass": set(in_a_new_process(LOADED.format(act=act)).split())


def test_it_loads_no_third_party_module(loaded_by):
    import sys

    top_level = {name.partition(".")[0] for name in loaded_by()}
    assert top_level - sys.stdlib_module_names == {"everkeel"}


@pytest.mark.parametrize("costly", ["asyncio", "logging", "random", "concurrent.futures", "everkeel.events"])
def test_it_leaves_what_costs_to_those_who_use_it(loaded_by, costly):
    assert costly not in loaded_by()


def test_sync_calls_do_without_asyncio(loaded_by):
    act = "everkeel.pipeline(everkeel.fallback(1), everkeel.retry()).call(len, '')"
    assert "asyncio" not in loaded_by(act)


def test_a_sync_function_is_woven_without_asyncio(loaded_by):
    assert "asyncio" not in loaded_by("everkeel.retry()(lambda: None)()")


def test_calls_nobody_hears_do_without_the_events(loaded_by):
    act = "everkeel.retry('fetch', backoff=0)(lambda: None)(); everkeel.fallback(1).call(int, 'no number')"
    assert "everkeel.events" not in loaded_by(act)


@pytest.mark.parametrize(
    "act",
    ["everkeel.events", "everkeel.subscribe(print)", "everkeel.retry().subscribe(print)"],
    ids=["name", "listen to all", "listen to one"],
)
def test_the_events_are_there_for_whoever_asks(loaded_by, act):
    assert "everkeel.events" in loaded_by(f"{act}; everkeel.retry().call(int)")


def test_the_pytest_plugin_is_not_part_of_it(loaded_by):
    assert not {name for name in loaded_by() if name.startswith("everkeel.testing")}


def test_every_public_name_is_there():
    import everkeel

    for name in everkeel.__all__:
        assert getattr(everkeel, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error():
    import everkeel

    with pytest.raises(AttributeError, match="module 'everkeel' has no attribute 'retries'"):
        everkeel.retries  # noqa: B018
