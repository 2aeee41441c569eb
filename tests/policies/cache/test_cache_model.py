"""The cache against a model of a few lines: a list of answers in the order of their use."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from everkeel import cache
from everkeel.testing import fresh_everkeel, virtual_time

keys = st.integers(0, 6)


@dataclass
class Kept:
    value: int
    loaded_at: float
    ttl: float


class Model:
    """What a cache of `max_size` answers knows: the least recently used is first."""

    def __init__(self, ttl: float, max_size: int) -> None:
        self.ttl, self.max_size = ttl, max_size
        self.kept: dict[int, Kept] = {}
        self.loads = 0

    def ask(self, key: int, now: float, fails: bool, stale_for: float, stale_if_error: float) -> int | None:
        """The answer; None for an error."""
        found = self.kept.get(key)
        age = None if found is None else now - found.loaded_at - found.ttl
        if found is not None and age is not None and age < 0:
            self._use(key)
            return found.value
        if not fails:
            self.loads += 1
            self.kept.pop(key, None)
            self.kept[key] = Kept(self.loads, now, self.ttl)
            self._make_room()
            return self.loads
        if found is not None and age is not None and age < stale_if_error:
            self._use(key)
            return found.value
        return None

    def _use(self, key: int) -> None:
        self.kept[key] = self.kept.pop(key)

    def _make_room(self) -> None:
        while len(self.kept) > self.max_size:
            del self.kept[next(iter(self.kept))]

    def resize(self, max_size: int) -> None:
        self.max_size = max_size
        self._make_room()


class CacheMachine(RuleBasedStateMachine):
    @initialize(max_size=st.integers(1, 5), stale_if_error=st.sampled_from([None, 4, 50]), woven=st.booleans())
    def begin(self, max_size: int, stale_if_error: float | None, woven: bool) -> None:
        self.isolation, self.virtual = fresh_everkeel(), virtual_time()
        self.isolation.__enter__()
        self.clock = self.virtual.__enter__()
        self.policy = cache(10, "model", max_size=max_size, stale_if_error=stale_if_error)
        self.model = Model(10, max_size)
        self.fails, self.loads = False, 0
        self.call = self.policy(self.load) if woven else lambda key: self.policy.call(self.load, key)

    def load(self, key: int) -> int:
        if self.fails:
            raise ConnectionError
        self.loads += 1
        return self.loads

    @rule(key=keys)
    def ask(self, key: int) -> None:
        expected = self.model.ask(key, self.clock.monotonic(), False, 0, self.policy.config.stale_if_error or 0)
        assert self.call(key) == expected

    @rule(key=keys)
    def ask_while_it_fails(self, key: int) -> None:
        self.fails = True
        expected = self.model.ask(key, self.clock.monotonic(), True, 0, self.policy.config.stale_if_error or 0)
        try:
            answer = self.call(key)
        except ConnectionError:
            answer = None
        finally:
            self.fails = False
        assert answer == expected
        self.clock.advance(1)  # past the pause after a failed load

    @rule(seconds=st.sampled_from([0.5, 3, 9.5, 10, 25]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(key=keys)
    def invalidate(self, key: int) -> None:
        assert self.policy.invalidate(self.load, key) == (self.model.kept.pop(key, None) is not None)

    @rule()
    def clear(self) -> None:
        self.policy.clear()
        self.model.kept.clear()

    @rule(max_size=st.integers(1, 5))
    def resize(self, max_size: int) -> None:
        self.policy.reconfigure(max_size=max_size)
        self.model.resize(max_size)

    @rule(ttl=st.sampled_from([5, 10, 20]))
    def change_ttl(self, ttl: float) -> None:
        self.policy.reconfigure(ttl=ttl)
        self.model.ttl = ttl

    @rule(mode=st.sampled_from(["enforce", "off"]))
    def turn_off_and_on_again(self, mode: str) -> None:
        self.policy.mode = mode
        self.policy.mode = "enforce"

    @invariant()
    def they_have_the_same_answers(self) -> None:
        if hasattr(self, "policy"):
            assert self.policy.snapshot()["size"] == len(self.model.kept)
            assert self.loads == self.model.loads
            assert not self.policy.shelf.flights.under_way

    def teardown(self) -> None:
        if hasattr(self, "policy"):
            self.virtual.__exit__(None, None, None)
            self.isolation.__exit__(None, None, None)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=50, stateful_step_count=30)
