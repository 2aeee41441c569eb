"""A policy as small as one can be, to test what every policy gets from the runtime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from everkeel import RejectedError
from everkeel.runtime.policy import Policy
from everkeel.runtime.settings import Count, Settings, setting
from everkeel.runtime.state import State
from everkeel.runtime.tally import read, tally


@dataclass(frozen=True, kw_only=True, slots=True)
class GateConfig(Settings):
    policy_type: ClassVar[str] = "gate"

    limit: int = setting(Count(at_least=1), default=10)


class GateState(State):
    """Lets `limit` calls in at a time, and remembers how each one ended."""

    __slots__ = ("endings", "inside", "key", "ok", "policy")
    word = "gate"

    def __init__(self, policy: Gate, key: Hashable) -> None:
        self.policy, self.key, self.ok = policy, key, tally()
        self.inside = 0
        self.endings: list[str] = []

    def enter(self) -> object:
        if self.inside >= self.policy.config.limit:
            raise RejectedError(self.policy.name, 1.0)
        self.inside += 1
        return self

    def _leave(self, ending: str) -> None:
        self.inside -= 1
        self.endings.append(ending)

    def done(self, permit: object, result: object) -> None:
        next(self.ok)
        self._leave("done")

    def failed(self, permit: object, error: Exception) -> None:
        self._leave("failed")

    def dropped(self, permit: object, error: BaseException) -> None:
        self._leave("dropped")

    def forgettable(self) -> bool:
        return self.inside == 0

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        return {"inside": self.inside}


class Gate(Policy[GateConfig]):
    __slots__ = ()
    type = "gate"

    def make_state(self, key: Hashable = None) -> GateState:
        return GateState(self, key)


def make_gate(
    name: str | None = None,
    *,
    key: Callable[..., Hashable] | None = None,
    max_keys: int = 10_000,
    replace: bool = False,
    **values: Any,
) -> Gate:
    return Gate(name, GateConfig.make(name, values), key=key, max_keys=max_keys, replace=replace)


@pytest.fixture
def gate(fresh_everkeel: object) -> Callable[..., Gate]:
    """Makes gates, in a process that has not seen any policy yet."""
    return make_gate


@pytest.fixture
def in_a_new_process() -> Callable[..., str]:
    """Runs a program in an interpreter of its own; answers what it printed."""

    def run(program: str, **environment: str) -> str:
        import os

        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run
