"""Reloading by call and by watching: state survives, what is bad is refused, a half-written file is left alone."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel import circuit_breaker, config, events, rate_limit, retry, subscribe
from everkeel.config.watching import Settled, Watcher, look
from everkeel.errors import InvalidConfigurationError

# A file that is written twice within one tick of the file system's clock shows that in its size alone: it changes here.
PATIENCE = 20.0  # seconds until a test gives up waiting for a thread; no test waits that long when it passes


def test_a_reload_reads_the_file_again(written: Callable[..., Path]) -> None:
    one = retry("one")
    path = written("retry: {one: {attempts: 5}}\n")
    loaded = config.load(path, env={})
    path.write_text("retry: {one: {attempts: 6}}\n")
    assert loaded.reload() == (("retry", "one", "attempts", 5, 6, f"{path}:1"),)
    assert (one.config.attempts, loaded.version) == (6, 2)


def test_a_reload_of_the_same_is_no_version(written: Callable[..., Path]) -> None:
    path = written("retry: {one: {attempts: 5}}\n")
    loaded = config.load(path, env={})
    path.write_text("# a comment\nretry:\n  one:\n    attempts: 5\n")
    assert loaded.reload() == ()
    assert loaded.version == 1


def test_the_state_of_breakers_and_limiters_survives(written: Callable[..., Path]) -> None:
    breaker = circuit_breaker("payments", minimum_calls=2)
    limit = rate_limit(3, per=3600, name="search")
    path = written("circuit_breaker: {payments: {window: 50}}\n")
    loaded = config.load(path, env={})

    @breaker
    def pay() -> None:
        raise ConnectionError

    @limit
    def search() -> None: ...

    for _ in range(2):
        with pytest.raises(ConnectionError):
            pay()
    search()
    assert breaker.snapshot()["state"] == "open"
    path.write_text("circuit_breaker: {payments: {window: 60, open_for: 1h}}\nrate_limit: {search: {order: newest}}\n")
    loaded.reload()
    assert breaker.snapshot()["state"] == "open"
    assert breaker.config.window == 60
    assert limit.remaining() == 2


BAD = ["retry: {one: {attempts: 0}}\n", "retry: [\n", "retry: {}\nretry: {}\n", None]


@pytest.mark.parametrize("text", BAD)
def test_a_bad_reload_keeps_the_old_one_and_says_why(
    written: Callable[..., Path], caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    one = retry("one")
    path = written("retry: {one: {attempts: 5}}\n")
    loaded = config.load(path, env={})
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    heard: list[events.ConfigRejected] = []
    with subscribe(heard.append, events.ConfigRejected), caplog.at_level(logging.ERROR, "everkeel.config"):
        with pytest.raises(InvalidConfigurationError):
            loaded.reload()
    assert (one.config.attempts, loaded.version) == (5, 1)
    assert (heard[0].cause, len(heard[0].problems)) == ("reload", 1)
    assert str(path) in caplog.text
    path.write_text("retry: {one: {attempts: 7}}\n")
    loaded.reload()
    assert one.config.attempts == 7


# ------------------------------------------------------------------ watching: the decision


def test_a_change_is_told_once_it_has_come_to_rest() -> None:
    settled = Settled((1, 1, 1, 1))
    writing, written, same = (2, 5, 1, 1), (3, 9, 1, 1), (3, 9, 1, 1)
    assert [settled.seen(sight) for sight in (writing, written, same, same)] == [False, False, True, False]


def test_a_file_that_is_gone_is_told_once() -> None:
    settled = Settled((1, 1, 1, 1))
    assert [settled.seen(sight) for sight in (None, None, None)] == [False, True, False]


@given(st.lists(st.sampled_from([None, (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)]), max_size=30))
def test_what_is_read_last_is_what_came_to_rest_last(sights: list) -> None:
    settled, read = Settled((0, 0, 0, 0)), (0, 0, 0, 0)
    for before, now in zip([(0, 0, 0, 0), *sights], sights, strict=False):
        told = settled.seen(now)
        assert told == (before == now != read)
        if told:
            read = now


def test_renames_links_and_writes_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert look(str(file)) is None
    file.write_text("one")
    sights = [look(str(file))]
    (tmp_path / "b").write_text("two")
    os.utime(tmp_path / "b", ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    os.replace(tmp_path / "b", file)  # the same size and the same time
    sights.append(look(str(file)))
    file.write_text("three")
    sights.append(look(str(file)))
    assert len(set(sights)) == 3


# ------------------------------------------------------------------ watching: the thread


@pytest.fixture
def watched(tmp_path: Path):
    """Load a file and watch it; gives the policy, the file and a way to wait for the next version."""
    one = retry("one")
    told = threading.Semaphore(0)
    subscriptions = [subscribe(lambda event: told.release(), events.ConfigChanged, events.ConfigRejected)]

    def begin(path: Path):
        loaded = config.load(path, env={}, watch=True, interval=0.01)
        assert told.acquire(timeout=PATIENCE)
        return loaded

    def wait() -> None:
        assert told.acquire(timeout=PATIENCE), "nothing was told"

    yield one, begin, wait
    config.current().close()
    for subscription in subscriptions:
        subscription.cancel()


def test_a_watched_file_is_reloaded_when_it_is_written(watched, written: Callable[..., Path]) -> None:
    one, begin, wait = watched
    path = written("retry: {one: {attempts: 5}}\n")
    loaded = begin(path)
    path.write_text("retry: {one: {attempts: 16}}\n")
    wait()
    assert (one.config.attempts, loaded.history()[-1].cause) == (16, "watch")


def test_a_watched_file_may_be_renamed_into_place(watched, written: Callable[..., Path]) -> None:
    one, begin, wait = watched
    path = written("retry: {one: {attempts: 5}}\n")
    begin(path)
    os.replace(written("retry: {one: {attempts: 6}}\n", "new.yaml"), path)
    wait()
    assert one.config.attempts == 6


def test_a_watched_file_may_be_a_mounted_configmap(watched, tmp_path: Path) -> None:
    one, begin, wait = watched
    for version, attempts in (("v1", 5), ("v2", 6)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "everkeel.yaml").write_text(f"retry: {{one: {{attempts: {attempts}}}}}\n")
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "everkeel.yaml").symlink_to("..data/everkeel.yaml")
    begin(tmp_path / "everkeel.yaml")
    (tmp_path / "..tmp").symlink_to("v2")
    os.replace(tmp_path / "..tmp", tmp_path / "..data")
    wait()
    assert one.config.attempts == 6


def test_a_bad_version_of_a_watched_file_is_not_taken_and_the_next_one_is(
    watched, written: Callable[..., Path]
) -> None:
    one, begin, wait = watched
    path = written("retry: {one: {attempts: 5}}\n")
    loaded = begin(path)
    path.write_text("retry: {one: {attempts: -10}}\n")
    wait()
    assert (one.config.attempts, loaded.version) == (5, 1)
    path.write_text("retry: {one: {attempts: 7}}\n")
    wait()
    assert one.config.attempts == 7


def test_closing_ends_the_thread(watched, written: Callable[..., Path]) -> None:
    _, begin, _ = watched
    loaded = begin(written("retry: {}\n"))
    assert loaded.watching
    assert [thread.name for thread in threading.enumerate()].count("everkeel-config") == 1
    loaded.close()
    loaded.close()
    assert not loaded.watching
    assert "everkeel-config" not in [thread.name for thread in threading.enumerate()]


def test_another_load_ends_the_watching_of_the_first(watched, written: Callable[..., Path]) -> None:
    _, begin, _ = watched
    first = begin(written("retry: {}\n"))
    config.load({}, env={})
    assert not first.watching
    assert "everkeel-config" not in [thread.name for thread in threading.enumerate()]


def test_a_watcher_may_be_closed_from_its_own_thread(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    closed = threading.Event()

    def changed() -> None:
        watcher.close()
        closed.set()

    ready = threading.Event()
    watcher = Watcher(str(tmp_path / "a"), lambda: (ready.wait(PATIENCE), changed()), 0.01, since=None)
    ready.set()
    assert closed.wait(PATIENCE)
    watcher.close()


def test_a_bug_while_reloading_does_not_end_the_watching(
    watched, written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from everkeel.config import configuration

    one, begin, wait = watched
    path = written("retry: {one: {attempts: 5}}\n")
    begin(path)
    failed = threading.Event()
    real = configuration.read

    def broken(*source: str) -> object:
        monkeypatch.setattr(configuration, "read", real)
        failed.set()
        raise ZeroDivisionError

    monkeypatch.setattr(configuration, "read", broken)
    path.write_text("retry: {one: {attempts: 16}}\n")
    assert failed.wait(PATIENCE)
    path.write_text("retry: {one: {attempts: 77}}\n")
    wait()
    assert one.config.attempts == 77
    assert "reloading" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_worker_watches_for_itself(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, sys, time
        from everkeel import config, retry
        one = retry("one")
        path = sys.argv[1]
        config.load(path, env={}, watch=True, interval=0.01)
        if pid := os.fork():
            _, status = os.waitpid(pid, 0)
            sys.exit(os.waitstatus_to_exitcode(status))
        with open(path, "w") as file:
            file.write("retry: {one: {attempts: 16}}")
        end = time.monotonic() + 20
        while one.config.attempts != 16 and time.monotonic() < end:
            time.sleep(0.01)
        os._exit(0 if one.config.attempts == 16 else 1)
    """)
    path = tmp_path / "everkeel.yaml"
    path.write_text("retry: {one: {attempts: 5}}")
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, str(path)]
    subprocess.run(command, check=True, timeout=50)
