"""The table at the end, computed from the calls that were made, and one call explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from everkeel.demo.bad_day.ledger import Ledger
from everkeel.demo.bad_day.screen import Screen
from everkeel.demo.bad_day.story import Story

ROWS: tuple[tuple[str, Callable[[Ledger], str]], ...] = (
    ("paid at once", lambda ledger: f"{ledger.share('paid'):.1%}"),
    ("accepted, charged later (the fallback)", lambda ledger: f"{ledger.share('later'):.1%}"),
    ("failed", lambda ledger: f"{ledger.share('failed'):.1%}"),
    ("half of the answers within", lambda ledger: _seconds(ledger.quantile(0.5))),
    ("99% of the answers within", lambda ledger: _seconds(ledger.quantile(0.99))),
    ("calls waiting at once, at most", lambda ledger: str(ledger.most_waiting)),
    ("requests the provider got", lambda ledger: str(ledger.client.provider.requests.total())),
    ("  ... while it was down", lambda ledger: str(ledger.client.provider.requests["down"])),
    ("waited in all for what was no payment", lambda ledger: _seconds(ledger.wasted())),
)


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def lines(story: Story, screen: Screen) -> Iterator[str]:
    """The closing words."""
    head = "".join(f"{ledger.client.title:>20}" for ledger in story.ledgers)
    yield ""
    yield screen.paint(f"  {len(story.ledgers[0].calls)} orders each{head:>63}"[:80], "bold")
    for name, value in ROWS:
        yield f"  {name:<38}" + "".join(f"{value(ledger):>20}" for ledger in story.ledgers)
    if story.failure is not None:
        yield ""
        yield screen.paint("  Why one of them was not paid at once, from explain(error):", "bold")
        yield from (f"    {line}" for line in str(story.failure).splitlines())
    yield ""
    yield "  The guarded call is one decorator, in everkeel/demo/bad_day/clients.py."
