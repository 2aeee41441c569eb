"""Changing settings while calls are under way loses no call and no state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from everkeel import bulkhead, circuit_breaker, config, retry

CALLS = 400


def _text(version: int) -> str:
    """Versions that differ in settings, in modes, and in what the pipeline consists of."""
    mode = ("enforce", "shadow", "off")[version % 3]
    extra = "    - bulkhead: 100\n" if version % 2 else ""
    return (
        f"retry: {{default: {{attempts: {2 + version % 5}, backoff: 0}}}}\n"
        f"bulkhead: {{places: {{limit: {50 + version % 10}, mode: {mode}}}}}\n"
        f"circuit_breaker: {{default: {{window: {100 + version}, mode: {mode}}}}}\n"
        f"pipelines:\n  load:\n    - retry: {{attempts: 3}}\n{extra}    - circuit_breaker: {{failure_rate: 0.9}}\n"
    )


def test_threads_lose_no_call_and_no_permit(written: Callable[..., Path]) -> None:
    path = written(_text(0))
    places = bulkhead(50, "places")

    @config.pipeline("load")
    @places
    @retry(attempts=5, backoff=0)
    def call(number: int) -> int:
        if number % 7 == 0 and number not in failed:
            failed.add(number)
            raise ConnectionError
        return number

    failed: set[int] = set()
    loaded = config.load(path, env={})
    results: list[list[int]] = [[] for _ in range(4)]
    started = threading.Barrier(5)

    def work(index: int) -> None:
        started.wait()
        for number in range(CALLS):
            results[index].append(call(index * CALLS + number))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    version = 0
    while version < 5 or any(thread.is_alive() for thread in threads):  # the calls may be over sooner
        version += 1
        path.write_text(_text(version))
        loaded.reload()
        config.change("retry", "default", max_abandoned=1 + version % 50)
        if version % 5 == 0:
            loaded.rollback()
    for thread in threads:
        thread.join()
    assert results == [[index * CALLS + number for number in range(CALLS)] for index in range(4)]
    assert places.snapshot()["running"] == 0  # type: ignore[typeddict-item]
    assert loaded.version > 3


def test_tasks_lose_no_call_and_no_permit(written: Callable[..., Path]) -> None:
    path = written(_text(0))
    places = bulkhead(50, "places")
    running = 0

    @config.pipeline("load")
    @places
    async def call(number: int) -> int:
        nonlocal running
        running += 1
        await asyncio.sleep(0)
        running -= 1
        return number

    loaded = config.load(path, env={})

    async def main() -> list[int]:
        tasks = [asyncio.create_task(call(number)) for number in range(40)]
        answers: list[int] = []
        for version in range(1, 40):
            path.write_text(_text(version))
            loaded.reload()
            await asyncio.sleep(0)
            tasks += [asyncio.create_task(call(40 * version + number)) for number in range(10)]
            if version % 4 == 0:
                loaded.rollback()
            answers += [await task for task in tasks]
            tasks.clear()
        return answers

    answers = asyncio.run(main())
    assert answers == [*range(40), *(40 * version + number for version in range(1, 40) for number in range(10))]
    assert running == 0
    assert places.snapshot()["running"] == 0  # type: ignore[typeddict-item]


def test_a_call_under_way_keeps_its_permit_through_a_reload(written: Callable[..., Path]) -> None:
    path = written("bulkhead: {places: {limit: 1}}\n")
    places = bulkhead(5, "places")
    loaded = config.load(path, env={})
    inside, leave = threading.Event(), threading.Event()

    @places
    def call() -> str:
        inside.set()
        leave.wait(20)
        return "done"

    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    inside.wait(20)
    path.write_text("bulkhead: {places: {limit: 2}}\n")
    loaded.reload()
    assert places.snapshot()["running"] == 1  # type: ignore[typeddict-item]
    leave.set()
    thread.join()
    assert answers == ["done"]
    assert places.snapshot()["running"] == 0  # type: ignore[typeddict-item]


def test_policies_made_while_configuration_changes_have_its_last_word() -> None:
    """A policy that registers between two versions is asked by one or the other, never by neither."""
    made: list = []
    started, ended = threading.Barrier(2), threading.Event()

    def make() -> None:
        started.wait()
        made.extend(circuit_breaker(f"made.{number}") for number in range(200))
        ended.set()

    thread = threading.Thread(target=make)
    thread.start()
    started.wait()
    window = 100
    while not ended.is_set():
        window += 1
        config.load({"circuit_breaker": {"default": {"window": window}}}, env={})
    thread.join()
    assert {policy.config.window for policy in made} == {window}
