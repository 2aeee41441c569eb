"""Threads for calls that may have to be given up on: started on demand, used again, never waited for."""

from __future__ import annotations

import threading
from collections import deque
from contextvars import ContextVar

import pytest

from everkeel.runtime import workers
from everkeel.runtime.workers import Job, start

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="nothing")


class Idle(deque):
    """The idle workers, and a way to wait until there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.somebody = threading.Semaphore(0)

    def append(self, worker: object) -> None:
        super().append(worker)
        self.somebody.release()


@pytest.fixture
def idle(monkeypatch):
    """No worker of another test."""
    chosen = Idle()
    monkeypatch.setattr(workers, "_idle", chosen)
    return chosen


def run(fn, *args, **kwargs):
    """A job that has ended."""
    job = Job(fn, args, kwargs)
    start(job)
    job.finished.wait()
    return job


def test_a_job_runs_in_a_thread_that_keeps_no_process_alive(idle):
    thread = run(threading.current_thread).result
    assert thread is not threading.current_thread()
    assert thread.name == "everkeel-worker"
    assert thread.daemon


def test_arguments_and_result_go_through(idle):
    assert run(lambda *args, **kwargs: (args, kwargs), 1, two=2).result == ((1,), {"two": 2})


@pytest.mark.parametrize("error", [OSError("refused"), KeyboardInterrupt(), SystemExit(3)])
def test_whatever_it_raises_is_kept_for_the_caller(idle, error):
    def fetch() -> None:
        raise error

    assert run(fetch).error is error


def test_an_idle_worker_is_used_again(idle):
    first = run(threading.get_ident).result
    idle.somebody.acquire()
    assert run(threading.get_ident).result == first


def test_a_worker_whose_job_raised_is_used_again_too(idle):
    run(lambda: 1 / 0)
    idle.somebody.acquire()
    assert run(lambda: "answer").result == "answer"


def test_a_busy_worker_is_not_waited_for(idle):
    release = threading.Event()
    hung = Job(release.wait, (), {})
    start(hung)
    assert run(lambda: "answer").result == "answer"
    release.set()
    hung.finished.wait()


def test_a_worker_that_nobody_needs_ends(idle, monkeypatch):
    monkeypatch.setattr(workers, "_IDLE_SECONDS", 0.0)
    thread = run(threading.current_thread).result
    thread.join()
    assert not idle


def test_a_worker_that_is_needed_in_the_moment_it_would_end_does_its_job(idle, monkeypatch):
    monkeypatch.setattr(workers, "_IDLE_SECONDS", 0.0)
    taken = threading.Event()
    give_up = Idle.remove

    def remove(self, worker):
        """Somebody takes the worker from the idle before it can take itself."""
        if not taken.is_set():
            job = Job(lambda: "answer", (), {})
            start(job)
            taken.job = job
            taken.set()
        give_up(self, worker)

    monkeypatch.setattr(Idle, "remove", remove)
    run(lambda: None)
    taken.wait()
    taken.job.finished.wait()
    assert taken.job.result == "answer"


def test_the_body_has_a_copy_of_its_callers_context(idle):
    def read_and_change() -> str:
        found = VARIABLE.get()
        VARIABLE.set("changed in the worker")
        return found

    token = VARIABLE.set("set by the caller")
    try:
        assert run(read_and_change).result == "set by the caller"
        assert VARIABLE.get() == "set by the caller"
    finally:
        VARIABLE.reset(token)


def test_the_next_job_of_a_worker_does_not_see_what_the_last_one_set(idle):
    run(VARIABLE.set, "left behind")
    idle.somebody.acquire()
    assert run(VARIABLE.get).result == "nothing"


# ------------------------------------------------------------------ giving up


def test_a_job_that_has_ended_cannot_be_given_up_on(idle):
    job = run(lambda: "answer")
    assert not job.abandon(pytest.fail)
    assert job.result == "answer"


@pytest.mark.parametrize("error", [None, OSError("refused")])
def test_whoever_gave_up_hears_how_it_ended_in_the_end(idle, error):
    release, told, heard = threading.Event(), threading.Event(), []

    def hung() -> None:
        release.wait()
        if error is not None:
            raise error

    def on_late(late: BaseException | None) -> None:
        heard.append((late, VARIABLE.get()))
        told.set()

    token = VARIABLE.set("set by the caller")
    job = Job(hung, (), {})
    VARIABLE.reset(token)
    start(job)
    assert job.abandon(on_late)
    release.set()
    told.wait()
    assert heard == [(error, "set by the caller")]


def test_a_job_that_is_over_keeps_neither_function_nor_arguments(idle):
    job = run(lambda argument: None, object())
    for name in ("_fn", "_args", "_kwargs"):
        assert not hasattr(job, name)


# ------------------------------------------------------------------ fork

FORKED = """
import os, threading, warnings
from everkeel.runtime.workers import Job, start

warnings.simplefilter("ignore")  # from 3.12 on: threads and fork do not go together well
def run(fn):
    job = Job(fn, (), {})
    start(job)
    job.finished.wait()
    return job.result

run(lambda: None)
child = os.fork()
if child == 0:
    os.write(1, run(lambda: b"the child has workers of its own"))
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif("sys.platform == 'win32'", reason="no fork")
def test_a_forked_child_does_not_wait_for_threads_that_stayed_behind(in_a_new_process):
    assert in_a_new_process(FORKED) == "the child has workers of its own"
