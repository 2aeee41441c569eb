"""A control plane on a real server, a real browser in front of it, and what no page of ours may do."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from everkeel.control import ControlPlane, Token
from everkeel.testing import servers

SECRETS = {role: f"{role}-secret-for-the-tests" for role in ("viewer", "operator", "admin")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "browser":
            item.add_marker(pytest.mark.require_server("chromium"))


class Service:
    """A server that can be stopped and started again at the same address."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._socket: socket.socket | None = None
        self._port = servers.free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self._port))
        config = uvicorn.Config(self._app, log_level="critical", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.005)

    def stop(self) -> None:
        if self._socket is not None:
            self._server.should_exit = True
            self._thread.join(10)
            self._socket.close()
            self._socket = None


@pytest.fixture
def plane(fresh_everkeel: None, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    monkeypatch.delenv("EVERKEEL_CONTROL_TOKENS", raising=False)
    tokens = [Token(role, role, secret) for role, secret in SECRETS.items()]
    return ControlPlane(tokens=tokens, requests_per_second=10_000)


@pytest.fixture
def service(plane: ControlPlane) -> Iterator[Service]:
    service = Service(plane)
    service.start()
    yield service
    service.stop()


@pytest.fixture(scope="module")  # no longer: while Playwright is up, this thread has a running event loop for everybody
def chromium() -> Iterator[Browser]:
    quiet = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    if os.geteuid() == 0:
        quiet.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=servers.executable("chromium"), args=quiet)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser, service: Service) -> Iterator[Callable[..., Page]]:
    """Open the dashboard, signed in with a role or not at all. A console error or a request elsewhere is a failure."""
    contexts, trouble, elsewhere = [], [], []
    allowed: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(part in message.text for part in allowed):
            trouble.append(message.text)

    def make(role: str | None = "admin", *, view: str = "", may_say: str | None = None, **options: Any) -> Page:
        if may_say is not None:
            allowed.append(may_say)
        context = chromium.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 800}), **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", said)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: elsewhere.append(request.url))
        page.goto(f"{service.url}/everkeel{view}")
        if role is not None:
            page.get_by_label("Token").fill(SECRETS[role])
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("link", name="Audit").wait_for()
        return page

    yield make
    for context in contexts:
        context.close()
    assert trouble == []
    hosts = {urlsplit(url).netloc for url in elsewhere if not url.startswith("data:")}
    assert hosts <= {urlsplit(service.url).netloc}
