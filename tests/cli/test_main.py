"""The skeleton of the command line: finding commands, helping, failing in one line."""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest

import everkeel
from everkeel.cli import commands, main, output
from everkeel.cli.main import build


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Give `everkeel` a command `try` that does what the test says."""

    def install(run, add=lambda parser: None) -> None:
        module = SimpleNamespace(add=add, run=run)
        monkeypatch.setitem(commands.COMMANDS, "try", commands.Command("tests.try", "try something"))
        monkeypatch.setitem(sys.modules, "tests.try", module)

    return install


def _process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "everkeel.cli", *arguments], capture_output=True, text=True, check=False, **options
    )


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"everkeel {everkeel.__version__}\n"


def test_without_a_command_it_shows_help_and_says_that_the_usage_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == output.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    for name in commands.COMMANDS:
        assert name in shown.err


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "Exit codes" in capsys.readouterr().out


def test_a_misspelt_command_is_one_line_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dmo"]) == output.USAGE
    assert capsys.readouterr().err == "everkeel: no command 'dmo'; did you mean 'demo'?\n"


@pytest.mark.parametrize("name", sorted(commands.COMMANDS))
def test_every_command_has_what_a_command_needs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = commands.load(name)
    assert callable(module.add)
    assert callable(module.run)
    assert main([name, "--help"]) == 0
    assert f"usage: everkeel {name}" in capsys.readouterr().out


def test_only_the_command_in_use_is_imported() -> None:
    script = (
        "import sys\n"
        "from everkeel.cli import main\n"
        "main(['completion', '--help'])\n"
        "assert 'everkeel.demo.shop.cli' not in sys.modules\n"
        "assert 'everkeel.policies' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_a_commands_answer_is_the_exit_code(command) -> None:
    command(lambda args: args.code, lambda parser: parser.add_argument("code", type=int))
    assert main(["try", "1"]) == 1


def test_a_wrong_argument_is_wrong_usage(command, capsys: pytest.CaptureFixture[str]) -> None:
    command(lambda args: 0, lambda parser: parser.add_argument("code", type=int))
    assert main(["try", "many"]) == output.USAGE
    assert "everkeel try: error: argument code" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (output.CommandError("no such thing: 'x'"), 1, "everkeel: no such thing: 'x'\n"),
        (output.CommandError("say which", output.USAGE), 2, "everkeel: say which\n"),
        (everkeel.ConfigError("retry", "attempts", "must be at least 1", "0"), 1, "must be at least 1 (got 0)\n"),
        (FileNotFoundError(2, "No such file or directory", "a.yaml"), 1, "No such file or directory: 'a.yaml'\n"),
    ],
)
def test_trouble_is_one_line_and_an_exit_code(
    command, capsys: pytest.CaptureFixture[str], error: Exception, code: int, line: str
) -> None:
    def run(args: argparse.Namespace) -> int:
        raise error

    command(run)
    assert main(["try"]) == code
    said = capsys.readouterr().err
    assert said.endswith(line)
    assert said.count("\n") == 1


def test_a_bug_is_not_hidden(command) -> None:
    def run(args: argparse.Namespace) -> int:
        raise ZeroDivisionError

    command(run)
    with pytest.raises(ZeroDivisionError):
        main(["try"])


def test_an_interrupt_is_the_code_that_shells_expect(command) -> None:
    def run(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    command(run)
    assert main(["try"]) == 130


def test_a_reader_that_left_is_no_traceback() -> None:
    script = "import sys; from everkeel.cli import main; sys.exit(main(['completion', 'fish']))"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run([sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_it_runs_as_a_module() -> None:
    ended = _process("--version")
    assert (ended.returncode, ended.stdout) == (0, f"everkeel {everkeel.__version__}\n")


def test_the_demo_is_the_demo() -> None:
    ended = _process("demo", "--help")
    assert ended.returncode == 0
    assert "--scenario" in ended.stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.paint("no", "red", Terminal()) == "\x1b[31mno\x1b[0m"
    assert output.paint("no", "red", io.StringIO()) == "no"
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.paint("no", "red", Terminal()) == "no"


def test_a_table_lines_up(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_table([("a", "long", "x"), ("bbb", "c", "y")])
    output.emit_table([])
    assert capsys.readouterr().out == "a    long  x\nbbb  c     y\n"


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_json({"ü": [1, None]})
    assert json.loads(capsys.readouterr().out) == {"ü": [1, None]}


def test_the_error_of_a_command_survives_pickling_and_copying() -> None:
    error = output.CommandError("no", 2)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (str(other), other.code, other.policy) == ("no", 2, None)


def test_nothing_is_filled_in_that_was_not_asked_for() -> None:
    assert "everkeel completion" not in build([]).format_help()
