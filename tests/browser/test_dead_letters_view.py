"""Dead letters in the browser: found, looked into, corrected and replayed, discarded with a reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Page, expect

from everkeel.control import ControlPlane, dead_letters_section, outbox_section
from everkeel.engines.memory.engine import MemoryEngine
from everkeel.messaging import DeadLetters, Event, Outbox, Status

OpenPage = Callable[..., Page]
T = TypeVar("T")


def done(act: Coroutine[Any, Any, T]) -> T:
    """What a coroutine answers; in a thread, because the browser's driver has an event loop in this one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, act).result()


@pytest.fixture
def letters(plane: ControlPlane) -> DeadLetters:
    engine = MemoryEngine()
    letters = DeadLetters(engine, redact=["card"])
    plane.add_section(dead_letters_section(letters))
    plane.add_section(outbox_section(Outbox(engine)))
    return letters


def bury(letters: DeadLetters, type: str = "order.placed", consumer: str = "payments") -> str:
    event = Event(type, {"order": 7, "card": "4111", "note": "<b>bold</b>"}, source="/orders", key="o-7")
    error = ValueError("no such account <script>alert(1)</script>")
    act = letters.bury(event, consumer=consumer, topic="orders", reason="attempts", error=error, attempts=3)
    return done(act).id


def test_a_letter_is_found_corrected_and_replayed(open_page: OpenPage, letters: DeadLetters) -> None:
    id = bury(letters)
    bury(letters, "order.cancelled", "stock")
    page = open_page("operator")
    page.get_by_role("link", name="Dead letters").click()
    expect(page.locator(".row")).to_have_count(2)
    page.get_by_label("Consumer").fill("payments")
    page.get_by_label("Consumer").press("Enter")
    expect(page.locator(".row")).to_have_count(1)
    page.locator(".row a").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("order.placed")
    expect(page.locator("pre")).to_contain_text("no such account <script>")
    data = page.get_by_label("Its data")
    assert "4111" not in data.input_value()
    expect(page.locator(".facts")).to_contain_text("not known whether any was handled since")
    data.fill(data.input_value().replace('"order": 7', '"order": 9007199254740993'))
    page.get_by_label("Key").fill("o-8")
    page.get_by_label("Reason").fill("the account is fixed")
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_text("It is on its way again.")).to_be_visible()
    expect(page.locator(".title .badge")).to_contain_text("replayed")
    expect(page.locator(".feed")).to_contain_text("by operator: the account is fixed")
    assert done(letters.get(id)).replays == 1
    (sent,) = done(letters.engine.outbox.claim("relay", 10, 30))
    assert sent.row.key == "o-8"
    corrected = json.loads(sent.row.payload)  # no number was rounded, and what was hidden is as it was
    assert (corrected["order"], corrected["card"]) == (9007199254740993, "4111")
    page.get_by_label("Reason").fill("the broker lost it")
    page.get_by_role("button", name="Its replay got lost").click()
    expect(page.locator(".title .badge")).to_contain_text("pending")


def test_discarding_asks_for_a_reason_and_for_certainty(open_page: OpenPage, letters: DeadLetters) -> None:
    id = bury(letters)
    page = open_page("operator", view=f"/#/dead-letters/{id}")
    page.get_by_role("button", name="Discard").click()
    expect(page.get_by_text("Say why")).to_be_visible()
    page.get_by_label("Reason").fill("a test order")
    page.get_by_role("button", name="Discard").click()
    page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    expect(page.locator(".title .badge")).to_contain_text("discarded")
    expect(page.get_by_text("It is dealt with")).to_be_visible()
    assert done(letters.get(id)).status is Status.DISCARDED


def test_all_that_fit_are_replayed_after_a_look_at_the_plan(open_page: OpenPage, letters: DeadLetters) -> None:
    for _ in range(3):
        bury(letters)
    page = open_page("operator", view="/#/dead-letters")
    page.get_by_role("button", name="Replay all that fit").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("order.placed")
    expect(dialog).to_contain_text("Newer events on the same keys: not known whether any was handled since, 3 waiting")
    dialog.get_by_role("button", name="Replay").click()
    expect(page.get_by_text("No dead letter fits")).to_be_visible(timeout=15_000)
    assert done(letters.engine.outbox.stats()).depth == 3


def test_the_second_operator_is_told_and_nothing_is_sent_twice(open_page: OpenPage, letters: DeadLetters) -> None:
    id = bury(letters)
    page = open_page("operator", view=f"/#/dead-letters/{id}", may_say="409")
    expect(page.get_by_role("button", name="Replay")).to_be_visible()
    done(letters.replay(id, actor="somebody else"))
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_text("replayed").first).to_be_visible()
    assert done(letters.engine.outbox.stats()).depth == 1


def test_a_viewer_only_looks_and_an_empty_store_says_so(open_page: OpenPage, letters: DeadLetters) -> None:
    page = open_page("viewer", view="/#/dead-letters")
    expect(page.get_by_text("No dead letter fits")).to_be_visible()
    id = bury(letters)
    page.goto(page.url.split("#")[0] + f"#/dead-letters/{id}")
    expect(page.get_by_text("need the role operator")).to_be_visible()
    expect(page.get_by_role("button", name="Replay")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_without_a_store_of_dead_letters_there_is_no_such_view(open_page: OpenPage) -> None:
    page = open_page("viewer")
    expect(page.get_by_role("link", name="Policies")).to_be_visible()
    expect(page.get_by_role("link", name="Dead letters")).to_have_count(0)
