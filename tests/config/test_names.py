"""What names in a file stand for: what the process has, and never new code."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from everkeel import ConfigError, config, retry
from everkeel.config.names import NotYetError, ProcessNames


class Outer:
    class Inner(Exception):  # noqa: N818
        pass

    @property
    def never(self) -> None:
        raise AssertionError("a name in a file ran code")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An imported module of the application, that would import more if anybody asked its `__getattr__`."""
    made = types.ModuleType("test_shop")

    def __getattr__(name: str) -> object:  # noqa: N807
        raise AssertionError("a name in a file ran a module's __getattr__")

    made.__getattr__ = __getattr__  # type: ignore[method-assign]
    made.OutOfStock = type("OutOfStock", (Exception,), {})  # type: ignore[attr-defined]
    made.Outer = Outer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "test_shop", made)
    return made


def test_a_class_of_an_imported_module_is_found(module: types.ModuleType) -> None:
    names = ProcessNames()
    assert names.error("test_shop.OutOfStock") is module.OutOfStock
    assert names.error("test_shop.Outer.Inner") is Outer.Inner


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_shop.OutOfStok", "test_shop has no OutOfStok (did you mean OutOfStock?)"),
        ("test_shop.Outer.Iner", "test_shop.Outer has no Iner (did you mean Inner?)"),
        ("test_shop.Outer", "test_shop.Outer is a class, but none of those"),
        ("test_shop.Outer.never", "test_shop.Outer.never is none"),
        ("Nothing", "there is no Nothing: write module.Nothing, or register it"),
        ("builtins.eval", "builtins.eval is none"),
        ("os.system", "os.system is none"),
    ],
)
def test_what_is_not_there_is_refused_without_running_code(module: types.ModuleType, name: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ProcessNames().error(name)
    assert not isinstance(caught.value, NotYetError)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere.at.All", "test_shop.later.Error"])
def test_a_module_that_is_not_imported_is_not_imported(module: types.ModuleType, name: str) -> None:
    with pytest.raises(NotYetError):
        ProcessNames().error(name)
    assert "nowhere" not in sys.modules


def test_a_file_never_imports_a_module(
    written: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_bomb.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    config.load(written("retry:\n  late:\n    on: test_bomb.Boom\n"), env={})
    with pytest.raises(ConfigError, match="is imported"):
        retry("late")
    assert "test_bomb" not in sys.modules


def test_a_name_of_a_module_that_comes_later_is_checked_when_the_policy_binds(
    written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written("retry:\n  late:\n    on: test_later.Busy\n")
    config.load(path, env={})
    with pytest.raises(ConfigError) as caught:
        retry("late")
    assert str(caught.value).startswith(f"{path}:3: retry.late.on: retry 'late': must name exception classes")
    assert str(caught.value).endswith("(got 'test_later.Busy')")
    later = types.ModuleType("test_later")
    later.Busy = type("Busy", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "test_later", later)
    assert retry("late").config.on is later.Busy


def test_a_policy_that_is_there_needs_the_class_now(refused: Callable[..., list[str]]) -> None:
    policy = retry("here", on=OSError)
    assert "no module of test_nowhere.Busy is imported" in refused({"retry": {"here": {"on": "test_nowhere.Busy"}}})[0]
    assert policy.config.on is OSError


def test_functions_must_be_registered(refused: Callable[..., list[str]]) -> None:
    data = {"retry": {"one": {"on_result": "is_pending"}}}
    assert "nothing is registered as 'is_pending'" in refused(data)[0]

    @config.register
    def is_pending(result: object) -> bool:
        return result == "pending"

    one = retry("one")
    config.load(data, env={})
    assert one.config.on_result is is_pending


def test_even_an_imported_function_must_be_registered(refused: Callable[..., list[str]]) -> None:
    assert "must be a registered function" in refused({"retry": {"one": {"on_result": "os.getenv"}}})[0]


def test_a_function_of_a_module_yet_to_come_may_be_registered_by_then() -> None:
    config.load({"retry": {"one": {"on_result": "test_later.judge"}}}, env={})
    with pytest.raises(ConfigError, match=r"nothing is registered as 'test_later\.judge'"):
        retry("one")
    config.register("test_later.judge", bool)
    with pytest.raises(ConfigError, match="must be a function of the result"):  # bool is a class
        retry("one")


def test_the_ways_to_register() -> None:
    @config.register
    class Own(Exception):  # noqa: N818
        pass

    @config.register("named")
    def function() -> None: ...

    thing = config.register("thing", object())
    assert config.registered["Own"] is Own
    assert config.registered["named"] is function
    assert config.registered["thing"] is thing
    assert "function" not in config.registered
    assert config.unregister("thing")
    assert not config.unregister("thing")
    with pytest.raises(TypeError):
        config.registered["x"] = 1  # type: ignore[index]


def test_a_module_level_class_has_its_dotted_name_too() -> None:
    config.register(Outer.Inner)
    assert config.registered[f"{__name__}.Outer.Inner"] is Outer.Inner or config.registered["Inner"] is Outer.Inner


def test_a_name_stands_for_one_thing() -> None:
    config.register("one", test_the_ways_to_register)
    config.register("one", test_the_ways_to_register)
    with pytest.raises(ConfigError, match="has 'one' already"):
        config.register("one", test_functions_must_be_registered)


@pytest.mark.parametrize("thing", [5, lambda: None])
def test_what_has_no_name_must_be_given_one(thing: object) -> None:
    with pytest.raises(ConfigError, match="must be given a name"):
        config.register(thing)


def test_a_name_must_be_one() -> None:
    with pytest.raises(ConfigError, match="must have a name of letters"):
        config.register("two words", len)
