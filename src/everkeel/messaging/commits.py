"""Who can tell us that the caller's transaction was committed, so that the relay is woken then and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everkeel.engines.sql.runners import kind_of

_WRITTEN = "everkeel.written"
_HEARD = "everkeel.heard"


def when_committed(tx: Any, act: Callable[[], object]) -> bool:
    """Call `act` once `tx` is committed. False: this kind of transaction tells nobody; whoever polls will see."""
    if hasattr(tx, "after_commit") and callable(tx.after_commit):
        tx.after_commit(act)
        return True
    library, name = kind_of(tx) or ("", "")
    if library == "sqlalchemy" and name in ("Session", "scoped_session", "AsyncSession", "async_scoped_session"):
        _after_session(tx, act)
        return True
    return False


def _after_session(session: Any, act: Callable[[], object]) -> None:
    """SQLAlchemy's sessions say when they have committed. We listen once per session, whatever it is used for later."""
    from sqlalchemy import event

    if hasattr(session, "registry"):
        session = session.registry()
    session = getattr(session, "sync_session", session)
    session.info[_WRITTEN] = act
    if session.info.get(_HEARD):
        return
    session.info[_HEARD] = True

    def committed(session: Any) -> None:
        if session.in_nested_transaction():
            return  # a savepoint was released; the transaction itself is still open
        told = session.info.pop(_WRITTEN, None)
        if told is not None:
            told()

    def rolled_back(session: Any, previous: Any) -> None:
        if not session.in_nested_transaction():
            session.info.pop(_WRITTEN, None)

    event.listen(session, "after_commit", committed)
    event.listen(session, "after_soft_rollback", rolled_back)
