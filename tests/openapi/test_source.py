"""Whatever a document says, what is written is a literal, a comment or a name: never code."""

from __future__ import annotations

import ast
import keyword

from hypothesis import given
from hypothesis import strategies as st

from everkeel.openapi.generator.source import called, comment, docstring, literal, one_line
from everkeel.openapi.naming import Names, camel, snake

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, st.integers(0, 8))
def test_a_literal_is_read_back_as_the_value_it_was(value: object, indent: int) -> None:
    assert ast.literal_eval(literal(value, indent, 60)) == value


@given(st.text())
def test_a_docstring_ends_only_where_it_should(text: str) -> None:
    module = ast.parse(f"def f():\n{docstring(text)}\n    return 1")
    (function,) = module.body
    assert isinstance(function, ast.FunctionDef)
    assert len(function.body) == 2


@given(st.text())
def test_a_comment_is_one_line(text: str) -> None:
    assert len(comment(text).splitlines()) == 1
    assert ast.parse(comment(text)).body == []


@given(st.text())
def test_every_name_is_a_plain_identifier(text: str) -> None:
    for name in (snake(text), camel(text), snake(text, "operation")):
        assert name.isidentifier()
        assert name.isascii()
        assert not keyword.iskeyword(name)


def test_names_say_what_the_document_said() -> None:
    written = ("order-id", "orderId", "Order ID", "HTTPStatus", "2fa", "class", "日本", "Größe")
    assert [snake(text) for text in written] == [
        "order_id", "order_id", "order_id", "http_status", "value_2fa", "class_", "value", "groe",
    ]  # fmt: skip
    assert [camel(text) for text in ("order-item", "order item", "OrderItem", "none", "")] == [
        "OrderItem", "OrderItem", "OrderItem", "None_", "Model",
    ]  # fmt: skip


@given(st.lists(st.sampled_from(["a", "b", "a_2"]), max_size=8))
def test_no_two_things_have_one_name(wanted: list[str]) -> None:
    names = Names("a")
    given_names = [names.give(one) for one in wanted]
    assert len({*given_names, "a"}) == len(wanted) + 1


def test_a_call_that_does_not_fit_is_spread_over_lines() -> None:
    assert called("f", ["a", "b"]) == "f(a, b)"
    long = [f"argument_{number}=1" for number in range(12)]
    assert called("f", long).splitlines()[1] == "    argument_0=1,"
    assert one_line("a\nb\u2028c\x00") == "a b c"
