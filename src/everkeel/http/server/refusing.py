"""Telling a caller no: over HTTP as a response, over a WebSocket as a denied handshake."""

from __future__ import annotations

from everkeel.http.server.asgi import Receive, Scope, Send
from everkeel.http.server.problems import Problem

TRY_AGAIN_LATER = 1013
"""The close code for it; a server turns it into a 403 when the handshake is not over yet."""


async def refuse(scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
    """Answer with the problem, and nothing else."""
    body = problem.body()
    headers = [*problem.headers(), (b"content-length", str(len(body)).encode())]
    prefix = "http.response"
    if scope["type"] == "websocket":
        await receive()  # the handshake: a server may not expect an answer before it was read
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": problem.title})
            return
        prefix = "websocket.http.response"
    await send({"type": f"{prefix}.start", "status": problem.status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body, "more_body": False})
