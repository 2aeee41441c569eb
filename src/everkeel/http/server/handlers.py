"""Exception handlers for Starlette and FastAPI. Nothing of theirs is imported: a response is an ASGI application."""

from __future__ import annotations

from typing import Any

from everkeel.errors import RejectedError, RetryExhaustedError, TimeoutExceededError
from everkeel.http.server.asgi import Message, Receive, Scope, Send
from everkeel.http.server.problems import Problem, problem_of
from everkeel.http.server.refusing import TRY_AGAIN_LATER, refuse

HANDLED = (RejectedError, TimeoutExceededError, RetryExhaustedError)


class ProblemResponse:
    """A problem document as Starlette expects a response. `status_code` is what middlewares of others look at."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.status_code = problem, problem.status
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await refuse(scope, receive, send, self.problem)


async def answer(connection: Any, error: Exception) -> ProblemResponse | None:
    """An exception handler: what the caller of a request is told about one of our errors."""
    problem = problem_of(error)
    if problem is None:
        raise error
    if connection.scope["type"] != "websocket":
        return ProblemResponse(problem)
    if connection.application_state.name == "CONNECTING":  # the handshake is not over
        unread = connection.client_state.name == "CONNECTING"
        await refuse(connection.scope, connection.receive if unread else _nothing, connection.send, problem)
    else:
        await connection.close(code=TRY_AGAIN_LATER, reason=problem.title)
    return None


async def _nothing() -> Message:
    return {}


def add_handlers(app: Any) -> None:
    """Let a FastAPI or Starlette application answer rejections with problem documents.

    A limit of the caller's is 429; an open circuit, a full bulkhead, shed work and exhausted retries are 503; out of
    time is 504; each with `Retry-After` where it is known. What your own code raised, also when a retry gave up on it
    and raised it again, stays yours to handle.

    >>> class App:
    ...     def add_exception_handler(self, kind, handler): print(kind.__name__)
    >>> add_handlers(App())
    RejectedError
    TimeoutExceededError
    RetryExhaustedError
    """
    for kind in HANDLED:
        app.add_exception_handler(kind, answer)
