"""Take the pictures of the dashboard that the docs show: a service in an outage, in a real browser.

python scripts/dashboard_pictures.py    # needs chromium (`make servers`) and the test group
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from playwright.sync_api import sync_playwright

from everkeel import bulkhead, circuit_breaker, feature_toggle, rate_limit, retry
from everkeel.control import ControlPlane, Token
from everkeel.testing import servers

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "guide" / "images"
SECRET = "a-token-for-the-pictures-only"


class Shop:
    """Policies of an imaginary shop, and calls through them. Its bank can be down."""

    def __init__(self) -> None:
        self.down = False
        self.bank = circuit_breaker("bank", minimum_calls=10, window=40, open_for=12, slow_duration=0.5)
        self.shipping = circuit_breaker("shipping.quotes")
        self.charge = retry("bank.charge", attempts=3, backoff=0.01, on=ConnectionError)
        self.orders = rate_limit(60, name="api.orders")
        self.search = rate_limit(20, name="api.search", mode="shadow")
        self.reports = bulkhead(4, name="reports")
        self.checkout = feature_toggle("new-checkout")

    def pay(self) -> None:
        if self.down and random.random() < 0.85:
            raise ConnectionError("the bank does not answer")

    def run(self) -> None:
        steps: list[Callable[[], Any]] = [
            lambda: self.bank.call(self.charge.call, self.pay),
            lambda: self.shipping.call(lambda: None),
            lambda: self.orders.call(lambda: None),
            lambda: self.search.call(lambda: None),
            lambda: self.reports.call(lambda: None),
            lambda: self.checkout.call(lambda: None),
        ]
        while True:
            for step in steps:
                if random.random() < 0.8:
                    with suppress(Exception):
                        step()
            time.sleep(0.02)


def main() -> int:
    if servers.missing("chromium"):
        print("no chromium here: `make servers` installs it")
        return 1
    shop = Shop()
    for _ in range(2):
        threading.Thread(target=shop.run, daemon=True).start()
    plane = ControlPlane(tokens=[Token("ann", "admin", SECRET)])
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(plane, log_level="critical", ws="none"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/everkeel/"
    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=servers.executable("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": 1280, "height": 760}, device_scale_factor=1)
        while not server.started:
            time.sleep(0.01)
        page.goto(url)
        page.get_by_label("Token").fill(SECRET)
        page.keyboard.press("Enter")
        page.wait_for_timeout(40_000)
        shop.down = True
        page.wait_for_timeout(14_000)
        page.screenshot(path=PICTURES / "dashboard-outage.png")
        page.goto(f"{url}#/policies/circuit_breaker/bank")
        page.wait_for_timeout(12_000)
        shop.down = False
        page.wait_for_timeout(8_000)
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=PICTURES / "dashboard-circuit.png")
        page.set_viewport_size({"width": 390, "height": 780})
        page.goto(f"{url}#/policies")
        page.wait_for_timeout(2_000)
        page.screenshot(path=PICTURES / "dashboard-phone.png")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
