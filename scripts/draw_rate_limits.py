"""Draws the pictures of the guide to rate limiting, from what the algorithms really decide.

python scripts/draw_rate_limits.py      writes docs/guide/images/rate-limit-*.svg; a test sees that they are up to date

Their colours can be read on a white page and on a black one; what passes and what does not differ in shape as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from everkeel import rate_limit
from everkeel.ratelimit import (
    Algorithm,
    FixedWindow,
    LeakyBucket,
    Rate,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
    WarmingBucket,
)
from everkeel.testing import VirtualClock

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "guide" / "images"
SECOND = 1_000_000_000

GREY, FAINT, GREEN, RED, BLUE = "#7d8590", "#7d859055", "#2da44e", "#e5534b", "#3b82d6"
LEFT, WIDTH, RIGHT = 170, 620, 140  # names, time, numbers


def page(height: int, title: str, body: Iterable[str]) -> str:
    """A picture of this height."""
    width = LEFT + WIDTH + RIGHT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{GREY}">'
    )
    return "\n".join([head, *body, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{more}>{words}</text>'


def strokes(commands: list[str], colour: str, width: float = 1.5) -> str:
    return f'<path d="{" ".join(commands)}" stroke="{colour}" stroke-width="{width:g}" fill="none"/>'


def place(seconds: float, length: float) -> float:
    """Where a moment is on the time axis."""
    return round(LEFT + WIDTH * seconds / length, 1)


def axis(length: int, top: float, bottom: float, every: int = 1) -> list[str]:
    """A faint line for each second, with its number."""
    ticks = range(0, length + 1, every)
    lines = [f"M{place(n, length):g} {top:g}V{bottom:g}" for n in ticks]
    words = [text(place(n, length), bottom + 16, f"{n} s", ' text-anchor="middle" font-size="11"') for n in ticks]
    return [strokes(lines, FAINT, 1), *words]


# ------------------------------------------------------------------ what passes


def traffic() -> list[int]:
    """When requests come, in nanoseconds: a steady trickle, a burst across an edge, too many for long, a burst."""

    def evenly(begin: float, end: float, count: int) -> list[int]:
        return [round((begin + (end - begin) * n / count) * SECOND) for n in range(count)]

    return [*evenly(0.1, 2.1, 8), *evenly(2.6, 3.4, 14), *evenly(4.4, 7.0, 39), *evenly(8.5, 8.9, 8)]


LENGTH = 10
RATE = Rate(5, SECOND, 5)
ALGORITHMS: list[tuple[str, Algorithm]] = [
    ("token bucket", TokenBucket(RATE)),
    ("leaky bucket", LeakyBucket(RATE._replace(burst=1))),
    ("fixed window", FixedWindow(RATE)),
    ("sliding window log", SlidingLog(RATE)),
    ("sliding window counter", SlidingCounter(RATE)),
]


def decided(algorithm: Algorithm, moments: list[int]) -> tuple[list[int], list[int]]:
    """Which of these requests are granted, and which are not."""
    state: Any = None
    granted: list[int] = []
    refused: list[int] = []
    for now in moments:
        state, decision = algorithm.acquire(state, now, 1)
        (granted if decision.allowed else refused).append(now)
    return granted, refused


def most_in_a_second(granted: list[int]) -> int:
    """The most that passed in any stretch of a second."""
    return max(sum(1 for other in granted if one <= other < one + SECOND) for one in granted)


def what_passes() -> str:
    moments, lane = traffic(), 58
    bottom = 40 + lane * (len(ALGORITHMS) + 1) - 14
    body = [
        *axis(LENGTH, 26, bottom),
        text(LEFT + WIDTH + 12, 18, "passed", ' font-size="11"'),
        text(LEFT + WIDTH + 66, 18, "most in 1 s", ' font-size="11"'),
    ]

    def row(number: int, name: str, granted: list[int], refused: list[int], colour: str) -> None:
        base = 40 + lane * number + 28
        body.append(text(0, base - 4, name))
        body.append(strokes([f"M{LEFT} {base}h{WIDTH}"], FAINT, 1))
        up = [f"M{place(at / SECOND, LENGTH):g} {base}v-24" for at in granted]
        body.append(strokes(up, colour, 1.8))
        if refused:
            down = [f"M{place(at / SECOND, LENGTH):g} {base + 3}v7" for at in refused]
            body.append(strokes(down, RED, 1))
        body.append(text(LEFT + WIDTH + 12, base - 4, f"{len(granted)}"))
        if name != "requests":
            body.append(text(LEFT + WIDTH + 66, base - 4, f"{most_in_a_second(granted)}"))

    row(0, "requests", moments, [], BLUE)
    for number, (name, algorithm) in enumerate(ALGORITHMS, 1):
        row(number, name, *decided(algorithm, moments), GREEN)
    title = (
        "The same requests before five algorithms, each with a limit of 5 per second: what passes, and what does not"
    )
    return page(bottom + 24, title, body)


# ------------------------------------------------------------------ who waits


def starts(algorithm: str) -> list[float]:
    """When each of twelve requests that come at once gets in."""
    clock = VirtualClock()
    limiter = rate_limit(5, algorithm=algorithm, queue=20, clock=clock)
    seen: list[float] = []

    async def one() -> None:
        await limiter.aacquire()
        seen.append(clock.monotonic())

    async def everybody() -> None:
        await asyncio.gather(*(one() for _ in range(12)))

    clock.run(everybody)
    return seen


def waiting() -> str:
    length, lane = 3, 150
    bottom = 30 + 2 * lane - 8
    body = axis(length, 12, bottom)
    for number, (name, algorithm) in enumerate([("token bucket", "token_bucket"), ("leaky bucket", "leaky_bucket")]):
        top = 30 + lane * number
        body.append(text(0, top + 14, name))
        body.append(text(0, top + 32, "5 per second, queue=20", ' font-size="11"'))
        waits, begins = [], []
        for who, at in enumerate(starts(algorithm)):
            y = top + 4 + 11 * who
            if at:
                waits.append(f"M{place(0, length):g} {y}H{place(at, length):g}")
            begins.append(f"M{place(at, length):g} {y - 4}v8")
        body += [strokes(waits, GREY, 1), strokes(begins, GREEN, 3)]
    title = "Twelve requests at once, with a queue: how long each waits before it gets in"
    return page(bottom + 24, title, body)


# ------------------------------------------------------------------ warming up


def warm_up() -> str:
    length, most = 20, 30
    algorithm = WarmingBucket(Rate(most, SECOND, 3), 10 * SECOND, 3)
    state, counts = None, [0] * length
    for now in range(0, length * SECOND, SECOND // 200):  # somebody asks all the time
        state, decision = algorithm.acquire(state, now, 1)
        counts[now // SECOND] += decision.allowed
    bottom = 190
    body = axis(length, 20, bottom, 2)
    for n in (10, 20, 30):
        y = bottom - 5 * n
        body += [strokes([f"M{LEFT} {y}h{WIDTH}"], FAINT, 1), text(LEFT - 8, y + 4, f"{n}", ' text-anchor="end"')]
    wide = WIDTH / length
    for second, count in enumerate(counts):
        x = LEFT + wide * second + 3
        high = 5 * count
        body.append(f'<rect x="{x:g}" y="{bottom - high}" width="{wide - 6:g}" height="{high}" fill="{GREEN}"/>')
    body += [text(0, 44, "passed per second"), text(0, 84, "rate_limit(30,", ' font-size="11"')]
    body += [text(0, 100, "burst=3, warm_up=10)", ' font-size="11"')]
    return page(bottom + 24, "A limit that warms up: how many requests pass in each second after a quiet time", body)


PICTURES: dict[str, Callable[[], str]] = {
    "rate-limit-what-passes.svg": what_passes,
    "rate-limit-waiting.svg": waiting,
    "rate-limit-warm-up.svg": warm_up,
}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
