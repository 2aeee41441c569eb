"""Whatever happens to a limiter, every form of calling answers the same, counts the same and tells the same."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everkeel import ConfigError, RateLimitedError, rate_limit
from everkeel.events import CallRejected, Granted

ALGORITHMS = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter")
users = st.sampled_from(["ann", "bob", "cem", "dot", "eve"])
changes = st.sampled_from(
    [
        {"permits": 1, "cost": 1},
        {"permits": 3},
        {"permits": 6},
        {"per": 0.5},
        {"per": 3},
        {"burst": 5, "algorithm": "token_bucket"},
        {"algorithm": "fixed_window", "burst": None},
        {"algorithm": "sliding_window_log", "burst": None},
        {"algorithm": "leaky_bucket", "cost": 1},
        {"algorithm": "token_bucket"},
        {"cost": 2, "burst": 4, "algorithm": "token_bucket"},
        {"cost": 1},
        {"limits": {"ann": 5, "bob": (1, 2.0)}},
        {"limits": None},
        {"allow": {"eve"}},
        {"deny": {"dot"}},
        {"allow": None, "deny": None},
        {"mode": "shadow"},
        {"mode": "off"},
        {"mode": "enforce"},
        {"retry_after_strategy": "utilization"},
        {"retry_after_strategy": "fixed"},
    ]
)
deeds = st.one_of(
    st.tuples(st.just("call"), users),
    st.tuples(st.just("call"), users),
    st.tuples(st.just("call"), users),
    st.tuples(st.just("pass"), st.sampled_from([1, 250_000_000, 333_333_333, 1_000_000_000, 2_500_000_000])),
    st.tuples(st.just("adjust"), st.integers(-3, 3)),
    st.tuples(st.just("drain"), st.sampled_from([None, 0.5, 2])),
    st.tuples(st.just("change"), changes),
    st.tuples(st.just("listen"), st.sampled_from([CallRejected, Granted, None])),
)


def live(form: Any, clock: Any, trace: list[tuple[str, Any]], rules: dict[str, Any], keyed: bool) -> list[Any]:
    """Do what the trace says; answers everything that could be seen."""
    key = (lambda user: user) if keyed else None
    limiter = rate_limit(name="it", clock=clock, key=key, max_keys=3, **rules)
    call, seen, subscription = form(limiter, lambda user: user), [], None
    for deed, what in trace:
        whose = {"key": "ann"} if keyed else {}
        try:
            if deed == "call":
                seen.append(call(what))
            elif deed == "pass":
                clock.now += what
            elif deed == "adjust":
                limiter.adjust(what, **whose)
            elif deed == "drain":
                limiter.drain(what, **whose)
            elif deed == "change":
                limiter.reconfigure(**what)
            elif subscription is not None:
                subscription.cancel()
                subscription = None
            elif what is not None:
                subscription = limiter.subscribe(lambda event: seen.append(str(event)), what)
        except RateLimitedError as error:
            seen.append(error.args)
        except ConfigError as error:
            seen.append(str(error))
        seen.append(limiter.remaining(**whose))
    return [*seen, limiter.snapshot()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=2500)
@given(
    trace=st.lists(deeds, min_size=4, max_size=30),
    keyed=st.booleans(),
    rules=st.fixed_dictionaries(
        {
            "permits": st.sampled_from([2, 3, 4]),
            "algorithm": st.sampled_from(("token_bucket",) * 4 + ALGORITHMS),
        }
    ),
)
def test_whatever_happens_every_form_of_calling_answers_the_same(
    every_form: Any, trace: list[Any], keyed: bool, rules: dict[str, Any]
) -> None:
    came = every_form(lambda form, clock: live(form, clock, trace, rules, keyed))
    for name, what in came.items():
        assert what == came["plain-sync"], name
