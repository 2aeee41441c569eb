"""What the audience sees: a line that changes on a terminal, plain lines elsewhere, a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from everkeel.cli.output import coloured, paint
from everkeel.demo.shop.audit import Check
from everkeel.demo.shop.scenarios import Outcome
from everkeel.demo.shop.world import World


class View:
    """Tells what happens."""

    def __init__(self, stream: TextIO = sys.stdout, *, quiet: bool = False) -> None:
        self._stream, self._quiet = stream, quiet
        self._live = coloured(stream)
        self._title = ""

    def _say(self, text: str, end: str = "\n") -> None:
        if not self._quiet:
            print(text, end=end, file=self._stream, flush=True)

    def opened(self, world: World) -> None:
        """The shop is open."""
        self._say(paint("The shop is open.", "bold", self._stream))
        self._say(f"  orders, inventory and payments on {world.engine}, events over {world.transport}")
        self._say(f"  dashboard  {world.url('orders')}/everkeel/")
        self._say(f"  token      {world.token}\n")

    def begins(self, title: str, about: str) -> None:
        """A scenario begins."""
        self._title = title
        self._say(f"{paint(title, 'bold', self._stream)}. {about}")

    def line(self, text: str) -> None:
        """How it stands: on a terminal, in place of the last such line."""
        if self._live:
            self._say(f"\r\x1b[2K  {text[:100]}", end="")

    def ends(self, outcome: Outcome) -> None:
        """A scenario is over."""
        clear = "\r\x1b[2K" if self._live else ""
        mark = paint("✗", "red", self._stream) if outcome.problems else paint("✓", "green", self._stream)
        counted = f"{outcome.orders} orders: {outcome.confirmed} confirmed, {outcome.cancelled} cancelled"
        self._say(f"{clear}  {mark} {counted} ({outcome.seconds:.1f} s)")
        for note in outcome.notes:
            self._say(f"    {note}")
        for problem in outcome.problems:
            self._say(paint(f"    {problem}", "red", self._stream))

    def again(self, outcomes: Sequence[Outcome]) -> None:
        """All scenarios are over, and begin again."""
        self._say(f"\n{len(outcomes)} scenarios so far. It goes on until you press Ctrl+C.\n")

    def logged(self, logs: Mapping[str, str]) -> None:
        """What the services had to say about what is wrong."""
        for name, text in logs.items():
            self._say(f"\n{paint(f'The log of the {name} service', 'bold', self._stream)}\n{text}")

    def audited(self, checks: Sequence[Check], right: bool) -> None:
        """The books."""
        clear = "\r\x1b[2K" if self._live else ""
        self._say(f"{clear}\n{paint('The books', 'bold', self._stream)}")
        for check in checks:
            mark = paint("✓", "green", self._stream) if check.holds else paint("✗", "red", self._stream)
            self._say(f"  {mark} {check.name}" + ("" if check.holds else f": {_differs(check)}"))
        last = "Nothing was lost, and nothing was done twice." if right else "Something is wrong: see above."
        self._say("\n" + paint(last, "green" if right else "red", self._stream))


def _differs(check: Check) -> str:
    expected, found = check.expected, check.found
    if isinstance(expected, list) and isinstance(found, list):
        missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
        return f"missing {missing[:5]}, too many {extra[:5]}"
    return f"expected {expected}, found {found}"
