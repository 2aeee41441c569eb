"""The source of the client: one class, a method for each operation, typed like the handlers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from everkeel.openapi.document import Document
from everkeel.openapi.generator.operations import Plan
from everkeel.openapi.generator.schemas import Types
from everkeel.openapi.generator.service import imports_for
from everkeel.openapi.generator.source import called, docstring, literal, one_line
from everkeel.openapi.naming import camel

__all__ = ["source"]

_HOLE = re.compile(r"\{(\w+)\}")


def source(document: Document, plans: Sequence[Plan], types: Types, package: str) -> str:
    """The module of the client."""
    name = f"{camel(document.title, 'Service').removesuffix('Client')}Client"
    if name in types.model_names:
        name += "_"
    methods = "\n\n".join(_method(plan) for plan in plans)
    body = "\n".join(
        [
            f"class {name}(OperationClient):",
            docstring(
                f"Talks to {one_line(document.title, 60)}: waits when it is asked to, slows down before it must."
            ),
            "",
            methods,
        ]
    )
    used = [word for word in ("OperationClient", "part") if re.search(rf"\b{word}\b", body)]
    imports = imports_for(body, types, package, [f"from everkeel.openapi.client import {', '.join(used)}"])
    return f'"""A client for the service. Generated."""\n\n{imports}\n\n\n{body}\n'


def _method(plan: Plan) -> str:
    arguments = plan.arguments()
    raw = plan.body is not None and plan.body.type is None
    if raw:
        at = arguments.index("*") if "*" in arguments else len(arguments)
        arguments.insert(at, "content: bytes")
        if _multipart(plan):  # only who has made the content knows its boundary
            arguments.insert(at + 1, "media: str")
    given = [literal(plan.operation.method.upper()), _address(plan)]
    for place, word in (("query", "query"), ("header", "headers"), ("cookie", "cookies")):
        pairs = [f"{literal(one.wire)}: {one.name}" for one in plan.parameters if one.place == place]
        if pairs:
            given.append(f"{word}={{{', '.join(pairs)}}}")
    if raw and plan.body is not None:
        given += ["content=content", "media=media" if _multipart(plan) else f"media={literal(plan.body.media)}"]
    elif plan.body is not None:
        given.append("body=body")
        if plan.body.media != "application/json":
            given.append(f"media={literal(plan.body.media)}")
    result = plan.returns
    if result not in ("None", "Response"):
        given.append(f"returns={result}")
    lines = [
        called(
            f"async def {plan.name}", ["self", *arguments], f" -> {'bytes' if result == 'Response' else result}:", 4
        ),
        docstring(plan.summary, 8, f"Ask for {one_line(plan.operation.id, 60)}."),
    ]
    if result == "None":
        lines.append(called("await self.call", given, indent=8))
    elif result == "Response":
        lines.append(called("return await self.fetch", given, indent=8))
    else:
        lines += [called(f"answer: {result} = await self.call", given, indent=8), "        return answer"]
    return "\n".join(lines)


def _multipart(plan: Plan) -> bool:
    return plan.body is not None and plan.body.media.lower().startswith("multipart/")


def _address(plan: Plan) -> str:
    """The path: a literal, or one with each hole filled by a quoted part."""
    if not _HOLE.search(plan.path):
        return literal(plan.path)
    pieces = _HOLE.split(plan.path)  # text, name, text, name, text
    texts = [literal(piece)[1:-1].replace("{", "{{").replace("}", "}}") for piece in pieces[::2]]
    if any(literal(piece).startswith("'") for piece in pieces[::2]):  # a path with quotes in it: put together by hand
        parts = [literal(piece) if number % 2 == 0 else f"part({piece})" for number, piece in enumerate(pieces)]
        return " + ".join(part for part in parts if part != '""')
    holes = [f"{{part({name})}}" for name in pieces[1::2]]
    return 'f"' + "".join(text + hole for text, hole in zip(texts, [*holes, ""], strict=True)) + '"'
