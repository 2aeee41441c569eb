"""Real servers on loopback, and one way to speak to them through each of the clients."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
import uvicorn

import everkeel.http.aiohttp
import everkeel.http.httpx
import everkeel.http.httpx2
import everkeel.http.requests

# ---------------------------------------------------------------------- a service under uvicorn


@dataclass
class Seen:
    """A request as the service got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Reply:
    """What the service answers next on a path."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    delay: float = 0.0
    chunked: bool = False


class Service:
    """An ASGI application that answers as it was told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.script: dict[str, deque[Reply]] = defaultdict(deque)
        self.seen: list[Seen] = []
        self.url = ""

    def will(self, path: str, *replies: Reply | int) -> str:
        """Answer requests for `path` so, one after the other, and then with 200."""
        self.script[path].extend(Reply(one) if isinstance(one, int) else one for one in replies)
        return self.url + path

    def at(self, path: str) -> list[Seen]:
        return [one for one in self.seen if one.path == path]

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        self.seen.append(Seen(scope["method"], scope["path"], headers, body))
        script = self.script.get(scope["path"])
        reply = script.popleft() if script else Reply(body=json.dumps({"path": scope["path"]}).encode())
        if reply.delay:
            await asyncio.sleep(reply.delay)
        lines = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
        if not reply.chunked:
            lines.append((b"content-length", str(len(reply.body)).encode()))
        await send({"type": "http.response.start", "status": reply.status, "headers": lines})
        await send({"type": "http.response.body", "body": reply.body})


@pytest.fixture(scope="session")
def uvicorn_at() -> Iterator[Callable[..., str]]:
    """Serve an ASGI application under uvicorn, in a thread, on a free port; answers its address."""
    with contextlib.ExitStack() as stack:

        def serve(app: Any, ws: Any = "none") -> str:
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or each answer takes 40 ms
            config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1, ws=ws)
            server = uvicorn.Server(config)
            started = threading.Event()

            async def main() -> None:
                task = asyncio.create_task(server.serve([listener]))
                while not server.started and not task.done():  # noqa: ASYNC110 - it has nothing to wait for
                    await asyncio.sleep(0.005)
                started.set()
                await task

            thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
            thread.start()
            assert started.wait(10)

            def stop() -> None:
                server.should_exit = server.force_exit = True
                thread.join(10)
                listener.close()

            stack.callback(stop)
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield serve


@pytest.fixture(scope="session")
def _service(uvicorn_at: Callable[..., str]) -> Service:
    service = Service()
    service.url = uvicorn_at(service)
    return service


@pytest.fixture
def service(_service: Service) -> Service:
    _service.script.clear()
    _service.seen.clear()
    return _service


# ---------------------------------------------------------------------- a server that misbehaves


class Nuisance:
    """A raw socket server: each path has a function of the reader and the writer that does what it likes."""

    def __init__(self) -> None:
        self.acts: dict[str, Callable[[Any], Any]] = {}
        self.asked: list[str] = []
        self.open: dict[object, str] = {}
        self.url = ""

    def does(self, path: str, act: Callable[[Any], Any]) -> str:
        self.acts[path] = act
        return self.url + path

    def says(self, path: str, *answers: str | bytes) -> str:
        """Raw answers, one for each request; the last is given again and again."""
        left = deque(one.encode("latin-1") if isinstance(one, str) else one for one in answers)

        async def act(writer: asyncio.StreamWriter) -> None:
            writer.write(left[0] if len(left) == 1 else left.popleft())
            await writer.drain()

        return self.does(path, act)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = object()
        self.open[me] = ""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode()
                self.asked.append(path)
                self.open[me] = path
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                await reader.readexactly(length)
                if await self.acts[path](writer) == "close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            del self.open[me]
            writer.close()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await writer.wait_closed()


@pytest.fixture(scope="session")
def _nuisance() -> Iterator[Nuisance]:
    nuisance, started = Nuisance(), threading.Event()
    over: list[Any] = []

    async def main() -> None:
        server = await asyncio.start_server(nuisance.serve, "127.0.0.1", 0)
        nuisance.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        done = asyncio.Event()
        over.extend((asyncio.get_running_loop(), done))
        started.set()
        await done.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert started.wait(10)
    yield nuisance
    loop, done = over
    loop.call_soon_threadsafe(done.set)
    thread.join(10)


@pytest.fixture
def nuisance(_nuisance: Nuisance) -> Nuisance:
    _nuisance.acts.clear()
    _nuisance.asked.clear()
    return _nuisance


# ---------------------------------------------------------------------- one way to use every client


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes


class Agent:
    """A client with our part in it, of whichever library."""

    part: Any
    """The transport, adapter or middleware."""

    def request(self, method: str, url: str, *, body: Any = None, headers: Any = None, **options: Any) -> Answer:
        raise NotImplementedError

    def get(self, url: str, **options: Any) -> Answer:
        return self.request("GET", url, **options)

    def close(self) -> None:
        raise NotImplementedError

    def connections(self) -> int:
        """Connections in use: those that were not given back."""
        raise NotImplementedError


class HttpxAgent(Agent):
    def __init__(self, library: Any, ours: Any, **settings: Any) -> None:
        self.part = ours.ResilientTransport(library.HTTPTransport(verify=False), **settings)  # a TLS context takes long
        self.client = library.Client(transport=self.part)

    def request(self, method: str, url: str, *, body: Any = None, headers: Any = None, **options: Any) -> Answer:
        extensions = {"everkeel": options} if options else None
        response = self.client.request(method, url, content=body, headers=headers, extensions=extensions)
        return Answer(response.status_code, response.headers, response.content)

    def connections(self) -> int:
        return sum(not one.is_idle() for one in self.part._transport._pool.connections)

    def close(self) -> None:
        self.client.close()


class AsyncAgent(Agent):
    def __init__(self) -> None:
        self.runner = asyncio.Runner()

    def run(self, what: Any) -> Any:
        return self.runner.run(what, context=contextvars.copy_context())

    def request(self, method: str, url: str, *, body: Any = None, headers: Any = None, **options: Any) -> Answer:
        return self.run(self.arequest(method, url, body=body, headers=headers, **options))

    async def arequest(self, method: str, url: str, **options: Any) -> Answer:
        raise NotImplementedError


class AsyncHttpxAgent(AsyncAgent):
    def __init__(self, library: Any, ours: Any, **settings: Any) -> None:
        super().__init__()
        self.part = ours.AsyncResilientTransport(library.AsyncHTTPTransport(verify=False), **settings)
        self.client = library.AsyncClient(transport=self.part)

    async def arequest(self, method: str, url: str, *, body: Any = None, headers: Any = None, **options: Any) -> Answer:
        extensions = {"everkeel": options} if options else None
        response = await self.client.request(method, url, content=body, headers=headers, extensions=extensions)
        return Answer(response.status_code, response.headers, response.content)

    def connections(self) -> int:
        return sum(not one.is_idle() for one in self.part._transport._pool.connections)

    def close(self) -> None:
        self.run(self.client.aclose())
        self.runner.close()


class AiohttpAgent(AsyncAgent):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.part = everkeel.http.aiohttp.ResilientMiddleware(**settings)
        self.client = self.run(self._open())

    async def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(middlewares=[self.part], timeout=aiohttp.ClientTimeout(sock_read=5))

    async def arequest(self, method: str, url: str, *, body: Any = None, headers: Any = None, **options: Any) -> Answer:
        with everkeel.http.aiohttp.request_options(**options):
            async with self.client.request(method, url, data=body, headers=headers) as response:
                return Answer(response.status, response.headers, await response.read())

    def connections(self) -> int:
        return len(self.client.connector._acquired)

    def close(self) -> None:
        self.run(self.client.close())
        self.runner.close()


class RequestsAgent(Agent):
    def __init__(self, **settings: Any) -> None:
        self.part = everkeel.http.requests.ResilientAdapter(**settings)
        self.client = requests.Session()
        self.client.mount("http://", self.part)

    def request(self, method: str, url: str, *, body: Any = None, headers: Any = None, **options: Any) -> Answer:
        with everkeel.http.requests.request_options(**options):
            response = self.client.request(method, url, data=body, headers=headers, timeout=5)
        return Answer(response.status_code, response.headers, response.content)

    def connections(self) -> int:
        pools = self.part._adapter.poolmanager.pools
        # A pool is a queue of places: whoever sends takes one, with a connection or without.
        return sum(pool.pool.maxsize - pool.pool.qsize() for pool in (pools[key] for key in list(pools.keys())))

    def close(self) -> None:
        self.client.close()


AGENTS: dict[str, Callable[..., Agent]] = {
    "httpx2": lambda **settings: HttpxAgent(httpx2, everkeel.http.httpx2, **settings),
    "httpx2-async": lambda **settings: AsyncHttpxAgent(httpx2, everkeel.http.httpx2, **settings),
    "httpx": lambda **settings: HttpxAgent(httpx, everkeel.http.httpx, **settings),
    "httpx-async": lambda **settings: AsyncHttpxAgent(httpx, everkeel.http.httpx, **settings),
    "requests": RequestsAgent,
    "aiohttp": AiohttpAgent,
}


def _making(request: pytest.FixtureRequest) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(**settings: Any) -> Agent:
        made.append(AGENTS[request.param](**{"backoff": 0, **settings}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(params=list(AGENTS))
def agent(request: pytest.FixtureRequest) -> Iterator[Callable[..., Agent]]:
    """Makes a client with these settings; every test runs with every library."""
    yield from _making(request)


@pytest.fixture(params=[name for name in AGENTS if "async" in name or name == "aiohttp"])
def async_agent(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """The same with the async ones alone."""
    yield from _making(request)


@pytest.fixture(params=[name for name in AGENTS if "async" not in name and name != "aiohttp"])
def sync_agent(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """The same with the sync ones alone."""
    yield from _making(request)


@pytest.fixture
def library_errors() -> tuple[type[Exception], ...]:
    """What the libraries raise when a connection breaks."""
    return httpx.HTTPError, httpx2.HTTPError, requests.RequestException, aiohttp.ClientError


@pytest.fixture
def reply() -> type[Reply]:
    """What a service answers."""
    return Reply
