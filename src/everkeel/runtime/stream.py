"""Generators up to their first item: until then nobody has seen anything, and the whole may begin again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from typing import Any, NamedTuple


class Begun(NamedTuple):
    """The first item of a generator, and the generator; or what it returned without yielding anything, and None."""

    first: Any
    items: Any


def begin(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Begun:
    """Start the generator function `fn` and draw its first item."""
    items = fn(*args, **kwargs)
    try:
        return Begun(next(items), items)
    except StopIteration as end:
        return Begun(end.value, None)


async def abegin(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Begun:
    """Start the async generator function `fn` and draw its first item."""
    items = fn(*args, **kwargs)
    try:
        return Begun(await anext(items), items)
    except StopAsyncIteration:
        return Begun(None, None)
    except BaseException:
        await items.aclose()
        raise


def resume(item: Any, items: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """`yield from items`, of which `item` was drawn already."""
    while True:
        try:
            sent = yield item
        except GeneratorExit:
            items.close()
            raise
        except BaseException as error:
            step = partial(items.throw, error)
        else:
            step = partial(items.send, sent)
        try:
            item = step()
        except StopIteration as end:
            return end.value


async def each(items: Any) -> AsyncGenerator[Any, Any]:
    """The items of an async iterable, or of an ordinary one."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
