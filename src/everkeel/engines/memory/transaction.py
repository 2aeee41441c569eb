"""A transaction over what is in memory: what must not be seen early waits for the commit, the rest can be undone."""

from __future__ import annotations

from collections.abc import Callable


class MemoryTransaction:
    """Collects what a commit does and what a rollback undoes. Made by `MemoryEngine.transaction()`."""

    def __init__(self) -> None:
        self._commit: list[Callable[[], object]] = []
        self._rollback: list[Callable[[], object]] = []
        self._after: list[Callable[[], object]] = []

    def on_commit(self, act: Callable[[], object]) -> None:
        """Do this when the transaction is committed: for writes that nobody may see before."""
        self._commit.append(act)

    def on_rollback(self, act: Callable[[], object]) -> None:
        """Undo something that was done at once."""
        self._rollback.append(act)

    def after_commit(self, act: Callable[[], object]) -> None:
        """Do this once everything is committed."""
        self._after.append(act)

    def commit(self) -> None:
        """Everything, in order."""
        for act in (*self._commit, *self._after):
            act()

    def rollback(self) -> None:
        """Nothing, in reverse order."""
        for act in reversed(self._rollback):
            act()
