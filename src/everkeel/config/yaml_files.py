"""YAML with the line of every key, read as YAML 1.2 means it: `on` and `off` are words there, and 1:30 is no number.

Built on PyYAML's safe loader, of which it uses the parser and nothing that makes objects: plain data is made here,
where a key that stands twice, a tag, or an alias that multiplies can be refused.
"""

from __future__ import annotations

import math
import re
from typing import Any, NoReturn

from everkeel.config.files import DEEPEST, MOST_VALUES, UnreadableError
from everkeel.config.problems import Path

try:
    import yaml
except ImportError:  # pragma: no cover - said when a file is read
    raise ImportError("configuration in YAML needs PyYAML: pip install everkeel[yaml]") from None

_TAG = "tag:yaml.org,2002:"


class CoreLoader(yaml.SafeLoader):
    """Decides what a plain word is by YAML 1.2's core schema, in place of YAML 1.1's surprises."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    CoreLoader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), _first)


def read_yaml(text: str, *, most_values: int = MOST_VALUES, number_keys: bool = False) -> tuple[Any, dict[Path, int]]:
    """The data, and the line of every key. `number_keys`: a key may be a number, which is taken as the text it is."""
    try:
        loader = CoreLoader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise UnreadableError(f"is not YAML: {reason}", None if mark is None else mark.line + 1) from None
    except yaml.YAMLError as error:
        raise UnreadableError(f"is not YAML: {' '.join(str(error).split())}") from None
    build = _Build(most_values, number_keys)
    return (None if root is None else build.value(root, ())), build.lines


class _Build:
    def __init__(self, most_values: int, number_keys: bool) -> None:
        self.lines: dict[Path, int] = {}
        self._most = self._left = most_values
        self._number_keys = number_keys

    def value(self, node: yaml.Node, path: Path, depth: int = 1) -> Any:
        # Every alias is walked each time it is used: what a small file multiplies itself into is counted, not made.
        self._left -= 1
        if self._left < 0:
            self._refuse(node, f"stands for more than {self._most} values: its aliases multiply")
        if depth > DEEPEST:
            self._refuse(node, f"is nested deeper than {DEEPEST} levels")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._table(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(one, (*path, index), depth + 1) for index, one in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        return self._refuse(node, f"has the tag {node.tag!r}: configuration is plain data")

    def _table(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        table: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        own: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                for inherited, value in self._merged(value_node, path, depth).items():
                    merged.setdefault(inherited, value)
                continue
            line = key_node.start_mark.line + 1
            key: Any = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if self._number_keys and isinstance(key, int) and not isinstance(key, bool):
                key = str(key_node.value)
            if not isinstance(key, str):
                shown = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a table or list"
                self._refuse(key_node, f"has the key {shown!r}, which is no text: put it in quotes")
            here = (*path, key)
            if key in own:
                raise UnreadableError(f"stands twice, first in line {own[key]}", line, here)
            own[key] = line
            self.lines[here] = line
            table[key] = self.value(value_node, here, depth + 1)
        return {**merged, **table}

    def _merged(self, node: yaml.Node, path: Path, depth: int) -> dict[str, Any]:
        """`<<: *other`: the keys of another table, or of several of which the first wins, under this table's own."""
        many = node.value if isinstance(node, yaml.SequenceNode) else [node]
        found: dict[str, Any] = {}
        for one in many:
            if not isinstance(one, yaml.MappingNode):
                self._refuse(one, "must name a table to merge: <<: *other")
            for key, value in self.value(one, path, depth + 1).items():
                found.setdefault(key, value)
        return found

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text, kind = str(node.value), node.tag.removeprefix(_TAG)
        try:
            if kind == "str" or kind == "merge":
                return text
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
            if kind == "float":
                return _float(text.lower())
        except (KeyError, ValueError):
            self._refuse(node, f"is not what its tag says: {text[:40]!r} is no {kind}")
        return self._refuse(node, f"has the tag {node.tag!r}: configuration is plain data")

    def _refuse(self, node: yaml.Node, reason: str) -> NoReturn:
        raise UnreadableError(reason, node.start_mark.line + 1)


def _float(text: str) -> float:
    if text.endswith(".inf"):
        return -math.inf if text.startswith("-") else math.inf
    return math.nan if text == ".nan" else float(text)
