"""Named points at which a test may end the process, so that recovery from a crash there can be proven.

The name says where: `relay.after_publish` is the moment between the broker's yes and our writing it down. Nothing
happens at any of them unless `everkeel.testing.crash_at` has set `hook`.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], object] | None = None


def crash_point(name: str) -> None:
    """Pass a named point: the place where a test may raise, block or kill the process."""
    if hook is not None:
        hook(name)
