"""Assertions about what policies did, whose failures show what happened instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from everkeel.events import Event, Failed, Ignored, RetryGaveUp, Retrying, RetrySucceeded, Succeeded
from everkeel.runtime.explain import Decision, explain
from everkeel.runtime.policy import AnyPolicy, Policy, policies_of
from everkeel.testing.clock import VirtualClock
from everkeel.testing.double import Flaky

Delay: TypeAlias = float | tuple[float, float]
"""Seconds; or the least and the most, where chance has a part in it."""


def assert_attempts(
    what: BaseException | Flaky | AnyPolicy | Callable[..., object] | Iterable[Event],
    expected: int,
    *,
    policy: str | None = None,
) -> None:
    """Assert how many attempts were made.

    `what` is the exception that left the call; or what counts all calls so far: the retry policy, the function that is
    decorated with it, recorded events (of all retries, or of the one named `policy`), or a `Flaky`.

    >>> from everkeel import retry
    >>> policy, fetch = retry(attempts=3, backoff=0), Flaky(ConnectionError, "answer")
    >>> policy.call(fetch)
    'answer'
    >>> assert_attempts(policy, 2)
    >>> assert_attempts(policy, 3)
    Traceback (most recent call last):
    AssertionError: expected 3 attempts, but there were 2: ...
    """
    made, evidence = _attempts(what, policy)
    if made != expected:
        were = "was 1" if made == 1 else f"were {made}"
        raise AssertionError(f"expected {expected} attempt{'s' * (expected != 1)}, but there {were}: {evidence}")


def assert_delays(
    what: VirtualClock | BaseException | Flaky | Iterable[Event],
    expected: Sequence[Delay],
    *,
    tolerance: float = 1e-9,
    policy: str | None = None,
) -> None:
    """Assert how long was waited between attempts: each a number of seconds, or `(least, most)` where there is jitter.

    `what` is the virtual clock (every sleep through it), the exception that left the call, recorded events (of all
    retries, or of the one named `policy`), or a `Flaky` (the time between the beginnings of its calls).

    >>> from everkeel import retry
    >>> from everkeel.testing import virtual_time
    >>> with virtual_time() as clock:
    ...     retry(backoff=[0.2, 0.4], jitter=None).call(Flaky(OSError, OSError, "answer"))
    'answer'
    >>> assert_delays(clock, [0.2, 0.4])
    """
    delays, evidence = _delays(what, policy)
    if len(delays) == len(expected) and all(map(_fits, delays, expected, [tolerance] * len(delays))):
        return
    shown = ", ".join(f"{delay:.6g}" for delay in delays)
    raise AssertionError(f"expected delays {list(expected)!r}, but they were [{shown}]: {evidence}")


def assert_state(policy: AnyPolicy, state: str | None = None, **expected: object) -> None:
    """Assert what a policy's snapshot shows: its `state`, if it has one, and any of its numbers by name.

    >>> from everkeel import retry
    >>> policy = retry(attempts=2, backoff=0)
    >>> policy.call(Flaky(ConnectionError, "answer"))
    'answer'
    >>> assert_state(policy, success=1, retries=1)
    """
    snapshot: Mapping[str, object] = {**policy.snapshot()}
    wanted = expected if state is None else {"state": state, **expected}
    missing = [name for name in wanted if name not in snapshot]
    if missing:
        raise AssertionError(f"{policy.label} shows no {missing[0]!r}; it has {', '.join(snapshot)}")
    wrong = [
        f"{name} is {snapshot[name]!r}, not {value!r}" for name, value in wanted.items() if snapshot[name] != value
    ]
    if wrong:
        raise AssertionError(f"{policy.label}: {'; '.join(wrong)}\n  snapshot: {snapshot}")


def assert_explained(
    error: BaseException,
    *,
    action: str | None = None,
    reason: str | None = None,
    policy: str | None = None,
    policy_type: str | None = None,
    attempts: int | None = None,
    delays: Sequence[Delay] | None = None,
) -> Decision:
    """Assert that the decision record of an exception has a decision like this, and answer the outermost such.

    `reason` need only be a part of the reason. `attempts` and `delays` are those of the outermost retry.

    >>> from everkeel import retry
    >>> try:
    ...     retry("docs.explained", attempts=2, backoff=0).call(Flaky(ConnectionError))
    ... except ConnectionError as error:
    ...     decision = assert_explained(error, policy="docs.explained", action="gave_up", attempts=2, delays=[0])
    >>> decision.reason
    'all 2 attempts failed'
    """
    record = explain(error)
    wanted = {"policy": policy, "policy_type": policy_type, "action": action}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    for decision in reversed(record.decisions):
        if (
            all(getattr(decision, name) == value for name, value in wanted.items())
            and (reason or "") in decision.reason
        ):
            break
    else:
        asked = ", ".join(f"{name}={value!r}" for name, value in {**wanted, "reason": reason}.items() if value)
        raise AssertionError(f"no decision with {asked or 'anything at all'} about {error!r}; its record:\n{record}")
    if attempts is not None:
        assert_attempts(error, attempts)
    if delays is not None:
        assert_delays(error, delays)
    return decision


# ------------------------------------------------------------------ reading the evidence


def _attempts(what: object, name: str | None) -> tuple[int, object]:
    if isinstance(what, BaseException):
        return explain(what).attempts, f"{what!r}\n{explain(what)}"
    if isinstance(what, Flaky):
        return what.calls, what
    if isinstance(what, Policy):
        return _of_policy(what)
    if callable(what):
        for policy in policies_of(what):
            if "retries" in policy.snapshot():
                return _of_policy(policy)
        raise TypeError(f"{what!r} is not decorated with a retry")
    events = _about(what, name)
    calls = max(
        sum(isinstance(event, Succeeded | Failed | Ignored) for event in events),
        sum(isinstance(event, RetrySucceeded | RetryGaveUp) for event in events),  # a recorder of some types only
    )
    return calls + sum(isinstance(event, Retrying) for event in events), _listed(events)


def _of_policy(policy: Policy[Any]) -> tuple[int, object]:
    snapshot: dict[str, Any] = {**policy.snapshot()}
    if "retries" not in snapshot:
        raise TypeError(f"{policy.label} makes no attempts of its own; give the retry")
    counts = (snapshot[name] for name in ("success", "failure", "ignored", "retries"))
    return sum(counts), f"{policy.label}, {snapshot}"


def _delays(what: object, name: str | None) -> tuple[list[float], object]:
    if isinstance(what, VirtualClock):
        return what.sleeps, what
    if isinstance(what, BaseException):
        return list(explain(what).delays), f"{what!r}\n{explain(what)}"
    if isinstance(what, Flaky):
        return [later - earlier for earlier, later in zip(what.times, what.times[1:], strict=False)], what
    events = _about(what, name)
    return [event.delay for event in events if isinstance(event, Retrying)], _listed(events)


def _about(what: object, name: str | None) -> list[Event]:
    """The events of retries, or of the one that is asked about."""
    if not isinstance(what, Iterable):
        raise TypeError(f"cannot read attempts and delays from {what!r}")
    events = [event for event in what if isinstance(event, Event) and event.policy_type == "retry"]
    return [event for event in events if name is None or event.policy == name]


def _fits(delay: float, expected: Delay, tolerance: float) -> bool:
    least, most = expected if isinstance(expected, tuple) else (expected, expected)
    return least - tolerance <= delay <= most + tolerance


def _listed(events: Sequence[Event]) -> str:
    return "".join(f"\n  {event}" for event in events) or "no event of a retry was recorded"
