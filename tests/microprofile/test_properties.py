"""Java's `.properties` format, by the examples of its documentation and by writing and reading back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel.microprofile.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a\t:\fb", {"a": "b"}),
        ("a  b = c", {"a": "b = c"}),
        ("a==b", {"a": "=b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=b  ", {"a": "b  "}),
        ("  a=b", {"a": "b"}),
        ("shop.Orders/pay/Retry/maxRetries=2", {"shop.Orders/pay/Retry/maxRetries": "2"}),
        ("[section]\na=b", {"[section]": "", "a": "b"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_a_key_ends_at_the_first_separator_and_a_value_with_the_line(text: str, read: dict[str, str]) -> None:
    assert parse_properties(text) == read


@pytest.mark.parametrize("text", ["# a=b", "! a=b", "  \t# a=b", "", "\n\n", " \t\f ", "# a=b \\"])
def test_comments_and_blank_lines_say_nothing(text: str) -> None:
    assert parse_properties(text) == {}


def test_a_comment_cannot_be_continued() -> None:
    assert parse_properties("# one \\\na=b") == {"a": "b"}


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_backslash_at_the_end_joins_lines_without_the_blanks_that_lead_the_next(end: str) -> None:
    text = f"fruits  apple, banana, \\{end}    pear{end}a=b"
    assert parse_properties(text) == {"fruits": "apple, banana, pear", "a": "b"}


def test_a_continuation_may_begin_like_a_comment() -> None:
    assert parse_properties("a=1\\\n  #2") == {"a": "1#2"}


def test_an_even_number_of_backslashes_joins_nothing() -> None:
    assert parse_properties("a=1\\\\\nb=2") == {"a": "1\\", "b": "2"}


def test_a_blank_line_ends_a_continuation() -> None:
    assert parse_properties("a=1\\\n\nb=2") == {"a": "1", "b": "2"}


def test_a_file_may_end_in_a_backslash() -> None:
    assert parse_properties("a=1\\") == {"a": "1"}


def test_only_line_feeds_and_carriage_returns_end_a_line() -> None:
    assert parse_properties("a=1\x0b2\x85\u2028") == {"a": "1\x0b2\x85\u2028"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"\t\n\r\f", "\t\n\r\f"),
        (r"\\", "\\"),
        (r"\=\:\ \#\!", "=: #!"),
        (r"\z", "z"),
        (r"\u00e9", "\u00e9"),
        (r"\u00E9t\u00e9", "\u00e9t\u00e9"),
        (r"\ud83d\ude00", "\U0001f600"),
        ("é", "é"),
    ],
)
def test_escapes_stand_for_characters_in_keys_and_values(written: str, meant: str) -> None:
    assert parse_properties(f"k{written}=v{written}") == {f"k{meant}": f"v{meant}"}


@pytest.mark.parametrize("text", ["a=1\nb=\\u12", "a=1\nb=\\uzzzz", "a=1\nb=\\u 123", "a=1\n\\uxyz=b"])
def test_a_malformed_escape_is_an_error_that_names_the_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2: \\u must be followed by four hexadecimal digits"):
        parse_properties(text)


def _escaped(text: str, special: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return "".join(named.get(one, f"\\{one}" if one in special else one) for one in text)


ANY = st.text(st.one_of(st.sampled_from("=: \\#!\t\n\r\fab"), st.characters(exclude_categories=["Cs"])), max_size=12)


@given(st.dictionaries(ANY, ANY, max_size=5))
def test_what_is_written_with_escapes_is_read_back(properties: dict[str, str]) -> None:
    keys, values = "=: #!\\", " #!\\"
    lines = [f"{_escaped(key, keys)}={_escaped(value, values)}" for key, value in properties.items()]
    assert parse_properties("\n".join(lines)) == properties


@given(st.text(max_size=60).filter(lambda text: "\\u" not in text))
def test_any_text_without_escapes_of_characters_is_read(text: str) -> None:
    assert all(isinstance(part, str) for pair in parse_properties(text).items() for part in pair)
