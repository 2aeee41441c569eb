"""Files: three formats, lines, limits; each bad one is refused with its place."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from everkeel import config, retry
from everkeel.config import files
from everkeel.config.files import UnreadableError, read
from everkeel.config.json_files import read_json
from everkeel.config.yaml_files import read_yaml
from everkeel.errors import InvalidConfigurationError

YAML = """\
retry:
  default:
    attempts: 4
  "shop.orders":
    on: [ConnectionError]   # YAML 1.1 would make a boolean of this key
    mode: off               # and of this value
circuit_breaker:
  payments: {open_for: 5s}
"""
TOML = """\
[retry.default]
attempts = 4

[retry."shop.orders"]
on = [
  "ConnectionError",
]
mode = "off"

[circuit_breaker]
payments.open_for = "5s"
"""
JSON = """\
{
  "$schema": "everkeel.schema.json",
  "retry": {
    "default": {"attempts": 4},
    "shop.orders": {
      "on": ["ConnectionError"],
      "mode": "off"
    }
  },
  "circuit_breaker": {"payments": {"open_for": "5s"}}
}
"""
LINES = {"yaml": (3, 6, 8), "toml": (2, 8, 11), "json": (4, 7, 10)}


@pytest.mark.parametrize(("suffix", "text"), [("yaml", YAML), ("toml", TOML), ("json", JSON)])
def test_the_three_formats_say_the_same_and_know_their_lines(
    written: Callable[..., Path], suffix: str, text: str
) -> None:
    document = read(written(text, f"everkeel.{suffix}"))
    document.data.pop("$schema", None)
    assert document.problems == []
    assert document.data == {
        "retry": {"default": {"attempts": 4}, "shop.orders": {"on": ["ConnectionError"], "mode": "off"}},
        "circuit_breaker": {"payments": {"open_for": "5s"}},
    }
    paths = [
        ("retry", "default", "attempts"),
        ("retry", "shop.orders", "mode"),
        ("circuit_breaker", "payments", "open_for"),
    ]
    assert tuple(document.line(path) for path in paths) == LINES[suffix]


def test_a_section_of_pyproject_counts(written: Callable[..., Path]) -> None:
    path = written('[project]\nname = "x"\n\n[tool.everkeel.retry.one]\nattempts = 7\n', "pyproject.toml")
    one = retry("one")
    config.load(path, env={})
    assert config.effective(one)["attempts"] == (7, f"{path}:5")


def test_a_pyproject_without_the_section_says_nothing(written: Callable[..., Path]) -> None:
    assert read(written("[tool.other]\nx = 1\n", "pyproject.toml")).data == {}


def test_everkeel_toml_may_have_the_section_too(written: Callable[..., Path]) -> None:
    assert read(written("[tool.everkeel.retry.one]\nattempts = 7\n", "everkeel.toml")).data == {
        "retry": {"one": {"attempts": 7}}
    }


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", ""), ("a.yaml", "# nothing\n"), ("a.toml", ""), ("a.json", "{}")]
)
def test_an_empty_file_says_nothing(written: Callable[..., Path], name: str, text: str) -> None:
    assert (read(written(text, name)).data, read(written(text, name)).problems) == ({}, [])


BAD = [
    ("a.yaml", "retry:\n  a: [\n", "a.yaml:3: is not YAML: while parsing a flow node"),
    ("a.yaml", "retry: {}\nretry: {}\n", "a.yaml:2: retry stands twice, first in line 1"),
    ("a.yaml", "a:\n  b:\n    c: 1\n    c: 2\n", "a.yaml:4: a.b.c stands twice, first in line 3"),
    ("a.yaml", "a: 1\n---\nb: 2\n", "a.yaml:2: is not YAML"),
    ("a.yaml", "- a\n", "a.yaml:1: must be a table of policy types at the top"),
    ("a.yaml", "x: !!python/object/apply:os.system [ls]\n", "a.yaml:1: has the tag 'tag:yaml.org,2002:python"),
    ("a.yaml", "x: !mine 5\n", "a.yaml:1: has the tag '!mine': configuration is plain data"),
    ("a.yaml", "x: !!binary aGk=\n", "configuration is plain data"),
    ("a.yaml", "x: !!int five\n", "a.yaml:1: is not what its tag says: 'five' is no int"),
    ("a.yaml", "retry:\n  1: {attempts: 2}\n", "a.yaml:2: has the key '1', which is no text: put it in quotes"),
    ("a.yaml", "retry:\n  ? [a]\n  : 5\n", "a.yaml:2: has the key 'a table or list'"),
    ("a.yaml", "a: &a [*b]\n", "a.yaml:1: is not YAML: found undefined alias"),
    ("a.yaml", "a: &a [*a]\n", "is nested deeper than 32 levels"),
    ("a.yaml", "a:\n  <<: 5\n", "a.yaml:2: must name a table to merge"),
    ("a.yaml", "a: " + "[" * 5000, "is nested deeper than 32 levels"),
    ("a.yaml", "a: &a0 [x]\n" + "".join(f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
     "stands for more than 50000 values: its aliases multiply"),
    ("a.yaml", "x: \x00", "a.yaml: is not YAML"),
    ("a.json", '{"a": 1,\n "a": 2}', "a.json:2: a stands twice, first in line 1"),
    ("a.json", '{"a": {"b": 1,\n"c": 2,\n"b": 3}}', "a.json:3: a.b stands twice, first in line 1"),
    ("a.json", '{"a": 1,\n}', "a.json:2: is not JSON: a comma with nothing behind it"),
    ("a.json", "[1, 2,]", "a.json:1: is not JSON: a comma with nothing behind it"),
    ("a.json", '{"a" 1}', "a.json:1: is not JSON: expected ':'"),
    ("a.json", "{a: 1}", "a.json:1: is not JSON: expected a key in double quotes"),
    ("a.json", '{"a": NaN}', "a.json:1: has NaN, which is no number in JSON"),
    ("a.json", '{"a": tru}', "a.json:1: is not JSON: Expecting value at column 7"),
    ("a.json", '{"a": 1} x', "a.json:1: has something behind its end"),
    ("a.json", '{"a": 1 2}', "a.json:1: is not JSON: expected ','"),
    ("a.json", '{"a": ' + "9" * 5000 + "}", "a.json:1: is not JSON"),
    ("a.json", "[" * 5000, "a.json:1: is nested deeper than 32 levels"),
    ("a.json", "[1]", "a.json:1: must be a table of policy types at the top"),
    ("a.json", "", "a.json:1: is not JSON"),
    ("a.toml", "a = 1\na = 2\n", "a.toml:2: is not TOML: Cannot overwrite a value"),
    ("a.toml", "a = \n", "a.toml:1: is not TOML"),
    ("a.toml", "a = " + "9" * 5000, "a.toml: is not TOML"),
    ("a.toml", "a = " + "[" * 40 + "]" * 40, "is nested deeper than 32 levels"),
    ("a.toml", "a = " + "[" * 5000, "is nested deeper than 32 levels"),
    ("a.json", "[" + "1," * 50_000 + "1]", "has more than 50000 values"),
    ("a.yaml", "#" * (256 * 1024 + 1), "is larger than 256 KiB"),
    ("a.ini", "", "must be named .yaml, .yml, .toml or .json"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_file_says_what_is_wrong_and_where(
    written: Callable[..., Path], refused: Callable[..., list[str]], name: str, text: str, message: str
) -> None:
    (problem,) = refused(written(text, name))
    assert message in problem
    assert name in problem


def test_a_file_that_is_not_there_says_so(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    assert refused(tmp_path / "no.yaml") == [f"{tmp_path / 'no.yaml'}: cannot be read: No such file or directory"]


def test_a_folder_is_no_file(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    assert "cannot be read: Is a directory" in refused(tmp_path)[0]


def test_a_file_that_is_not_utf8_says_so(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"a: \xff")
    assert "is not UTF-8: invalid start byte at 3" in refused(tmp_path / "a.yaml")[0]


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfretry: {}\n")
    assert read(tmp_path / "a.yaml").data == {"retry": {}}


def test_a_table_may_be_merged_under_another() -> None:
    data, _ = read_yaml("base: &b {x: 1, y: 1}\nother: &o {y: 2, z: 2}\nmine: {<<: [*b, *o], x: 9}\n")
    assert data["mine"] == {"x": 9, "y": 1, "z": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"), ("off", "off"), ("yes", "yes"), ("true", True), ("False", False), ("~", None), ("", None),
        ("1:30", "1:30"), ("010", 10), ("0o10", 8), ("0x1F", 31), ("1_000", "1_000"), ("2026-01-01", "2026-01-01"),
        ("1e3", 1000.0), (".5", 0.5), ("-.inf", float("-inf")), ("'5'", "5"), ("=", "="),
    ],
)  # fmt: skip
def test_plain_words_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    data, _ = read_yaml(f"key: {text}\n")
    assert data == {"key": value}
    assert type(data["key"]) is type(value)


def test_not_a_number_is_read_as_that() -> None:
    data, _ = read_yaml("key: .nan\n")
    assert data["key"] != data["key"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.sampled_from([None, 1, "\t"]))
def test_json_is_read_as_the_standard_library_reads_it(value: object, indent: object) -> None:
    assert read_json(json.dumps(value, indent=indent))[0] == value  # type: ignore[arg-type]


@hypothesis_settings(max_examples=200)
@given(st.text(alphabet='{}[]",:1tn \n', max_size=30))
def test_json_is_refused_as_the_standard_library_refuses_it(text: str) -> None:
    try:
        expected = json.loads(text, object_pairs_hook=_without_twins)
    except ValueError:
        with pytest.raises(UnreadableError):
            read_json(text)
    else:
        assert read_json(text)[0] == expected


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("twice")
    return dict(pairs)


def test_the_file_of_the_working_directory_is_found(
    written: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERKEEL_CONFIG", raising=False)
    assert files.find() is None
    assert config.load(env={}).source is None
    written('[project]\nname = "x"\n', "pyproject.toml")
    assert files.find() is None
    written("[tool.everkeel]\n", "pyproject.toml")
    assert config.load(env={}).source == "pyproject.toml"
    (tmp_path / "pyproject.toml").write_text("broken [")
    assert files.find() is None
    written("retry: {}\n")
    assert config.load(env={}).source == "everkeel.yaml"


def test_two_files_are_one_too_many(
    written: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written("{}", "everkeel.json")
    written("{}", "everkeel.yaml")
    with pytest.raises(InvalidConfigurationError, match="say which one to load"):
        config.load(env={})


def test_a_variable_may_name_the_file(written: Callable[..., Path]) -> None:
    path = written("retry: {}\n", "elsewhere.yaml")
    assert config.load(env={"EVERKEEL_CONFIG": os.fspath(path)}).source == os.fspath(path)


def test_yaml_without_its_library_says_what_to_install(
    written: Callable[..., Path], refused: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "everkeel.config.yaml_files")
    assert (
        "cannot be read: configuration in YAML needs PyYAML: pip install everkeel[yaml]" in refused(written("a: 1"))[0]
    )


def test_a_path_means_the_same_file_wherever_the_process_goes(
    written: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = retry("one")
    path = written("retry: {one: {attempts: 5}}\n")
    monkeypatch.chdir(tmp_path)
    loaded = config.load("everkeel.yaml", env={})
    assert config.effective(one)["attempts"].source == "everkeel.yaml:1"
    path.write_text("retry: {one: {attempts: 6}}\n")
    monkeypatch.chdir("/")
    loaded.reload()
    assert one.config.attempts == 6
