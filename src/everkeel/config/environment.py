"""`EVERKEEL_<TYPE>__<NAME>__<SETTING>`: what the environment says. Variables without `__` are none of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everkeel.config.forms import form_of
from everkeel.config.layers import Layer, in_environment
from everkeel.config.problems import Problem, did_you_mean, shown
from everkeel.config.sections import checked, entry_for, meaning, which_setting
from everkeel.config.types import known_types, settings_class
from everkeel.runtime.settings import Flag, Names

PREFIX = "EVERKEEL_"
SOURCE = "environment"


def read_environment(variables: Mapping[str, str], names: Names) -> tuple[Layer, list[Problem]]:
    """The layer of the environment, and what is wrong in it."""
    layer, problems = Layer(spelled=in_environment), list[Problem]()
    types = {one.upper(): one for one in known_types()}
    for variable, text in sorted(variables.items()):
        if not variable.startswith(PREFIX) or "__" not in variable:
            continue
        word, *middle = variable.removeprefix(PREFIX).split("__")
        parts = [stripped for part in middle if (stripped := part.strip("_"))]
        if word not in types:
            complaint: str | None = "is about no type of policy" + did_you_mean(
                word, types, f"; there are {', '.join(types)}"
            )
        elif len(parts) < 2:
            complaint = f"must be {PREFIX}{word}__<NAME>__<SETTING>, where NAME may be DEFAULT"
        else:
            name, setting = "__".join(parts[:-1]).upper(), parts[-1].lower()
            complaint = _read(layer, types[word], name, setting, variable, text, names)
        if complaint is not None:
            problems.append(Problem(SOURCE, None, variable, complaint, shown(text)))
    return layer, problems


def _read(layer: Layer, policy_type: str, name: str, key: str, variable: str, text: str, names: Names) -> str | None:
    """Put what a variable says into the layer, or answer what is wrong with it."""
    settings = settings_class(policy_type)
    fields = settings.may_be_set()
    if key not in fields and key != "enabled":
        return f"is no setting of {policy_type}{which_setting(key, fields)}"
    said = _of_text(text, fields[key].metadata) if key in fields else Flag().from_text(text)
    setting, raw = meaning(fields, key, said)
    entry = entry_for(settings, setting, raw, f"env {variable}", variable)
    layer.sections.setdefault((policy_type, name), {})[setting] = entry
    if setting != key and not isinstance(said, bool):
        return "must be true or false"
    return checked(entry, names)


def _of_text(text: str, metadata: Mapping[str, Any]) -> Any:
    if metadata["none"] is not None and text.strip().lower() in ("null", "none"):
        return None
    return form_of(metadata["kind"]).from_text(text)
