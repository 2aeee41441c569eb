"""The source of the service: routers (ours), handlers (theirs), the app that joins them, and its tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from everkeel.openapi.document import Document
from everkeel.openapi.generator.operations import Parameter, Plan
from everkeel.openapi.generator.samples import NO_SAMPLE, sample
from everkeel.openapi.generator.schemas import Types
from everkeel.openapi.generator.source import WIDTH, assigned, called, docstring, literal, one_line

__all__ = ["Function", "app", "groups", "handler", "handlers", "imports_for", "router", "tests"]

_FASTAPI = ("APIRouter", "Cookie", "FastAPI", "Header", "HTTPException", "Path", "Query", "Request", "Response")


class Function:
    """A handler as the generator would write it: what it needs imported, its head, and a body to begin with."""

    def __init__(self, name: str, head: str, body: str) -> None:
        self.name, self.head, self.body = name, head, body

    def __str__(self) -> str:
        return f"{self.head}\n{self.body}"


def groups(plans: Sequence[Plan]) -> dict[str, list[Plan]]:
    """The operations by module, so ordered that a fixed path is tried before one with a hole in its place."""
    found: dict[str, list[Plan]] = {}
    for plan in sorted(plans, key=_how_open):
        found.setdefault(plan.group, []).append(plan)
    return dict(sorted(found.items(), key=lambda pair: max(map(_how_open, pair[1]))))


def _how_open(plan: Plan) -> list[tuple[bool, str]]:
    return [("{" in part, part) for part in plan.path.split("/")[1:]]


def imports_for(source: str, types: Types, package: str, extra: Sequence[str] = ()) -> str:
    """The import block for a piece of source: standard library, others, the package's own."""
    bare = re.sub(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#.*', "", source)
    words = set(re.findall(r"[A-Za-z_]\w*", bare))
    standard = [line for line in types.imports_of(bare) if not line.startswith("from pydantic")]
    others = [line for line in types.imports_of(bare) if line.startswith("from pydantic")]
    fastapi = [name for name in _FASTAPI if name in words]
    if fastapi:
        others.append(f"from fastapi import {', '.join(fastapi)}")
    others += [line for line in extra if not line.startswith(f"from {package}")]
    own = [line for line in extra if line.startswith(f"from {package}")]
    models = [name for name in types.model_names if name in words]
    if models:
        own.append(_from(f"{package}.models", models))
    blocks = [sorted(standard), sorted(others), sorted(own)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _from(module: str, names: Sequence[str]) -> str:
    flat = f"from {module} import {', '.join(names)}"
    return (
        flat if len(flat) <= WIDTH else f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
    )


# ------------------------------------------------------------------ handlers


def handler(plan: Plan) -> Function:
    """One stub: it says that it is not written yet, in a way HTTP has a status for."""
    arguments = plan.arguments()
    if plan.body is not None and plan.body.type is None:
        arguments.insert(0, "request: Request")
    head = called(f"async def {plan.name}", arguments, f" -> {plan.returns}:")
    said = literal(one_line(f"{plan.operation.id} is not written yet"))
    body = [
        docstring(plan.summary, 4, f"Answer {one_line(plan.operation.id, 60)}."),
        f"    raise HTTPException(501, {said})",
    ]
    return Function(plan.name, head, "\n".join(body))


def handlers(group: str, plans: Sequence[Plan], types: Types, package: str) -> str:
    """A module of stubs, for a group that has none yet."""
    functions = "\n\n\n".join(str(handler(plan)) for plan in plans)
    imports = imports_for(functions, types, package)
    said = f'"""What the operations of {group} do. The bodies are yours: generating again keeps them."""'
    return f"{said}\n\n{imports}\n\n\n{functions}\n"


def handler_imports(plans: Sequence[Plan], types: Types, package: str) -> str:
    """The imports that the signatures of a group need."""
    return imports_for("\n".join(str(handler(plan)) for plan in plans), types, package)


# ------------------------------------------------------------------ routers


def router(group: str, plans: Sequence[Plan], types: Types, package: str) -> str:
    """The module that FastAPI reads: routes, what protects them, and a call of the handler."""
    routes = "\n\n\n".join(_route(plan) for plan in plans)
    protected = ["from everkeel.openapi import protection"] if any(plan.policies for plan in plans) else []
    tag = next((plan.operation.node["tags"][0] for plan in plans if plan.operation.node.get("tags")), None)
    made = "router = APIRouter()" if tag is None else f"router = APIRouter(tags=[{literal(str(tag))}])"
    own = [*protected, f"from {package}.handlers import {group} as handlers"]
    imports = imports_for(f"{made}\n{routes}", types, package, own)
    return f"{_header(group)}\n\n{imports}\n\n{made}\n\n\n{routes}\n"


def _header(group: str) -> str:
    return f'"""The routes of {group}. Generated: what they do stands in handlers/{group}.py."""'


def _route(plan: Plan) -> str:
    options = [literal(plan.path), f"operation_id={literal(plan.operation.id)}"]
    if plan.status != 200:
        options.append(f"status_code={plan.status}")
    if plan.summary:
        options.append(f"summary={literal(one_line(plan.summary))}")
    if plan.operation.node.get("deprecated") is True:
        options.append("deprecated=True")
    if plan.result is not None and plan.result.text == "Response":
        options.append("response_model=None")
    elif plan.result is not None and plan.result.model:  # a property left out is not the same as one that is null
        options.append("response_model_exclude_unset=True")
    if plan.operation.method == "trace":
        lines = [called("@router.api_route", [*options, 'methods=["TRACE"]'])]
    else:
        lines = [called(f"@router.{plan.operation.method}", options)]
    if plan.policies:
        first = literal(plan.operation.id)
        room = WIDTH - len(f"@protection({first}, )")
        whole = literal(plan.policies, 0, room)
        lines.append(f"@protection({first}, {whole})" if "\n" not in whole else _spread(first, plan.policies))
    required = [parameter.route_argument() for parameter in plan.parameters if parameter.required]
    optional = [parameter.route_argument() for parameter in plan.parameters if not parameter.required]
    if plan.body is not None and plan.body.type is None:
        required.insert(0, "request: Request")
    elif plan.body is not None and plan.body.type is not None:
        if plan.body.required:
            required.append(f"body: {plan.body.type.annotation}")
        else:
            optional.append(f"body: {plan.body.type.or_none().text} = None")
    lines.append(called(f"async def {plan.name}", [*required, *optional], f" -> {plan.returns}:"))
    lines.append(docstring(plan.summary, 4, f"Answer {one_line(plan.operation.id, 60)}."))
    lines.append(_passed_on(plan))
    return "\n".join(lines)


def _spread(first: str, policies: Any) -> str:
    return f"@protection(\n    {first},\n    {literal(policies, 4, WIDTH - 5)},\n)"


def _passed_on(plan: Plan) -> str:
    arguments = ["request"] if plan.body is not None and plan.body.type is None else []
    arguments += [parameter.name for parameter in plan.parameters if parameter.required]
    typed = plan.body is not None and plan.body.type is not None
    if typed and plan.body is not None and plan.body.required:
        arguments.append("body")
    arguments += [f"{parameter.name}={parameter.name}" for parameter in plan.parameters if not parameter.required]
    if typed and plan.body is not None and not plan.body.required:
        arguments.append("body=body")
    word = "await" if plan.result is None else "return await"
    return called(f"{word} handlers.{plan.name}", arguments, indent=4)


# ------------------------------------------------------------------ the app


def app(document: Document, names: Sequence[str], package: str) -> str:
    """The module that uvicorn runs."""
    routers = ", ".join(sorted(names))
    described = document.root["info"].get("description")
    options = [f"title={literal(one_line(document.title))}", f"version={literal(one_line(document.version))}"]
    if isinstance(described, str) and described:
        options.append(f"description={literal(one_line(described))}")
    lines = [
        '"""The service. Run it with `uvicorn ' + f'{package}.app:app`."""',
        "",
        "from everkeel.http import Everkeel",
        "from fastapi import FastAPI",
        "",
        _from(f"{package}.routers", sorted(names)) if routers else "",
        "",
        "",
        "def create_app(config: str | None = None) -> FastAPI:",
        '    """A new app; `config` is the path of an everkeel.yaml that overrides what the routes say."""',
        called("app = FastAPI", options, indent=4),
        *[f"    app.include_router({name}.router)" for name in names],
        "    Everkeel(app, config=config).with_protection()",
        "    return app",
        "",
        "",
        "app = create_app()",
        "",
    ]
    return "\n".join(line for line in lines if line is not None).replace("\n\n\n\n", "\n\n\n")


# ------------------------------------------------------------------ tests


def tests(document: Document, plans: Sequence[Plan], package: str) -> str:
    """Tests that hold for the stubs and for whatever is written into them."""
    rows = []
    for plan in plans:
        request = _request(document, plan)
        if request is not None:
            rows.append((plan.operation.id, plan.operation.method.upper(), *request))
    expected = {plan.operation.id: sorted(plan.policies) for plan in plans}
    parts = [
        '"""That the service offers what its document says, protected as it says. Write your own tests beside it."""',
        "",
        "from typing import Any",
        "",
        "import pytest",
        "from everkeel.openapi import operations_of",
        "from fastapi import FastAPI",
        "from fastapi.testclient import TestClient",
        "",
        f"from {package}.app import create_app",
        "",
        assigned("OPERATIONS: dict[str, list[str]]", expected),
        "",
        "# Operation, method, address, what goes with it: a valid request for each operation one could be made for.",
        assigned("REQUESTS: list[tuple[str, str, str, dict[str, Any]]]", rows),
        "",
        "",
        '@pytest.fixture(scope="module")',
        "def app() -> FastAPI:",
        "    return create_app()",
        "",
        "",
        "def test_every_operation_is_there_and_protected(app: FastAPI) -> None:",
        "    found = operations_of(app)",
        "    for operation, policies in OPERATIONS.items():",
        "        assert operation in found",
        "        assert sorted(policy.type for policy in found[operation]) == policies",
        "",
        "",
        '@pytest.mark.parametrize(("operation", "method", "address", "request_"), REQUESTS)',
        "def test_a_valid_request_is_understood(",
        "    app: FastAPI, operation: str, method: str, address: str, request_: dict[str, Any]",
        ") -> None:",
        "    client = TestClient(app, raise_server_exceptions=False)",
        "    answer = client.request(method, address, **request_)",
        '    assert answer.status_code not in (405, 422), f"{operation}: {answer.text}"',
        "",
    ]
    return "\n".join(parts)


def _request(document: Document, plan: Plan) -> list[Any] | None:
    if plan.body is not None and plan.body.type is None:
        return None
    address, keywords = plan.path, dict[str, Any]()
    for parameter in plan.parameters:
        if not parameter.required:
            continue
        value = sample(document, parameter.schema)
        if value is NO_SAMPLE or isinstance(value, dict | list):
            return None
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if parameter.place == "path":
            if not text or not re.fullmatch(r"[A-Za-z0-9._~:-]+", text):
                return None
            address = address.replace("{" + parameter.name + "}", text)
        else:
            keywords.setdefault(_keyword(parameter), {})[parameter.wire] = text
    if "{" in address:
        return None
    if plan.body is not None and plan.body.required:
        value = sample(document, plan.body.schema)
        if value is NO_SAMPLE:
            return None
        keywords["json"] = value
    return [address, keywords]


def _keyword(parameter: Parameter) -> str:
    return {"query": "params", "header": "headers", "cookie": "cookies"}[parameter.place]
