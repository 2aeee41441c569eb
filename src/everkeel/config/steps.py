"""Pipelines as a file defines them: lists of policies, outermost first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everkeel.config.files import Document
from everkeel.config.layers import Layer, Section
from everkeel.config.names import NotYetError
from everkeel.config.problems import Path, did_you_mean
from everkeel.config.sections import PIPELINES, read_section, table_at
from everkeel.config.types import PARTS, SHORTHAND, policy_types, settings_class
from everkeel.runtime.settings import Names, is_name

OWN = ("name", "key", "max_keys")
LITERALS = ("function", "value", "by_error")  # how the alternative of a fallback may be written


@dataclass(slots=True, eq=False)
class Step:
    """One policy of a pipeline."""

    policy_type: str
    name: str
    path: Path
    section: Section
    shared: bool = False
    """Was its name chosen in the file? Then it is whichever policy has that name."""
    key: str | None = None
    max_keys: int | None = None


def read_pipelines(document: Document, layer: Layer, names: Names) -> dict[str, list[Step]]:
    """The pipelines of a document. What their steps say joins the layer, as sections of the steps' names."""
    pipelines: dict[str, list[Step]] = {}
    what = "a table from the names of pipelines"
    for name, given in table_at(document, (PIPELINES,), document.data.get(PIPELINES), what).items():
        path = (PIPELINES, name)
        if not isinstance(given, list) or not given:
            document.wrong(path, "must be a list of policies, outermost first", given)
            continue
        steps: list[Step] = []
        for index, one in enumerate(given):
            step = _step(document, (*path, index), name, one, steps, names)
            if step is not None:
                steps.append(step)
        pipelines[name] = steps
        for step in steps:
            # A section of the step's own name says the same kind of thing in a more visible place: it wins.
            identity = (step.policy_type, step.name)
            layer.sections[identity] = {**step.section, **layer.sections.get(identity, {})}
    return pipelines


def _step(document: Document, path: Path, pipeline: str, given: Any, before: list[Step], names: Names) -> Step | None:
    if isinstance(given, str):
        given = {given: None}
    if not isinstance(given, Mapping) or len(given) != 1:
        document.wrong(path, "must be one policy, such as retry: {attempts: 3}", given)
        return None
    ((policy_type, inside),) = given.items()
    here = (*path, policy_type)
    types = policy_types()
    if policy_type in PARTS:
        document.wrong(here, f"guards no call; its settings stand under {policy_type}, beside {PIPELINES}")
        return None
    if policy_type not in types:
        hint = did_you_mean(str(policy_type), types, f"; there are {', '.join(types)}")
        document.wrong(here, f"is no type of policy{hint}")
        return None
    table = _as_table(document, here, policy_type, inside)
    same = sum(step.policy_type == policy_type and not step.shared for step in before)
    name = f"{PIPELINES}.{pipeline}" + (f"#{same + 1}" if same else "")
    own = own_keys(policy_type)
    settings = {key: one for key, one in table.items() if key not in own}
    step = Step(policy_type, name, here, read_section(document, here, policy_type, settings, names))
    for key in own:
        if key in table:
            _read_own(document, (*here, key), step, key, table[key], names)
    return step


def own_keys(policy_type: str) -> tuple[str, ...]:
    """What a step may say beside settings; of a cache `key` is a setting."""
    fields = settings_class(policy_type).may_be_set()
    return tuple(key for key in OWN if key not in fields)


def _as_table(document: Document, path: Path, policy_type: str, inside: Any) -> Mapping[str, Any]:
    """A table of settings; true and nothing are all defaults, and any other value is that of the main setting."""
    if inside is None or inside is True:
        return {}
    literal = (
        policy_type == "fallback"
        and isinstance(inside, Mapping)
        and 0 < len(set(inside) & set(LITERALS)) == len(inside)
    )
    if isinstance(inside, Mapping) and not literal:
        return inside
    if policy_type not in SHORTHAND or inside is False:
        document.wrong(path, "must be a table of settings, or true for the defaults", inside)
        return {}
    return {SHORTHAND[policy_type]: inside}


def _read_own(document: Document, path: Path, step: Step, key: str, value: Any, names: Names) -> None:
    if key == "max_keys":
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            document.wrong(path, "must be a whole number of at least 1", value)
        else:
            step.max_keys = value
    elif key == "name":
        if not isinstance(value, str) or not value:
            document.wrong(path, "must be a name", value)
        else:
            step.name, step.shared = value, True
    elif not is_name(value):
        document.wrong(path, "must be the name of a registered function of the call's arguments", value)
    else:
        step.key = function = str(value).strip()
        try:
            names.function(function)
        except NotYetError:
            pass  # asked again when the policy is made
        except ValueError as error:
            document.wrong(path, str(error), value)
