"""Putting generated files on disk: nothing hand-written is lost, and what changes is shown first.

A file is one of three kinds: *ours* is written anew each time, unless somebody has edited it since; *theirs* is written
once and never again; *shared* (the handlers) is merged. `.everkeel-generated.json` remembers what ours looked like.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from everkeel.errors import ConfigError

__all__ = ["MANIFEST", "Change", "Plan", "settle"]

MANIFEST = ".everkeel-generated.json"


@dataclass(frozen=True)
class Change:
    """What happens to one file: `new`, `changed`, `same`, or `kept` (theirs)."""

    path: str
    kind: str
    before: str = field(repr=False, default="")
    after: str = field(repr=False, default="")
    note: str = ""

    def diff(self) -> str:
        """The change as a unified diff."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"a/{self.path}",
            f"b/{self.path}",
        )
        return "".join(line if line.endswith("\n") else line + "\n\\ no newline at the end\n" for line in lines)


@dataclass
class Plan:
    """Every change that generating would make. `write()` makes them."""

    folder: Path
    changes: list[Change]
    manifest: dict[str, str]

    @property
    def diff(self) -> str:
        return "".join(change.diff() for change in self.changes if change.kind == "changed")

    def write(self) -> None:
        """Write every new and changed file, each whole or not at all."""
        for change in self.changes:
            if change.kind in ("new", "changed"):
                _write(self.folder / change.path, change.after)
        _write(self.folder / MANIFEST, json.dumps(self.manifest, indent=2, sort_keys=True) + "\n")


def settle(
    folder: Path, ours: Mapping[str, str], theirs: Mapping[str, str], shared: Mapping[str, str], *, force: bool = False
) -> Plan:
    """What writing these files into `folder` would do. `shared` are already merged with what is there."""
    known = _manifest(folder)
    changes, edited = [], []
    for path, text in ours.items():
        change = _compared(folder, path, text)
        if change.kind == "changed" and known.get(path) != _digest(change.before):
            edited.append(path)
        changes.append(change)
    if edited and not force:
        raise ConfigError(
            str(folder), None, f"has generated files that were edited by hand: {', '.join(edited)}; "
            "move the edits into handlers/, or write over them with --force", None,
        )  # fmt: skip
    changes += [_compared(folder, path, text) for path, text in shared.items()]
    for path, text in theirs.items():
        change = _compared(folder, path, text)
        changes.append(
            change if change.kind == "new" else Change(path, "kept", note="yours since it was first written")
        )
    gone = [path for path in known if path not in ours and (folder / path).exists()]
    changes += [Change(path, "kept", note="no longer generated: delete it if nothing uses it") for path in gone]
    return Plan(
        folder, sorted(changes, key=lambda change: change.path), {path: _digest(text) for path, text in ours.items()}
    )


def _compared(folder: Path, path: str, text: str) -> Change:
    target = folder / path
    if not target.exists():
        return Change(path, "new", "", text)
    before = target.read_text(encoding="utf-8")
    return Change(path, "same" if before == text else "changed", before, text)


def _manifest(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        raise ConfigError(str(folder / MANIFEST), None, "must be the JSON that generating wrote", None) from None
    return {str(path): str(digest) for path, digest in found.items()} if isinstance(found, dict) else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
