"""What users of configuration call: load it, look at it, change it, check it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everkeel.config import process
from everkeel.config.checks import unfit, unfit_pipelines, unused
from everkeel.config.configuration import Configuration, Source
from everkeel.config.environment import read_environment
from everkeel.config.files import Document, UnreadableError, find, read
from everkeel.config.layers import Layer
from everkeel.config.names import ProcessNames
from everkeel.config.pipelines import Plan
from everkeel.config.problems import Problem
from everkeel.config.sections import read_sections
from everkeel.config.steps import read_pipelines
from everkeel.config.versions import Contents, Effective
from everkeel.config.versions import effective as effective_under
from everkeel.errors import ConfigError, InvalidConfigurationError
from everkeel.events import SettingChange
from everkeel.runtime.configured import AnyConfigured, Configured
from everkeel.runtime.settings import Duration


def load(
    source: Source = None,
    *,
    env: Mapping[str, str] | None = None,
    watch: bool = False,
    interval: float = 1.0,
) -> Configuration:
    """Load configuration and put it in force, for what there is and what is yet to come.

    Args:
        source: A file (YAML, TOML or JSON), or a mapping of the same shape. None: the file named by EVERKEEL_CONFIG, or
            else everkeel.yaml, everkeel.toml, everkeel.json or `[tool.everkeel]` in pyproject.toml in the working
            directory, or else none.
        env: Variables to read in place of those of the process; `{}` for none.
        watch: Look at the file every `interval` seconds and reload it when it has changed.
        interval: 1 second: a look costs a few microseconds.

    What is wrong is an `InvalidConfigurationError` with every problem, and leaves what was in force in force.

    >>> from everkeel import config, retry
    >>> fetch = retry("docs.load.fetch", attempts=3)
    >>> loaded = config.load({"retry": {"docs.load.fetch": {"attempts": 5}}}, env={})
    >>> fetch.config.attempts
    5
    """
    Duration().check(interval)
    if source is not None and not isinstance(source, str | os.PathLike | Mapping):
        raise ConfigError("config", "source", "must be a path or a mapping", repr(source))
    if source is None:
        source = _found(os.environ if env is None else env)
    made = Configuration(source, env)
    before = made.begin(watch, interval)
    if before is not None:
        before.close()
    return made


def _found(env: Mapping[str, str]) -> Path | None:
    if env.get("EVERKEEL_CONFIG"):
        return Path(env["EVERKEEL_CONFIG"])
    try:
        return find()
    except UnreadableError as error:
        raise InvalidConfigurationError(
            "config", None, "is wrong", None, (Problem(os.getcwd(), None, "", error.reason),)
        ) from None


def current() -> Configuration:
    """The configuration in force; an empty one where nothing was loaded."""
    with process.lock:
        if process.current is None:
            process.current = Configuration(None, {})
        return process.current


def change(policy_type: str, name: str, /, **settings: Any) -> tuple[SettingChange, ...]:
    """Change settings live; see `Configuration.change`. A new version, checked whole, that `rollback` can undo.

    >>> from everkeel import config, timeout
    >>> quick = timeout(2, "docs.change.quick")
    >>> [change.after for change in config.change("timeout", "docs.change.quick", seconds="500ms")]
    [0.5]
    """
    return current().change(policy_type, name, **settings)


def effective(policy: AnyConfigured) -> dict[str, Effective]:
    """Every setting of a policy, outbox, relay, consumer or orchestrator: its value, and where that comes from.

    >>> from everkeel import config, retry
    >>> config.effective(retry(attempts=5))["attempts"]
    Effective(value=5, source='code')
    """
    if not isinstance(policy, Configured):
        raise TypeError(f"effective() needs a policy, not {policy!r}")
    return effective_under(policy, Contents() if process.current is None else process.current.contents)


def check(
    source: str | os.PathLike[str], *, env: Mapping[str, str] | None = None, complete: bool = False
) -> list[Problem]:
    """Everything that is wrong with a file (and the variables in `env`, if given); nothing is put in force.

    `complete`: the whole application is imported, so that a name or a section that nobody has is a problem too.
    """
    contents, document, problems = draft(read(source), env or {}, complete=complete)
    problems = [*document.problems, *problems]
    if not problems:
        problems = [*unfit(contents, {}), *unfit_pipelines(Plan(), contents)]
        if complete:
            problems += unused(contents)
    return sorted(problems, key=lambda one: (one.source, one.line or 0))


def draft(document: Document, env: Mapping[str, str], *, complete: bool) -> tuple[Contents, Document, list[Problem]]:
    """What a document and variables say, without putting it in force."""
    names = ProcessNames(hopeful=not complete)
    environment, problems = read_environment(env, names)
    file = read_sections(document, names)
    pipelines = read_pipelines(document, file, names)
    return Contents(file, environment, Layer(), pipelines, document.source), document, problems
