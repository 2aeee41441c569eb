"""What cache and collapse make of a function's type. Read by type checkers, never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from everkeel import Cache, Collapse, cache, collapse

# ------------------------------------------------------------------ cache: the type stays


@cache(60, "typed", max_size=10, stale_for=5, negative_ttl=1)
def price(item: str, *, region: str = "eu") -> float:
    return 1.0


@cache(60)
async def stock(item: str) -> int:
    return 1


def item_of(shop: object, item: str) -> str:
    return item


class Shop:
    @cache(60, key=item_of)
    def price(self, item: str) -> float:
        return 1.0


assert_type(price("tea", region="us"), float)
assert_type(Shop().price("tea"), float)

prices = cache(60)
assert_type(prices, Cache)
assert_type(prices.call(price, "tea", region="us"), float)
assert_type(prices.invalidate(price, "tea", region="us"), bool)
assert_type(prices.invalidate_key("tea"), bool)
assert_type(prices.snapshot()["hits"], int)


def wrong_arguments() -> None:
    price(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    prices.invalidate(price, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cache()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def awaiting_a_cache() -> None:
    assert_type(await stock("tea"), int)
    assert_type(await prices.acall(stock, "tea"), int)


# ------------------------------------------------------------------ collapse: one item in, one result out


class User:
    name: str = "ann"


@collapse()
async def user(numbers: list[int]) -> list[User]:
    return [User() for _ in numbers]


@collapse(0.01, "typed")
async def user_or_error(numbers: list[int]) -> list[User | Exception]:
    return [User() for _ in numbers]


@collapse()
async def user_by_table(numbers: list[int]) -> dict[int, User]:
    return {number: User() for number in numbers}


@collapse()
async def user_or_error_by_table(numbers: list[int]) -> dict[int, User | Exception]:
    return {number: User() for number in numbers}


@collapse(max_size=10)
def name(numbers: list[int]) -> list[str]:
    return [str(number) for number in numbers]


class Users:
    @collapse()
    async def load(self, numbers: list[int]) -> list[User]:
        return [User() for _ in numbers]

    @collapse()
    def names(self, numbers: list[int]) -> dict[int, str]:
        return {number: str(number) for number in numbers}


together = collapse()
assert_type(together, Collapse)
assert_type(user, Callable[[int], Coroutine[Any, Any, User]])
assert_type(name(7), str)
assert_type(Users().names(7), str)
assert_type(together.snapshot()["batches"], int)


async def awaiting_a_collapse() -> None:
    assert_type(await user(7), User)
    assert_type(await user_or_error(7), User)
    assert_type(await user_by_table(7), User)
    assert_type(await user_or_error_by_table(7), User)
    assert_type(await Users().load(7), User)


@cache(60)
@collapse()
async def cached_user(numbers: list[int]) -> list[User]:
    return [User() for _ in numbers]


async def awaiting_both() -> None:
    assert_type(await cached_user(7), User)


async def wrong_items() -> None:
    await user([7])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await user("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def takes_no_list(number: int) -> int:
    return number


together(takes_no_list)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
