"""What configured text means."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from everkeel.errors import EverkeelError
from everkeel.microprofile import values
from everkeel.microprofile.annotations import RECORDS


@pytest.mark.parametrize(("text", "meant"), [("0", 0), ("-1", -1), ("+7", 7), ("0007", 7), ("9" * 19, int("9" * 19))])
def test_whole_numbers(text: str, meant: int) -> None:
    assert values.whole(text) == meant


@pytest.mark.parametrize("text", ["1.0", "1_000", "0x10", "\u0661", "1 2", "three", "-", "9" * 5000])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be a whole number$"):
        values.whole(text)


@pytest.mark.parametrize(("text", "meant"), [("0.5", 0.5), ("1", 1.0), (".25", 0.25), ("5e-1", 0.5), ("1.", 1.0)])
def test_numbers(text: str, meant: float) -> None:
    assert values.number(text) == meant


@pytest.mark.parametrize("text", ["nan", "inf", "0,5", "1_0.0", "half"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be a number$"):
        values.number(text)


@pytest.mark.parametrize(("text", "meant"), [("true", True), ("FALSE", False)])
def test_booleans_in_any_case(text: str, meant: bool) -> None:
    assert values.boolean(text) is meant


@pytest.mark.parametrize("text", ["yes", "1", "off", "truee"])
def test_a_switch_is_not_guessed(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be true or false$"):
        values.boolean(text)


def test_exceptions_by_qualified_name_bare_name_and_nested_in_classes() -> None:
    text = " ValueError,everkeel.errors.EverkeelError , concurrent.futures.BrokenExecutor"
    from concurrent.futures import BrokenExecutor

    assert values.exceptions(text) == (ValueError, EverkeelError, BrokenExecutor)


def test_a_class_inside_a_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shop_of_values.py").write_text("class Orders:\n    class Declined(Exception): ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert values.some_class("shop_of_values.Orders.Declined").__qualname__ == "Orders.Declined"
    sys.modules.pop("shop_of_values")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module.Error", "there is no module no_such_module"),
        ("everkeel.errors.NoSuchError", "there is no everkeel.errors.NoSuchError"),
        ("NoSuchError", "there is no NoSuchError"),
        ("ValueError,", "must be a qualified name"),
        ("os; import this", "must be a qualified name"),
        ("builtins.str", "must be exception classes, and builtins.str is none"),
        ("os.path", "must be the qualified name of a class"),
    ],
)
def test_what_names_no_exception_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        values.exceptions(text)


@pytest.mark.parametrize("body", ["raise RuntimeError('no licence')", "import no_such_module_at_all"])
def test_a_module_that_fails_to_import_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    (tmp_path / "shop_that_fails.py").write_text(body, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"importing shop_that_fails failed: .*no"):
        values.exceptions("shop_that_fails.Declined")


def test_every_parameter_of_every_annotation_can_be_configured() -> None:
    in_code = {name: {record.camel(one) for one in record.spellings().values()} for name, record in RECORDS.items()}
    configurable = {name: {*parameters} for name, parameters in values.PARAMETERS.items() if name in in_code}
    assert configurable == in_code


def test_a_unit_is_written_in_capitals() -> None:
    assert values.unit("SECONDS") == "SECONDS"
    with pytest.raises(ValueError, match="must be one of NANOS, MICROS, MILLIS"):
        values.unit("seconds")
