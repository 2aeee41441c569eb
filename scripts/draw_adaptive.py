"""Draws the pictures of the guide on hedges and on adaptive concurrency: the very runs that the tests assert.

    python scripts/draw_adaptive.py     # writes docs/guide/images/

The colours are in the middle of the scale and the ground is transparent, so that they read on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import simulate_services as services

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "guide" / "images"
WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 720, 64, 16, 44, 150, 46
INK, GRID = "#808080", "#80808040"
COLOURS = {"gradient2": "#2f81f7", "vegas": "#d9822b", "aimd": "#2ea36a", "without": "#d1495b", "room": INK}


@dataclass(frozen=True)
class Line:
    """A curve: what it is, its colour, and its points."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One diagram: what it shows, and how far its axes go."""

    title: str
    lines: Sequence[Line]
    x: tuple[float, float]
    y: tuple[float, float]
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    shade: tuple[float, float] | None = None


def draw(title: str, x_label: str, panels: Sequence[Panel]) -> str:
    """Panels one above the other, as SVG."""
    height = TOP + len(panels) * (PANEL + GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}"'
        f' font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        f"<title>{title}</title>",
    ]
    names = {line.name: line for panel in panels for line in panel.lines}
    x = LEFT
    for line in names.values():
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        out.append(f'<path d="M{x} 16h22" stroke="{line.colour}" stroke-width="2.5"{dash}/>')
        out.append(f'<text x="{x + 28}" y="20">{line.name}</text>')
        x += 48 + 7 * len(line.name)
    for number, panel in enumerate(panels):
        out += _panel(panel, TOP + number * (PANEL + GAP) + 12)
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{height - 4}" text-anchor="middle">{x_label}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _panel(panel: Panel, top: float) -> list[str]:
    (x0, x1), (y0, y1) = panel.x, panel.y

    def across(x: float) -> float:
        return LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return top + PANEL - (min(max(y, y0), y1) - y0) / (y1 - y0) * PANEL

    out = [f'<text x="{LEFT}" y="{top - 7:g}" font-weight="600">{panel.title}</text>']
    if panel.shade is not None:
        left, right = across(panel.shade[0]), across(panel.shade[1])
        out.append(f'<rect x="{left:.1f}" y="{top:g}" width="{right - left:.1f}" height="{PANEL}" fill="#80808022"/>')
    for tick in panel.y_ticks:
        out.append(f'<path d="M{LEFT} {down(tick):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{down(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    out += [
        f'<text x="{across(tick):.1f}" y="{top + PANEL + 16:g}" text-anchor="middle">{tick:g}</text>'
        for tick in panel.x_ticks
    ]
    for line in panel.lines:
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line.points)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.8"{dash}/>')
    return out


# ------------------------------------------------------------------ the pictures


def _latency(run: services.Run) -> list[tuple[float, float]]:
    return [(at, 1000 * run.latency(0.9, at, at + 0.5)) for at in (n / 2 for n in range(120))]


def _limits(run: services.Run) -> list[tuple[float, float]]:
    return [(at, float(limit)) for at, limit in run.limits[::3]]


def step_down() -> str:
    """A step down in capacity: with each algorithm, and without a limit."""
    guardrail: dict[str, Any] = {"max_latency": 0.1}  # without which AIMD would see nothing
    runs = {
        name: services.simulate(**services.STEP_DOWN, algorithm=name, **(guardrail if name == "aimd" else {}))
        for name in ("gradient2", "vegas", "aimd")
    }
    free = services.simulate(**services.STEP_DOWN, limited=False)
    servers = [(at / 4, services.STEP_DOWN["servers"](at / 4)) for at in range(240)]
    seconds = (0, 10, 20, 30, 40, 50, 60)
    lines = [Line(name, COLOURS[name], _limits(run)) for name, run in runs.items()]
    slow = [Line(name, COLOURS[name], _latency(run)) for name, run in runs.items()]
    slow.append(Line("without a limit", COLOURS["without"], _latency(free)))
    room = Line("servers", COLOURS["room"], servers, dashed=True)
    return draw(
        "A service loses three quarters of its servers for twenty seconds",
        "seconds",
        [
            Panel("calls at once", [*lines, room], (0, 60), (0, 80), seconds, (0, 20, 40, 60, 80), (20, 40)),
            Panel("latency, p90 in ms", slow, (0, 60), (0, 800), seconds, (0, 200, 400, 600, 800), (20, 40)),
        ],
    )


def not_ours() -> str:
    """A spike and a leak that no limit can mend."""
    seconds, ticks = (0, 10, 20, 30, 40, 50, 60), (0, 40, 80, 120)
    panels = []
    for title, scenario, shade in (
        ("calls at once: every answer takes five times as long for ten seconds", services.SPIKE, (20.0, 30.0)),
        ("calls at once: answers get slower, to three times, until a restart", services.LEAK, (10.0, 50.0)),
    ):
        lines = [
            Line(kind, COLOURS[kind], _limits(services.simulate(**scenario, algorithm=kind)))
            for kind in ("gradient2", "vegas")
        ]
        needed = [(at / 4, 300 * scenario["service_time"](at / 4)) for at in range(240)]
        lines.append(Line("needed to answer all", COLOURS["room"], needed, dashed=True))
        panels.append(Panel(title, lines, (0, 60), (0, 120), seconds, ticks, shade))
    return draw("Slowness that is not ours", "seconds", panels)


def tail() -> str:
    """What share of the callers waited how long, with and without a hedge."""
    lines = []
    for name, hedged, colour in (
        ("without a hedge", False, COLOURS["without"]),
        ("with a hedge", True, COLOURS["gradient2"]),
    ):
        run = services.long_tail(hedged=hedged)
        shares = [90 + n / 20 for n in range(200)]
        lines.append(Line(name, colour, [(share, 1000 * run.quantile(share / 100)) for share in shares]))
    panel = Panel(
        "waited at most, in ms", lines, (90, 100), (0, 360), (90, 92, 94, 95, 96, 98, 99, 100), (0, 100, 200, 300)
    )
    return draw("The slowest tenth of the calls", "per cent of the callers", [panel])


PICTURES = {"limit-step-down.svg": step_down, "limit-not-ours.svg": not_ours, "hedge-tail.svg": tail}

if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for file, picture in PICTURES.items():
        (IMAGES / file).write_text(picture(), encoding="utf-8")
