"""Generating again over hand-written work: signatures follow the document, bodies and everything else stay.

Told: a module as it stands and the functions it should have. Answers: the module with the heads of those functions
renewed where they say something else, missing functions added at its end, missing imports added to its own.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from everkeel.errors import ConfigError
from everkeel.openapi.generator.service import Function

__all__ = ["Merged", "merged"]


class Merged:
    """The new text, and what happened: functions added, heads renewed, functions the document no longer has."""

    def __init__(self, text: str, added: list[str], renewed: list[str], orphaned: list[str]) -> None:
        self.text, self.added, self.renewed, self.orphaned = text, added, renewed, orphaned


def merged(text: str, functions: Sequence[Function], imports: str, where: str) -> Merged:
    """`text` brought up to date. A module that does not parse is left alone with an error that says where."""
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(
            where, f"line {error.lineno}", "must be Python that parses: it is yours, and is kept", None
        ) from None
    present = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    wanted = {function.name: function for function in functions}
    renewed = []
    for name, node in sorted(present.items(), key=lambda pair: -pair[1].lineno):  # from the end: positions stay true
        if name in wanted and not _same_head(node, wanted[name].head):
            text = _with_head(text, node, wanted[name].head)
            renewed.append(name)
    added = [name for name in wanted if name not in present]
    if added:
        text = text.rstrip("\n") + "\n\n\n" + "\n\n\n".join(str(wanted[name]) for name in added) + "\n"
    text = _with_imports(text, imports)
    orphaned = [name for name in present if name not in wanted and not name.startswith("_")]
    return Merged(text, added, sorted(renewed), orphaned)


def _parsed_head(head: str) -> ast.AsyncFunctionDef:
    node = ast.parse(f"{head}\n    pass").body[0]
    assert isinstance(node, ast.AsyncFunctionDef)
    return node


def _same_head(node: ast.FunctionDef | ast.AsyncFunctionDef, head: str) -> bool:
    new = _parsed_head(head)
    return (
        isinstance(node, ast.AsyncFunctionDef)
        and ast.dump(node.args) == ast.dump(new.args)
        and _dump(node.returns) == _dump(new.returns)
    )


def _dump(node: ast.expr | None) -> str:
    return "" if node is None else ast.dump(node)


def _with_head(text: str, node: ast.FunctionDef | ast.AsyncFunctionDef, head: str) -> str:
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:  # the tree counts columns in bytes
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    begin = offset(node.lineno, node.col_offset)
    if node.returns is not None and node.returns.end_lineno is not None:
        end = offset(node.returns.end_lineno, node.returns.end_col_offset or 0)
    else:
        end = _closing_bracket(text, begin)
    colon = text.index(":", end)
    return text[:begin] + head + text[colon + 1 :]


def _closing_bracket(text: str, begin: int) -> int:
    """Where the brackets of a signature close; texts in its defaults may have brackets too, so let the parser say."""
    position = text.index("(", begin)
    while True:
        position = text.index(")", position + 1)
        try:
            ast.parse(text[begin : position + 1] + ": pass")
        except SyntaxError:
            continue
        return position + 1


def _with_imports(text: str, imports: str) -> str:
    """`text` with those of `imports` that it lacks."""
    module = ast.parse(text)
    present = {
        (node.module, alias.name) for node in module.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    missing: dict[str, list[str]] = {}
    for node in ast.parse(imports).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (node.module, alias.name) not in present:
                    missing.setdefault(node.module, []).append(alias.name)
    if not missing:
        return text
    new = [f"from {module_name} import {', '.join(names)}\n" for module_name, names in sorted(missing.items())]
    lines = text.splitlines(keepends=True)
    last = max(
        (node.end_lineno or 0 for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)),
        default=(module.body[0].end_lineno or 0) if module.body and ast.get_docstring(module) is not None else 0,
    )
    return "".join([*lines[:last], *new, *lines[last:]])
