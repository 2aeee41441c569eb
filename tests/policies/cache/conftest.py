"""The forms of calling (see `tests/policies/conftest.py`), with the cache's own fragment taken away for the seam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everkeel.policies.cache.state import Shelf


def _seam(form: Any, patch: pytest.MonkeyPatch) -> Any:
    if form.style == "seam":
        patch.setattr(Shelf, "fragment", lambda self, kind: None)
    return form


@pytest.fixture
def guarded(guarded: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return _seam(guarded, monkeypatch)


@pytest.fixture
def awaited(awaited: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return _seam(awaited, monkeypatch)


@pytest.fixture
def threaded(threaded: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return _seam(threaded, monkeypatch)


@pytest.fixture
def declared(guarded: Any) -> Callable[[Any, str], Any]:
    """`declared(policy, "a, b=2")`: a guarded function with just these parameters, which lists what it was called with.

    To be called like any sync function; `.calls` is the list, `.bare` the function that the policy guards.
    """

    def declare(policy: Any, parameters: str) -> Any:
        calls: list[dict[str, Any]] = []
        space: dict[str, Any] = {"calls": calls}
        kind = "async def" if guarded.awaited else "def"
        exec(f"{kind} user({parameters}):\n    calls.append(locals())\n    return len(calls)", space)
        inner = guarded.guarded(policy, space["user"])

        def call(*args: Any, **kwargs: Any) -> Any:
            return guarded.clock.run(inner(*args, **kwargs)) if guarded.awaited else inner(*args, **kwargs)

        call.calls, call.bare = calls, space["user"]  # type: ignore[attr-defined]
        return call

    return declare
