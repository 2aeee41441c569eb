"""Kinds of callables beyond the plain ones keep their type under every policy. Read by type checkers, never run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, assert_type, overload

from everkeel import bulkhead, circuit_breaker, fallback, guard, pipeline, retry, timeout

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound="Handler")

breaker = circuit_breaker("payments")
stack = pipeline(fallback(None), retry(), breaker, timeout(1), bulkhead(10))

# ------------------------------------------------------------------ signatures


@stack
def every_kind(a: int, /, b: str, *rest: float, c: bytes, **more: bool) -> tuple[int, str]:
    return a, b


@breaker
def generic(items: Sequence[T]) -> T:
    return items[0]


@timeout(1)
async def generic_coroutine(items: Sequence[T]) -> T:
    return items[0]


@overload
def parse(text: str) -> int: ...
@overload
def parse(text: bytes) -> float: ...
@bulkhead(10)
def parse(text: str | bytes) -> int | float:
    return 1


@retry()
def with_callback(callback: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return callback(*args, **kwargs)


@contextmanager
@retry()
def session(name: str) -> Generator[bytes, None, None]:
    yield name.encode()


@stack
def two_ways(start: int) -> Generator[int, str, bytes]:
    received = yield start
    return received.encode()


@stack
async def async_two_ways(start: int) -> AsyncGenerator[int, str]:
    yield start


def square(x: int) -> int:
    return x * x


squared: Callable[[int], int] = retry()(square)


async def signatures() -> None:
    assert_type(every_kind(1, "b", 2.0, 3.0, c=b"", d=True), tuple[int, str])
    assert_type(every_kind(1, b="b", c=b""), tuple[int, str])
    every_kind(a=True, b="b", c=b"")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    every_kind(1, "b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(generic(["x"]), str)
    assert_type(await generic_coroutine([1]), int)
    assert_type(parse("1"), int)
    assert_type(parse(b"1"), float)
    parse(1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(with_callback(every_kind, 1, "b", c=b""), tuple[int, str])
    with_callback(every_kind, "1", "b", c=b"")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with session("db") as opened:
        assert_type(opened, bytes)
    assert_type(two_ways(1), Generator[int, str, bytes])
    assert_type(async_two_ways(1), AsyncGenerator[int, str])


# ------------------------------------------------------------------ methods


class Handler:
    @stack
    def chained(self: H, name: str) -> H:
        return self

    @overload
    def read(self, name: str) -> str: ...
    @overload
    def read(self, name: bytes) -> bytes: ...
    @retry()
    def read(self, name: str | bytes) -> str | bytes:
        return name

    @classmethod
    @breaker
    def build(cls: type[H], name: str) -> H:
        return cls()

    @staticmethod
    @breaker
    async def check(name: str) -> bool:
        return bool(name)

    @property
    @retry()
    def size(self) -> int:
        return 1

    @cached_property
    @retry()
    def weight(self) -> float:
        return 1.0

    @retry()
    def __call__(self, name: str) -> int:
        return len(name)

    @stack
    async def handle(self, name: str) -> int:
        return len(name)


class Special(Handler):
    @retry()
    async def handle(self, name: str) -> int:
        return 1 + await super().handle(name)


class Box(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value

    @stack
    def get(self, default: T) -> T:
        return self.value

    @stack
    async def aget(self, default: T) -> T:
        return self.value


class Reads(Protocol):
    def read(self, name: str) -> str: ...


@guard(timeout=2, retry=3, circuit_breaker=breaker)
class Guarded:
    def quote(self, city: str) -> float:
        return 1.0


async def methods(handler: Handler, special: Special, box: Box[int]) -> None:
    assert_type(special.chained("x"), Special)
    assert_type(handler.read("x"), str)
    assert_type(handler.read(b"x"), bytes)
    assert_type(Special.build("x"), Special)
    assert_type(await Handler.check("x"), bool)
    assert_type(handler.size, int)
    assert_type(handler.weight, float)
    assert_type(handler("x"), int)
    assert_type(await special.handle("x"), int)
    assert_type(box.get(1), int)
    assert_type(await box.aget(1), int)
    box.get("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    reads: Reads = handler
    assert_type(reads.read("x"), str)
    assert_type(Guarded().quote("Oslo"), float)
    handler.handle(1)  # type: ignore[arg-type, unused-coroutine]  # pyright: ignore[reportArgumentType, reportUnusedCoroutine]


# ------------------------------------------------------------------ called with arguments


def plain(a: int, *, b: str = "") -> bytes:
    return b""


async def coroutine(a: int, *, b: str = "") -> bytes:
    return b""


def awaitable(a: int) -> Awaitable[bytes]:
    return coroutine(a)


async def called() -> None:
    assert_type(stack.call(plain, 1, b="x"), bytes)
    assert_type(await stack.acall(coroutine, 1, b="x"), bytes)
    assert_type(await breaker.acall(awaitable, 1), bytes)
    assert_type(breaker.call(generic, ["x"]), str)
    assert_type(breaker.call(Handler), Handler)
    assert_type(breaker.call(Handler().chained, "x"), Handler)
    assert_type(breaker.call(len, "abc"), int)

    breaker.call(plain, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    breaker.call(plain)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    breaker.call(plain, 1, c=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    breaker.call(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await breaker.acall(coroutine, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await breaker.acall(plain, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await stack.acall(coroutine, 1, c=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# ------------------------------------------------------------------ what cannot be decorated

breaker(3)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
stack("fetch")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------ decorators of the user's around and inside


def logged(fn: Callable[P, T]) -> Callable[P, T]:
    return fn


def alogged(fn: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    return fn


@logged
@stack
@logged
def between(a: int) -> str:
    return str(a)


@alogged
@stack
@alogged
async def abetween(a: int) -> str:
    return str(a)


async def decorators() -> None:
    assert_type(between(1), str)
    assert_type(await abetween(1), str)
