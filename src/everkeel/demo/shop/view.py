"""What the audience sees: a changing line on a terminal, plain lines elsewhere; at the end a table and the books."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TextIO

from everkeel.cli.output import paint
from everkeel.demo.shop.audit import Check
from everkeel.demo.shop.scenarios import Outcome, counted
from everkeel.demo.shop.world import SERVICES, World

WIDEST = 100
_CLEAR = "\r\x1b[2K"
_ROW = "  {:<2}{:<36}{:>8}{:>11}{:>11}{:>9}"


class View:
    """Tells what happens. `quiet`: nothing at all."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream, self._quiet = stream or sys.stdout, quiet
        self.live = not quiet and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        """Is there a terminal, whose last line can change?"""
        self._pending = False

    def _say(self, text: str = "") -> None:
        if not self._quiet:
            clear, self._pending = _CLEAR if self._pending else "", False
            print(clear + text, file=self._stream, flush=True)

    def _wrapped(self, text: str, indent: str) -> None:
        width = min(shutil.get_terminal_size().columns, WIDEST) if self.live else 80
        self._say(textwrap.fill(text, max(width, 40) - 1, initial_indent=indent, subsequent_indent=indent))

    def _bold(self, text: str) -> str:
        return paint(text, "bold", self._stream)

    def _mark(self, right: bool) -> str:
        return paint("✓", "green", self._stream) if right else paint("✗", "red", self._stream)

    # ------------------------------------------------------------------ the play

    def opening(self, engine: str, transport: str) -> None:
        """It takes a moment."""
        self.line(f"Opening the shop on {engine}, events over {transport} ...")

    def opened(self, world: World) -> None:
        """The shop is open."""
        self._say(self._bold("The shop is open."))
        self._say(f"  three services on {world.engine}, events over {world.transport}; look at them in a browser:\n")
        for name in reversed(SERVICES):
            self._say(f"  {name:<10} {world.url(name)}/everkeel/")
        self._say(f"  token      {world.token}\n")

    def begins(self, title: str, about: str) -> None:
        """A scenario begins."""
        self._say(self._bold(title))
        self._wrapped(about, "  ")

    def line(self, text: str) -> None:
        """How it stands: on a terminal, in place of the last such line; elsewhere nothing."""
        if self.live:
            room = shutil.get_terminal_size().columns - 3
            print(f"{_CLEAR}  {text[:room]}", end="", file=self._stream, flush=True)
            self._pending = True

    def ends(self, outcome: Outcome) -> None:
        """A scenario is over."""
        if outcome.skipped:
            self._say(paint(f"  SKIPPED: {outcome.skipped}", "yellow", self._stream))
        else:
            ends = f"{outcome.confirmed} confirmed, {outcome.cancelled} cancelled ({outcome.seconds:.1f} s)"
            self._say(f"  {self._mark(not outcome.problems)} {counted(outcome.orders, 'order')}: {ends}")
        for note in outcome.notes:
            self._wrapped(note, "    ")
        for problem in outcome.problems:
            self._say(paint(f"    {problem}", "red", self._stream))

    def again(self, rounds: int, outcomes: Sequence[Outcome]) -> None:
        """All scenarios were played and the books are right: from the beginning."""
        orders = sum(one.orders for one in outcomes)
        self._say(
            f"\n{self._mark(True)} {counted(rounds, 'round')}, {counted(orders, 'order')}, and the books are right."
        )
        self._say("It goes on until you press Ctrl+C.\n")

    # ------------------------------------------------------------------ the end

    def table(self, outcomes: Sequence[Outcome]) -> None:
        """Every scenario in a line; those that were played several times, together."""
        self._say("\n" + self._bold(_ROW.format("", "What was played", "orders", "confirmed", "cancelled", "seconds")))
        for one in _together(outcomes):
            if one.skipped:
                self._say(f"    {one.title:<36}{paint('skipped', 'yellow', self._stream)}")
                continue
            row = _ROW.format("", one.title, one.orders, one.confirmed, one.cancelled, f"{one.seconds:.1f}")
            self._say(f"  {self._mark(not one.problems)} {row[4:]}")
        all_ = Outcome.of_all("All of it", outcomes)
        self._say(_ROW.format("", all_.title, all_.orders, all_.confirmed, all_.cancelled, f"{all_.seconds:.1f}"))

    def audited(self, checks: Sequence[Check], right: bool) -> None:
        """The books."""
        if checks:
            self._say("\n" + self._bold("The books"))
        for check in checks:
            if check.holds:
                self._say(f"  {self._mark(True)} {check.name:<46}{check.figure:>14}".rstrip())
            else:
                self._say(f"  {self._mark(False)} it is not so that {check.name}")
                self._say(paint(f"      {check.difference}", "red", self._stream))
        last = "Nothing was lost, and nothing was done twice." if right else "Something is wrong: see above."
        self._say("\n" + paint(last, "green" if right else "red", self._stream))

    def interrupted(self, rounds: int) -> None:
        """Somebody ended it."""
        books = "and the books were right each time" if rounds else "before the books could be checked"
        self._say(f"\nEnded after {counted(rounds, 'whole round')}, {books}.")

    def logged(self, logs: Mapping[str, str]) -> None:
        """What the services had to say about what is wrong."""
        for name, text in logs.items():
            self._say(f"\n{self._bold(f'The log of the {name} service')}\n{text}")


def _together(outcomes: Sequence[Outcome]) -> list[Outcome]:
    names = dict.fromkeys(one.name for one in outcomes)
    played = {name: [one for one in outcomes if one.name == name] for name in names}
    return [Outcome.of_all(some[0].title, some) for some in played.values()]
