"""The generated source of a few stacks, as text files: a reviewer sees what a change does to the hot path.

After a change on purpose: EVERKEEL_UPDATE_SNAPSHOTS=1 .venv/bin/python -m pytest tests/runtime/test_snapshots.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everkeel import bulkhead, circuit_breaker, events, fallback, pipeline, retry, timeout
from everkeel.compose import source
from everkeel.runtime.deadline import in_use

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = os.environ.get("EVERKEEL_UPDATE_SNAPSHOTS") == "1"


def fetch(url: str, *, retries: int = 3) -> str:
    return url


async def afetch(url: str, *, retries: int = 3) -> str:
    return url


def anything(*args: object, **kwargs: object) -> object:
    return args, kwargs


def heard(policy):
    """The policy, and somebody who listens for everything."""
    policy.subscribe(lambda event: None, events.Event)
    return policy


STACKS = {
    "retry": lambda: retry()(fetch),
    "retry-async": lambda: retry()(afetch),
    "retry-anything": lambda: retry()(anything),
    "retry-bounded-async": lambda: retry(max_duration=1)(afetch),
    "retry-shadow": lambda: retry(mode="shadow")(fetch),
    "retry-heard": lambda: heard(retry("heard"))(fetch),
    "fallback-retry": lambda: pipeline(fallback("x"), retry())(fetch),
    "breaker": lambda: circuit_breaker()(fetch),
    "breaker-keyed": lambda: circuit_breaker(key=lambda url, retries: url)(fetch),
    "bulkhead": lambda: bulkhead(10)(fetch),
    "timeout-async": lambda: timeout(1)(afetch),
    "full": lambda: pipeline(fallback("x"), retry(), circuit_breaker(), bulkhead(10))(fetch),
    "full-async": lambda: pipeline(fallback("x"), retry(), circuit_breaker(), timeout(1), bulkhead(10))(afetch),
    "full-async-deadlines": lambda: pipeline(retry(), timeout(1), bulkhead(10))(afetch),
}


@pytest.mark.parametrize("name", STACKS)
def test_the_source_of_this_stack_is_as_reviewed(name, fresh_everkeel, monkeypatch):
    # A process that has never had a deadline does not look for one; this one may have, in another test.
    monkeypatch.setattr(in_use, "yes", name.endswith("-deadlines"))
    text, file = source(STACKS[name]()), SNAPSHOTS / f"{name}.txt"
    if UPDATE:
        file.write_text(text)
    assert text == file.read_text(), "if this is on purpose, see the top of this file"


def test_there_is_no_snapshot_without_a_stack():
    assert {file.stem for file in SNAPSHOTS.iterdir()} == set(STACKS)
