"""What a process has one of: the current configuration, and the pipelines that code asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everkeel.config.configuration import Configuration
    from everkeel.config.pipelines import ConfiguredPipeline

lock = threading.RLock()
"""One change of the configuration at a time. No call takes it, and nobody is told of a change under it."""
current: Configuration | None = None
pipelines: dict[str, ConfiguredPipeline] = {}


@contextmanager
def fresh() -> Generator[None]:
    """No configuration, no pipelines asked for, nothing registered, for the time of a test; then all as it was."""
    global current
    from everkeel.config import names

    before, asked, things = current, dict(pipelines), dict(names._things)
    current = None
    pipelines.clear()
    names._things.clear()
    try:
        yield
    finally:
        _close(current)
        current = before
        pipelines.clear()
        pipelines.update(asked)
        names._things.clear()
        names._things.update(things)


def _close(configuration: Configuration | None) -> None:
    if configuration is not None:
        configuration.close()


def _after_fork() -> None:
    global lock
    lock = threading.RLock()  # the thread that held it in the parent does not exist here
    if current is not None:
        current.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
