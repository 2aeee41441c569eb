"""Who can tell us that the caller's transaction was committed, so that the relay is woken then and not before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from everkeel.engines.sql.runners import kind_of

_WRITTEN = "everkeel.written"
_HEARD = "everkeel.heard"


def when_committed(tx: Any, act: Callable[[Any], object]) -> bool:
    """Call `act` once `tx` is committed. False: this kind of transaction tells nobody; whoever polls will see.

    It is called with a connection on which SQL may be run, where there is one that does not need to be awaited, and
    with None otherwise.
    """
    if hasattr(tx, "after_commit") and callable(tx.after_commit):
        tx.after_commit(lambda: act(None))
        return True
    library, name = kind_of(tx) or ("", "")
    if library == "sqlalchemy" and name in ("Session", "scoped_session", "AsyncSession", "async_scoped_session"):
        _after_session(tx, act)
        return True
    return False


def _after_session(session: Any, act: Callable[[Any], object]) -> None:
    """SQLAlchemy's sessions say when they have committed. We listen once per session, whatever it is used for later."""
    from sqlalchemy import Engine, event

    if hasattr(session, "registry"):
        session = session.registry()
    blocks = not hasattr(session, "sync_session")
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
            # The session itself may not be used in the middle of its commit.
            bind = session.get_bind() if blocks else None
            with bind.connect() if isinstance(bind, Engine) else nullcontext() as connection:
                told(connection)

    def rolled_back(session: Any, previous: Any) -> None:
        if not session.in_nested_transaction():
            session.info.pop(_WRITTEN, None)

    event.listen(session, "after_commit", committed)
    event.listen(session, "after_soft_rollback", rolled_back)
