"""Try a policy on live traffic without letting it touch anything, then let it act.

python examples/shadow_mode.py
"""

from everkeel import CircuitOpenError, circuit_breaker, events
from everkeel.testing import Flaky

# Nobody knows yet whether one half is the right share for this dependency, so the breaker only watches.
search = circuit_breaker("search", failure_rate=0.5, minimum_calls=4, mode="shadow")
index = Flaky("hits", "hits", *[TimeoutError("index is slow")] * 8)  # two answers, then trouble


@search
def find(words: str) -> object:
    """Ask the search index."""
    return index(words)


def tell(event: events.WouldHave) -> None:
    """What the breaker would have done."""
    print(f"  [would have: {event.action}]")


def traffic(calls: int) -> None:
    """Calls that count on an answer, and handle that there is none."""
    for _ in range(calls):
        try:
            find("lantern")
        except TimeoutError:
            print("  no answer from the index")
        except CircuitOpenError as rejection:
            print(f"  turned away: {rejection}")
        else:
            print("  found something")


def main() -> None:
    """First in the shadow, then for real."""
    with search.subscribe(tell, events.WouldHave):
        print("in the shadow:")
        traffic(6)
    print(f"it would have turned away {search.snapshot()['would'].get('reject', 0)} calls; that looks right")

    search.mode = "enforce"  # decorated functions notice
    print("for real:")
    traffic(2)


if __name__ == "__main__":
    main()
