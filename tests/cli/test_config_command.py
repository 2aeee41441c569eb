"""`everkeel config check`, `everkeel config show` and `everkeel schema`, in this process and as commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from everkeel import config
from everkeel.cli import main

APPLICATION = """\
from everkeel import config, retry, circuit_breaker
payments = circuit_breaker("payments", window=20)

@config.register
def is_pending(result):
    return result == "pending"

@retry(attempts=5, backoff=0)
def fetch(): ...

@config.pipeline("checkout")
def pay(): ...

app = object()
"""
GOOD = """\
retry:
  default: {attempts: 4}
  shop_app.fetch: {on_result: is_pending}
circuit_breaker:
  payments: {enabled: false}
pipelines:
  checkout:
    - fallback: later
    - timeout: 2s
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_everkeel: object) -> Path:
    """A working directory with an application and its configuration."""
    (tmp_path / "shop_app.py").write_text(APPLICATION)
    (tmp_path / "everkeel.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop_app", raising=False)
    for name in list(os.environ):
        if name.startswith("EVERKEEL_"):
            monkeypatch.delenv(name)
    yield tmp_path
    sys.modules.pop("shop_app", None)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process: its exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_a_good_file_is_fine(folder: Path, said: Callable[..., tuple[int, str, str]]) -> None:
    assert said("config", "check", "everkeel.yaml") == (0, "everkeel.yaml: fine\n", "")
    assert said("config", "check") == (0, "everkeel.yaml: fine\n", "")
    assert said("config", "check", "--import", "shop_app") == (0, "everkeel.yaml: fine\n", "")


def test_every_problem_is_a_line_and_the_answer_is_no(folder: Path, said: Callable[..., tuple[int, str, str]]) -> None:
    (folder / "bad.yaml").write_text("retyr: {}\nretry:\n  one: {attempts: 0}\n")
    code, out, err = said("config", "check", "bad.yaml")
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "bad.yaml:1: retyr is no type of policy; did you mean 'retry'?",
        "bad.yaml:3: retry.one.attempts must be at least 1, or null (got 0)",
        "2 problems in bad.yaml",
    ]


def test_problems_as_json(folder: Path, said: Callable[..., tuple[int, str, str]]) -> None:
    (folder / "bad.yaml").write_text("retry:\n  one: {attempts: 0}\n")
    code, out, err = said("config", "check", "bad.yaml", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out) == {
        "file": "bad.yaml",
        "valid": False,
        "problems": [
            {
                "source": "bad.yaml",
                "line": 2,
                "path": "retry.one.attempts",
                "message": "must be at least 1, or null",
                "got": "0",
            }
        ],
    }
    code, out, _ = said("config", "check", "--json")
    assert (code, json.loads(out)["valid"]) == (0, True)


def test_with_the_application_imported_a_section_that_nobody_has_is_a_problem(
    folder: Path, said: Callable[..., tuple[int, str, str]]
) -> None:
    (folder / "everkeel.yaml").write_text(GOOD.replace("payments:", "paymets:"))
    assert said("config", "check")[0] == 0
    code, _, err = said("config", "check", "--app", "shop_app:app")
    assert code == 1
    assert err.startswith(
        "everkeel.yaml:5: circuit_breaker.paymets is the name of no circuit_breaker there is; did you"
    )


def test_the_environment_is_checked_on_request(
    folder: Path, said: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERKEEL_RETRY__ONE__ATTEMPTS", "many")
    assert said("config", "check")[0] == 0
    code, _, err = said("config", "check", "--env")
    assert code == 1
    assert "environment: EVERKEEL_RETRY__ONE__ATTEMPTS must be a whole number" in err


def test_the_effective_settings_of_an_application_are_shown_with_their_sources(
    folder: Path, said: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERKEEL_RETRY__SHOP_APP__FETCH__MAX_DURATION", "1m")
    code, out, _ = said("config", "show", "--import", "shop_app", "--json")
    assert code == 0
    shown = {(one["type"], one["name"]): one["settings"] for one in json.loads(out)["policies"]}
    fetch = shown["retry", "shop_app.fetch"]
    assert fetch["attempts"] == {"value": 4, "source": "everkeel.yaml:2"}
    assert fetch["backoff"] == {"value": 0.0, "source": "code"}
    assert fetch["jitter"] == {"value": "full", "source": "default"}
    assert fetch["on_result"] == {"value": {"function": "is_pending"}, "source": "everkeel.yaml:3"}
    variable = "EVERKEEL_RETRY__SHOP_APP__FETCH__MAX_DURATION"
    assert fetch["max_duration"] == {"value": 60.0, "source": f"env {variable}"}
    assert shown["circuit_breaker", "payments"]["mode"] == {"value": "off", "source": "everkeel.yaml:5"}
    assert shown["timeout", "pipelines.checkout"]["seconds"] == {"value": 2.0, "source": "everkeel.yaml:9"}


def test_settings_are_shown_as_text(folder: Path, said: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = said("config", "show", "--import", "shop_app", "--type", "retry", "--no-env")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "retry shop_app.fetch"
    assert ["attempts", "4", "everkeel.yaml:2"] in [line.split() for line in lines]
    assert not any(line.startswith("circuit_breaker") for line in lines)


def test_without_code_the_defaults_and_the_file_are_shown(
    folder: Path, said: Callable[..., tuple[int, str, str]]
) -> None:
    (folder / "everkeel.yaml").write_text(GOOD.replace("is_pending", "shop_app.is_pending"))
    code, out, _ = said("config", "show", "--json")
    assert code == 0
    shown = {(one["type"], one["name"]): one["settings"] for one in json.loads(out)["policies"]}
    assert shown["retry", "default"]["attempts"] == {"value": 4, "source": "everkeel.yaml:2"}
    assert shown["retry", "default"]["jitter"] == {"value": "full", "source": "default"}
    assert shown["timeout", "default"]["seconds"] == {"value": None, "source": "required in code"}
    assert shown["circuit_breaker", "payments"] == {"mode": {"value": "off", "source": "everkeel.yaml:5"}}
    assert {kind for kind, _ in shown} >= {"retry", "cache", "hedge", "rate_limit_chain"}


def test_showing_a_bad_file_says_what_is_wrong(folder: Path, said: Callable[..., tuple[int, str, str]]) -> None:
    (folder / "everkeel.yaml").write_text("retry: {one: {attempts: 0}}\n")
    code, out, err = said("config", "show")
    assert (code, out) == (1, "")
    assert err == "everkeel: everkeel.yaml:1: retry.one.attempts must be at least 1, or null (got 0)\n"
    code, out, _ = said("config", "show", "--json")
    assert (code, json.loads(out)["valid"]) == (1, False)


WRONG = [
    (("config", "check", "no.yaml"), 1, "no.yaml: cannot be read: No such file or directory"),
    (("config", "check", "--import", "no_such_app"), 1, "importing 'no_such_app' failed: ModuleNotFoundError"),
    (("config", "check", "--app", "shop_app"), 2, "must be written module:attribute"),
    (("config", "check", "--app", "shop_app:no"), 1, "module 'shop_app' has no 'no'"),
    (("config", "show", "--type", "retyr"), 1, "no type of policy is called 'retyr'"),
    (("config",), 2, "the following arguments are required: ACTION"),
    (("config", "chek"), 2, "invalid choice: 'chek'"),
    (("schema", "x"), 2, "invalid choice: 'x'"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_trouble_is_said_without_a_traceback(
    folder: Path, said: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], code: int, message: str
) -> None:
    ended, out, err = said(*arguments)
    assert (ended, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_an_application_that_its_configuration_refuses_is_one_line(
    folder: Path, said: Callable[..., tuple[int, str, str]]
) -> None:
    (folder / "broken_app.py").write_text("from everkeel import retry\nretry(attempts=0)\n")
    code, _, err = said("config", "check", "--import", "broken_app")
    assert (code, err) == (1, "everkeel: retry: attempts must be at least 1, or None (no bound but time) (got 0)\n")


def test_no_file_and_two_files_are_said(folder: Path, said: Callable[..., tuple[int, str, str]]) -> None:
    (folder / "everkeel.json").write_text("{}")
    assert said("config", "check")[2] == "everkeel: there are everkeel.yaml and everkeel.json: say which one to load\n"
    (folder / "everkeel.json").unlink()
    (folder / "everkeel.yaml").unlink()
    assert "there is no everkeel.yaml" in said("config", "check")[2]


def test_a_variable_names_the_file(
    folder: Path, said: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "everkeel.yaml").rename(folder / "other.yaml")
    monkeypatch.setenv("EVERKEEL_CONFIG", "other.yaml")
    assert said("config", "check") == (0, "other.yaml: fine\n", "")


def test_the_schema_is_printed(said: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = said("schema", "config")
    assert code == 0
    assert json.loads(out) == config.schema()


def test_as_a_command(folder: Path) -> None:
    command = [sys.executable, "-m", "everkeel.cli", "config"]
    environment = {**os.environ, "NO_COLOR": "1"}
    fine = subprocess.run([*command, "check", "--import", "shop_app"], capture_output=True, text=True, env=environment)
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "everkeel.yaml: fine\n", "")
    shown = subprocess.run([*command, "show", "--app", "shop_app:app", "--json"], capture_output=True, text=True)
    assert shown.returncode == 0
    assert {one["type"] for one in json.loads(shown.stdout)["policies"]} == {
        "retry", "circuit_breaker", "fallback", "timeout",
    }  # fmt: skip
    (folder / "everkeel.yaml").write_text("retry: [\n")
    bad = subprocess.run([*command, "check"], capture_output=True, text=True)
    assert bad.returncode == 1
    assert "everkeel.yaml:2: is not YAML" in bad.stderr


def test_checking_imports_nothing_that_was_not_named(folder: Path) -> None:
    (folder / "everkeel.yaml").write_text("retry: {one: {on: shop_app.Boom}}\n")
    (folder / "shop_app.py").write_text("raise SystemExit('imported')\n")
    ended = subprocess.run([sys.executable, "-m", "everkeel.cli", "config", "check"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "everkeel.yaml: fine\n")
