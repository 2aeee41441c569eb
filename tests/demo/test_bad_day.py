"""The demo tells its story in virtual time, in real time, in a terminal and in a pipe."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest

from everkeel.demo.bad_day.cli import main
from everkeel.demo.bad_day.provider import PHASES
from everkeel.demo.bad_day.screen import HEALTH, LiveScreen, Screen, choose_screen
from everkeel.demo.bad_day.story import SECONDS, Story, play
from everkeel.testing import fresh_everkeel, run

ESCAPE = "\x1b["


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def story(screen: Screen, seed: int = 7) -> Story:
    with fresh_everkeel():
        return run(play(SECONDS, seed, screen), seed=seed)


def test_it_ends_well_with_a_table_and_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    with fresh_everkeel():
        assert main(["--fast"]) == 0
    printed = capsys.readouterr().out
    for words in ("560 orders each", "paid at once", "while it was down", "explain(error)", "retry 'payments' gave up"):
        assert words in printed


def test_the_same_seed_tells_the_same_story(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        with fresh_everkeel():
            main(["--fast", "--seed", "3"])
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]


@pytest.mark.parametrize("seed", [1, 7, 42])
def test_guarded_calls_never_fail_and_spare_a_provider_that_is_down(seed: int) -> None:
    bare, guarded = story(Screen(io.StringIO()), seed).ledgers
    assert len(bare.calls) == len(guarded.calls) == 560
    assert bare.share("failed") > 0.2
    assert guarded.share("failed") == 0
    assert guarded.share("paid") > bare.share("paid")
    assert guarded.client.provider.requests["down"] < bare.client.provider.requests["down"] / 2
    assert guarded.quantile(0.99) < bare.quantile(0.99)
    assert guarded.wasted() < bare.wasted()


def test_the_circuit_opens_and_closes_in_sight() -> None:
    out = io.StringIO()
    story(Screen(out))
    told = re.findall(r"circuit 'payments' (opened|half open|closed)", out.getvalue())
    assert told[0] == "opened"
    assert told[-2:] == ["half open", "closed"]


def test_a_pipe_gets_lines_without_escapes() -> None:
    out = io.StringIO()
    screen = choose_screen(out)
    story(screen)
    assert type(screen) is Screen
    assert ESCAPE not in out.getvalue()


def test_a_terminal_gets_a_picture_drawn_in_place(terminal: Terminal) -> None:
    screen = choose_screen(terminal)
    story(screen)
    screen.close()
    assert isinstance(screen, LiveScreen)
    drawn = terminal.getvalue()
    assert f"{ESCAPE}19F" in drawn  # up to the first line, to draw over it
    assert f"{ESCAPE}31m" in drawn
    assert drawn.endswith(f"{ESCAPE}?25h"), "the cursor is back"
    frames = [re.sub(r"\x1b\[[?\d]*[A-Za-z]", "", frame) for frame in drawn.split(f"{ESCAPE}19F")]
    assert {len(line) <= 80 for frame in frames for line in frame.splitlines()} == {True}


def test_no_color_is_respected(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = choose_screen(terminal)
    story(screen)
    assert isinstance(screen, LiveScreen)
    assert not re.search(r"\x1b\[\d+m", terminal.getvalue())


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("COLUMNS", "60"), ("LINES", "15")])
def test_a_terminal_that_cannot_show_it_gets_lines(
    name: str, value: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert type(choose_screen(terminal)) is Screen


def test_an_output_without_unicode_gets_plain_characters() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    story(LiveScreen(out))
    out.flush()


def test_every_phase_has_a_colour() -> None:
    assert set(HEALTH) == {phase.name for phase in PHASES}
    assert sum(phase.share for phase in PHASES) == pytest.approx(1)


@pytest.mark.parametrize("length", ["0", "-3", "soon", "99999"])
def test_a_length_that_makes_no_story_is_refused(length: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--seconds", length])
    assert refused.value.code == 2


def test_it_runs_in_real_time() -> None:
    command = [sys.executable, "-W", "error", "-m", "everkeel.demo.bad_day", "--seconds", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert ended.returncode == 0, ended.stderr
    assert "560 orders each" in ended.stdout
