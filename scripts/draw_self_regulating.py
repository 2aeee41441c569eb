"""Draws the picture of clients that listen to their server, from a run of examples/self_regulating.py.

python examples/self_regulating.py --record docs/guide/images/self-regulating.json     # a real run: 45 seconds
python scripts/draw_self_regulating.py                                                # writes the picture
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draw_adaptive import IMAGES, INK, Line, Panel, draw

RUN, PICTURE = "self-regulating.json", "self-regulating.svg"
POLITE, RUDE = "#2f81f7", "#d1495b"
TOGETHER = 4  # quarters of a second that make up a point

Moments = list[dict[str, float]]


def _points(moments: Moments, value: Callable[[Moments], float]) -> list[tuple[float, float]]:
    parts = [moments[first : first + TOGETHER] for first in range(0, len(moments), TOGETHER)]
    return [(part[0]["at"], value(part)) for part in parts]


def _per_second(name: str) -> Callable[[Moments], float]:
    return lambda part: sum(one[name] for one in part) / (0.25 * len(part))


def _served(part: Moments) -> float:
    requests = sum(one["requests"] for one in part)
    return 100 * sum(one["orders"] for one in part) / requests if requests else 100.0


def _mean(name: str, weight: str) -> Callable[[Moments], float]:
    def mean(part: Moments) -> float:
        total = sum(one[weight] for one in part)
        return sum(one[name] * one[weight] for one in part) / total if total else 0.0

    return mean


def picture() -> str:
    """The picture of the run that is kept beside it."""
    run: Any = json.loads((IMAGES / RUN).read_text(encoding="utf-8"))
    length, polite, rude = run["seconds"], run["runs"]["polite"], run["runs"]["rude"]
    spike = (0.25 * length, 0.65 * length)
    ticks = [n * length / 10 for n in range(11)]

    def panel(title: str, value: Callable[[Moments], float], top: float, step: float, *more: Line) -> Panel:
        lines = [
            *more,
            Line("clients that listen", POLITE, _points(polite, value)),
            Line("rude clients", RUDE, _points(rude, value)),
        ]
        marks = [step * n for n in range(round(top / step) + 1)]
        return Panel(title, lines, (0, length), (0, top), ticks, marks, shade=spike)

    wanted = Line("what clients would like", INK, [(one["at"], one["wanted"]) for one in polite], dashed=True)
    return draw(
        "A spike of load, with clients that listen to the server and with rude ones",
        "seconds",
        [
            panel("Requests per second", _per_second("requests"), 500, 100, wanted),
            panel("Orders per second, of 40 that the server can serve", _per_second("orders"), 50, 10),
            panel("Requests that succeed, in percent", _served, 100, 25),
            panel("X-Backpressure", _mean("backpressure", "requests"), 1, 0.25),
            panel("Retry-After of refused requests, in seconds", _mean("retry_after", "refused"), 4, 1),
        ],
    )


PICTURES = {PICTURE: picture}


def main() -> None:
    for name, make in PICTURES.items():
        (IMAGES / Path(name)).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
