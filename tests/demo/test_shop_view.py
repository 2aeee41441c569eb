"""What the audience of the demo sees: readable in 80 columns, on a terminal and in a pipe."""

from __future__ import annotations

import io
import json

import pytest

from everkeel.demo.shop.audit import Check
from everkeel.demo.shop.director import Report
from everkeel.demo.shop.scenarios import SCENARIOS, Outcome
from everkeel.demo.shop.view import View
from everkeel.demo.shop.world import World

LONG = "It is a long story, and it is told here as it is told in the play, in a sentence that does not fit into a line."


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO) -> str:
    """Everything once."""
    view = View(stream)
    view.opening("postgres", "sqlite")
    view.opened(World("/nowhere", "postgres", "sqlite", dict.fromkeys(("orders", "inventory", "payments"), 54_321)))
    outcomes = [Outcome(name, title, 1_000, 900, 100, 1.25) for name, (title, _) in SCENARIOS.items()]
    outcomes[1].skipped = "there is nothing to kill"
    outcomes[2].problems = ["LookupError: nobody wrote this"]
    outcomes[3].notes = [LONG]
    for outcome in outcomes:
        view.begins(outcome.title, LONG)
        view.line("3 under way; " + LONG)
        view.ends(outcome)
    view.again(1, outcomes)
    view.table(outcomes + outcomes)
    view.audited([Check("it is so", 1, 1, "1"), Check("it is so", [], ["order-7"])], right=False)
    view.interrupted(0)
    return stream.getvalue()


def test_no_line_is_longer_than_80_characters_and_nothing_moves_in_a_pipe() -> None:
    printed = show(io.StringIO())
    assert max(map(len, printed.splitlines())) <= 80
    assert "\x1b" not in printed
    assert "under way" not in printed
    assert "  ✗ it is not so that it is so\n      too many: order-7\n" in printed
    assert "SKIPPED: there is nothing to kill" in printed
    assert "✓ 1 round, 9,000 orders, and the books are right." in printed


def test_scenarios_that_were_played_twice_are_one_row() -> None:
    table = [line.split() for line in show(io.StringIO()).splitlines() if line.startswith("  ✓ Everything works  ")]
    assert table == [["✓", "Everything", "works", "2000", "1800", "200", "2.5"]]


@pytest.mark.parametrize("columns", [30, 80, 200])
def test_on_a_terminal_the_changing_line_fits_and_is_cleared(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    printed = show(Terminal())
    changing = [part.split("\x1b[2K")[-1] for part in printed.split("\r") if "under way" in part and "✓" not in part]
    assert changing
    assert all(len(part) < columns for part in changing)
    assert printed.count("\x1b[2K") == 2 * printed.count("3 under way") + 2  # each is cleared; so is the opening one
    assert "\x1b[32m✓\x1b[0m" in printed


def test_without_colours_the_line_still_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    printed = show(Terminal())
    assert "3 under way" in printed
    assert "\x1b[3" not in printed


def test_a_quiet_view_says_nothing() -> None:
    stream = Terminal()
    view = View(stream, quiet=True)
    view.line("something")
    view.begins("Something", LONG)
    assert stream.getvalue() == ""


def test_the_report_says_what_is_wrong_and_is_not_right_before_the_books_were_seen() -> None:
    report = Report("sqlite", "sqlite", outcomes=[Outcome("happy", "Everything works")])
    assert not report.right
    report.checks = [Check("money charged equals orders confirmed", 100, 99)]
    whole = json.loads(report.as_json())
    assert whole["right"] is False
    assert whole["checks"][0]["difference"] == "expected 100, found 99"
