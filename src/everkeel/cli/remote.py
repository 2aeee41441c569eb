"""How commands talk to a running service: its control plane over HTTP, with nothing but the standard library."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from everkeel.cli.output import USAGE, CommandError, add_json

DEFAULT_URL = "http://127.0.0.1:8642/everkeel"
URL, TOKEN = "EVERKEEL_URL", "EVERKEEL_TOKEN"
SILENCE = 35.0
"""Seconds: a live stream sends a sign of life every 15."""
EPILOG = (
    f"The service is found by --url or {URL} (default: {DEFAULT_URL},\nwhere `everkeel serve` is). The token comes "
    f"from {TOKEN} or --token; other users of this machine\ncan see the command line, but not the variable."
)


def add_remote(parser: argparse.ArgumentParser) -> None:
    """`--url`, `--token`, `--timeout` and `--json`."""
    group = parser.add_argument_group("the service")
    group.add_argument("--url", default=os.environ.get(URL) or DEFAULT_URL, help="where its control plane is")
    group.add_argument("--token", help=f"who you are; {TOKEN} is the better place for it")
    group.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="for an answer (default: 10)")
    add_json(parser)
    parser.epilog = f"{parser.epilog}\n\n{EPILOG}" if parser.epilog else EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, str], *examples: str) -> None:
    """The first argument, what to do, with help that teaches it; the first of them is what is done without."""
    default = next(iter(actions))
    parser.add_argument("action", nargs="?", choices=actions, default=default, help=f"what to do (default: {default})")
    width = max(map(len, actions))
    listed = [f"  {word:{width}} {what}" for word, what in actions.items()]
    shown = [f"  everkeel {example}" for example in examples]
    parser.epilog = "\n".join(["actions:", *listed, "", "examples:", *shown])


class Remote:
    """A control plane somewhere. Follows no redirects: a token must not travel to where nobody sent it."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandError(f"--url must be http://host:port/prefix or https://... (got {url!r})", USAGE)
        try:
            port = parts.port
        except ValueError:
            raise CommandError(f"--url has a port that is none (got {url!r})", USAGE) from None
        self._url = url
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._timeout = parts.hostname, port, timeout
        self._prefix = parts.path.rstrip("/") or "/everkeel"
        self._token = token

    @classmethod
    def of(cls, args: argparse.Namespace) -> Remote:
        """The service that the arguments name."""
        return cls(args.url, args.token or os.environ.get(TOKEN), args.timeout)

    def get(self, path: str, **query: Any) -> Any:
        """What it answers, as JSON has it."""
        return self.ask("GET", path, query=query)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Ask for something; a problem becomes one line and the exit code 1."""
        with self._sent(method, path, body, query, headers) as response:
            try:
                text = response.read()
            except (OSError, HTTPException) as error:
                raise CommandError(f"{self._url} stopped in the middle of its answer: {error}") from None
        answer = _json(text)
        if response.status >= 400:
            raise CommandError(self._complaint(response, answer))
        if not 200 <= response.status < 300 or (text and answer is None):
            raise CommandError(f"{self._url} is no control plane: it answered {response.status} {response.reason}")
        return answer

    def follow(self, path: str, query: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """A live stream: pairs of the event's name and its data, until either side ends it."""
        self._timeout = max(self._timeout, SILENCE)
        with self._sent("GET", path, None, query, {"Accept": "text/event-stream"}) as response:
            if response.status != 200:
                raise CommandError(self._complaint(response, _json(response.read())))
            event = ""
            while line := self._line(response):
                name, _, value = line.decode("utf-8", "replace").rstrip("\n").partition(": ")
                if name == "event":
                    event = value
                elif name == "data":
                    yield event, json.loads(value)

    def _line(self, response: HTTPResponse) -> bytes:
        try:
            return response.readline()
        except TimeoutError:
            raise CommandError(f"{self._url} has gone silent") from None
        except (OSError, HTTPException) as error:
            raise CommandError(f"{self._url} hung up: {error}") from None

    @contextmanager
    def _sent(
        self, method: str, path: str, body: Any, query: dict[str, Any] | None, headers: dict[str, str] | None
    ) -> Iterator[HTTPResponse]:
        sent = {"Accept": "application/json", "User-Agent": "everkeel", **(headers or {})}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = self._prefix + path + (f"?{urlencode(given)}" if given else "")
        with closing(self._kind(self._host, self._port, timeout=self._timeout)) as connection:
            try:
                connection.request(method, target, data, sent)
                response = connection.getresponse()
            except TimeoutError:
                raise CommandError(f"{self._url} did not answer within {self._timeout:g} s") from None
            except (OSError, HTTPException, UnicodeError) as error:
                raise CommandError(f"cannot reach {self._url}: {error}") from None
            with response:
                yield response

    def _complaint(self, response: HTTPResponse, answer: Any) -> str:
        detail = answer.get("detail") if isinstance(answer, dict) else None
        if response.status == 401 and not self._token:
            return f"{self._url} wants a token: set {TOKEN}, or pass --token"
        if detail is None:
            return f"{self._url} answered {response.status} {response.reason}"
        return printable(str(detail))


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def printable(text: str) -> str:
    """Text of others that does nothing to a terminal: keys and messages may come from anybody.

    >>> printable("acme\\x1b[2J")
    'acme\\\\x1b[2J'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def path_of(*parts: str) -> str:
    """Parts of a path, each encoded.

    >>> path_of("config", "retry", "orders/fetch")
    '/config/retry/orders%2Ffetch'
    """
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def assignments(words: list[str]) -> dict[str, Any]:
    """`attempts=5 max_duration=500ms on='["OSError"]'` as settings: JSON where it is JSON, text where it is not.

    >>> assignments(["attempts=5", "max_duration=500ms", "ignore=null"])
    {'attempts': 5, 'max_duration': '500ms', 'ignore': None}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise CommandError(f"settings are written name=value (got {word!r})", USAGE)
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    if not found:
        raise CommandError("say what to set: name=value", USAGE)
    return found


def need(args: argparse.Namespace, *names: str) -> None:
    """Complain where a word that an action needs is missing."""
    missing = [name.upper() for name in names if getattr(args, name) is None]
    if missing:
        raise CommandError(f"{args.action} needs {' and '.join(missing)}", USAGE)
