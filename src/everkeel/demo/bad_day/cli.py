"""The command line of the demo."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from random import Random

from everkeel import Clock, use_clock
from everkeel.demo.bad_day import summary
from everkeel.demo.bad_day.screen import Screen, choose_screen
from everkeel.demo.bad_day.story import SECONDS, Story, play


class SeededClock(Clock):
    """Real time, with chance that begins with a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m everkeel.demo.bad_day`; answers the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m everkeel.demo.bad_day",
        description="A payment provider has a bad day: the same calls with and without Everkeel.",
    )
    add(parser)
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Play the story; answers the exit code."""
    screen = choose_screen(sys.stdout, live=not options.fast)
    try:
        story = _play(options, screen)
    except KeyboardInterrupt:
        return 130
    finally:
        screen.close()
    print("\n".join(summary.lines(story, screen)))
    return 0


def _play(options: argparse.Namespace, screen: Screen) -> Story:
    if options.fast:
        from everkeel import testing

        return testing.run(play(options.seconds, options.seed, screen), seed=options.seed)
    with use_clock(SeededClock(options.seed)):
        return asyncio.run(play(options.seconds, options.seed, screen))


def add(parser: argparse.ArgumentParser) -> None:
    """What may be asked of it."""
    parser.add_argument(
        "--seconds", type=_length, default=SECONDS, help="how long the story takes (default: %(default)g)"
    )
    parser.add_argument("--fast", action="store_true", help="in virtual time: the whole story at once")
    parser.add_argument("--seed", type=int, default=7, help="what chance begins with (default: %(default)s)")


def _length(text: str) -> float:
    seconds = float(text)
    if not 0.5 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("must be from 0.5 to 3600 seconds")
    return seconds
