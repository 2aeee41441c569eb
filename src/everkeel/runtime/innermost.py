"""The user's function, at the bottom of whatever the layers inside have made of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from everkeel.runtime.state import State
from everkeel.runtime.weave import Rest


def innermost(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What is called in the end when a layer calls `fn`: by this, a layer knows which function it guards."""
    while True:
        if isinstance(fn, Rest):
            fn = fn.fn
        elif isinstance(fn, partial) and isinstance(getattr(fn.func, "__self__", None), State):
            fn = fn.args[0]
        else:
            return fn
