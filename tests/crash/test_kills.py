"""kill -9 at every named point and at random, servers included: nothing is lost or done twice, keys keep their order.

The short version of `make crash`. Where a run fails, the logs of the killed processes are in the output.
"""

from __future__ import annotations

import pytest

# Not how long it takes, but how long a machine may take that does ten other things.
pytestmark = pytest.mark.timeout(900)

SQLITE = ("sqlite", "sqlite")
REDIS = ("postgres", "redis")
ONE_BROKER_FILE = ("postgres", "sqlite")


def check(campaign, engines, capsys, **how):
    report = campaign.campaign(*engines, within=800, **how)
    with capsys.disabled():
        print("\n" + "\n".join(report.lines()))
    assert campaign.wrongs(report) == []
    assert not any(report.pending.values())
    assert report.effects + report.discarded == report.written
    return report


def test_every_named_point_is_one_at_which_processes_are_killed(crash_campaign):
    killed_at = set().union(*crash_campaign.POINTS.values())
    named = crash_campaign.named_in_source()
    assert named - killed_at == set(), "add them to POINTS in tests/crash/campaign.py"
    assert killed_at - named == set(), "no code passes these points any more"


def test_killed_everywhere_on_sqlite_every_order_has_one_effect(crash_campaign, capsys):
    report = check(crash_campaign, SQLITE, capsys, at_random=5)
    assert report.kills >= 30
    assert not report.gave_up, report.last_words  # nothing but kills ends a process here


@pytest.mark.require_server("postgres")
@pytest.mark.require_server("redis")
def test_killed_everywhere_on_postgresql_and_redis_with_both_restarted_every_order_has_one_effect(
    crash_campaign, capsys
):
    report = check(crash_campaign, REDIS, capsys, at_random=5, restarts=1)
    assert report.kills >= 30
    assert report.restarts == {"postgres": 1, "redis": 1}


@pytest.mark.slow
@pytest.mark.require_server("postgres")
def test_killed_everywhere_on_postgresql_with_a_broker_of_sqlite_every_order_has_one_effect(crash_campaign, capsys):
    check(crash_campaign, ONE_BROKER_FILE, capsys, at_random=10, rounds=2, restarts=2)


@pytest.mark.slow
@pytest.mark.require_server("postgres")
@pytest.mark.require_server("redis")
def test_killed_over_and_over_with_servers_restarted_every_order_has_one_effect(crash_campaign, capsys):
    check(crash_campaign, REDIS, capsys, at_random=20, rounds=4, restarts=4)


def test_a_campaign_sees_what_is_lost_repeated_or_out_of_order(crash_campaign):
    """A judge that never says no proves nothing."""
    good = crash_campaign.Report("good", written=100, mailed=100)
    for points in crash_campaign.POINTS.values():
        good.by_point.update(points)
    assert crash_campaign.wrongs(good) == []
    with crash_campaign.shop_of("sqlite", "sqlite") as (shop, _):
        from contextlib import closing

        with closing(shop.connect()) as connection:
            for n in (1, 2, 3, 4):
                row = (f"orders-{n}", "orders", n, "k", "plain")
                connection.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", row)
            for id in ("orders-2", "orders-1", "orders-1", "orders-9"):
                connection.execute("INSERT INTO effects (id, key) VALUES (?, 'k')", (id,))
        report = crash_campaign.Report("bad")
        crash_campaign.count(report, shop)
        assert report.lost == ["orders-3", "orders-4"]
        assert report.twice == ["orders-1"]
        assert report.alone == ["orders-9"]
        assert report.out_of_order
        assert len(crash_campaign.wrongs(report)) >= 5
