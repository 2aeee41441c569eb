"""Completion scripts: they know every command and option, and bash does what it says."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from everkeel.cli import main
from everkeel.cli.commands import COMMANDS


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]):
    def make(shell: str) -> str:
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return make


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_its_options_are_known(script, shell: str) -> None:
    text = script(shell)
    for name in COMMANDS:
        assert name in text
    assert ("-l dry-run" if shell == "fish" else "--dry-run") in text


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["everkeel", "dem"], ["demo"]),
        (["everkeel", "serve", "--no"], ["--no-metrics", "--no-control"]),
        (["everkeel", "completion", "z"], ["zsh"]),
        (["everkeel", "serve", "--port", "7", "--w"], ["--watch"]),
    ],
)
def test_bash_completes(script, words: list[str], expected: list[str]) -> None:
    ask = f"{script('bash')}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n_everkeel\n"
    ended = subprocess.run(
        ["bash", "-c", ask + 'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == expected


def test_an_unknown_shell_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
