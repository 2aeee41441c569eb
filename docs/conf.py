"""Sphinx settings. Warnings are errors (`make docs`), and every reference to our own names must resolve."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib.metadata import version as installed_version

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

project = "Everkeel"
author = "The Everkeel contributors"
copyright = author
version = release = installed_version("everkeel")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Everkeel {release}"

default_role = "code"  # single backticks in docstrings are code, as in Markdown
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Names that are not ours need not resolve: the site builds without a network.
nitpick_ignore_regex = [(r"py:.*", r"(?!everkeel\b).*")]

# `Event` is what a policy tells of and what services send each other; an annotation without a module finds both.
suppress_warnings = ["ref.python"]

# --- the reference ------------------------------------------------------------------------------
# `<!-- names of some.module -->` in a page becomes the description of every name in its __all__, or if it has none of
# every public class it defines. What an earlier one on the page has described is only named again.

NAMES_OF = re.compile(r"^<!-- names of ([\w.]+) -->$", re.MULTILINE)
KINDS = ("Functions", "Classes", "Exceptions", "Other names")


def kind_of(thing: object) -> tuple[str, str]:
    if inspect.isclass(thing):
        return ("Exceptions", "autoexception") if issubclass(thing, BaseException) else ("Classes", "autoclass")
    return ("Functions", "autofunction") if inspect.isroutine(thing) else ("Other names", "autodata")


def names_of(module_name: str, described: set[int]) -> Iterator[str]:
    module = importlib.import_module(module_name)
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module_name]
    things = {name: getattr(module, name) for name in sorted(getattr(module, "__all__", own)) if name[0] != "_"}
    if again := [name for name, thing in things.items() if id(thing) in described]:
        yield f"{', '.join(f'`{name}`' for name in again)}: see above.\n"
    found = [(name, *kind_of(thing)) for name, thing in things.items() if name not in again]
    described.update(id(thing) for thing in things.values() if callable(thing))  # equal constants may be one object
    for heading in KINDS:
        chosen = [(name, directive) for name, kind, directive in found if kind == heading]
        if chosen:
            yield f"### {heading}\n"
        for name, directive in chosen:
            members = "   :members:\n   :show-inheritance:\n" if directive in {"autoclass", "autoexception"} else ""
            yield f"```{{eval-rst}}\n.. {directive}:: {module_name}.{name}\n{members}```\n"


def fill_in_names(app: Sphinx, docname: str, source: list[str]) -> None:
    described: set[int] = set()  # what is public in two places is described once
    source[0] = NAMES_OF.sub(lambda match: "\n".join(names_of(match[1], described)), source[0])


# --- references -----------------------------------------------------------------------------------
# Annotations say `everkeel.policies.retry.Retry`; the page that describes it calls it `everkeel.Retry`.


def resolve_by_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Element | None:
    if node.get("refdomain") != "py" or not node["reftarget"].startswith("everkeel."):
        return None
    thing = look_up(node["reftarget"])
    if thing is None:
        return None  # there is no such name: becomes a warning, and so an error
    for name, entry in env.domains.python_domain.objects.items():
        if look_up(name) is thing:
            return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, [text], name)
    return text  # a type variable, an alias, something inside: plain text


@functools.cache
def look_up(name: str) -> object | None:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return None


def setup(app: Sphinx) -> None:
    app.connect("source-read", fill_in_names)
    app.connect("missing-reference", resolve_by_public_name)
