"""A limit for each key: their own rates, who is never and who is always stopped, and memory that stays bounded."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, ClassVar

import pytest

from everkeel import ConfigError, RateLimitedError, rate_limit
from everkeel.compose import source
from everkeel.ratelimit import TokenBucket
from everkeel.ratelimit.ledger import _LOOKS, _LOOKS_AT_THE_CAP
from everkeel.testing import VirtualClock

SECOND = 1_000_000_000
ALGORITHMS = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter")


def who(user: Any, *rest: Any) -> Any:
    return user


def test_each_client_has_a_limit_of_its_own(form: Any, by_hand: Any, admitted: Any) -> None:
    ask = admitted(form(rate_limit(2, key=who, clock=by_hand), who))
    assert [ask(user) for user in ["ann", "ann", "ann", "bob", "bob", "bob", "cem"]] == [
        True, True, False, True, True, False, True,
    ]  # fmt: skip


def test_the_error_says_whose_limit_it_is(form: Any, by_hand: Any) -> None:
    call = form(rate_limit(1, "search", key=who, clock=by_hand), who)
    call("ann")
    with pytest.raises(RateLimitedError) as caught:
        call("ann")
    assert caught.value.key == "ann"


def test_none_is_a_key_like_any_other(form: Any, by_hand: Any, admitted: Any) -> None:
    ask = admitted(form(rate_limit(1, key=who, clock=by_hand), who))
    assert [ask(None), ask(None), ask("ann"), ask("")] == [True, False, True, True]


def test_the_key_function_is_asked_once_for_each_call(form: Any, by_hand: Any, admitted: Any) -> None:
    asked: list[str] = []

    def key(user: str) -> str:
        asked.append(user)
        return user

    ask = admitted(form(rate_limit(2, key=key, clock=by_hand), who))
    for _ in range(4):  # a key not seen before, a known one, and one that is over its limit
        ask("ann")
    assert asked == ["ann"] * 4


@pytest.mark.parametrize("more", [{}, {"limits": {"ann": 3}}, {"allow": {"bob"}}, {"deny": {"bob"}}], ids=str)
def test_a_key_that_cannot_be_one_is_a_clear_error_in_every_form(form: Any, by_hand: Any, more: dict[str, Any]) -> None:
    call = form(rate_limit(2, "search", key=who, clock=by_hand, **more), who)
    with pytest.raises(ConfigError) as caught:
        call(["a", "list"])
    assert str(caught.value) == (
        "rate limit 'search': key must return something hashable, such as a string (got ['a', 'list'])"
    )


def test_an_error_in_a_key_of_ones_own_is_not_taken_for_an_unhashable_one(form: Any, by_hand: Any) -> None:
    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise TypeError("compared with something else")

    call = form(rate_limit(2, key=who, clock=by_hand), who)
    call(Key())
    with pytest.raises(TypeError, match="compared with something else"):
        call(Key())


def test_permits_are_never_taken_from_everybody_by_mistake(by_hand: Any) -> None:
    one, keyed = rate_limit(2, "one", clock=by_hand), rate_limit(2, "each", key=who, clock=by_hand)
    for act in (one.acquire, one.try_acquire, one.remaining, one.drain, one.entry):
        with pytest.raises(TypeError, match="rate limit 'one' has no key function, so 'ann' has no limit of its own"):
            act(key="ann")
    for act in (keyed.acquire, keyed.try_acquire, keyed.remaining, keyed.drain, keyed.entry):
        with pytest.raises(TypeError, match="rate limit 'each' has a key function: say whose permits with key="):
            act()
    with pytest.raises(TypeError, match=r"rate limit 'each' has a key function: use entry\(key=...\)"), keyed:
        pass


# ------------------------------------------------------------------ limits of their own


PLANS = {"gold": 5, "silver": (3, 1.0), "bronze": (1, 2.0, 2)}


def plan(user: str) -> Any:
    return PLANS.get(user)


@pytest.mark.parametrize(
    "limits", [{"gold": 5, "silver": (3, 1.0), "bronze": (1, 2.0, 2)}, plan], ids=["table", "function"]
)
def test_a_key_may_have_a_limit_of_its_own(form: Any, by_hand: Any, admitted: Any, limits: Any) -> None:
    limiter = rate_limit(1, "search", key=who, limits=limits, clock=by_hand)
    ask = admitted(form(limiter, who))
    for user, most in [("gold", 5), ("silver", 3), ("bronze", 2), ("nobody", 1)]:
        assert [ask(user) for _ in range(most + 1)] == [True] * most + [False]
    by_hand.now += SECOND
    assert [ask(user) for user in ("bronze", "nobody", "silver")] == [False, True, True]
    assert limiter.remaining(key="gold") == 5


def test_the_error_names_the_limit_of_the_key(form: Any, by_hand: Any) -> None:
    call = form(rate_limit(1, key=who, limits={"gold": 2}, clock=by_hand), who)
    call("gold")
    call("gold")
    with pytest.raises(RateLimitedError) as caught:
        call("gold")
    assert caught.value.limit == 2
    assert caught.value.retry_after == 0.5


def test_somebody_who_changes_plans_keeps_what_is_charged(form: Any, by_hand: Any) -> None:
    plans = {"ann": 3}
    limiter = rate_limit(1, key=who, limits=plans.get, clock=by_hand)
    call = form(limiter, who)
    for _ in range(3):
        call("ann")
    plans["ann"] = 7  # counts time in other parts of a nanosecond
    assert limiter.remaining(key="ann") == 4
    call("ann")
    del plans["ann"]
    assert limiter.remaining(key="ann") == 0
    with pytest.raises(RateLimitedError):
        call("ann")
    plans["ann"] = 10
    assert limiter.remaining(key="ann") == 6


def test_a_function_that_invents_a_rate_for_each_key_does_not_leak(by_hand: Any) -> None:
    limiter = rate_limit(1, key=who, limits=lambda n: n + 1, clock=by_hand)
    for n in range(5000):
        limiter.acquire(key=n)
    assert len(limiter.limiter.door.books._plans) <= 1000


def test_a_limits_function_is_never_asked_under_the_lock(form: Any, by_hand: Any) -> None:
    held: list[bool] = []
    limiter: Any = rate_limit(1, key=who, limits=lambda key: held.append(limiter.lock.locked()), clock=by_hand)
    call = form(limiter, who)
    call("ann")
    limiter.remaining(key="ann")
    assert held
    assert not any(held)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "5", (1,) * 4, (1, 0), (1, -1), (0, 1), (1, 1, 0), [], {}])
def test_a_wrong_limit_in_a_table_fails_when_it_is_written(limit: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        rate_limit(1, "search", key=who, limits={"ann": limit})
    assert str(caught.value) == (
        "rate limit 'search': limits must give permits, or a tuple of permits and seconds, or also a burst "
        f"(got {limit!r})"
    )


def test_a_wrong_limit_from_a_function_is_a_clear_error(form: Any, by_hand: Any) -> None:
    call = form(rate_limit(1, key=who, limits=lambda user: "lots", clock=by_hand), who)
    with pytest.raises(ConfigError, match=r"limits must give permits, .* \(got 'lots'\)"):
        call("ann")


def test_a_limit_that_is_no_limit_at_all_is_a_clear_error_too(form: Any, by_hand: Any) -> None:
    call = form(rate_limit(1, key=who, limits=lambda user: [5], clock=by_hand), who)
    with pytest.raises(ConfigError, match=r"limits must give permits, .* \(got \[5\]\)"):
        call("ann")


def test_keys_with_limits_of_their_own_are_dropped_when_idle_too(by_hand: Any) -> None:
    limiter = rate_limit(1, key=who, limits=lambda n: 2 if n % 2 else None, clock=by_hand)
    for n in range(8_000):
        limiter.acquire(key=n)
        if n == 2_000:
            limiter.reconfigure(permits=3)
        by_hand.now += SECOND // 100
    assert limiter.snapshot()["keys"] < 2000
    assert limiter.remaining(key=7_999) == 1


def test_a_window_has_no_burst_to_give(by_hand: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        rate_limit(1, key=who, algorithm="fixed_window", limits={"ann": (1, 1, 5)})
    assert (
        str(caught.value) == "rate limit: limits must give permits, or a tuple of permits and seconds (got (1, 1, 5))"
    )


# ------------------------------------------------------------------ allow and deny


@pytest.mark.parametrize("named", [{"root"}, lambda user: user == "root"], ids=["set", "predicate"])
def test_allowed_keys_are_never_limited(form: Any, by_hand: Any, admitted: Any, named: Any) -> None:
    limiter = rate_limit(1, key=who, allow=named, clock=by_hand)
    ask = admitted(form(limiter, who))
    assert [ask("root") for _ in range(5)] == [True] * 5
    assert [ask("ann") for _ in range(2)] == [True, False]
    assert limiter.snapshot()["excluded"] == 5


@pytest.mark.parametrize("named", [{"mallory"}, lambda user: user == "mallory"], ids=["set", "predicate"])
def test_denied_keys_are_always_rejected(form: Any, by_hand: Any, admitted: Any, named: Any) -> None:
    limiter = rate_limit(5, "search", key=who, deny=named, clock=by_hand)
    call = form(limiter, who)
    with pytest.raises(RateLimitedError) as caught:
        call("mallory")
    error = caught.value
    assert (error.retry_after, error.limit, error.remaining, error.key) == (None, 0, 0, "mallory")
    assert str(error) == "rate limit 'search' of 0 reached for 'mallory'"
    assert admitted(call)("ann")
    assert limiter.snapshot()["rejected"] == 1


def test_who_is_allowed_and_denied_is_allowed(form: Any, by_hand: Any) -> None:
    assert form(rate_limit(1, key=who, allow={"ann"}, deny={"ann"}, clock=by_hand), who)("ann") == "ann"


# ------------------------------------------------------------------ memory


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_dead_keys_are_dropped(form: Any, by_hand: Any, algorithm: str) -> None:
    limiter = rate_limit(5, key=who, algorithm=algorithm, clock=by_hand)
    call = form(limiter, who)
    for n in range(8_000):  # one-shot keys, each gone after two seconds at most
        call(n)
        by_hand.now += SECOND // 100
    assert limiter.snapshot()["keys"] < 2000


def test_the_memory_follows_the_keys_that_are_in_use(by_hand: Any) -> None:
    limiter = rate_limit(1, key=who, clock=by_hand, max_keys=10**6)
    for n in range(5_000):
        limiter.acquire(key=n)
    assert limiter.snapshot()["keys"] == 5_000
    by_hand.now += 10 * SECOND
    for n in range(20_000):
        limiter.acquire(key=("new", n))
        by_hand.now += SECOND // 10
    assert limiter.snapshot()["keys"] < 2500


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_eviction_never_resets_somebodys_limit(form: Any, by_hand: Any, admitted: Any, algorithm: str) -> None:
    ask = admitted(form(rate_limit(1, key=who, algorithm=algorithm, max_keys=50, per=100, clock=by_hand), who))
    assert ask("limited")
    for n in range(1100):  # as many as it takes to push a key out of a cache
        ask(n)
        assert not ask("limited")


def test_at_the_cap_new_keys_share_one_state(form: Any, by_hand: Any, admitted: Any) -> None:
    limiter = rate_limit(2, key=who, max_keys=3, clock=by_hand)
    ask = admitted(form(limiter, who))
    assert all(ask(n) for n in range(3))
    assert [ask(user) for user in ("x", "y", "z")] == [True, True, False]
    assert all(ask(n) for n in range(3))  # those who were there have their own
    snapshot = limiter.snapshot()
    assert (snapshot["keys"], snapshot["overflow"]) == (3, 3)


def test_room_that_comes_free_is_used(form: Any, by_hand: Any, admitted: Any) -> None:
    limiter = rate_limit(2, key=who, max_keys=3, clock=by_hand)
    ask = admitted(form(limiter, who))
    for n in range(3):
        ask(n)
    by_hand.now += 10 * SECOND
    assert [ask("x"), ask("y"), ask("x"), ask("y")] == [True] * 4
    assert limiter.snapshot()["overflow"] == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_that_comes_out_of_the_overflow_has_not_got_its_limit_anew(
    form: Any, by_hand: Any, admitted: Any, algorithm: str
) -> None:
    limiter = rate_limit(2, key=who, max_keys=2, per=100, algorithm=algorithm, clock=by_hand)
    ask = admitted(form(limiter, who))
    limiter.adjust(1, key="a")
    limiter.adjust(1, key="b")
    taken = sum(ask("x") for _ in range(3))  # from the state that is shared
    limiter.adjust(-1, key="a")  # idle again: its place is free
    assert not ask("x")
    assert taken == (1 if algorithm == "leaky_bucket" else 2)


def test_the_overflow_is_logged_once(form: Any, by_hand: Any, admitted: Any, caplog: pytest.LogCaptureFixture) -> None:
    ask = admitted(form(rate_limit(2, "search", key=who, max_keys=2, clock=by_hand), who))
    with caplog.at_level(logging.WARNING, "everkeel"):
        for n in range(50):
            ask(n)
    assert [record.getMessage() for record in caplog.records] == [
        "rate limit 'search': 2 keys are limited at once; further keys share one state"
    ]


def test_a_log_handler_may_use_the_limiter_that_overflows(by_hand: Any) -> None:
    limiter = rate_limit(5, key=who, max_keys=1, clock=by_hand)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            limiter.acquire(key=0)  # a deadlock, were it called under the lock

    logger, handler = logging.getLogger("everkeel"), Handler()
    logger.addHandler(handler)
    try:
        for n in range(3):
            limiter.acquire(key=n)
    finally:
        logger.removeHandler(handler)


def test_a_cost_above_what_the_overflow_can_grant_does_not_wait_for_ever(by_hand: Any) -> None:
    limiter = rate_limit(2, key=who, max_keys=1, limits={"big": 100}, clock=by_hand)
    limiter.acquire(key="a")
    limiter.acquire(key="big", cost=50)
    with pytest.raises(RateLimitedError):
        limiter.acquire(key="big", cost=50)
    by_hand.now += SECOND
    limiter.acquire(key="big", cost=50)


# ------------------------------------------------------------------ what a call costs does not depend on how


class CountingKey:
    """A key that counts how often anybody looks at any of them."""

    looked: ClassVar[Counter[str]] = Counter()

    def __init__(self, n: int) -> None:
        self.n = n

    def __hash__(self) -> int:
        self.looked["hash"] += 1
        return hash(self.n)

    def __eq__(self, other: object) -> bool:
        self.looked["eq"] += 1
        return isinstance(other, CountingKey) and other.n == self.n


@pytest.mark.parametrize("cap", [1_000, 10**6], ids=["at the cap", "far from it"])
def test_the_work_of_a_call_does_not_grow_with_the_number_of_keys(
    by_hand: Any, admitted: Any, cap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = Counter[str]()
    idle = TokenBucket.idle

    def counted(self: TokenBucket, state: Any, now: int) -> bool:
        judged["idle"] += 1
        return idle(self, state, now)

    monkeypatch.setattr(TokenBucket, "idle", counted)
    ask = admitted(rate_limit(1, key=who, max_keys=cap, clock=by_hand)(who))
    worst: dict[int, tuple[int, int]] = {}
    for n in range(9_000):
        CountingKey.looked.clear()
        judged.clear()
        ask(CountingKey(n))  # a key not seen before
        ask(CountingKey(n))  # a known one
        size = len(str(n))
        hashes, idles = worst.get(size, (0, 0))
        worst[size] = max(hashes, CountingKey.looked.total()), max(idles, judged["idle"])
    at_most = 2 * _LOOKS_AT_THE_CAP if cap == 1_000 else _LOOKS
    assert all(idles <= at_most for _, idles in worst.values())
    assert max(looks for looks, _ in worst.values()) <= 20 + 2 * at_most + (0 if cap != 1_000 else 20)


def test_a_key_that_is_always_in_use_is_never_looked_at(by_hand: Any) -> None:
    limiter = rate_limit(10**6, key=who, clock=by_hand)
    call = limiter(who)
    call("hot")
    assert "states[which]" in source(call)
    ledger = limiter.limiter.door.books
    for _ in range(100):
        call("hot")
    assert (len(ledger.states), len(ledger._older)) == (1, 0)


# ------------------------------------------------------------------ waiting and pauses of keys


def test_somebody_who_waits_at_the_cap_waits_in_turn(clock: VirtualClock) -> None:
    limiter = rate_limit(1, key=who, max_keys=1, queue=5)
    for key in ("a", "x", "y"):
        limiter.acquire(key=key)
    assert clock.monotonic() == 1  # y waited for what x had taken from the state they share


def test_keys_are_paused_one_by_one(form: Any, by_hand: Any, admitted: Any) -> None:
    limiter = rate_limit(5, key=who, clock=by_hand)
    ask = admitted(form(limiter, who))
    limiter.drain(10, key="ann")
    assert [ask("ann"), ask("bob")] == [False, True]
    by_hand.now += 10 * SECOND
    assert ask("ann")


def test_pauses_of_keys_that_never_come_back_are_forgotten(by_hand: Any) -> None:
    limiter = rate_limit(5, key=who, clock=by_hand)
    for n in range(20_000):
        limiter.drain(1, key=n)
        by_hand.now += SECOND // 100
    assert len(limiter.limiter.door.books._paused) <= 2000
    assert limiter.snapshot()["keys"] < 3000
