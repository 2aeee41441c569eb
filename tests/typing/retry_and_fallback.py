"""Every kind of callable keeps its type under a policy. Read by type checkers, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import assert_type

from everkeel import (
    Attempt,
    Explanation,
    Fallback,
    Outcome,
    Pipeline,
    Retry,
    RetryBudget,
    current_attempt,
    explain,
    exponential,
    fallback,
    pipeline,
    policies_of,
    retry,
)

resilient = pipeline(fallback("unknown"), retry("fetch"))
assert_type(resilient, Pipeline)
assert_type(retry(), Retry)
assert_type(fallback(None), Fallback)

# ------------------------------------------------------------------ decorated


@retry(on=ConnectionError, attempts=5)
def fetch(url: str, *, timeout: float = 1.0) -> bytes:
    return url.encode()


@resilient
async def afetch(url: str, *, timeout: float = 1.0) -> bytes:
    return url.encode()


@retry()
def feed(count: int) -> Iterator[int]:
    yield count


@fallback([])
async def afeed(count: int) -> AsyncIterator[int]:
    yield count


class Client:
    @retry()
    def method(self, url: str) -> bytes:
        return url.encode()

    @fallback(b"")
    @retry()
    async def amethod(self, url: str) -> bytes:
        return url.encode()

    @classmethod
    @retry()
    def make(cls, name: str) -> Client:
        return cls()

    @staticmethod
    @resilient
    def parse(text: str) -> int:
        return int(text)


async def decorated(client: Client) -> None:
    assert_type(fetch("/", timeout=2.0), bytes)
    assert_type(await afetch("/", timeout=2.0), bytes)
    assert_type(feed(3), Iterator[int])
    assert_type(afeed(3), AsyncIterator[int])
    assert_type(client.method("/"), bytes)
    assert_type(await client.amethod("/"), bytes)
    assert_type(Client.make("x"), Client)
    assert_type(Client.parse("7"), int)
    fetch(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fetch("/", tiemout=2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# ------------------------------------------------------------------ called


async def called(policy: Retry) -> None:
    assert_type(policy.call(fetch, "/", timeout=2.0), bytes)
    assert_type(await policy.acall(afetch, "/"), bytes)
    assert_type(resilient.call(fetch, "/"), bytes)
    assert_type(await resilient.acall(afetch, "/"), bytes)
    assert_type(policy.call(partial(fetch, "/")), bytes)
    policy.call(fetch, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------ blocks


async def blocks(policy: Retry) -> None:
    for attempt in policy.attempts():
        with attempt:
            assert_type(attempt.number, int)
            assert_type(attempt.result("answer"), str)
    async for attempt in policy.attempts():
        async with attempt:
            assert_type(attempt.result(7), int)


# ------------------------------------------------------------------ settings, and what is read back


def give_up(outcome: Outcome) -> str:
    return f"after {outcome.attempts}"


def hook(attempt: Attempt) -> None:
    assert_type(attempt.error, BaseException | None)


retry(
    "all",
    attempts=None,
    on=(OSError, lambda error: "busy" in str(error)),
    ignore=KeyError,
    on_result=lambda result: result is None,
    backoff=exponential(timedelta(seconds=1), factor=3),
    jitter="decorrelated",
    max_retry_after=timedelta(minutes=1),
    max_duration=5,
    attempt_timeout=0.5,
    runs="inline",
    budget=RetryBudget(ratio=0.1),
    exhausted=give_up,
    before_retry=hook,
    nested="outermost",
    mode="shadow",
)
retry(backoff=0.5)
retry(backoff=[1, timedelta(seconds=2)])
retry(backoff=lambda attempt: attempt * 2.0)
retry(backoff=lambda attempt, outcome: 1.0 if outcome.error else 0.0)
retry(backoff={OSError: 1, KeyError: exponential(2)})
retry(runs="thread")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
retry(jitter="half")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

policy = retry("read")
assert_type(policy.name, str | None)
assert_type(policy.config.attempts, int | None)
assert_type(policy.snapshot()["retries"], int)
assert_type(policy.snapshot()["gave_up"], dict[str, int])
assert_type(fallback(1).snapshot()["used"], int)
assert_type(policy.derive("other", attempts=2), Retry)
assert_type(current_attempt(), Attempt | None)
assert_type(explain(ValueError()), Explanation)
assert_type(explain(ValueError()).delays, tuple[float, ...])
assert_type([policy.name for policy in policies_of(fetch)], list[str | None])
listener: Callable[[object], object] = print
policy.subscribe(listener)
