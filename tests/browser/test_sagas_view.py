"""Sagas in the browser: those that need somebody first, what each did, and what an operator can do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Page, expect

from everkeel import NotRetryable, events
from everkeel.control import ControlPlane, dead_letters_section, sagas_section
from everkeel.engines.memory.engine import MemoryEngine
from everkeel.errors import SagaCompensatedError, SagaStoppedError
from everkeel.messaging import DeadLetters, Event
from everkeel.sagas import NOTHING, Choreography, Orchestrator, Reaction, Saga, Sagas, Step
from everkeel.sagas.happenings import Done
from everkeel.sagas.performing import Report

OpenPage = Callable[..., Page]
T = TypeVar("T")
EVIL = "<img src=x onerror=alert(1)>"


def done(act: Coroutine[Any, Any, T]) -> T:
    """What a coroutine answers; in a thread, because the browser's driver has an event loop in this one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, act).result()


class Shop:
    """Three services, one of which cannot undo what it did."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.letters = DeadLetters(self.engine)
        self.bank_is_down = True
        quick: dict[str, Any] = {"backoff": 0.01, "jitter": None}
        self.saga: Saga[Any, Any, Any] = Saga(
            "order",
            Step("reserve", lambda context: {"shelf": 4}, lambda context: None, **quick),
            Step("charge", lambda context: None, self.refund, undo_attempts=2, **quick),
            Step("ship", self.ship, NOTHING, **quick),
        )

    def refund(self, context: Any) -> None:
        if self.bank_is_down:
            raise ConnectionError(f"the bank is down {EVIL}")

    def ship(self, context: Any) -> None:
        if context.input["fits"]:
            return
        raise NotRetryable("it does not fit through the door")

    def run(self, id: str, *, fits: bool = False) -> str:
        """Start one, and run until it ends or stops."""

        async def running() -> None:
            async with Orchestrator(self.engine, self.saga, poll=0.05) as orchestrator:
                given = {"fits": fits, "card": "4111-1111", "note": EVIL}
                handle = await orchestrator.start(self.saga, given, id=id, correlation_id=f"c-{id}")
                try:
                    await handle.result(10)
                except (SagaStoppedError, SagaCompensatedError):
                    pass

        done(running())
        return id

    def leave(self, id: str) -> str:
        """Start one that nobody works on."""

        async def starting() -> None:
            await Orchestrator(self.engine, self.saga).start(self.saga, {"fits": True}, id=id)

        done(starting())
        return id

    def late(self, id: str) -> str:
        """One that was undone when its payment came to light, which cannot be undone."""
        self.leave(id)

        async def working() -> None:
            async with Orchestrator(self.engine, self.saga, poll=0.05) as orchestrator:
                await orchestrator.sagas.cancel(id)
                await orchestrator.wait(id, 10)
                blocked = asyncio.Event()
                orchestrator.subscribe(lambda event: blocked.set(), events.CompensationBlocked)
                orchestrator.report_late(id, Report(Done("charge")))
                await blocked.wait()

        done(working())
        return id

    def carry_on(self, id: str) -> None:
        async def working() -> None:
            async with Orchestrator(self.engine, self.saga, poll=0.05) as orchestrator:
                await orchestrator.wait(id, 10)

        done(working())

    def state(self, id: str) -> str:
        return done(Sagas(self.engine).get(id)).state.value


@pytest.fixture
def shop(plane: ControlPlane) -> Shop:
    shop = Shop()
    plane.add_section(sagas_section(shop.engine, dead_letters=shop.letters, redact=["card"]))
    plane.add_section(dead_letters_section(shop.letters))
    return shop


def test_those_that_need_somebody_come_first_and_the_list_is_filtered(open_page: OpenPage, shop: Shop) -> None:
    shop.run("o-1")
    shop.run("o-2", fits=True)
    shop.leave("o-3")
    page = open_page("operator")
    page.get_by_role("link", name="Sagas").click()
    expect(page.locator(".row")).to_have_count(3)
    first = page.locator(".row").first
    expect(first).to_contain_text("compensation blocked")
    expect(first).to_contain_text("o-1")
    expect(first).to_contain_text("at charge")
    expect(page.get_by_text("3 sagas, 1 of them need somebody")).to_be_visible()
    page.get_by_label("State").select_option("completed")
    expect(page.locator(".row")).to_have_count(1)
    expect(page.locator(".row")).to_contain_text("o-2")
    page.get_by_label("State").select_option("")
    page.get_by_label("Correlation").fill("c-o-1")
    page.get_by_label("Correlation").press("Enter")
    expect(page.locator(".row")).to_have_count(1)
    page.get_by_label("Type").fill("nothing")
    page.get_by_label("Type").press("Enter")
    expect(page.get_by_text("No saga fits")).to_be_visible()


def test_one_that_has_ended_needs_somebody_where_a_late_undo_failed(open_page: OpenPage, shop: Shop) -> None:
    shop.late("o-1")
    shop.run("o-2", fits=True)
    page = open_page("operator", view="/#/sagas")
    first = page.locator(".row").first
    expect(first).to_contain_text("late undo failed")
    expect(page.get_by_text("2 sagas, 1 of them need somebody")).to_be_visible()
    first.get_by_role("link").click()
    page.get_by_label("Reason").fill("settled with the customer")
    page.get_by_role("button", name="Leave it as it is").click()
    page.get_by_role("dialog").get_by_role("button", name="Leave it as it is").click()
    expect(page.get_by_text("It has ended: nothing more to do.")).to_be_visible()


def test_an_empty_list_says_so_and_fills_by_itself(open_page: OpenPage, shop: Shop) -> None:
    page = open_page("viewer", view="/#/sagas")
    expect(page.get_by_text("No sagas yet")).to_be_visible()
    shop.run("o-1", fits=True)
    expect(page.locator(".row")).to_have_count(1, timeout=10_000)


def test_one_saga_shows_its_steps_drawn_and_in_words_and_text_stays_text(open_page: OpenPage, shop: Shop) -> None:
    id = shop.run("o-1")
    event = Event("order.charged", {"order": 7}, source="/orders").changed(sagaid=id)
    bury = shop.letters.bury(
        event, consumer="mail", topic="orders", reason="attempts", error=ValueError("who?"), attempts=3
    )
    done(bury)
    page = open_page("operator", view=f"/#/sagas/{id}")
    expect(page.get_by_role("heading", level=1)).to_have_text("order")
    charge = page.locator('.step[data-step="charge"]')
    expect(charge).to_contain_text("undo failed")
    expect(charge.locator(".band")).to_have_count(2)
    expect(charge.locator(".band").nth(0).locator(".try.done")).to_have_count(1)
    expect(charge.locator(".band").nth(1).locator(".try.undo-failed")).to_have_count(2)
    expect(page.locator('.step[data-step="ship"] .try.rejected')).to_have_count(1)
    expect(page.locator('.step[data-step="reserve"]')).to_contain_text("done")
    expect(page.locator(".step-error").first).to_contain_text(f"the bank is down {EVIL}")
    expect(page.locator("pre").first).to_contain_text('"card": "***"')
    expect(page.locator("pre").first).to_contain_text(EVIL)
    assert "4111" not in page.content()
    assert page.locator("main img").count() == 0
    expect(page.locator(".feed").last).to_contain_text("step rejected ship")
    page.get_by_role("link", name="order.charged in mail").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("order.charged")


def test_a_compensation_is_tried_again_and_the_page_follows(open_page: OpenPage, shop: Shop) -> None:
    id = shop.run("o-1")
    page = open_page("operator", view=f"/#/sagas/{id}")
    page.get_by_label("Reason").fill("the bank is back")
    page.get_by_role("button", name="Try to undo it again").click()
    expect(page.get_by_text("It is being undone again.")).to_be_visible()
    expect(page.locator(".title .badge")).to_contain_text("compensating")
    expect(page.locator(".feed").last).to_contain_text("retry charge by operator: the bank is back")
    shop.bank_is_down = False
    shop.carry_on(id)
    expect(page.locator(".title .badge")).to_contain_text("compensated", timeout=10_000)
    expect(page.locator('.step[data-step="charge"] .try.undone')).to_have_count(1)
    expect(page.get_by_text("It has ended: nothing more to do.")).to_be_visible()
    expect(page.get_by_label("Reason")).to_be_hidden()


@pytest.mark.parametrize(
    ("button", "state"),
    [("Leave it as it is", "compensating"), ("It was undone by hand", "compensating"), ("Give up", "failed")],
)
def test_what_cannot_be_taken_back_needs_a_reason_and_certainty(
    open_page: OpenPage, shop: Shop, button: str, state: str
) -> None:
    id = shop.run("o-1")
    page = open_page("operator", view=f"/#/sagas/{id}")
    page.get_by_role("button", name=button).click()
    expect(page.get_by_text("Say why")).to_be_visible()
    page.get_by_label("Reason").fill("agreed with the customer")
    page.get_by_role("button", name=button).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert shop.state(id) == "compensation_blocked"
    page.get_by_role("button", name=button).click()
    page.get_by_role("dialog").get_by_role("button", name=button).click()
    expect(page.locator(".title .badge")).to_contain_text(state)
    assert shop.state(id) == state


def test_a_saga_is_cancelled(open_page: OpenPage, shop: Shop) -> None:
    id = shop.leave("orders/3 ü")
    page = open_page("operator", view="/#/sagas")
    page.locator(".row a").click()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").locator("button[value=yes]").click()
    expect(page.locator(".title .badge")).to_contain_text("compensating")
    assert shop.state(id) == "compensating"


def test_the_second_operator_is_told_and_nothing_is_done_twice(open_page: OpenPage, shop: Shop) -> None:
    id = shop.run("o-1")
    page = open_page("operator", view=f"/#/sagas/{id}", may_say="412")
    page.get_by_label("Reason").fill("mine")
    page.get_by_role("button", name="Leave it as it is").click()
    done(Sagas(shop.engine).retry(id, "charge", actor="somebody else"))
    page.get_by_role("dialog").get_by_role("button", name="Leave it as it is").click()
    expect(page.get_by_text("Somebody was faster")).to_be_visible()
    expect(page.locator(".feed").last).to_contain_text("by somebody else")
    assert done(Sagas(shop.engine).get(id)).steps["charge"].status.value != "undo_skipped"


def test_a_viewer_only_looks(open_page: OpenPage, shop: Shop) -> None:
    id = shop.run("o-1")
    page = open_page("viewer", view=f"/#/sagas/{id}")
    expect(page.get_by_text("needs the role operator")).to_be_visible()
    expect(page.locator("main button")).to_have_count(0)
    expect(page.get_by_label("Reason")).to_be_hidden()


def test_what_is_not_there_is_said(open_page: OpenPage, shop: Shop) -> None:
    page = open_page("viewer", view="/#/sagas/nobody", may_say="404")
    expect(page.get_by_text("there is no saga 'nobody'")).to_be_visible()


def test_the_steps_of_a_choreographed_saga_are_drawn_from_what_services_said(open_page: OpenPage, shop: Shop) -> None:
    room = Reaction("room", done="RoomHeld", compensation="FreeRoom", undone="RoomFreed", by="hotel")
    trip = Choreography("trip", room, Reaction("pay", done="Paid", pivot=True), starts="TripBooked")

    async def follow() -> None:
        orchestrator = Orchestrator(shop.engine, trip)
        for type in ("TripBooked", "RoomHeld"):
            await orchestrator.observe(trip.mark(Event(type, {"trip": 1}, source="/trips"), "trip-1"))

    done(follow())
    page = open_page("viewer", view="/#/sagas/trip-1")
    expect(page.locator('.step[data-step="room"] .try.done')).to_have_count(1)
    expect(page.locator('.step[data-step="pay"] .try.running')).to_have_count(1)
    expect(page.get_by_text("version 1, choreographed")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_phone(open_page: OpenPage, shop: Shop, theme: str) -> None:
    id = shop.run("o-1-with-a-long-name-" + "x" * 80)
    page = open_page("operator", view="/#/sagas", viewport={"width": 375, "height": 740}, color_scheme=theme)
    expect(page.locator(".row")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.locator(".row a").click()
    expect(page.locator(".step")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert shop.state(id) == "compensation_blocked"


def test_without_sagas_there_is_no_such_view(open_page: OpenPage) -> None:
    page = open_page("viewer")
    expect(page.get_by_role("link", name="Policies")).to_be_visible()
    expect(page.get_by_role("link", name="Sagas")).to_have_count(0)
