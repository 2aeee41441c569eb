"""A script gives the same answers, counts and events in every form of calling; and what opens it, read plainly."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everkeel import FailFastError, NotRetryable, fail_fast
from everkeel.policies.fail_fast.config import FailFastConfig
from everkeel.policies.fail_fast.core import Closed, Open
from everkeel.testing import record_events

OUTCOMES: dict[str, Any] = {
    "ok": "ok",
    "bad": "bad",
    "refused": ConnectionError("refused"),
    "key": KeyError("id"),
    "stock": NotRetryable("out of stock"),
}
steps = st.sampled_from([*OUTCOMES, "wait", "reset", "sick", "well"])
rules = st.fixed_dictionaries(
    {"failures": st.integers(1, 3)},
    optional={
        "open_for": st.sampled_from([1.0, 3.0]),
        "ignore": st.just(KeyError),
        "on_result": st.just(lambda result: result == "bad"),
        "mode": st.sampled_from(["enforce", "shadow"]),
    },
)


def happen(outcome: str) -> Any:
    came = OUTCOMES[outcome]
    if isinstance(came, Exception):
        raise came
    return came


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rules, st.booleans(), st.lists(steps, max_size=20))
def test_it_is_the_same_in_every_form(every_form, config, checked, script):
    def act(form: Any) -> Any:
        healthy = [True]

        async def acheck() -> bool:
            return healthy[0]

        check = (acheck if form.awaited else lambda: healthy[0]) if checked else None
        policy = fail_fast("ledger", **config, check=check, check_every=2)
        call, ended = form(policy, happen), []
        with record_events() as heard:
            for step in script:
                if step == "wait":
                    form.clock.advance(1)
                elif step == "reset":
                    policy.reset()
                elif step in ("sick", "well"):
                    healthy[0] = step == "well"
                else:
                    try:
                        ended.append(call(step))
                    except Exception as error:
                        ended.append(str(error))
        return ended, policy.snapshot(), [(type(event).__name__, getattr(event, "reason", None)) for event in heard]

    came = every_form(act)
    for name, one in came.items():
        assert one == came["plain-sync"], name


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=40))
def test_it_opens_at_the_first_row_of_so_many_failures(failures, outcomes):
    config, phase, opened = FailFastConfig(failures=failures), Closed(), None
    for place, succeeded in enumerate(outcomes):
        if succeeded:
            next(phase.tally)
        else:
            opened = phase.failure(config, 0.0, "refused")
            if opened is not None:
                assert isinstance(opened, Open)
                assert not any(outcomes[place - failures + 1 : place + 1])
                return
        rows = "".join("s" if outcome else "f" for outcome in outcomes[: place + 1])
        assert phase.streak() == len(rows) - len(rows.rstrip("f"))
        assert "f" * failures not in rows
    assert opened is None


@given(st.lists(st.sampled_from(["refused", "reset"]), max_size=12))
def test_a_reset_always_lets_the_next_call_pass(script):
    policy, down = fail_fast(failures=1), False
    for step in script:
        if step == "reset":
            policy.reset()
            down = False
            continue
        try:
            policy.call(happen, "refused")
        except FailFastError:
            assert down
        except ConnectionError:
            assert not down
            down = True
