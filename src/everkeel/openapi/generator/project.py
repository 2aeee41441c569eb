"""What stands around the code: pyproject.toml, README.md, and the package's small files. Written once, then theirs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from everkeel.openapi.document import Document
from everkeel.openapi.generator.operations import Plan
from everkeel.openapi.generator.source import one_line, prose

__all__ = ["pyproject", "readme", "title"]


def pyproject(document: Document, plans: Sequence[Plan], package: str) -> str:
    """The project file of the generated service."""
    needed = ["everkeel[fastapi,uvicorn,httpx2,yaml]", "pydantic>=2"]
    if any(plan.body is not None and _form(plan.body.media) for plan in plans):
        needed.append("python-multipart")  # what `request.form()` reads forms with
    described = json.dumps(one_line(document.title))  # a JSON text is a TOML text
    return f"""\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = {json.dumps(package.replace("_", "-"))}
version = "0.1.0"
description = {described}
requires-python = ">=3.11"
dependencies = {json.dumps(needed)}

[dependency-groups]
dev = ["httpx", "pytest", "ruff", "mypy"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.ruff]
line-length = 120

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
"""


def _form(media: str) -> bool:
    return media.lower().startswith(("multipart/form-data", "application/x-www-form-urlencoded"))


def title(document: Document) -> str:
    """The document's title as a line of prose: nothing in it can end the text it stands in."""
    return prose(one_line(document.title))


def readme(document: Document, plans: Sequence[Plan], package: str) -> str:
    """A page that says how to run it, and what protects each operation."""
    rows = [
        f"| `{_cell(plan.operation.id)}` | `{plan.operation.method.upper()} {_cell(plan.operation.path)}` "
        f"| {', '.join(sorted(plan.policies)) or 'nothing'} |"
        for plan in plans
    ]
    return "\n".join(
        [
            f"# {_cell(document.title)}",
            "",
            "Generated from an OpenAPI document by `everkeel generate`. What the operations do is written in",
            f"`{package}/handlers/`; generating again keeps it, and renews the signatures.",
            "",
            "```sh",
            "pip install -e . --group dev",
            "pytest",
            f"uvicorn {package}.app:app",
            "```",
            "",
            "| operation | address | protected by |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _cell(text: str) -> str:
    """A text of the document as one cell of a table: no markup of its own."""
    return "".join(" " if char in "|`<>[]*_\\" and char != "_" else char for char in one_line(text))
