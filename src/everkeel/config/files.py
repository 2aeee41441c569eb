"""Files of configuration as plain data, with the line of every key: YAML, TOML and JSON.

Nothing in a file is trusted: it has a largest size, a greatest depth and a greatest number of values (a YAML file of
ten lines can stand for billions), YAML's tags make nothing but plain data, and a key that stands twice is an error, not
a race that the later one wins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from everkeel.config.problems import Path, Problem, dotted_path, shown

LARGEST = 256 * 1024  # bytes; such a file has some ten thousand settings
DEEPEST = 32
MOST_VALUES = 50_000
NAMES = ("everkeel.yaml", "everkeel.yml", "everkeel.toml", "everkeel.json", "pyproject.toml")


@dataclass(slots=True)
class Document:
    """A file's data, where its keys stand, and what is wrong with it already."""

    source: str
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int | None:
        """The line of a key, or of the nearest key above it that is known."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[:-1]
        return None

    def where(self, path: Path) -> str:
        """File and line: `everkeel.yaml:12`."""
        line = self.line(path)
        return self.source if line is None else f"{self.source}:{line}"

    def wrong(self, path: Path, message: str, *value: Any) -> None:
        """Note a problem; `value` is what stands there, where that helps."""
        got = shown(value[0]) if value else None
        self.problems.append(Problem(self.source, self.line(path), dotted_path(path), message, got))


class UnreadableError(ValueError):
    """The text is not of its format: the reason, and the line where one is known."""

    def __init__(self, reason: str, line: int | None = None, path: Path = ()) -> None:
        super().__init__(reason, line, path)
        self.reason, self.line, self.path = reason, line, path


def find(folder: str | os.PathLike[str] = ".") -> FilePath | None:
    """The file of configuration in a folder; None where there is none, UnreadableError where there are two."""
    found = [path for name in NAMES if (path := FilePath(folder, name)).is_file()]
    found = [path for path in found if path.name != "pyproject.toml" or _has_section(path)]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise UnreadableError(f"there are {names}: say which one to load")
    return found[0] if found else None


def _has_section(path: FilePath) -> bool:
    import tomllib

    try:
        with path.open("rb") as file:
            tool = tomllib.load(file).get("tool")
    except (OSError, ValueError):
        return False  # it is other tools' file first; they will say what is wrong with it
    return isinstance(tool, dict) and "everkeel" in tool


def read(path: str | os.PathLike[str], called: str | None = None) -> Document:
    """The document in a file, by the name it is called; what is wrong with it is in its problems."""
    document = Document(called or os.fspath(path))
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise UnreadableError(f"is larger than {LARGEST // 1024} KiB, which no configuration needs")
        data, document.lines = _reader(document.source)(raw.decode("utf-8-sig"))
        _measure(data)
        document.data = _root(document, data)
    except OSError as error:
        document.problems.append(Problem(document.source, None, "", f"cannot be read: {error.strerror or error}"))
    except UnicodeDecodeError as error:
        document.problems.append(Problem(document.source, None, "", f"is not UTF-8: {error.reason} at {error.start}"))
    except ImportError as error:
        document.problems.append(Problem(document.source, None, "", f"cannot be read: {error}"))
    except RecursionError:
        document.problems.append(Problem(document.source, None, "", f"is nested deeper than {DEEPEST} levels"))
    except UnreadableError as error:
        where = dotted_path(error.path)
        document.problems.append(Problem(document.source, error.line, where, error.reason))
    return document


def _reader(source: str) -> Callable[[str], tuple[Any, dict[Path, int]]]:
    suffix = FilePath(source).suffix.lower()
    if suffix in (".yaml", ".yml"):
        from everkeel.config.yaml_files import read_yaml

        return read_yaml
    if suffix == ".toml":
        from everkeel.config.toml_files import read_toml

        return read_toml
    if suffix == ".json":
        from everkeel.config.json_files import read_json

        return read_json
    raise UnreadableError("must be named .yaml, .yml, .toml or .json: that says what it is")


def _root(document: Document, data: Any) -> dict[str, Any]:
    """The part that is Everkeel's: all of it, or `[tool.everkeel]` in a TOML file."""
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UnreadableError("must be a table of policy types at the top", 1)
    tool = data.get("tool") if document.source.endswith(".toml") else None
    if isinstance(tool, dict) and isinstance(tool.get("everkeel"), dict):
        depth = 2
        document.lines = {path[depth:]: n for path, n in document.lines.items() if path[:depth] == ("tool", "everkeel")}
        return dict(tool["everkeel"])
    return {} if FilePath(document.source).name == "pyproject.toml" else data


def _measure(data: Any) -> None:
    """Refuse what is too deep or too much; the readers of formats do so too where they would not survive it."""
    left, level, depth = MOST_VALUES, [data], 0
    while level:
        depth += 1
        left -= len(level)
        if depth > DEEPEST:
            raise UnreadableError(f"is nested deeper than {DEEPEST} levels")
        if left < 0:
            raise UnreadableError(f"has more than {MOST_VALUES} values")
        level = [
            inside
            for value in level
            if isinstance(value, dict | list)
            for inside in (value.values() if isinstance(value, dict) else value)
        ]
