"""A plane with one token per role, and clients that have them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.testclient import TestClient

from everkeel import CircuitBreaker, Retry, circuit_breaker, registry, retry
from everkeel.control import ControlPlane, Token

SECRETS = {role: f"{role}-secret-for-the-tests" for role in ("viewer", "operator", "admin")}


@pytest.fixture(autouse=True)
def _no_other_policies(fresh_everkeel, monkeypatch):
    monkeypatch.delenv("EVERKEEL_CONTROL_TOKENS", raising=False)


@pytest.fixture
def secrets() -> dict[str, str]:
    return SECRETS


@pytest.fixture
def make_plane() -> Callable[..., ControlPlane]:
    def make(**options) -> ControlPlane:
        options.setdefault("tokens", [Token(role, role, secret) for role, secret in SECRETS.items()])
        options.setdefault("requests_per_second", 100_000)
        options.setdefault("strangers_per_second", 100_000)
        return ControlPlane(**options)

    return make


@pytest.fixture
def plane(make_plane) -> ControlPlane:
    return make_plane()


@pytest.fixture
def client_of() -> Callable[..., TestClient]:
    def client(plane, role: str | None = "admin", **options) -> TestClient:
        headers = {} if role is None else {"Authorization": f"Bearer {SECRETS[role]}"}
        base = options.pop("base_url", "http://testserver") + plane.prefix
        return TestClient(plane, headers=headers, base_url=base, **options)

    return client


@pytest.fixture
def admin(plane, client_of) -> TestClient:
    return client_of(plane)


@pytest.fixture
def serve() -> Callable:
    """A real server: `with serve(app) as url:`."""

    @contextmanager
    def serving(app) -> Iterator[str]:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="critical", ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                time.sleep(0.005)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
            sock.close()

    return serving


@pytest.fixture
def fetch() -> Retry:
    return retry("fetch", attempts=3)


@pytest.fixture
def payments() -> CircuitBreaker:
    return circuit_breaker("payments", minimum_calls=1, window=10)


@pytest.fixture
def names() -> Callable[[], list[str]]:
    return lambda: [str(policy.name) for policy in registry]
