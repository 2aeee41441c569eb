"""An OpenAPI file as plain data with the line of every key: by configuration's readers, within wider bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everkeel.config.files import UnreadableError
from everkeel.config.problems import dotted_path
from everkeel.errors import ConfigError

__all__ = ["read"]

LARGEST = 16 * 1024 * 1024
MOST_VALUES = 1_000_000


def read(path: Path) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """The data of a file in JSON or YAML, and where each key stands; ConfigError for what cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError(str(path), None, f"cannot be read: {error.strerror or error}", None) from None
    if len(raw) > LARGEST:
        raise ConfigError(str(path), None, f"must not be larger than {LARGEST // 1024 // 1024} MiB", None)
    try:
        text = raw.decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            from everkeel.config.json_files import read_json

            return read_json(text)
        if path.suffix.lower() in (".yaml", ".yml"):
            from everkeel.config.yaml_files import read_yaml

            return read_yaml(text, most_values=MOST_VALUES, number_keys=True)
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), None, f"is not UTF-8: {error.reason} at {error.start}", None) from None
    except RecursionError:
        raise ConfigError(str(path), None, "is nested too deeply", None) from None
    except UnreadableError as error:
        where = f"{path}:{error.line}" if error.line is not None else str(path)
        raise ConfigError(where, dotted_path(error.path) or None, error.reason, None) from None
    raise ConfigError(str(path), None, "must be named .json, .yaml or .yml: that says what it is", None)
