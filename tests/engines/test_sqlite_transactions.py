"""A transaction of the SQLite engine's that is cancelled: nothing of it stays, and nobody is locked out."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import suppress

import pytest

from everkeel.engines import SQLiteEngine


def test_cancelled_while_it_waits_for_the_database_it_locks_nobody_out(tmp_path):
    path = tmp_path / "shop.db"

    async def scenario():
        async with SQLiteEngine(path) as engine:
            other = sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)
            other.execute("BEGIN IMMEDIATE")
            asked = threading.Event()
            begin = engine._begin
            engine._begin = lambda: (asked.set(), begin())[1]

            async def work():
                async with engine.transaction():
                    raise AssertionError("it was cancelled before")

            waiting = asyncio.create_task(work())
            await asyncio.to_thread(asked.wait)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            other.execute("COMMIT")
            # The thread gets its transaction now, for nobody; it must end before our patience (10 s) does.
            await asyncio.to_thread(lambda: (other.execute("BEGIN IMMEDIATE"), other.execute("COMMIT")))
            async with asyncio.timeout(10):
                async with engine.transaction() as tx:
                    await tx.run(lambda connection: connection.execute("CREATE TABLE after (x)"))
            other.close()

    asyncio.run(scenario())


def test_cancelled_while_its_thread_writes_on_nothing_of_it_is_kept(tmp_path):
    path = tmp_path / "shop.db"

    async def scenario():
        async with SQLiteEngine(path) as engine:
            await engine.start()
            shop = sqlite3.connect(path)
            shop.execute("CREATE TABLE effects (x)")
            begun, go_on, ended = threading.Event(), threading.Event(), []

            def write(connection):
                connection.execute("INSERT INTO effects VALUES (1)")
                begun.set()
                go_on.wait(10)
                connection.execute("INSERT INTO effects VALUES (2)")
                ended.append(connection.in_transaction)

            async def work():
                async with engine.transaction() as tx:
                    await tx.run(write)

            working = asyncio.create_task(work())
            await asyncio.to_thread(begun.wait)
            working.cancel()
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.05, go_on.set)
            with suppress(asyncio.CancelledError):
                await working
            assert ended == [True]  # it was not rolled back under the hands of the thread
            assert shop.execute("SELECT count(*) FROM effects").fetchone() == (0,)
            shop.close()

    asyncio.run(scenario())


def test_cancelled_while_its_commit_waits_for_a_thread_it_is_committed_all_the_same(tmp_path):
    path = tmp_path / "shop.db"

    async def scenario():
        async with SQLiteEngine(path) as engine:
            release, left = threading.Event(), asyncio.Event()

            async def work():
                async with engine.transaction() as tx:
                    await tx.run(lambda connection: connection.execute("CREATE TABLE orders (x)"))
                    for _ in range(4):  # all the threads there are
                        engine._transactions.submit(release.wait)
                    left.set()

            working = asyncio.create_task(work())
            await left.wait()
            await asyncio.sleep(0)
            working.cancel()
            asyncio.get_running_loop().call_later(0.05, release.set)
            with suppress(asyncio.CancelledError):
                await working
            other = sqlite3.connect(path, isolation_level=None, timeout=0)
            other.execute("BEGIN IMMEDIATE")  # nobody holds the database any more
            assert other.execute("SELECT count(*) FROM orders").fetchone() == (0,)
            other.close()

    asyncio.run(scenario())


def test_what_a_transaction_left_in_its_connection_is_not_found_by_the_next(tmp_path):
    async def scenario():
        async with SQLiteEngine(tmp_path / "shop.db") as engine:
            used = []

            def leave(connection):
                used.append(connection)
                connection.row_factory = sqlite3.Row
                connection.execute("CREATE TEMP TABLE scratch (x)")

            def look(connection):
                used.append(connection)
                assert connection.row_factory is None
                connection.execute("CREATE TEMP TABLE scratch (x)")

            async with engine.transaction() as tx:
                await tx.run(leave)
            async with engine.transaction() as tx:
                await tx.run(look)
            assert used[0] is not used[1]

    asyncio.run(scenario())


def test_a_cursor_that_was_left_open_does_not_spoil_the_next_transaction(tmp_path):
    async def scenario():
        async with SQLiteEngine(tmp_path / "shop.db") as engine:
            async with engine.transaction() as tx:
                await tx.run(lambda connection: connection.execute("CREATE TABLE orders (x)"))
                await tx.run(lambda connection: connection.execute("INSERT INTO orders VALUES (1), (2)"))
            async with engine.transaction() as tx:
                reading = await tx.run(lambda connection: connection.execute("SELECT x FROM orders"))
                assert reading.fetchone() == (1,)  # and not to its end
            other = sqlite3.connect(engine.path, isolation_level=None)
            other.execute("INSERT INTO orders VALUES (3)")
            other.close()
            async with engine.transaction() as tx:
                rows = await tx.run(lambda connection: connection.execute("SELECT count(*) FROM orders").fetchone())
                await tx.run(lambda connection: connection.execute("INSERT INTO orders VALUES (4)"))
            assert rows == (3,)

    asyncio.run(scenario())


def test_two_engines_of_one_file_take_turns_without_sleeping(tmp_path):
    path = tmp_path / "shop.db"

    async def scenario():
        # No patience with each other's locks at all: whoever had to look twice would fail.
        async with SQLiteEngine(path) as one, SQLiteEngine(path) as two:
            async with one.transaction() as tx:
                await tx.run(lambda connection: connection.execute("CREATE TABLE orders (x)"))

            async def write(engine, number):
                async with engine.transaction() as tx:
                    await tx.run(lambda connection: connection.execute("PRAGMA busy_timeout = 0"))
                    await tx.run(lambda connection: connection.execute("INSERT INTO orders VALUES (?)", (number,)))

            await asyncio.gather(*(write(engine, number) for number in range(10) for engine in (one, two)))
            async with two.transaction() as tx:
                count = await tx.run(lambda connection: connection.execute("SELECT count(*) FROM orders").fetchone())
            assert count == (20,)

    asyncio.run(scenario())


def test_who_waits_too_long_for_another_transaction_is_told_as_sqlite_tells_it(tmp_path):
    async def scenario():
        async with SQLiteEngine(tmp_path / "shop.db", busy_timeout=0.05) as engine:
            async with engine.transaction():
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    await engine.inbox.begin("billing", "e-1")
            assert (await engine.inbox.begin("billing", "e-1")).fresh  # and nobody is locked out by that

    asyncio.run(scenario())
