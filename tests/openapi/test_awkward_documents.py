"""Documents as they come: null in shared schemas, forms, patches, and names that something else has already."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everkeel.openapi import Document, generate

NEW, ROOM, KIND = ({"$ref": f"#/components/schemas/{name}"} for name in ("New%20Room", "Room", "Kind"))

AWKWARD: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Awkward", "version": "1"},
    "paths": {
        "/rooms/{part}": {
            "parameters": [{"name": "part", "in": "path", "required": True, "schema": {"type": "string"}}],
            "patch": {
                "operationId": "call",
                "requestBody": {
                    "required": True,
                    "content": {"application/merge-patch+json": {"schema": NEW}},
                },
                "responses": {"200": {"description": "ok", "content": {"application/json": {"schema": ROOM}}}},
            },
        },
        "/files": {
            "put": {
                "operationId": "fetch",
                "parameters": [{"name": "content", "in": "query", "schema": {"type": "string"}}],
                "requestBody": {"content": {"multipart/form-data": {"schema": {"type": "object"}}}},
                "responses": {"200": {"description": "ok", "content": {"text/plain": {"schema": {"type": "string"}}}}},
            },
        },
    },
    "components": {
        "schemas": {
            "Kind": {"type": "string", "enum": ["single", None], "nullable": True},
            "New Room": {
                "type": "object",
                "properties": {"kind": KIND, "note": {"type": "string", "nullable": True}},
                "required": ["kind"],
            },
            "Room": {"allOf": [NEW, {"type": "object", "properties": {"id": {"type": "string"}}}]},
        }
    },
}

HANDLERS = """
from fastapi import Request, Response

from awkward.models import NewRoom, Room

GOT = []


async def call_2(part_2: str, body: NewRoom) -> Room:
    GOT.append((part_2, body.model_fields_set))
    return Room(id="7", kind=body.kind)


async def fetch_2(request: Request, *, content_2: str | None = None) -> Response:
    return Response(request.headers["content-type"] + str(content_2))
"""

USE = """
import asyncio, httpx2
from awkward.app import app
from awkward.client import AwkwardClient
from awkward.handlers import default
from awkward.models import NewRoom

seen = []

async def main():
    async def note(request):
        seen.append((request.headers["content-type"], request.content))
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, event_hooks={"request": [note]}) as inner:
        client = AwkwardClient("http://service", client=inner)
        room = await client.call_2("a b", NewRoom(kind=None))
        assert (room.id, room.kind, room.model_fields_set) == ("7", None, {"id", "kind"}), room
        text = await client.fetch_2(b"--x--", "multipart/form-data; boundary=x", content_2="yes")
        assert text == b"multipart/form-data; boundary=xyes", text

asyncio.run(main())
assert seen[0] == ("application/merge-patch+json", b'{"kind":null}'), seen
print("used")
"""


@pytest.fixture
def service(tmp_path: Path) -> Path:
    generate(AWKWARD, tmp_path).write()
    return tmp_path


def test_an_awkward_service_and_its_client_understand_each_other(service: Path) -> None:
    (service / "awkward" / "handlers" / "default.py").write_text(HANDLERS)
    path = {**os.environ, "PYTHONPATH": str(service)}
    done = subprocess.run([sys.executable, "-c", USE], cwd=service, env=path, capture_output=True, text=True)
    assert done.stdout.strip() == "used", done.stderr


def test_what_may_be_null_may_be_null_wherever_it_is_used(service: Path) -> None:
    models = (service / "awkward" / "models.py").read_text()
    assert models.count("kind: Kind | None\n") == 2  # where it was met first, and in what was merged from it


def test_a_service_that_takes_forms_can_read_them(service: Path) -> None:
    assert "python-multipart" in (service / "pyproject.toml").read_text()


def test_a_reference_may_be_written_as_in_a_uri() -> None:
    document = Document(AWKWARD)
    assert document.at("#/paths/~1rooms~1%7Bpart%7D/patch/operationId") == "call"
