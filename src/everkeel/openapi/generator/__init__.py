"""From a document to a runnable service and a client that listens: see `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everkeel.openapi.document import Document
from everkeel.openapi.generator import client, operations, project, service, writing
from everkeel.openapi.generator.merging import merged
from everkeel.openapi.generator.schemas import Types
from everkeel.openapi.making import checked
from everkeel.openapi.naming import snake
from everkeel.openapi.resilience import plain, policies_by_operation

__all__ = ["generate"]


def generate(
    source: Document | Mapping[str, Any] | str | Path,
    folder: str | Path,
    *,
    package: str | None = None,
    force: bool = False,
) -> writing.Plan:
    """What generating a service into `folder` would write; `.write()` of the answer does it.

    The first time it makes a whole project: models, routers, one protected stub for each operation, tests, a client.
    Again, later, it renews what is generated, keeps the bodies of `handlers/`, and `.diff` shows what would change.
    """
    document = Document.of(source)
    folder = Path(folder)
    name = snake(package or document.title, "service")
    policies = policies_by_operation(document)
    for operation, placed in policies.items():
        checked(placed, operation, document.error)  # wrong settings fail now, not when the generated service starts
    types = Types(document)
    plans = operations.plan(document, types, {operation: plain(placed) for operation, placed in policies.items()})
    grouped = service.groups(plans)

    ours = {
        f"{name}/__init__.py": f'"""{project.title(document)}."""\n',
        f"{name}/routers/__init__.py": '"""What FastAPI reads. Generated."""\n',
        f"{name}/models.py": f'"""The models of the document. Generated."""\n\n{types.models()}',
        f"{name}/app.py": service.app(document, list(grouped), name),
        f"{name}/client.py": client.source(document, plans, types, name),
        "tests/test_service.py": service.tests(document, plans, name),
    }
    shared = {}
    notes: dict[str, str] = {}
    for group, members in grouped.items():
        ours[f"{name}/routers/{group}.py"] = service.router(group, members, types, name)
        path = f"{name}/handlers/{group}.py"
        if not (folder / path).exists():
            shared[path] = service.handlers(group, members, types, name)
            continue
        result = merged(
            (folder / path).read_text(encoding="utf-8"), [service.handler(plan) for plan in members],
            service.handler_imports(members, types, name), str(folder / path),
        )  # fmt: skip
        shared[path] = result.text
        if result.orphaned:
            notes[path] = f"not in the document, kept: {', '.join(result.orphaned)}"
    theirs = {
        f"{name}/handlers/__init__.py": '"""What the operations do."""\n',
        f"{name}/py.typed": "",
        "pyproject.toml": project.pyproject(document, plans, name),
        "README.md": project.readme(document, plans, name),
    }
    settled = writing.settle(folder, ours, theirs, shared, force=force)
    settled.changes = [
        writing.Change(change.path, change.kind, change.before, change.after, notes.get(change.path, change.note))
        for change in settled.changes
    ]
    return settled
