"""Generating again: bodies stay, signatures follow, nothing else is touched."""

from __future__ import annotations

import pytest

from everkeel import ConfigError
from everkeel.openapi.generator.merging import merged
from everkeel.openapi.generator.service import Function

MINE = '''"""Mine."""

from datetime import date

import structlog

log = structlog.get_logger()


def _helper(x):  # with a comment
    return x


@log.traced
async def get_order(order_id: str, *, limit: int = 10) -> str:
    # why this is so
    log.info("héllo")
    return _helper(order_id)


async def gone() -> None:
    """No longer in the document."""
'''


def function(name: str, head: str) -> Function:
    return Function(name, head, '    raise HTTPException(501, "not yet")')


def test_a_function_whose_signature_is_the_same_stays_byte_for_byte() -> None:
    same = function("get_order", "async def get_order(order_id: str, *, limit: int = 10) -> str:")
    result = merged(MINE, [same], "", "x.py")
    assert result.text == MINE
    assert (result.added, result.renewed, result.orphaned) == ([], [], ["gone"])


def test_a_new_signature_keeps_body_comments_and_decorators() -> None:
    new = function("get_order", "async def get_order(order_id: UUID, tenant: str) -> Order:")
    result = merged(MINE, [new], "from uuid import UUID\nfrom datetime import date", "x.py")
    assert "async def get_order(order_id: UUID, tenant: str) -> Order:\n    # why this is so\n" in result.text
    assert "@log.traced" in result.text
    assert "return _helper(order_id)" in result.text
    assert result.text.count("from uuid import UUID") == 1
    assert result.text.count("from datetime import date") == 1
    assert result.renewed == ["get_order"]


def test_a_new_operation_is_added_at_the_end() -> None:
    result = merged(MINE, [function("put_order", "async def put_order() -> None:")], "", "x.py")
    assert result.text.endswith('async def put_order() -> None:\n    raise HTTPException(501, "not yet")\n')
    assert result.added == ["put_order"]


@pytest.mark.parametrize(
    "head",
    [
        "async def f(a: str = ')') -> dict[str, int]:",
        "async def f(a=')', *rest):",
        "def f(\n    a: int,  # with ) in a comment\n):",
        "async def f():",
    ],
)
def test_any_head_is_found_whole(head: str) -> None:
    mine = f"{head}\n    return {{'a': 1}}  # mine: yes\n"
    result = merged(mine, [function("f", "async def f(b: int) -> int:")], "", "x.py")
    assert result.text == "async def f(b: int) -> int:\n    return {'a': 1}  # mine: yes\n"


def test_a_body_on_the_same_line_stays() -> None:
    result = merged("async def f() -> int: return 1\n", [function("f", "async def f(b: int) -> int:")], "", "x.py")
    assert result.text == "async def f(b: int) -> int: return 1\n"


def test_a_module_that_does_not_parse_is_left_alone() -> None:
    with pytest.raises(ConfigError, match="line 1"):
        merged("def (", [], "", "x.py")
