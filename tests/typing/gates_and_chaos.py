"""What type checkers make of fail fast, feature toggle and chaos."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any, assert_type

from everkeel import Chaos, FailFast, FeatureToggle, chaos, chaos_tags, events, fail_fast, feature_toggle, guard


async def healthy() -> bool:
    return True


assert_type(fail_fast("ledger", check=healthy, check_every=timedelta(seconds=1)), FailFast)
assert_type(feature_toggle("search", schedule=(time(9, tzinfo=UTC), time(17, tzinfo=UTC))), FeatureToggle)
assert_type(feature_toggle("sale", schedule=[(datetime(2026, 1, 1, tzinfo=UTC), None)], deny={"bob", 7}), FeatureToggle)
assert_type(chaos("faults", error=[ConnectionError, OSError(28, "full"), lambda: KeyError("id")]), Chaos)
assert_type(chaos("slow", latency=(0.1, timedelta(seconds=2)), window=(10, None), tags={"canary"}), Chaos)


def user_of(user: str, *, limit: int = 10) -> str:
    return user


def hear(event: events.ChaosInjected) -> None:
    assert_type(event.kinds, tuple[str, ...])


@feature_toggle(share=0.5, key=user_of)
@fail_fast()
@chaos(latency=1)
async def search(user: str, *, limit: int = 10) -> list[str]:
    return [user] * limit


@guard(feature_toggle=True, fail_fast=3, chaos=0.01)
def charge(amount: int) -> str:
    return str(amount)


async def use() -> None:
    assert_type(await search("alice", limit=3), list[str])
    assert_type(charge(1), str)
    assert_type(fail_fast().snapshot()["reason"], str | None)
    assert_type(feature_toggle().snapshot()["denied"], dict[str, int])
    assert_type(feature_toggle().is_enabled("alice"), bool)
    assert_type(chaos(latency=1).snapshot()["injected"], dict[str, int])
    assert_type(chaos(latency=1).record(), dict[str, Any])
    with chaos_tags("canary"), feature_toggle().entry(key="alice") as entry:
        assert_type(entry.result(1), int)
    chaos(latency=1).subscribe(hear, events.ChaosInjected)
