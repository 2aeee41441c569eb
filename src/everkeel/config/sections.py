"""From plain data to sections: every key known, every value allowed, or a problem that says where and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everkeel.config.control_options import CONTROL, read_control
from everkeel.config.files import Document
from everkeel.config.layers import Entry, Layer, Section
from everkeel.config.names import NotYetError
from everkeel.config.problems import Path, did_you_mean, dotted_path
from everkeel.config.types import known_types, settings_class
from everkeel.runtime.settings import Names, Settings

PIPELINES = "pipelines"
_APART = ("$schema", PIPELINES, CONTROL)  # for editors; read by `steps`; checked by `control_options`


def read_sections(document: Document, names: Names) -> Layer:
    """What a document says about policies; what is wrong joins the document's problems."""
    layer, types = Layer(), known_types()
    read_control(document)
    for policy_type, sections in document.data.items():
        if policy_type in _APART:
            continue
        if policy_type not in types:
            known = [*types, PIPELINES, CONTROL]
            hint = did_you_mean(str(policy_type), known, f"; there are {', '.join(known)}")
            document.wrong((policy_type,), f"is no type of policy{hint}")
            continue
        for name, given in table_at(document, (policy_type,), sections, "a table from the names of policies").items():
            path = (policy_type, name)
            settings = table_at(document, path, given, "a table of settings")
            layer.sections[policy_type, name] = read_section(document, path, policy_type, settings, names)
    return layer


def read_section(document: Document, path: Path, policy_type: str, table: Mapping[str, Any], names: Names) -> Section:
    """The settings in a table, each checked."""
    settings = settings_class(policy_type)
    fields = settings.may_be_set()
    section: Section = {}
    if "enabled" in table and "mode" in table and "enabled" not in fields:
        document.wrong((*path, "enabled"), "must not stand beside mode: enabled: false is mode: off")
    for key, raw in table.items():
        here = (*path, key)
        if key not in fields and key != "enabled":
            document.wrong(here, f"is no setting of {policy_type}{which_setting(key, fields, raw)}")
            continue
        setting, meant = meaning(fields, key, raw)
        entry = entry_for(settings, setting, meant, document.where(here), dotted_path(here))
        complaint = checked(entry, names) if setting == key or isinstance(raw, bool) else "must be true or false"
        if complaint is not None:
            document.wrong(here, complaint, raw)
        section[setting] = entry
    return section


def meaning(fields: Mapping[str, Any], key: str, raw: Any) -> tuple[str, Any]:
    """`enabled: false` is `mode: off`, except where a policy has a setting of that name: a feature toggle."""
    if key == "enabled" and key not in fields:
        return "mode", "enforce" if raw is True else "off" if raw is False else raw
    return key, raw


def entry_for(settings: type[Settings], setting: str, raw: Any, source: str, path: str) -> Entry:
    """An entry for a setting there is."""
    metadata = settings.may_be_set()[setting].metadata
    return Entry(raw, metadata["kind"], metadata["none"] is not None, source, path)


def checked(entry: Entry, names: Names) -> str | None:
    """What is wrong with an entry; None where nothing is, or where it depends on code that is not imported yet."""
    try:
        entry.read(names)
    except NotYetError:
        return None
    except ValueError as error:
        message = str(error).replace("True or False", "true or false")
        return message + (", or null" if entry.may_be_none else "")
    return None


def which_setting(key: str, fields: Mapping[str, Any], raw: Any = None) -> str:
    """The hint behind an unknown setting."""
    known = sorted({*fields, "enabled"})
    if isinstance(raw, Mapping):  # `[retry.shop.orders]`, most likely
        return did_you_mean(str(key), known, "; a name with dots in it stands in quotes", surely=True)
    return did_you_mean(str(key), known, f"; it has {', '.join(known)}")


def table_at(document: Document, path: Path, value: Any, what: str) -> Mapping[str, Any]:
    """A table; nothing at all stands for an empty one, and anything else is a problem."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        document.wrong(path, f"must be {what}", value)
        return {}
    if "" in value:
        document.wrong(path, "must have names that are not empty")
    return {key: one for key, one in value.items() if key}
