"""Pictures as SVG, drawn here: rows of boxes, arrows down for the way forward, dashed ones up for the way back.

The document loads nothing, runs nothing, and has its colours for both themes in it. Pivot and compensations differ by
shape and word as well as by colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from unicodedata import east_asian_width

from everkeel.sagas.diagram import SEVERAL, Cell, Picture

LETTER, LINE = 7.4, 18.0
"""Points that a letter and a line take, generously: fonts differ, boxes must not be too small for any."""
MOST_LETTERS = 44
PAD, BESIDE, BETWEEN, BELOW, MARGIN, LANE = 14.0, 40.0, 44.0, 54.0, 28.0, 14.0
TOP = 74.0

STYLE = """
svg {
  --paper: #ffffff; --ink: #15242c; --soft: #51646e; --line: #9fb0b8; --box: #eef4f6;
  --way: #10687a; --back: #9a6200; --back-box: #fdf3e0; --pivot: #b3261e;
}
@media (prefers-color-scheme: dark) {
  svg {
    --paper: #0e171c; --ink: #e6eef1; --soft: #9db0b9; --line: #4a5f69; --box: #1a2b33;
    --way: #5cc3d6; --back: #f0bd5d; --back-box: #2f2612; --pivot: #ff9a90;
  }
}
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); }
.title { font-size: 17px; font-weight: 700; }
.name { font-weight: 650; }
.note { font-size: 12px; fill: var(--soft); }
.paper { fill: var(--paper); }
.step { fill: var(--box); stroke: var(--way); stroke-width: 1.5; }
.pivot { stroke: var(--pivot); stroke-width: 4; }
.undo { fill: var(--back-box); stroke: var(--back); stroke-width: 1.5; stroke-dasharray: 5 4; }
.group { fill: none; stroke: var(--line); stroke-dasharray: 2 4; }
.way { fill: none; stroke: var(--way); stroke-width: 1.8; }
.back { fill: none; stroke: var(--back); stroke-width: 1.5; stroke-dasharray: 5 4; }
.way-head { fill: var(--way); }
.back-head { fill: var(--back); }
""".strip()


@dataclass(frozen=True, slots=True)
class _Box:
    """A rectangle with lines of text."""

    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def waist(self) -> float:
        return self.y + self.height / 2


def svg(picture: Picture) -> str:
    """The whole document."""
    return "\n".join(_Drawing(picture).document()) + "\n"


class _Drawing:
    """Where everything stands."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.rank = {cell.key: index for index, row in enumerate(picture.ranks) for cell in row}
        self.long = [
            (key, cell.key) for cell in picture.cells for key in cell.after if self.rank[cell.key] - self.rank[key] > 1
        ]  # fmt: skip
        self.long_back = [(late, early) for late, early in picture.way_back if self.rank[late] - self.rank[early] > 1]
        self.left = MARGIN + (LANE * len(self.long) + 14 if self.long else 0)
        self.steps: dict[str, _Box] = {}
        self.undos: dict[str, _Box] = {}
        self._place()

    def _place(self) -> None:
        cells = self.picture.cells
        step_width = max((_width(_of_step(cell)) for cell in cells), default=0.0)
        undo_width = max((_width(_of_undo(cell)) for cell in cells if cell.undo), default=0.0)
        one = step_width + (BESIDE + undo_width if undo_width else 0.0)
        most = max((len(row) for row in self.picture.ranks), default=1)
        said = max(_measure(self.picture.title) * 1.35, _measure(self.picture.about), LETTER * len(self._legend()))
        self.inner = max(most * one + (most - 1) * BETWEEN, said)
        y = TOP
        for row in self.picture.ranks:
            x = self.left + (self.inner - len(row) * one - (len(row) - 1) * BETWEEN) / 2
            height = max(_height(_of_step(cell)) for cell in row)
            height = max(height, *(_height(_of_undo(cell)) for cell in row))
            for cell in row:
                self.steps[cell.key] = _Box(x, y, step_width, height, _of_step(cell))
                if cell.undo is not None:
                    self.undos[cell.key] = _Box(x + step_width + BESIDE, y, undo_width, height, _of_undo(cell))
                x += one + BETWEEN
            y += height + BELOW
        self.width = self.left + self.inner + MARGIN + (LANE * len(self.long_back) + 14 if self.long_back else 0)
        self.height = y - BELOW + MARGIN + 44

    # ------------------------------------------------------------------ drawing

    def document(self) -> Iterator[str]:
        size = f'width="{self.width:.0f}" height="{self.height:.0f}" viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title about">'
        yield f'<title id="title">{_escaped(self.picture.title)}</title>'
        yield f'<desc id="about">{_escaped(self._spoken())}</desc>'
        yield f"<style>{STYLE}</style>"
        yield f"<defs>{_head('way')}{_head('back')}</defs>"
        yield f'<rect class="paper" width="{self.width:.0f}" height="{self.height:.0f}"/>'
        yield f'<text class="title" x="{MARGIN:.0f}" y="32">{_escaped(_short(self.picture.title))}</text>'
        yield f'<text class="note" x="{MARGIN:.0f}" y="52">{_escaped(self.picture.about)}</text>'
        for keys in self.picture.groups:
            yield from self._group(keys)
        yield from self._ways()
        for cell in self.picture.cells:
            yield from _drawn(self.steps[cell.key], "step pivot" if cell.pivot else "step", 6)
            if cell.key in self.undos:
                yield from _drawn(self.undos[cell.key], "undo", 18)
        yield f'<text class="note" x="{MARGIN:.0f}" y="{self.height - 18:.0f}">{self._legend()}</text>'
        yield "</svg>"

    def _group(self, keys: Sequence[str]) -> Iterator[str]:
        boxes = [box for key in keys for box in (self.steps[key], self.undos.get(key)) if box is not None]
        x, y = min(box.x for box in boxes) - 10, min(box.y for box in boxes) - 24
        right, bottom = max(box.x + box.width for box in boxes) + 10, max(box.bottom for box in boxes) + 10
        yield f'<rect class="group" x="{x:.1f}" y="{y:.1f}" width="{right - x:.1f}" height="{bottom - y:.1f}" rx="8"/>'
        yield f'<text class="note" x="{x + 8:.1f}" y="{y + 15:.1f}">{SEVERAL}</text>'

    def _ways(self) -> Iterator[str]:
        for key, undo in self.undos.items():
            step = self.steps[key]
            yield f'<path class="back" d="M{step.x + step.width:.1f} {step.waist:.1f}H{undo.x:.1f}"/>'
        for cell in self.picture.cells:
            for key in cell.after:
                if (key, cell.key) not in self.long:
                    upper, lower = self.steps[key], self.steps[cell.key]
                    yield _curve("way", upper.middle, upper.bottom, lower.middle, lower.y)
        for late, early in self.picture.way_back:
            if (late, early) not in self.long_back:
                upper, lower = self.undos[early], self.undos[late]
                yield _curve("back", lower.middle, lower.y, upper.middle, upper.bottom)
        for lane, (first, second) in enumerate(self.long, 1):
            a, b, x = self.steps[first], self.steps[second], self.left - 14 - LANE * (lane - 1)
            yield _path("way", f"M{a.x:.1f} {a.waist:.1f}H{x:.1f}V{b.waist:.1f}H{b.x - 2:.1f}")
        for lane, (late, early) in enumerate(self.long_back, 1):
            a, b, x = self.undos[late], self.undos[early], self.left + self.inner + 14 + LANE * (lane - 1)
            start = f"M{a.x + a.width:.1f} {a.waist - 6:.1f}H{x:.1f}"
            if any(
                box.y == b.y and box.x > b.x for box in self.undos.values()
            ):  # from below: it would cross the others
                below = b.bottom + 14 + 3 * (lane % 4)
                yield _path("back", f"{start}V{below:.1f}H{b.middle:.1f}V{b.bottom + 2:.1f}")
            else:
                yield _path("back", f"{start}V{b.waist + 6:.1f}H{b.x + b.width + 2:.1f}")

    def _legend(self) -> str:
        parts = ["→ the way forward"] if self.picture.ordered else []
        if any(cell.undo is not None for cell in self.picture.cells):
            parts.append("⇠ dashed: what undoes it" + (", in reverse order" if self.picture.way_back else ""))
        if any(cell.pivot for cell in self.picture.cells):
            parts.append("thick: the pivot")
        return " · ".join(parts)

    def _spoken(self) -> str:
        """The picture for those who do not see it."""
        said = []
        for cell in self.picture.cells:
            after = f" after {', '.join(self.picture.by_key[key].name for key in cell.after)}" if cell.after else ""
            undo = f", undone by {cell.undo}" if cell.undo else ""
            said.append(f"{cell.name}{after}{undo}{', the pivot' if cell.pivot else ''}")
        return ". ".join([self.picture.about, *said])


def _drawn(box: _Box, kind: str, corner: int) -> Iterator[str]:
    yield f"<g><title>{_escaped(' · '.join(box.lines))}</title>"
    rectangle = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="{corner}"'
    yield f'<rect class="{kind}" {rectangle}/>'
    y = box.y + (box.height - len(box.lines) * LINE) / 2 + 13
    for index, line in enumerate(box.lines):
        style = "note" if index else "name"
        place = f'x="{box.middle:.1f}" y="{y:.1f}" text-anchor="middle"'
        yield f'<text class="{style}" {place}>{_escaped(_short(line))}</text>'
        y += LINE
    yield "</g>"


def _of_step(cell: Cell) -> tuple[str, ...]:
    return (cell.name, *(("pivot",) if cell.pivot else ()), *cell.notes)


def _of_undo(cell: Cell) -> tuple[str, ...]:
    return () if cell.undo is None else (cell.undo, *cell.undo_notes)


def _head(kind: str) -> str:
    return (
        f'<marker id="{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="{kind}-head" d="M0 0L10 5L0 10Z"/></marker>'
    )


def _path(kind: str, d: str) -> str:
    return f'<path class="{kind}" marker-end="url(#{kind})" d="{d}"/>'


def _curve(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    if abs(x1 - x2) < 0.5:
        return _path(kind, f"M{x1:.1f} {y1:.1f}V{y2:.1f}")
    bend = (y2 - y1) / 2
    return _path(kind, f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}")


def _short(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def _measure(text: str) -> float:
    return LETTER * sum(2 if east_asian_width(one) in "WF" else 1 for one in _short(text))


def _width(lines: Sequence[str]) -> float:
    return max(130.0, *(_measure(line) + 2 * PAD for line in lines))


def _height(lines: Sequence[str]) -> float:
    return len(lines) * LINE + 20.0


def _escaped(text: str) -> str:
    """Text for XML, which has no way to write most control characters."""
    return escape("".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text))
