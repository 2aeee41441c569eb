"""Generated services: they run, are typed and formatted, can be generated again, and are nobody else's code."""

from __future__ import annotations

import ast
import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everkeel import ConfigError
from everkeel.cli import main
from everkeel.openapi import generate

HERE = Path(sys.executable).parent
QUIET = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "-W", "ignore"]


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return done.stdout


def well_formed(folder: Path) -> None:
    """As ruff would write it, and without anything it would complain about."""
    for command in (["check", "--select", "E,F,I,W"], ["format", "--check"]):
        done = subprocess.run(
            [HERE / "ruff", *command, "--isolated", "--no-cache", "--line-length", "120", "."],
            cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr


ruff = pytest.mark.skipif(not (HERE / "ruff").exists(), reason="ruff is in the lint group")


@ruff
def test_a_large_service_is_well_formed(large: dict[str, Any], tmp_path: Path) -> None:
    generate(large, tmp_path).write()
    well_formed(tmp_path)


def test_a_large_service_passes_its_own_tests(large: dict[str, Any], tmp_path: Path) -> None:
    generate(large, tmp_path).write()
    said = run(tmp_path, "pytest", *QUIET)
    assert "62 passed" in said  # one for the whole, and one for each operation a request could be made for


@pytest.mark.skipif(not (HERE / "mypy").exists(), reason="mypy is in the lint group")
def test_a_large_service_is_typed(large: dict[str, Any], tmp_path: Path) -> None:
    generate(large, tmp_path).write()
    run(tmp_path, "mypy", "--strict", "--cache-dir", str(tmp_path / ".mypy"), "back_office", "tests")


@ruff
def test_a_small_service_is_generated_from_the_command_line_and_passes_its_tests(
    small: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "api.json").write_text(json.dumps(small))
    assert (
        main(["generate", str(tmp_path / "api.json"), "-o", str(tmp_path / "out"), "--package", "order-service"]) == 0
    )
    assert "new" in capsys.readouterr().out
    assert (tmp_path / "out" / "order_service" / "app.py").exists()
    well_formed(tmp_path / "out")
    assert "3 passed" in run(tmp_path / "out", "pytest", *QUIET)


USE = """
import asyncio, httpx2
from everkeel import policies_of
from orders.app import app
from orders.client import OrdersClient
from orders.models import Order

async def main():
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport) as inner:
        client = OrdersClient("http://service", client=inner)
        order = await client.get_order(7)
        assert order == Order(item="book", count=7), order
        await client.put_order(8, Order(item="pen"))
        try:
            await client.get_order(9)
        except httpx2.HTTPStatusError as error:
            assert error.response.status_code == 404
        else:
            raise AssertionError

asyncio.run(main())
print("used")
"""


def test_the_client_and_the_service_understand_each_other(small: dict[str, Any], tmp_path: Path) -> None:
    generate(small, tmp_path).write()
    handlers = tmp_path / "orders" / "handlers" / "default.py"
    text = handlers.read_text().replace(
        '    raise HTTPException(501, "getOrder is not written yet")',
        '    if order_id == 9:\n        raise HTTPException(404)\n    return Order(item="book", count=order_id)',
    )
    handlers.write_text(
        text.replace('    raise HTTPException(501, "putOrder is not written yet")', "    assert body.count == 1")
    )
    (tmp_path / "use.py").write_text(USE)
    assert run(tmp_path, "use").strip() == "used"


def test_generating_again_keeps_what_was_written_and_shows_what_changes(small: dict[str, Any], tmp_path: Path) -> None:
    generate(small, tmp_path).write()
    handlers = tmp_path / "orders" / "handlers" / "default.py"
    mine = handlers.read_text().replace(
        'raise HTTPException(501, "getOrder is not written yet")', "return MINE  # so there"
    )
    handlers.write_text(mine)
    (tmp_path / "README.md").write_text("mine")
    same = generate(small, tmp_path)
    assert {change.kind for change in same.changes} == {"same", "kept"}
    assert same.diff == ""

    changed = copy.deepcopy(small)
    changed["paths"]["/orders/{order-id}"]["get"]["parameters"].append(
        {"name": "verbose", "in": "query", "schema": {"type": "boolean", "default": False}}
    )
    changed["paths"]["/orders"] = {"get": {"operationId": "listOrders", "responses": {"200": {"description": "fine"}}}}
    del changed["paths"]["/orders/{order-id}"]["put"]
    plan = generate(changed, tmp_path)
    assert "+async def get_order(order_id: int, *, verbose: bool = False) -> Order:" in plan.diff
    assert handlers.read_text() == mine  # nothing is written before it is asked for
    plan.write()
    text = handlers.read_text()
    assert "return MINE  # so there" in text
    assert "async def list_orders() -> None:" in text
    assert "async def put_order" in text
    note = next(change.note for change in plan.changes if change.path.endswith("handlers/default.py"))
    assert note == "not in the document, kept: put_order"
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_generated_file_edited_by_hand_is_not_written_over_unasked(small: dict[str, Any], tmp_path: Path) -> None:
    generate(small, tmp_path).write()
    models = tmp_path / "orders" / "models.py"
    models.write_text(models.read_text() + "\nMINE = 1\n")
    small["components"]["schemas"]["Order"]["properties"]["colour"] = {"type": "string"}
    with pytest.raises(ConfigError, match=r"edited by hand: orders/models.py"):
        generate(small, tmp_path)
    assert "MINE" in models.read_text()
    generate(small, tmp_path, force=True).write()
    assert "MINE" not in models.read_text()


def test_a_dry_run_writes_nothing(small: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "api.json").write_text(json.dumps(small))
    arguments = ["generate", str(tmp_path / "api.json"), "-o", str(tmp_path / "out"), "--dry-run", "--json"]
    assert main(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["written"] is False
    assert {"path": "orders/app.py", "kind": "new", "note": ""} in told["files"]
    assert not (tmp_path / "out").exists()


def test_a_wrong_setting_fails_before_anything_is_written(
    small: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small["paths"]["/orders/{order-id}"]["get"]["x-resilience"]["retry"]["attempts"] = "many"
    (tmp_path / "api.json").write_text(json.dumps(small, indent=1))
    assert main(["generate", str(tmp_path / "api.json"), "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "#/paths/~1orders~1{order-id}/get/x-resilience/retry/attempts" in said
    assert "api.json:" in said
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ a malicious document

EVIL = (
    '"); import os; os.system("touch pwned") #',
    '"""\nimport os\nos.system("touch pwned")\n"""',
    "x\nimport os; os.system('touch pwned')",
    "{__import__('os').system('touch pwned')}",
    "\\",
    "../../escape",
    "\u202e\u2028\x00' + os.system('touch pwned') + '",
    "__class__",
    "import",
)


def evil_document(text: str) -> dict[str, Any]:
    """A document in which everything a stranger may choose is `text`."""
    schema = {
        "type": "object",
        "description": text,
        "required": [text],
        "properties": {
            text: {"type": "string", "default": text, "description": text},
            "pattern": {"type": "string", "pattern": text},
            "choice": {"enum": [text, "other"], "default": text},
            "constant": {"const": text},
            "inner": {"type": "object", "properties": {text: {"type": "string", "example": text}}},
        },
    }
    evil = {"$ref": "#/components/schemas/Evil"}
    operation = {
        "operationId": text,
        "summary": text,
        "description": text,
        "tags": [text],
        "parameters": [
            {"name": text, "in": "query", "required": True, "schema": {"type": "string", "default": text}},
            {"name": text, "in": "header", "schema": {"type": "string", "default": text}},
            {"name": text, "in": "cookie", "schema": {"type": "string"}},
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": evil}}},
        "responses": {"200": {"description": text, "content": {"application/json": {"schema": schema}}}},
        "x-resilience": {"fallback": {"alternatives": {"value": text}}, "timeout": {"seconds": 1, "name": text}},
    }
    path = "/" + text.replace("{", "").replace("}", "") + "/{" + text.replace("{", "").replace("}", "") + "}"
    return {
        "openapi": "3.1.0",
        "info": {"title": text, "version": text, "description": text},
        "paths": {path: {"get": {"operationId": f"other {text}"}, "post": operation}},
        "components": {
            "schemas": {"Evil": schema, text: {"type": "string", "enum": [text, text + "2"], "description": text}}
        },
    }


@pytest.mark.parametrize("text", EVIL)
def test_nothing_in_a_document_becomes_code(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "inside" / "service"
    plan = generate(evil_document(text), folder)
    plan.write()
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    allowed = {
        "everkeel",
        "fastapi",
        "pydantic",
        "typing",
        "uuid",
        "datetime",
        "enum",
        "decimal",
        "pytest",
        "__future__",
    }
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = {one.name for one in folder.iterdir()}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                )
                assert {name.partition(".")[0] for name in names} <= allowed | own, path
            if isinstance(node, ast.Name):
                assert node.id != "os"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("__import__", "exec", "eval", "system", "open"), path


@pytest.mark.parametrize("text", [EVIL[0], EVIL[3]])
def test_a_malicious_service_still_only_serves(text: str, tmp_path: Path) -> None:
    generate(evil_document(text), tmp_path / "service").write()
    said = run(tmp_path / "service", "pytest", *QUIET)
    assert "passed" in said
    assert not list(tmp_path.rglob("pwned"))
