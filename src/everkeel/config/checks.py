"""What no single value shows: settings that contradict each other, pipelines that cannot be, names nobody has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everkeel.config import process
from everkeel.config.layers import DEFAULT, Entry, about, in_environment, places
from everkeel.config.pipelines import Plan, config_of, is_known
from everkeel.config.problems import Problem, did_you_mean, dotted_path
from everkeel.config.versions import Contents
from everkeel.errors import ConfigError
from everkeel.runtime.configured import AnyConfigured, everything
from everkeel.runtime.settings import label


def unfit(new: Contents, live: Mapping[AnyConfigured, dict[str, Any]]) -> Iterator[Problem]:
    """What is wrong for the policies and parts there are."""
    own = {
        (step.policy_type, step.name)
        for name, steps in new.pipelines.items()
        for step in steps
        if name in process.pipelines and not step.shared
    }  # what those are made with changes too, so they are checked with their pipelines
    for policy in everything():
        if policy.name is None or (policy.type, policy.name) in own:
            continue
        try:
            policy._under(new.overrides, live.get(policy, policy._live))
        except ConfigError as error:
            yield _problem(error, new, policy.type, policy.name)


def unfit_pipelines(plan: Plan, new: Contents) -> Iterator[Problem]:
    """What is wrong with the pipelines; those that code asked for join the plan."""
    for name, handle in process.pipelines.items():
        try:
            plan.add(handle, new.pipelines.get(name), new.layers, list(new.pipelines))
        except (ConfigError, ValueError) as error:
            yield Problem(new.source or "config", None, dotted_path(("pipelines", name)), str(error))
    for name, steps in new.pipelines.items():
        for step in steps:
            if name in process.pipelines or step.shared or not is_known(step, new.layers):
                continue
            try:
                config_of(step, new.layers)
            except ConfigError as error:
                yield _problem(error, new, step.policy_type, step.name, dotted_path(step.path))
            except TypeError as error:  # a setting that has no default, and is given nowhere
                missing = str(error).split("argument")[-1].lstrip("s: ")
                yield Problem(new.source or "config", None, dotted_path(step.path), f"needs {missing}")


def unused(contents: Contents) -> Iterator[Problem]:
    """Sections that nothing in this process takes anything from: misspelt, or not imported yet."""
    steps = [step for steps in contents.pipelines.values() for step in steps]
    for layer, spelled in ((contents.file, str), (contents.environment, in_environment)):
        for (policy_type, name), section in layer.sections.items():
            names = [one.name for one in everything() if one.type == policy_type and one.name is not None]
            names += [step.name for step in steps if step.policy_type == policy_type]
            if name == spelled(DEFAULT) or any(name == spelled(place) for one in names for place in places(one)):
                continue
            entry = next(iter(section.values()), None)
            source, line = _place(entry) if entry is not None else (contents.source or "config", None)
            message = f"is the name of no {policy_type} there is{did_you_mean(name, map(spelled, names))}"
            yield Problem(source, line, dotted_path((policy_type, name)), message)


def _problem(error: ConfigError, new: Contents, policy_type: str, name: str, path: str = "") -> Problem:
    """A problem from an error of a policy's settings, with the place of the value where configuration gave it."""
    entry = about(new.layers, policy_type, name).get(error.parameter or "")
    if entry is None:
        return Problem(new.source or "config", None, path, str(error))
    source, line = _place(entry)
    got = None if len(error.args) < 4 else error.args[3]
    return Problem(source, line, entry.path, f"{error.allowed}, for {label(policy_type, name)}", got)


def _place(entry: Entry) -> tuple[str, int | None]:
    file, _, line = entry.source.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (entry.source, None)
