"""A process that stops for longer than every lease and then goes on as if nothing had happened.

A virtual machine that was moved, a laptop that slept. Others have taken over its work by then, and it must do no harm.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

pytestmark = [
    pytest.mark.timeout(900),  # a machine that does ten other things
    pytest.mark.require_server("postgres"),
    pytest.mark.require_server("redis"),
]


class Shop:
    """The processes of a shop, of which some are frozen."""

    def __init__(self, campaign, shop):
        self.campaign, self.shop = campaign, shop
        self.nursery = campaign.Nursery(shop)
        self.alive: dict[int, str] = {}

    def start(self, role):
        known = set(self.alive)
        self.nursery.start(role, None)
        self.until(lambda: set(self.alive) - known)
        return (set(self.alive) - known).pop()

    def until(self, satisfied):
        ends = time.monotonic() + 400
        while not satisfied():
            assert time.monotonic() < ends, "nothing moves any more"
            for news in self.nursery.news(0.05):
                if "started" in news:
                    self.alive[news["started"]] = news["role"]
                else:
                    role = self.alive.pop(news["ended"])
                    assert news["code"] == 0, f"{role} ended with {news['code']}"

    def effects(self):
        return self.campaign.ask(self.shop, "SELECT count(*) FROM effects")[0][0]

    def leases_are_over(self):
        """What was held when somebody was frozen can be taken over, and work goes on."""
        before, over = self.effects(), time.monotonic() + 1.5 * self.campaign.services.LEASE
        self.until(lambda: time.monotonic() > over and self.effects() >= before + 10)


def test_whoever_was_frozen_past_its_leases_changes_nothing_when_it_goes_on(crash_campaign):
    with crash_campaign.shop_of("postgres", "redis") as (shop, _):
        world = Shop(crash_campaign, shop)
        try:
            for role in ("orders", "mailing", "operator"):
                world.start(role)
            working = {role: world.start(role) for role in ("relay", "billing")}
            world.until(lambda: world.effects() >= 10)
            for role in ("billing", "relay", "billing"):
                frozen = working[role]
                os.kill(frozen, signal.SIGSTOP)
                working[role] = world.start(role)
                world.leases_are_over()
                os.kill(frozen, signal.SIGCONT)
            world.leases_are_over()  # now with the old and the new side by side
            (crash_campaign.Path(shop.folder) / "stop").touch()
            world.until(lambda: "orders" not in world.alive.values())
            report = crash_campaign.Report("frozen")
            pending = crash_campaign.still_to_do
            world.until(lambda: not any(pending(shop).values()))
        finally:
            world.nursery.close()
        crash_campaign.count(report, shop)
        assert (report.lost, report.twice, report.alone, report.out_of_order) == ([], [], [], [])
        assert report.written == report.effects + report.discarded
