"""The idempotency middleware: the same request twice is done once, and answered twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from hashlib import blake2b

from everkeel.errors import ConfigError, EverkeelError
from everkeel.http.headers import IDEMPOTENCY_KEY, read_idempotency_key
from everkeel.http.server.asgi import ASGIApp, Headers, Message, Receive, Scope, Send, header
from everkeel.http.server.keys import Key, by_address, by_api_key
from everkeel.http.server.problems import Problem
from everkeel.http.server.rate_limits import exclusion
from everkeel.http.server.refusing import refuse
from everkeel.http.server.responses import KeptResponse
from everkeel.idempotency.memory import MemoryIdempotencyStore
from everkeel.idempotency.records import Duplicate, Fresh, InProgress, Mismatch, Token
from everkeel.idempotency.store import IdempotencyStore
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.settings import Count, Duration, Seconds
from everkeel.runtime.trouble import report, warn

_KEY = IDEMPOTENCY_KEY.lower().encode()
_OWNER = "idempotency middleware"
_NOT_DONE = frozenset((408, 409, 425, 429))  # said before anything was done: the next one may try


def is_done(status: int) -> bool:
    """Does a response with this status settle the request, so that it is kept? Failures of ours let it run again."""
    return status < 500 and status not in _NOT_DONE


class IdempotencyMiddleware:
    """Do a request with an `Idempotency-Key` once, however often it is sent, and answer all of them alike.

    The first one runs. While it does, others get 409; afterwards they get its response again. The same key with another
    payload is 422, and a key where one is required but missing, or none that could be one, 400. A response of 500 or
    above, a crash and a cancellation let the next one run.

    Args:
        app: The application.
        store: Where claims and responses are kept. By default in this process's memory, which does for one process.
        caller: Whose key it is: nobody sees the answer to somebody else's request. By default the `Authorization` or
            `X-API-Key` header (its digest), otherwise the address. Where tokens change between two tries, use
            `by_user()`, or a retry will not be recognised.
        methods: Which methods may be repeated by this. POST and PATCH: the others are idempotent by themselves.
        required: Routes that must have a key, or a predicate on the scope.
        exclude: Routes where keys mean nothing, or a predicate on the scope.
        keep: Which statuses settle a request. Below 500, but for 408, 409, 425 and 429.
        lease: How long a claim outlives a crash. A minute; it is extended while the work is done.
        retain: How long an answer is kept. A day.
        max_body: The longest body that is read into memory to be compared; a longer one is 413. 1 MiB.
        max_response: The longest response body that is kept. 64 KiB. What is longer is not done twice either, but a
            repetition gets 409 in place of the response.

    >>> async def app(scope, receive, send): ...
    >>> once = IdempotencyMiddleware(app, required=["POST /payments"])
    """

    def __init__(
        self,
        app: ASGIApp,
        store: IdempotencyStore | None = None,
        *,
        caller: Key | None = None,
        methods: Iterable[str] = ("POST", "PATCH"),
        required: Iterable[str] | Callable[[Scope], bool] = (),
        exclude: Iterable[str] | Callable[[Scope], bool] = (),
        keep: Callable[[int], bool] = is_done,
        lease: Seconds = 60.0,
        retain: Seconds = 86_400.0,
        max_body: int = 1024 * 1024,
        max_response: int = 64 * 1024,
        clock: Clock | None = None,
    ) -> None:
        self.app = app
        self.store: IdempotencyStore = MemoryIdempotencyStore(max_records=10_000) if store is None else store
        self._caller = caller or by_api_key("Authorization", otherwise=by_api_key(otherwise=by_address()))
        self._methods = frozenset(methods)
        self._required, self._excluded = exclusion(required, _OWNER), exclusion(exclude, _OWNER)
        self._keep, self._clock = keep, clock or DEFAULT
        try:
            self._lease, self._retain = Duration().check(lease), Duration().check(retain)
            self._max_body, self._max_response = Count().check(max_body), Count().check(max_response)
        except ValueError as error:
            raise ConfigError(_OWNER, None, f"lease, retain, max_body or max_response {error}", None) from None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in self._methods:
            return await self.app(scope, receive, send)
        if self._excluded is not None and self._excluded(scope):
            return await self.app(scope, receive, send)
        if not any(field == _KEY for field, _ in scope["headers"]):
            if self._required is None or not self._required(scope):
                return await self.app(scope, receive, send)
            return await refuse(scope, receive, send, _NO_KEY)
        key = read_idempotency_key(header(scope, _KEY))
        if key is None:
            return await refuse(scope, receive, send, _BAD_KEY)
        body = await _Body(receive, self._max_body).read(scope)
        if body is None:
            return await refuse(scope, receive, send, _TOO_LONG)
        if body.gone:
            return None
        return await self._once(scope, body, send, key)

    async def _once(self, scope: Scope, body: _Body, send: Send, key: str) -> None:
        try:
            answer = await self.store.begin(
                f"http:{self._caller(scope)}",
                key,
                fingerprint=_fingerprint(scope, body.whole),
                lease=self._lease,
                retain=self._retain,
            )
        except Exception as error:  # full, or away: to go on without it would be to do things twice
            report(f"{_OWNER}: the store cannot be asked", error)
            wait = error.retry_after if isinstance(error, EverkeelError) else None
            return await refuse(scope, body.receive, send, _UNAVAILABLE.but(retry_after=wait or 1.0))
        if isinstance(answer, Mismatch):
            return await refuse(scope, body.receive, send, _OTHER_PAYLOAD)
        if isinstance(answer, InProgress):
            return await refuse(scope, body.receive, send, _RUNNING.but(retry_after=min(1.0, answer.retry_after)))
        if isinstance(answer, Duplicate):
            return await self._replay(scope, body.receive, send, answer)
        return await self._run(scope, body, send, answer)

    async def _run(self, scope: Scope, body: _Body, send: Send, claim: Fresh) -> None:
        recording = _Recording(self, send, claim.token)
        heart = asyncio.create_task(self._beat(claim.token))
        try:
            await self.app(scope, body.receive, recording.send)
        finally:
            heart.cancel()
            if not recording.settled:
                await self._end(claim.token, None)

    async def _beat(self, token: Token) -> None:
        """Hold the claim while the work is done: it must not be taken for crashed because it is slow."""
        while True:
            await self._clock.asleep(self._lease / 3)
            try:
                held = await self.store.extend(token, self._lease)
            except Exception as error:  # it may be back for the next beat: the lease lasts for three
                report(f"{_OWNER}: the store cannot be told", error)
                continue
            if not held:
                warn("%s: a claim was lost while its request was running", _OWNER)
                return

    async def settle(self, token: Token, response: KeptResponse) -> None:
        """The work is done, or is to be done again."""
        await self._end(token, response.written() if self._keep(response.status) else None)

    def fits(self, length: int) -> bool:
        """Is a response body of this length kept?"""
        return length <= self._max_response

    async def _end(self, token: Token, result: bytes | None) -> None:
        try:
            held = await (self.store.fail(token) if result is None else self.store.complete(token, result))
            if not held:
                warn("%s: a claim was lost before its request was done; it may have been done twice", _OWNER)
        except Exception as error:  # the answer is right all the same; the claim's lease ends by itself
            report(f"{_OWNER}: the store cannot be told", error)

    async def _replay(self, scope: Scope, receive: Receive, send: Send, duplicate: Duplicate) -> None:
        kept = KeptResponse.read(duplicate.result)
        if kept is None or kept.body is None:
            return await refuse(scope, receive, send, _NOT_KEPT)
        headers: Headers = [*kept.headers, (b"idempotency-replayed", b"true")]
        if kept.status >= 200 and kept.status not in (204, 304):
            headers.append((b"content-length", str(len(kept.body)).encode()))
        await send({"type": "http.response.start", "status": kept.status, "headers": headers})
        await send({"type": "http.response.body", "body": kept.body})
        return None


class _Body:
    """The body of a request, read to be compared, and given to the application as if it had not been."""

    __slots__ = ("_given", "_most", "_receive", "gone", "whole")

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._most = receive, most
        self._given = self.gone = False
        self.whole = b""

    async def read(self, scope: Scope) -> _Body | None:
        """All of it; None where it is too long."""
        declared = header(scope, b"content-length")
        if declared is not None and declared.isascii() and declared.isdigit() and int(declared[:20]) > self._most:
            return None
        parts, length = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                return self
            part = message.get("body", b"")
            length += len(part)
            if length > self._most:
                return None
            parts.append(part)
            if not message.get("more_body"):
                self.whole = b"".join(parts)
                return self

    async def receive(self) -> Message:
        """What the application reads."""
        if self._given:
            return await self._receive()
        self._given = True
        return {"type": "http.request", "body": self.whole, "more_body": False}


class _Recording:
    """Passes the response on and keeps a copy. The claim ends before the last part is sent: who has the answer and
    asks again gets the same one, never a 409."""

    __slots__ = ("_length", "_middleware", "_parts", "_send", "_start", "_token", "settled")

    def __init__(self, middleware: IdempotencyMiddleware, send: Send, token: Token) -> None:
        self._middleware, self._send, self._token = middleware, send, token
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._length = 0
        self.settled = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None and not self.settled:
            part = message.get("body", b"")
            self._length += len(part)
            if self._middleware.fits(self._length):
                self._parts.append(part)
            else:
                self._parts.clear()
            if not message.get("more_body"):
                self.settled = True
                fits = self._middleware.fits(self._length)
                body = b"".join(self._parts) if fits else None
                response = KeptResponse(self._start["status"], list(self._start.get("headers", ())), body)
                await self._middleware.settle(self._token, response)
        await self._send(message)


def _fingerprint(scope: Scope, body: bytes) -> bytes:
    """Of all that makes it the same request: each part with its length, so that no two requests look alike."""
    seal = blake2b(digest_size=32, person=b"everkeel-http")
    kind = header(scope, b"content-type") or ""
    for part in (scope["method"].encode(), scope["path"].encode(), scope.get("query_string", b""), kind.encode(), body):
        seal.update(len(part).to_bytes(8, "big"))
        seal.update(part)
    return seal.digest()


def _problem(status: int, title: str, error: str, message: str) -> Problem:
    return Problem(status=status, title=title, error=error, message=message)


_NO_KEY = _problem(400, "Bad Request", "idempotency_key_missing", "This needs an Idempotency-Key header.")
_BAD_KEY = _problem(
    400,
    "Bad Request",
    "idempotency_key_malformed",
    "The Idempotency-Key header must occur once, and be a quoted string of 1 to 255 printable ASCII characters.",
)
_TOO_LONG = _problem(413, "Content Too Large", "body_too_long", "The body is too long for a request with a key.")
_RUNNING = _problem(409, "Conflict", "idempotency_in_progress", "A request with this key is being worked on.")
_NOT_KEPT = _problem(
    409, "Conflict", "idempotency_response_not_kept", "A request with this key was done; its response was not kept."
)
_OTHER_PAYLOAD = _problem(
    422, "Unprocessable Content", "idempotency_key_reused", "This key was used before, for another request."
)
_UNAVAILABLE = _problem(
    503, "Service Unavailable", "idempotency_unavailable", "It cannot be found out whether this was done before."
)
