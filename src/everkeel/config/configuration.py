"""The configuration in force: loaded, reloaded, changed live, rolled back. One at a time in a process.

A new version is worked out and checked whole, against every policy there is, before the first policy is touched. What
is wrong leaves the version before it in force and is told: in the error, in the log, and as `ConfigRejected`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn, Self, TypeAlias

from everkeel.config import process
from everkeel.config.checks import unfit, unfit_pipelines, unused
from everkeel.config.environment import read_environment
from everkeel.config.files import Document, read
from everkeel.config.live import changed
from everkeel.config.names import ProcessNames
from everkeel.config.pipelines import Plan
from everkeel.config.problems import Problem
from everkeel.config.sections import read_sections
from everkeel.config.steps import read_pipelines
from everkeel.config.versions import Contents, Version, differences
from everkeel.config.watching import Sight, Watcher, look
from everkeel.errors import ConfigError, InvalidConfigurationError
from everkeel.events import ConfigChanged, ConfigRejected, Event, SettingChange
from everkeel.runtime import events as hub
from everkeel.runtime.configured import AnyConfigured, Rebound, announce, everything, rebind

logger = logging.getLogger("everkeel.config")

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | None
Live: TypeAlias = dict[AnyConfigured, dict[str, Any]]
KEPT = 100  # versions; older ones are forgotten


class Configuration:
    """What was loaded, and its history. `config.load(...)` makes one; the process has one that is current."""

    def __init__(self, source: Source, env: Mapping[str, str] | None) -> None:
        self._source, self._env = source, env
        self._path = None if self.source is None else os.path.abspath(self.source)  # whatever directory we go to later
        self._watcher: Watcher | None = None
        self._contents = Contents()
        self._history: deque[Version] = deque(maxlen=KEPT)
        self._reconfigured: dict[int, dict[tuple[str, str], dict[str, Any]]] = {}

    # ------------------------------------------------------------------ looking

    @property
    def version(self) -> int:
        """The number of the version in force; 0 before anything was loaded or changed."""
        return self._history[-1].number if self._history else 0

    @property
    def source(self) -> str | None:
        """The file it was loaded from; None where there is none."""
        return os.fspath(self._source) if isinstance(self._source, str | os.PathLike) else None

    @property
    def data(self) -> Mapping[str, Any]:
        """What the file or mapping says now, as plain data: for parts that have a table of their own in it."""
        return self._read().data

    @property
    def loaded(self) -> bool:
        """Was there a file or a mapping, beside the environment?"""
        return self._source is not None

    @property
    def watching(self) -> bool:
        """Is its file being watched?"""
        return self._watcher is not None

    @property
    def contents(self) -> Contents:
        """What the version in force says."""
        return self._contents

    def history(self) -> list[Version]:
        """The versions that were in force, oldest first; the last is the one that is. The last 100 are kept."""
        return list(self._history)

    def unused(self) -> list[Problem]:
        """Sections that nothing in this process takes anything from: misspelt, or of code that is not imported."""
        return list(unused(self._contents))

    def __repr__(self) -> str:
        return f"<configuration {self.source or 'without a file'}, version {self.version}>"

    # ------------------------------------------------------------------ changing

    def reload(self) -> tuple[SettingChange, ...]:
        """Read file and environment again. Answers what changed; what is wrong leaves everything as it was."""
        return self._apply("reload", self._load)

    def change(self, policy_type: str, name: str, **settings: Any) -> tuple[SettingChange, ...]:
        """Change settings live: of one policy, of all under a dotted prefix, or of a type (`default`).

        Values are what a file would say (`"500ms"`), or what code would. It wins over an earlier `reconfigure` of the
        policy, and a later one wins over it. Answers what changed.
        """

        def work(cause: str) -> list[Rebound]:
            live, about, problems = changed(self._contents.live, policy_type, name, settings)
            superseded = {
                policy: {key: one for key, one in policy._live.items() if key not in about}
                for policy in everything()
                if policy.type == policy_type and policy.name == name and set(about) & set(policy._live)
            }
            return self._take(dataclasses.replace(self._contents, live=live), cause, problems, superseded)

        return self._apply("change", work)

    def rollback(self, version: int | None = None) -> tuple[SettingChange, ...]:
        """Return to an earlier version (default: the one before the version in force), as a new version.

        Everything is as it was when that version was last in force, with what `reconfigure` had changed by then. A
        watched file is not read again before it changes again.
        """

        def work(cause: str) -> list[Rebound]:
            live = self._reconfigured.get(target.number, {})
            named = [(policy, policy.name) for policy in everything() if policy.name is not None]
            restored = {policy: dict(live.get((policy.type, name), {})) for policy, name in named}
            return self._take(target.contents, cause, [], restored)

        target = self._earlier(version)
        return self._apply(f"rollback to {target.number}", work)

    def close(self) -> None:
        """Stop watching. What is in force stays in force."""
        with process.lock:
            watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------ what `config.load` does, and the watcher

    def begin(self, watch: bool, interval: float) -> Configuration | None:
        """Load for the first time, become the current one, and watch the file if that is wanted.

        Answers the configuration that it took the place of.
        """
        if watch and self._path is None:
            raise ConfigError("config", "watch", "must not be set: there is no file to watch", "True")
        sight: Sight = look(self._path) if self._path is not None else None
        replaced: list[Configuration] = []

        def work(cause: str) -> list[Rebound] | None:
            if process.current is not None:
                self._go_on_from(process.current)
                replaced.append(process.current)
            return self._load(cause)

        self._apply("load", work)
        if watch and self._path is not None:
            self._watcher = Watcher(self._path, self._reload_quietly, interval, since=sight)
        return replaced[0] if replaced else None

    def _go_on_from(self, before: Configuration) -> None:
        """Versions of the one before can be returned to, and live changes stay."""
        self._contents, self._history, self._reconfigured = before._contents, before._history, before._reconfigured

    def after_fork(self) -> None:
        """In a forked child."""
        if self._watcher is not None:
            self._watcher.after_fork()

    def _reload_quietly(self) -> None:
        try:
            self._apply("watch", self._load)
        except ConfigError:
            pass  # told already, in the log and as an event
        except Exception:  # a bug here must not end the watching
            logger.exception("reloading %s failed", self.source)

    # ------------------------------------------------------------------ one change at a time

    def _earlier(self, version: int | None) -> Version:
        known = {one.number: one for one in self._history if one.number != self.version}
        number = self.version - 1 if version is None else version
        if number not in known:
            allowed = f"must be one of {', '.join(map(str, known))}" if known else "must exist: there is no earlier one"
            raise ConfigError("config", "version", allowed, None if version is None else repr(version))
        return known[number]

    def _apply(self, cause: str, work: Callable[[str], list[Rebound] | None]) -> tuple[SettingChange, ...]:
        """Do it under the lock, and tell everybody without it."""
        try:
            with process.lock:
                if process.current is not self and cause != "load":
                    raise ConfigError("config", None, "has been replaced: this configuration is not in force", None)
                rebound = work(cause)
                if rebound is None:
                    return ()
                process.current, version = self, self._history[-1]
        except InvalidConfigurationError as error:
            self._tell_rejected(cause, error)
            raise
        announce(rebound)
        said = "configuration version %d (%s) is in force: %d settings changed"
        logger.info(said, version.number, cause, len(version.changes))
        self._tell(ConfigChanged, version=version.number, cause=cause, changes=version.changes)
        return version.changes

    def _load(self, cause: str) -> list[Rebound] | None:
        names = ProcessNames()
        document = self._read()
        environment, problems = read_environment(os.environ if self._env is None else self._env, names)
        file = read_sections(document, names)
        pipelines = read_pipelines(document, file, names)
        file.keep_from(self._contents.file)
        environment.keep_from(self._contents.environment)
        new = Contents(file, environment, self._contents.live, pipelines, self.source)
        problems = [*document.problems, *problems]
        if not problems and cause != "load" and new.says_the_same_as(self._contents):
            return None
        return self._take(new, cause, problems, {})

    def _read(self) -> Document:
        if self._path is not None:
            return read(self._path, self.source)
        return Document("config", dict(self._source) if isinstance(self._source, Mapping) else {})

    def _take(self, new: Contents, cause: str, problems: list[Problem], live: Live) -> list[Rebound]:
        """Put new contents in force, or raise."""
        plan = Plan()
        if not problems:
            problems = [*unfit(new, live), *unfit_pipelines(plan, new)]
        if problems:
            self._refuse(problems)
        outgoing = {(one.type, one.name): dict(one._live) for one in everything() if one.name is not None and one._live}
        rebound = rebind(new.overrides, code=plan.code, live=live)
        plan.carry_out()
        number = self.version + 1
        self._reconfigured[self.version] = outgoing
        self._reconfigured.pop(number - KEPT, None)
        self._contents = new
        made = Version(number, datetime.now(UTC), cause, new.source, differences(rebound, new), new)
        self._history.append(made)
        return rebound

    def _refuse(self, problems: list[Problem]) -> NoReturn:
        ordered = sorted(problems, key=lambda one: (one.source, one.line or 0))
        raise InvalidConfigurationError(self.source or "config", None, "is wrong", None, tuple(ordered))

    def _tell_rejected(self, cause: str, error: InvalidConfigurationError) -> None:
        texts = tuple(str(one) for one in error.problems)
        level = logging.WARNING if cause == "change" else logging.ERROR  # whoever asked for a change has the error
        said = "configuration not taken (%s), version %d stays: %s"
        logger.log(level, said, cause, self.version, "; ".join(texts))
        self._tell(ConfigRejected, version=self.version, cause=cause, problems=texts)

    def _tell(self, event: type[Event], **values: Any) -> None:
        if hub.everywhere:
            hub.tell(event(policy=None, policy_type="config", **values), ())
