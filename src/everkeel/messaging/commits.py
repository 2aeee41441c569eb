"""Who can tell us that the caller's transaction was committed, so that the relay is woken then and not before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from everkeel.engines.sql.runners import kind_of

_WRITTEN = "everkeel.written"
_COMMITTED = "everkeel.committed"
_HEARD = "everkeel.heard"

Act: TypeAlias = Callable[[Callable[[], AbstractContextManager[Any]] | None], object]


def when_committed(tx: Any, act: Act) -> bool:
    """Call `act` once `tx` is committed. False: this kind of transaction tells nobody; whoever polls will see.

    It is called with a function that lends a connection on which SQL may be run, where there is one that does not need
    to be awaited, and with None otherwise.
    """
    if hasattr(tx, "after_commit") and callable(tx.after_commit):
        tx.after_commit(lambda: act(None))
        return True
    library, name = kind_of(tx) or ("", "")
    if library == "sqlalchemy" and name in ("Session", "scoped_session", "AsyncSession", "async_scoped_session"):
        _after_session(tx, act)
        return True
    return False


def _after_session(session: Any, act: Act) -> None:
    """SQLAlchemy's sessions say when they have committed. We listen once per session, whatever it is used for later."""
    from sqlalchemy import Engine, event

    if hasattr(session, "registry"):
        session = session.registry()
    blocks = not hasattr(session, "sync_session")
    session = getattr(session, "sync_session", session)
    session.info.setdefault(_WRITTEN, {})[act] = None  # each once: an outbox writes often; a saga may begin beside it
    if session.info.get(_HEARD):
        return
    session.info[_HEARD] = True

    def committed(session: Any) -> None:
        if not session.in_nested_transaction():  # where a savepoint was released, the transaction itself is still open
            session.info[_COMMITTED] = session.info.pop(_WRITTEN, None)

    def ended(session: Any, transaction: Any) -> None:
        # Not before: in the middle of its commit the session still has its connection, and where that is the only one
        # of the pool, whoever asked for another would wait in vain and make a commit fail that was made.
        if transaction.parent is None and (told := session.info.pop(_COMMITTED, None)) is not None:
            bind = session.get_bind() if blocks else None
            for act in told:
                act(bind.connect if isinstance(bind, Engine) else None)

    def rolled_back(session: Any, previous: Any) -> None:
        if not session.in_nested_transaction():
            session.info.pop(_WRITTEN, None)

    event.listen(session, "after_commit", committed)
    event.listen(session, "after_transaction_end", ended)
    event.listen(session, "after_soft_rollback", rolled_back)
