"""Take the pictures of the demo that the README and the docs show: the shop's dashboard while its bank is down.

python scripts/shop_pictures.py    # needs chromium (`make servers`) and the test group
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from playwright.async_api import Page, async_playwright

from everkeel.demo.shop.customers import ITEMS, Customers
from everkeel.demo.shop.scenarios import Outcome, Scene
from everkeel.demo.shop.stage import Stage
from everkeel.testing import servers

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "guide" / "images"


async def main() -> int:
    if servers.missing("chromium"):
        print("no chromium here: `make servers` installs it")
        return 1
    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    async with Stage("sqlite", "sqlite") as stage, async_playwright() as playwright:
        scene = Scene(stage, Customers(stage.world.url("orders")), 12, Outcome("picture", "For the pictures"), print)
        for item in ITEMS:
            await scene.restock(item, 10_000)
        browser = await playwright.chromium.launch(executable_path=servers.executable("chromium"), args=arguments)
        page = await browser.new_page(viewport={"width": 1280, "height": 760})
        await page.goto(f"{stage.world.url('orders')}/everkeel/")
        await page.get_by_label("Token").fill(stage.world.token)
        await page.keyboard.press("Enter")
        buying = asyncio.ensure_future(_keep_buying(scene))
        await asyncio.sleep(25)
        await scene.provider(mode="down")
        await asyncio.sleep(14)
        await page.screenshot(path=PICTURES / "shop-outage.png")
        buying.cancel()
        await asyncio.wait([buying])
        await _picture_of_sagas(scene, page)
        await browser.close()
    return 0


async def _picture_of_sagas(scene: Scene, page: Page) -> None:
    """Those that turn back, and the story of one that has."""
    await page.get_by_role("link", name="Sagas").click()
    await asyncio.sleep(7)
    await page.screenshot(path=PICTURES / "shop-sagas.png")
    found: list[Any] = []
    while not found:
        query = {"type": "fulfilment", "state": "compensated"}
        found = (await scene.ask("orders", "GET", "/sagas", params=query))["sagas"]
    await page.evaluate(f"location.hash = '#/sagas/{found[0]['id']}'")
    await asyncio.sleep(2)
    await page.screenshot(path=PICTURES / "shop-saga.png")


async def _keep_buying(scene: Scene) -> None:
    while True:
        await scene.customers.buy("picture", 4)
        await asyncio.sleep(0.15)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
