"""The demo's shop, killed at every named point that its services pass and at random: the books balance.

The short version of what `make crash` does to it. Where a run fails, its lines say what is wrong.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

# Not how long it takes, but how long a machine may take that does ten other things.
pytestmark = pytest.mark.timeout(500)
SOURCE = Path(__file__).parents[2] / "src" / "everkeel"


@pytest.fixture(scope="module")
def shop_campaign():
    spec = importlib.util.spec_from_file_location("shop_campaign", Path(__file__).with_name("shop_campaign.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["shop_campaign"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_named_point_of_sagas_and_messaging_is_one_at_which_the_shop_is_killed_or_has_a_reason(shop_campaign):
    named = {
        name
        for package in ("sagas", "messaging")
        for file in (SOURCE / package).rglob("*.py")
        for name in re.findall(r'crash_point\(\s*"([^"]+)"(?: if [^)]*? else "([^"]+)")?', file.read_text())
        for name in name
        if name
    }
    killed = set().union(*shop_campaign.POINTS.values())
    assert "saga.before_undo" in named
    assert named - killed == set(shop_campaign.ELSEWHERE)
    assert killed - named == set()
    assert set().union(*shop_campaign.ONCE.values()) == killed


def check(report, capsys, least: int) -> None:
    with capsys.disabled():
        print("\n" + "\n".join(report.lines()))
    assert report.wrong == [], report.logs
    assert report.kills >= least
    assert report.ends["confirmed"] > 0
    assert report.ends["cancelled"] > 0
    assert report.ends.total() == report.orders


def test_killed_at_every_point_the_books_of_the_shop_balance(shop_campaign, capsys) -> None:
    check(shop_campaign.campaign("sqlite", "sqlite", short=True), capsys, 25)


@pytest.mark.slow
@pytest.mark.require_server("postgres")
@pytest.mark.require_server("redis")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("where", [("sqlite", "sqlite"), ("postgres", "redis")])
def test_every_service_killed_at_every_point_the_books_of_the_shop_balance(shop_campaign, capsys, where) -> None:
    check(shop_campaign.campaign(*where), capsys, 55)
