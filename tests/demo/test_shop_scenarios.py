"""Each bad day of the shop, small, with all services in one process; and what the director makes of a bad end."""

from __future__ import annotations

import asyncio
import io
import json

import pytest

from everkeel.demo.shop import director, orders, scenarios
from everkeel.demo.shop.choreography import CHOREOGRAPHY, COMPENSATIONS
from everkeel.demo.shop.director import Report, direct
from everkeel.demo.shop.stage import Stage
from everkeel.demo.shop.view import View
from everkeel.engines.sagas import SagaFilter

# Not how long it takes, but how long a machine may take that does ten other things.
pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("fresh_everkeel")]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders are given up sooner than in the play: nobody wants to wait for that."""
    monkeypatch.setattr(CHOREOGRAPHY, "deadline", 3.0)
    monkeypatch.setattr(orders, "DEADLINE", 3.0)


def play(*names: str, orders: int = 4) -> tuple[Report, str]:
    stream = io.StringIO()
    view = View(stream)
    report = asyncio.run(direct(Report("sqlite", "memory"), names, orders=orders, view=view))
    view.table(report.outcomes)
    view.audited(report.checks, report.right)
    view.logged(report.logs)
    return report, stream.getvalue()


@pytest.mark.usefixtures("impatient")
def test_orders_that_cannot_be_paid_for_are_given_up_in_both_styles() -> None:
    report, printed = play("down")
    assert report.right, printed
    assert report.outcomes[0].cancelled == report.outcomes[0].orders == 8
    assert "the circuit around the charge step opened" in printed


@pytest.mark.parametrize("name", [name for name in scenarios.SCENARIOS if name != "down"])
def test_a_bad_day_ends_with_books_that_balance(name: str) -> None:
    report, printed = play(name)
    assert report.right, printed
    assert len(report.checks) >= 10
    assert "Nothing was lost, and nothing was done twice." in printed
    (outcome,) = report.outcomes
    assert outcome.orders == outcome.confirmed + outcome.cancelled
    if name == "killed":
        assert "SKIPPED: all services are in this process, and there is nothing to kill" in printed
    else:
        assert outcome.orders > 0


def test_choreographed_and_orchestrated_orders_are_seen_in_the_same_store() -> None:
    async def main():
        async with Stage("sqlite", "memory") as stage:
            report = director.Report("sqlite", "memory")
            customers = director.Customers(stage.world.url("orders"))
            for name in ("happy", "stock"):
                report.outcomes.append(await director._played(name, stage, customers, 4, View(quiet=True)))
            await director.closing_time(stage, customers, View(quiet=True))
            page = await stage.books["orders"].engine.sagas.query(SagaFilter(), limit=50)
            events = await stage.books["payments"].rows("SELECT attributes FROM everkeel_outbox")
            scene = scenarios.Scene(stage, customers, 4, report.outcomes[0], print)
            listed = await scene.ask("orders", "GET", "/sagas")
            known = await scene.ask("inventory", "GET", "/inbox/inventory/happy-1", params={"source": "/orders"})
            ends = {
                end: await scene.count_of("orders", "everkeel_saga_duration_seconds_count", state=end)
                for end in ("completed", "compensated")
            }
            handled = await scene.count_of("payments", "everkeel_consumer_events_total", outcome="handled")
            for _ in range(200):  # the stores are read once in a second
                waiting = await scene.count_of("orders", "everkeel_outbox_depth", store="orders")
                if not waiting:
                    break
                await asyncio.sleep(0.05)
            assert not waiting
            assert known["state"] == "completed"
            assert ends == {"completed": 4, "compensated": 4}
            assert handled >= 2
            return page.rows, [json.loads(row[0]) for row in events], listed["sagas"]

    rows, events, listed = asyncio.run(main())
    ends = {(row.kind, row.state.value) for row in rows}
    assert ends == {(kind, end) for kind in ("orchestrated", "choreographed") for end in ("completed", "compensated")}
    assert {one["kind"] for one in listed} == {"orchestrated", "choreographed"}
    said = {one["sagastepnumber"] for one in events if one["sagatype"] == CHOREOGRAPHY.name}
    assert said == {3}  # the payments service does the third step, and says so in the envelope
    assert all(one["sagaid"] == one["correlationid"] for one in events)


def test_it_is_written_down_what_undoes_what_and_who_does_it() -> None:
    assert COMPENSATIONS["PaymentTaken"].undone_by == "RefundPayment"
    assert COMPENSATIONS["PaymentTaken"].by == "payments"
    assert {one.by for one in COMPENSATIONS} == {"orders", "inventory", "payments"}


def test_a_scenario_that_breaks_is_a_wrong_end_with_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(scene: scenarios.Scene) -> None:
        """It breaks."""
        import logging

        logging.getLogger("shop").warning("something odd")
        raise LookupError("nobody wrote this scene")

    monkeypatch.setitem(scenarios.SCENARIOS, "happy", ("Broken", broken))
    report, printed = play("happy")
    assert not report.right
    assert "LookupError: nobody wrote this scene" in printed
    assert "Something is wrong: see above." in printed
    assert "something odd" in printed
    whole = json.loads(report.as_json())
    assert whole["right"] is False
    assert whole["scenarios"][0]["problems"] == ["LookupError: nobody wrote this scene"]


def test_books_that_do_not_balance_are_a_wrong_end_that_says_what(monkeypatch: pytest.MonkeyPatch) -> None:
    async def thief(scene: scenarios.Scene) -> None:
        """Somebody takes from the shelf."""
        from everkeel.engines.sql.statement import Statement, one

        await scene.settled(await scene.buy())
        take = Statement("UPDATE stock SET available = available - 1 WHERE item = 'lantern'")
        await scene.stage.books["inventory"].engine.run(one(take))

    monkeypatch.setitem(scenarios.SCENARIOS, "happy", ("A thief", thief))
    monkeypatch.setattr(director, "REST_WITHIN", 1.0)
    report, printed = play("happy")
    assert not report.right
    assert "✗ it is not so that goods stocked equal goods left and reserved" in printed
    assert "expected 144, found 143" in printed
