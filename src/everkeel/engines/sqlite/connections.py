"""Connections to a SQLite file, and whose turn it is to write.

SQLite has one writer at a time, and whoever finds another one at it sleeps and looks again, for up to a tenth of a
second at once. Within a process nobody needs to: there is a lock for each file, which is handed on at once.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from weakref import WeakValueDictionary

_IDLE = 4  # connections that are kept for the next transaction; as many as there are threads to use them


class _Turn:
    """The lock of one file. A class of its own, because a plain lock cannot be held weakly."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()


_turns: WeakValueDictionary[tuple[int, str], _Turn] = WeakValueDictionary()
_turns_lock = threading.Lock()


def _turn_of(path: str) -> _Turn:
    # By process too: a forked child has the parent's locks as they were, and nobody there who would let them go.
    with _turns_lock:
        return _turns.setdefault((os.getpid(), os.path.realpath(path)), _Turn())


class Connections:
    """Opens connections, and keeps those whose transaction is over for the next one: opening costs more than most
    transactions do."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self._path, self._busy_timeout = path, busy_timeout
        self._turn = _turn_of(path)
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    def open(self, *, durable: bool = True) -> sqlite3.Connection:
        """A connection of its own. What a durable one commits is on the disk; a crash of the process loses nothing of
        either, but when the power fails the last commits of the other may be gone, unless a durable one came later."""
        connection = sqlite3.connect(
            self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        return connection

    # ------------------------------------------------------------------ one writer at a time

    def enter(self) -> None:
        """Wait for the turn to write; an `OperationalError`, as SQLite's own, where it takes too long."""
        if not self._turn.lock.acquire(timeout=self._busy_timeout):
            raise sqlite3.OperationalError("database is locked")

    def leave(self) -> None:
        """Let the next one write."""
        self._turn.lock.release()

    # ------------------------------------------------------------------ transactions

    def begin(self) -> sqlite3.Connection:
        """A connection in a transaction that may write; `commit` or `roll_back` it."""
        self.enter()
        try:
            return self._begun(reuse=True)
        except BaseException:
            self.leave()
            raise

    def _begun(self, *, reuse: bool) -> sqlite3.Connection:
        try:
            connection = self._idle.pop() if reuse else self.open()
        except IndexError:
            connection, reuse = self.open(), False
        try:
            connection.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            connection.close()
            if reuse and getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY_SNAPSHOT":
                # Somebody still reads with a cursor of an earlier transaction, and sees the file as it was then.
                return self._begun(reuse=False)
            raise
        return connection

    def commit(self, connection: sqlite3.Connection, *, keep: bool = True) -> None:
        """End a transaction well; `keep` its connection for another, where nobody else has it in hands."""
        try:
            connection.commit()
        except BaseException:
            self._drop(connection)
            raise
        self._give_back(connection, keep)

    def roll_back(self, connection: sqlite3.Connection, *, keep: bool = True) -> None:
        """End a transaction without a trace."""
        try:
            connection.rollback()
        except BaseException:
            self._drop(connection)
            raise
        self._give_back(connection, keep)

    def _drop(self, connection: sqlite3.Connection) -> None:
        try:
            connection.close()
        finally:
            self.leave()

    def _give_back(self, connection: sqlite3.Connection, keep: bool) -> None:
        """Keep it as it was made. What users may have left in it (temporary tables) is not for the next one to find."""
        try:
            connection.row_factory, connection.text_factory = None, str
            (left,) = connection.execute("SELECT count(*) FROM temp.sqlite_master").fetchone()
            if left or not keep or self._closed or len(self._idle) >= _IDLE:
                connection.close()
            else:
                self._idle.append(connection)
        finally:
            self.leave()

    def close(self) -> None:
        """Close those that wait for the next transaction; those at work close at their end."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
