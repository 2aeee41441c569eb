"""The dashboard in a real browser: it shows by itself what happens, acts for those who may, and for nobody else."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from everkeel import circuit_breaker, feature_toggle, rate_limit, retry
from everkeel.control import ControlPlane

OpenPage = Callable[..., Page]


def row(page: Page, name: str) -> Any:
    return page.locator(".row").filter(has=page.get_by_text(name, exact=True))


def fail(policy: Any, times: int) -> None:
    def broken() -> None:
        raise ConnectionError("down")

    for _ in range(times):
        with suppress(Exception):
            policy.call(broken)


def test_a_circuit_that_opens_is_seen_without_a_reload_and_comes_first(open_page: OpenPage) -> None:
    bank = circuit_breaker("bank", minimum_calls=2, window=4)
    other = retry("a-quiet-one")
    page = open_page("viewer")
    expect(row(page, "bank")).to_contain_text("closed")
    assert page.locator(".row .name").all_text_contents() == ["a-quiet-one", "bank"]
    fail(bank, 3)
    expect(row(page, "bank")).to_contain_text("open")
    expect(page.locator(".row .name").first).to_have_text("bank")
    expect(page.locator("#announce")).to_have_text("circuit breaker bank is now open")
    expect(page.locator(".tile").last).to_contain_text("1")
    later = [retry("made-later")]  # in a list: whoever looks at this frame keeps what its names stand for
    expect(row(page, "made-later")).to_be_visible()
    later.clear()
    gc.collect()  # the registry holds policies weakly, and a policy is part of a circle
    expect(row(page, "made-later")).to_have_count(0)
    assert other.name == "a-quiet-one"


def test_an_operator_opens_a_circuit_after_being_asked(open_page: OpenPage, plane: ControlPlane) -> None:
    bank = circuit_breaker("bank")
    page = open_page("operator")
    row(page, "bank").click()
    page.get_by_role("button", name="Hold open").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Every call will be rejected")
    dialog.get_by_role("button", name="Cancel").click()
    assert bank.state.phase.name == "closed"  # type: ignore[attr-defined]
    page.get_by_role("button", name="Hold open").click()
    dialog.get_by_role("button", name="Hold open").click()
    expect(page.get_by_text("Done: hold open.")).to_be_visible()
    assert plane.audit.entries()[-1].plain()["action"] == "force_open"
    expect(page.locator(".title .badge")).to_contain_text("open")
    expect(page.locator(".timeline")).to_be_visible()
    expect(page.locator(".feed").first).to_contain_text("circuit forced")
    page.get_by_role("button", name="Reset", exact=True).click()
    expect(page.locator(".title .badge")).to_contain_text("closed")
    expect(page.get_by_text("Changing settings needs the role admin")).to_be_visible()


def test_a_viewer_cannot_act(open_page: OpenPage) -> None:
    bank = circuit_breaker("bank")
    page = open_page("viewer", may_say="403")
    row(page, "bank").click()
    expect(page.get_by_text("Acting needs the role operator")).to_be_visible()
    expect(page.get_by_role("button", name="Hold open")).to_have_count(0)
    expect(page.get_by_role("button", name="Apply")).to_have_count(0)
    status = page.evaluate(
        """async () => (await fetch("control/circuit_breaker/bank/force_open",
            {method: "POST", headers: {"X-Everkeel-Request": "page"}})).status"""
    )
    assert status == 403
    assert bank.state.phase.name == "closed"  # type: ignore[attr-defined]


def test_a_cookie_alone_changes_nothing(open_page: OpenPage) -> None:
    """What a page of somebody else could make this browser send."""
    bank = circuit_breaker("bank")
    page = open_page("admin", may_say="403")
    status = page.evaluate(
        "async () => (await fetch('control/circuit_breaker/bank/force_open', {method: 'POST'})).status"
    )
    assert status == 403
    assert bank.state.phase.name == "closed"  # type: ignore[attr-defined]
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""


def test_a_setting_is_checked_at_its_field_and_holds_at_once(open_page: OpenPage) -> None:
    fetch = retry("fetch", attempts=3)
    page = open_page("admin", may_say="422")
    row(page, "fetch").click()
    field = page.get_by_label("attempts", exact=True)
    expect(field).to_have_value("3")
    field.fill("0")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#setting-attempts-error")).to_contain_text("at least 1")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert fetch.config.attempts == 3
    field.fill("5")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("In force: attempts.")).to_be_visible()
    assert fetch.config.attempts == 5
    page.get_by_role("link", name="Audit").click()
    expect(page.locator(".feed")).to_contain_text("attempts: 3 → 5")
    page.get_by_role("button", name="Take back").click()
    page.get_by_role("dialog").get_by_role("button", name="Take it back").click()
    expect(page.get_by_text("has the settings from before again")).to_be_visible()
    assert fetch.config.attempts == 3


def test_of_two_who_change_the_same_settings_the_second_is_told(open_page: OpenPage) -> None:
    fetch = retry("fetch", attempts=3)
    page = open_page("admin", may_say="412")
    row(page, "fetch").click()
    field = page.get_by_label("attempts", exact=True)
    expect(field).to_have_value("3")
    fetch.reconfigure(attempts=4)
    field.fill("7")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("Somebody else changed these settings meanwhile")).to_be_visible()
    expect(field).to_have_value("4")
    assert fetch.config.attempts == 4


def test_shadow_mode_says_what_would_have_been(open_page: OpenPage) -> None:
    search = rate_limit(1, name="search", per=3600, mode="shadow")
    page = open_page("operator")
    for _ in range(6):
        search.call(lambda: None)
    expect(row(page, "search")).to_contain_text("would reject 5")
    row(page, "search").click()
    expect(page.get_by_role("heading", name="In shadow")).to_be_visible()
    page.get_by_role("button", name="Enforce").click()
    expect(page.get_by_text("Done: enforce.")).to_be_visible()
    assert search.mode == "enforce"


def test_filter_search_and_the_keyboard(open_page: OpenPage) -> None:
    kept: list[Any] = [retry("orders.fetch"), circuit_breaker("orders"), feature_toggle("checkout")]
    kept.append(rate_limit(5, name="api", mode="off"))
    page = open_page("viewer")
    names = page.locator(".row .name")
    expect(names).to_have_count(4)
    page.keyboard.press("/")
    page.keyboard.type("orders")
    expect(names).to_have_count(2)
    expect(page.get_by_text("2 of 4 policies")).to_be_visible()
    page.get_by_label("Type").select_option("circuit_breaker")
    expect(names).to_have_text(["orders"])
    page.get_by_label("Type").select_option("")
    page.get_by_label("Search").fill("")
    page.get_by_label("Show").select_option("off")
    expect(names).to_have_text(["api"])
    page.get_by_label("Search").fill("nothing like it")
    expect(page.get_by_role("heading", name="No policy fits")).to_be_visible()
    page.get_by_label("Search").fill("")
    page.get_by_label("Show").select_option("")
    page.locator("main").focus()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("checkout")
    page.keyboard.press("Escape")
    expect(names).to_have_count(4)
    assert len(kept) == 4


def test_an_empty_service_says_what_to_do(open_page: OpenPage) -> None:
    page = open_page("viewer")
    expect(page.get_by_role("heading", name="No policies yet")).to_be_visible()
    expect(page.get_by_text("@retry(")).to_be_visible()


def test_a_lost_connection_is_said_and_comes_back_by_itself(open_page: OpenPage, service: Any) -> None:
    bank = circuit_breaker("bank")
    page = open_page("viewer", may_say="ERR_")
    expect(page.locator("#link-state")).to_have_text("live")
    service.stop()
    expect(page.locator("#banner")).to_contain_text("connection to the service is lost")
    expect(row(page, "bank")).to_be_visible()
    bank.force_open()
    service.start()
    expect(page.locator("#link-state")).to_have_text("live", timeout=20_000)
    expect(page.locator("#banner")).to_be_hidden()
    expect(row(page, "bank")).to_contain_text("open")


def test_a_wrong_token_is_refused_and_a_session_can_be_ended(open_page: OpenPage) -> None:
    page = open_page(None, may_say="401")
    page.get_by_label("Token").fill("not-a-token-of-this-service")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert").filter(has_text="not known")).to_be_visible()
    page.get_by_label("Token").fill("viewer-secret-for-the-tests")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("viewer (viewer)")).to_be_visible()
    page.reload()
    expect(page.get_by_text("viewer (viewer)")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_what_a_service_says_stays_text(open_page: OpenPage) -> None:
    evil = '<img src=x onerror="document.title=1">"><script>document.title=2</script>'
    kept = circuit_breaker(evil)
    page = open_page("admin")
    expect(page.locator(".row .name")).to_have_text(evil)
    page.locator(".row a").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(evil)
    kept.force_open()
    expect(page.locator(".feed").first).to_contain_text("circuit forced")
    assert page.locator("img, main script").count() == 0
    assert "Everkeel" in page.title()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_light_and_dark(open_page: OpenPage, scheme: str) -> None:
    kept = [circuit_breaker("payments.of.a.service.with.a.rather.long.name"), retry("fetch"), rate_limit(9, name="api")]
    page = open_page("admin", viewport={"width": 360, "height": 740}, color_scheme=scheme)
    for view in ("#/policies", f"#/policies/circuit_breaker/{kept[0].name}", "#/events", "#/audit"):
        page.goto(page.url.split("#")[0] + view)
        page.wait_for_timeout(50)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), view
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(14, 23, 28)") == (scheme == "dark")
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_thousand_policies_and_only_what_changes_is_drawn(open_page: OpenPage) -> None:
    many = [circuit_breaker(f"tenant-{number:04}") for number in range(1000)]
    page = open_page("viewer")
    expect(page.locator(".row")).to_have_count(1000)
    page.evaluate(
        """() => {
            window.touched = new Set();
            new MutationObserver((changes) => {
                for (const change of changes) {
                    const at = change.target.nodeType === 1 ? change.target : change.target.parentElement;
                    const row = at?.closest(".row");
                    if (row && !at.closest(".picture")) window.touched.add(row.dataset.id);
                }
            }).observe(
                document.querySelector(".rows"), {subtree: true, childList: true, characterData: true, attributes: true}
            );
        }"""
    )
    many[500].force_open()
    expect(row(page, "tenant-0500")).to_contain_text("open")
    assert page.evaluate("[...window.touched]") == ["circuit_breaker/tenant-0500"]
    expect(page.locator(".row .name").first).to_have_text("tenant-0500")
    page.get_by_label("Search").fill("tenant-099")
    expect(page.locator(".row")).to_have_count(10)


def test_every_file_is_asked_for_again_only_when_it_changed(open_page: OpenPage) -> None:
    page = open_page("viewer")
    answers: list[tuple[str, int]] = []
    page.on("response", lambda response: answers.append((response.url, response.status)))
    page.reload()
    expect(page.locator("#link-state")).to_have_text("live")
    files = [status for url, status in answers if "/assets/" in url]
    assert files
    assert set(files) <= {200, 304}
    headers = page.request.get(page.url.split("#")[0] + "assets/app.js").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe-inline" not in json.dumps(headers)
