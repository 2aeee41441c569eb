"""Policies from an OpenAPI document: read `x-resilience`, put it on a running app, or generate a service from it.

- `protect(app, document)`: the document's policies on the routes of a FastAPI or Starlette app
- `protection(operation, policies)`: the same for one function, as generated services use it
- `generate(document, folder)`: a whole service, and again later without losing what was written by hand
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from everkeel.openapi.document import Document as Document
    from everkeel.openapi.document import Operation as Operation
    from everkeel.openapi.generator import generate as generate
    from everkeel.openapi.making import answered as answered
    from everkeel.openapi.protecting import operations_of as operations_of
    from everkeel.openapi.protecting import protect as protect
    from everkeel.openapi.protecting import protection as protection

__all__ = ["Document", "Operation", "answered", "generate", "operations_of", "protect", "protection"]

_HOMES = {
    "document": ("Document", "Operation"),
    "generator": ("generate",),
    "making": ("answered",),
    "protecting": ("operations_of", "protect", "protection"),
}


def __getattr__(name: str) -> object:
    """Imported when first used: a service that only protects itself never loads the generator."""
    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(_import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
