"""Rejections that left the application become problem documents, whatever the framework."""

from __future__ import annotations

from everkeel.http.server.asgi import ASGIApp, Message, Receive, Scope, Send
from everkeel.http.server.problems import problem_of
from everkeel.http.server.refusing import refuse


class ProblemMiddleware:
    """Answer with a problem document when an error of ours leaves the application: 429, 503 or 504, and when to come
    back. All other errors, also those that a retry gave up on, stay the application's own.

    FastAPI and Starlette have handlers for the same (`everkeel.http.add_handlers`); this is for everything else.

    >>> async def app(scope, receive, send): ...
    >>> polite = ProblemMiddleware(app)
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        begun = False

        async def answering(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            return await self.app(scope, receive, answering)
        except Exception as error:
            problem = problem_of(error)
            if problem is None or begun or scope["type"] == "websocket":
                raise
            return await refuse(scope, receive, send, problem)
