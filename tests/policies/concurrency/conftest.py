"""The forms in which a concurrency limit guards a call, with and without priorities, and the simulated services."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from everkeel import concurrency_limit
from everkeel.policies.concurrency.state import Adaptive
from everkeel.runtime.signature import kind_of
from everkeel.runtime.state import State

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@dataclass(frozen=True)
class Form:
    """One way of calling: `form(policy, fn)` is `fn` guarded by the policy; `form.limit(...)` makes the policy."""

    style: str

    def limit(self, *args: Any, **settings: Any) -> Any:
        if self.style == "ranked":
            settings.setdefault("priorities", {"only": 0.0})
        return concurrency_limit(*args, **settings)

    def __call__(self, policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        awaited = kind_of(fn) == "async"
        if self.style == "plain":
            return plain_async(policy, fn) if awaited else partial(policy.call, fn)
        if self.style == "block":
            return in_async_block(policy, fn) if awaited else in_block(policy, fn)
        return policy(fn)


def plain_async(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await policy.acall(fn, *args, **kwargs)

    return call


def in_async_block(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with policy:
            return await fn(*args, **kwargs)

    return call


def in_block(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with policy:
            return fn(*args, **kwargs)

    return call


@pytest.fixture(params=["plain", "woven", "unrolled", "seam", "block", "ranked"])
def limited(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Every form; `ranked` is a woven function with priorities, of which there is only one."""
    if request.param == "unrolled":
        monkeypatch.setattr(Adaptive, "fragment", State.fragment)
    if request.param == "seam":
        monkeypatch.setattr(Adaptive, "fragment", lambda self, kind: None)
    return Form(request.param)


@pytest.fixture(scope="session")
def services() -> ModuleType:
    """scripts/simulate_services.py, which the pictures of the guide are drawn with."""
    name = "simulate_services"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
