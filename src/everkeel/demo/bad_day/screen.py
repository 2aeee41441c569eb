"""Shows the story while it happens: redrawn in place in a terminal, line by line anywhere else."""

from __future__ import annotations

import os
import shutil
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import TextIO

from everkeel.demo.bad_day.ledger import Ledger
from everkeel.demo.bad_day.provider import PHASES
from everkeel.events import CircuitClosed, CircuitHalfOpened, CircuitOpened, Event

WIDTH = 80
LAST_EVENTS = 6
ORDERS_PER_CELL = 10  # of the curve

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
OUTCOMES = {"paid": "green", "later": "yellow", "failed": "red"}
HEALTH = {"healthy": "green", "flaky": "yellow", "down": "red", "recovering": "yellow", "healthy again": "green"}
CURVE, BAR, LINE = "▁▂▃▄▅▆▇█", "█", "─"
PLAIN_CURVE, PLAIN_BAR, PLAIN_LINE = "_.:-=+*#", "#", "-"


class Screen:
    """Lines of text, one now and then: for pipes and logs."""

    every = 1.0
    """Seconds between two looks."""

    def __init__(self, out: TextIO, *, colours: bool = False) -> None:
        self.out, self.colours = out, colours
        drawn = _can_print(out, CURVE + BAR + LINE)
        self.curve, self.bar, self.line = (CURVE, BAR, LINE) if drawn else (PLAIN_CURVE, PLAIN_BAR, PLAIN_LINE)

    def paint(self, text: str, colour: str) -> str:
        """`text` in a colour, where there are any."""
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.colours else text

    def show(self, at: float, ledgers: Sequence[Ledger]) -> None:
        """How things stand."""
        parts = []
        for ledger in ledgers:
            counts = ledger.counts()
            later = f", {counts['later']} later" if ledger.client.breaker else ""
            numbers = f"{counts['paid']} paid{later}, {counts['failed']} failed, {ledger.waiting} waiting"
            parts.append(f"{ledger.client.title.split()[0]}: {numbers}")
        self.out.write(f"{at:5.1f} s  {_health(ledgers):<13}  {' | '.join(parts)}\n")
        self.out.flush()

    def tell(self, at: float, event: Event) -> None:
        """Something happened."""
        self.out.write(f"{at:5.1f} s  {self.told(event)}\n")

    def told(self, event: Event) -> str:
        """An event in words."""
        if isinstance(event, CircuitOpened):
            why = "" if event.failure_rate is None else f": {event.failure_rate:.0%} of the calls it watched failed"
            return self.paint(f"circuit {event.policy!r} opened{why}", "red")
        if isinstance(event, CircuitHalfOpened):
            return self.paint(f"circuit {event.policy!r} half open: a few probes may pass", "yellow")
        if isinstance(event, CircuitClosed):
            return self.paint(f"circuit {event.policy!r} closed: all is well", "green")
        return str(event)

    def close(self) -> None:
        """The story is over."""


class LiveScreen(Screen):
    """A picture that is drawn over itself: for terminals."""

    every = 0.1

    def __init__(self, out: TextIO, *, colours: bool = False) -> None:
        super().__init__(out, colours=colours)
        self._drawn = 0
        self._events: deque[str] = deque(maxlen=LAST_EVENTS)
        out.write("\x1b[?25l")  # no cursor

    def show(self, at: float, ledgers: Sequence[Ledger]) -> None:
        lines = list(self._picture(at, ledgers))
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        self.out.write(up + "".join(f"{line}\x1b[K\n" for line in lines))
        self.out.flush()
        self._drawn = len(lines)

    def tell(self, at: float, event: Event) -> None:
        self._events.append(f"  {at:5.1f} s  {self.told(event)}")

    def close(self) -> None:
        self.out.write("\x1b[?25h")
        self.out.flush()

    def _picture(self, at: float, ledgers: Sequence[Ledger]) -> Iterator[str]:
        now = _health(ledgers)
        yield f"  {self.paint('A payment provider has a bad day', 'bold')}{at:>42.1f} s"
        yield "  the provider is  " + "  ".join(
            self.paint(phase.name.upper(), HEALTH[phase.name]) if phase.name == now else self.paint(phase.name, "dim")
            for phase in PHASES
        )
        for ledger in ledgers:
            yield self.paint("  " + self.line * (WIDTH - 4), "dim")
            yield from self._side(ledger)
        yield self.paint("  " + self.line * (WIDTH - 4), "dim")
        yield from [*self._events, *[""] * (LAST_EVENTS - len(self._events))]

    def _side(self, ledger: Ledger) -> Iterator[str]:
        counts, breaker = ledger.counts(), ledger.client.breaker
        numbers = [
            self.paint(f"{counts[outcome]:3} {outcome}", OUTCOMES[outcome])
            for outcome in OUTCOMES
            if outcome != "later" or breaker
        ]
        circuit = f"   circuit {breaker.snapshot()['state'].replace('_', ' ')}" if breaker else ""
        bar = self.bar * min(WIDTH - 24, (ledger.waiting + 1) // 2)
        yield f"  {self.paint(ledger.client.title, 'bold')}"
        yield f"    paid at once  {self._paid(ledger)}"
        yield f"    waiting now   {self.paint(bar, 'cyan')} {ledger.waiting}"
        yield f"    so far       {'  '.join(numbers)}{circuit}"

    def _paid(self, ledger: Ledger) -> str:
        """The share of orders paid at once, over the story; red where one failed, dim where one still waits."""
        cells: list[Counter[str]] = [Counter() for _ in range(-(-ledger.begun // ORDERS_PER_CELL))]
        for call in ledger.calls:
            cells[call.order // ORDERS_PER_CELL][call.outcome] += 1
        curve = ""
        for number, cell in enumerate(cells, 1):
            begun = min(ORDERS_PER_CELL, ledger.begun - (number - 1) * ORDERS_PER_CELL)
            colour = next((OUTCOMES[outcome] for outcome in ("failed", "later") if cell[outcome]), None)
            colour = colour or ("green" if cell.total() == begun else "dim")
            curve += self.paint(self.curve[int(cell["paid"] / begun * (len(self.curve) - 1))], colour)
        return curve


def _health(ledgers: Sequence[Ledger]) -> str:
    return ledgers[0].client.provider.phase().name


def _can_print(out: TextIO, glyphs: str) -> bool:
    try:
        glyphs.encode(getattr(out, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def choose_screen(out: TextIO, *, live: bool = True) -> Screen:
    """The screen that suits where the output goes: the live one only in a terminal with room for it."""
    terminal = out.isatty() and os.environ.get("TERM", "") != "dumb"
    colours = terminal and not os.environ.get("NO_COLOR")
    columns, rows = shutil.get_terminal_size()
    if terminal and live and columns >= WIDTH and rows > 13 + LAST_EVENTS:
        return LiveScreen(out, colours=colours)
    return Screen(out, colours=colours)
