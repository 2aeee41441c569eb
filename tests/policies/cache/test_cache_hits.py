"""An answer that was given before, while it is fresh."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

import pytest

import everkeel
from everkeel import ConfigError, cache, disable, enable, guard, pipeline, policies_of, retry
from everkeel.compose import source
from everkeel.testing import Flaky

# ------------------------------------------------------------------ fresh, and no longer


def test_a_second_call_is_answered_without_a_load(guarded):
    policy, load = cache(60, "c"), Flaky("first", "second")
    call = guarded(policy, load)
    assert [call(1), call(1), call(1)] == ["first"] * 3
    assert load.calls == 1


def test_an_answer_is_fresh_for_as_long_as_ttl_says_and_no_longer(guarded, clock):
    load = Flaky("first", "second")
    call = guarded(cache(timedelta(minutes=1), "c"), load)
    call(1)
    clock.advance(59.9)
    assert call(1) == "first"
    clock.advance(0.1)
    assert call(1) == "second"
    clock.advance(59.9)
    assert call(1) == "second"


@pytest.mark.parametrize("value", [None, False, 0, "", (), NotImplemented])
def test_every_value_is_an_answer(guarded, value):
    load = Flaky(value)
    call = guarded(cache(60, "c"), load)
    assert call(1) is call(1) is value
    assert load.calls == 1


def test_an_error_is_not_kept(guarded):
    load = Flaky(ConnectionError("refused"), "answer")
    call = guarded(cache(60, "c"), load)
    with pytest.raises(ConnectionError, match="refused"):
        call(1)
    assert call(1) == "answer"


# ------------------------------------------------------------------ which calls are the same


def test_calls_with_other_arguments_are_other_calls(guarded):
    load = Flaky("first", "second", "third")
    call = guarded(cache(60, "c"), load)
    assert [call(1), call(2), call(1, 2), call(1), call(2), call(1, 2)] == ["first", "second", "third"] * 2


def test_equal_arguments_of_other_types_are_other_calls(declared):
    call = declared(cache(60, "c"), "x")
    assert [call(1), call(True), call(1.0), call(1), call(True), call(1.0)] == [1, 2, 3, 1, 2, 3]


def test_equal_further_arguments_of_other_types_are_other_calls(declared):
    call = declared(cache(60, "c"), "*values, **options")
    assert [call(1), call(True), call(x=1), call(x=True)] == [1, 2, 3, 4]
    assert [call(1), call(True), call(x=1), call(x=True)] == [1, 2, 3, 4]


def test_a_default_that_is_written_out_makes_no_difference(declared):
    call = declared(cache(60, "c"), "number, region='eu', *, full=False")
    same = [call(1), call(1, "eu"), call(number=1), call(1, region="eu", full=False), call(full=False, number=1)]
    assert same == [1] * 5
    assert call(1, full=True) == 2


def test_the_order_of_named_arguments_makes_no_difference(declared):
    call = declared(cache(60, "c"), "**options")
    assert call(a=1, b=2) == call(b=2, a=1) == 1


def test_positional_and_named_arguments_are_not_mixed_up(declared):
    call = declared(cache(60, "c"), "*values, **options")
    assert [call("a", 1), call(("a", 1)), call(a=1), call(("a", 1, int))] == [1, 2, 3, 4]


@pytest.mark.parametrize("parameters", ["entry", "type", "tick, which", "cache, clock", "found, uses, FN"])
def test_parameters_may_have_the_names_that_the_cache_uses(declared, parameters):
    call = declared(cache(60, "c"), parameters)
    arguments = [True] * len(parameters.split(","))
    assert call(*arguments) == call(*arguments) == 1


def test_wrong_arguments_are_the_error_they_are_without_a_cache(declared):
    call = declared(cache(60, "c"), "number")
    with pytest.raises(TypeError, match=r"user\(\) missing 1 required positional argument: 'number'"):
        call()
    assert call.calls == []


def test_two_functions_of_one_cache_do_not_get_each_others_answers(guarded):
    policy = cache(60, "c")
    users, orders = guarded(policy, Flaky("user")), guarded(policy, Flaky("order"))
    assert [users(1), orders(1), users(1), orders(1)] == ["user", "order"] * 2


def test_a_key_function_says_which_calls_are_the_same(guarded):
    load = Flaky("first", "second")
    call = guarded(cache(60, "c", key=lambda name, **_: name.lower()), load)
    assert [call("Ann"), call("ann", trace=7), call("Bob")] == ["first", "first", "second"]


def test_a_key_function_sees_the_arguments_with_their_defaults(declared):
    seen = []
    call = declared(cache(60, "c", key=lambda *args, **kwargs: seen.append((args, kwargs))), "a, b=2, *, c=3")
    call(1)
    call(b=5, a=4, c=6)
    assert seen[0] == ((1, 2), {"c": 3})
    assert seen[-1] == ((4, 5), {"c": 6})


def test_functions_whose_keys_are_equal_share_their_answers(guarded):
    policy = cache(60, "c", key=lambda number: ("user", number))
    other = Flaky("never asked")
    assert guarded(policy, Flaky("user"))(1) == guarded(policy, other)(1) == "user"
    assert other.calls == 0


def test_an_error_of_a_key_function_leaves(guarded):
    call = guarded(cache(60, "c", key=lambda x: x["missing"]), Flaky("answer"))
    with pytest.raises(KeyError, match="missing"):
        call({})


class Service:
    def __init__(self, region: str) -> None:
        self.region, self.loads = region, 0

    @cache(60, "by instance")
    def price(self, item: str) -> int:
        self.loads += 1
        return self.loads

    @cache(60, "by region", key=lambda self, item: (self.region, item))
    async def stock(self, item: str) -> str:
        self.loads += 1
        return self.region


def test_a_method_has_answers_for_each_instance(clock):
    north, south = Service("north"), Service("south")
    assert [north.price("tea"), south.price("tea"), north.price("tea")] == [1, 1, 1]
    assert (north.loads, south.loads) == (1, 1)


def test_a_method_may_have_answers_for_what_its_key_says(clock):
    one, other = Service("north"), Service("north")

    async def ask() -> list[str]:
        return [await one.stock("tea"), await other.stock("tea")]

    assert clock.run(ask) == ["north", "north"]
    assert (one.loads, other.loads) == (1, 0)


def test_a_bound_method_that_is_called_is_told_apart_by_its_instance(clock):
    class Source:
        def load(self, item: str) -> object:
            return self

    policy, one, other = cache(60, "c"), Source(), Source()
    assert policy.call(one.load, "tea") is policy.call(one.load, "tea") is one
    assert policy.call(other.load, item="tea") is other
    assert policy.snapshot()["hits"] == 1


def test_a_static_and_a_class_method_can_be_kept(clock):
    class Prices:
        @staticmethod
        @cache(60, "static")
        def of(item: str) -> object:
            return object()

        @classmethod
        @cache(60, "class")
        def best(cls, item: str) -> object:
            return object()

    assert Prices.of("tea") is Prices.of("tea")
    assert Prices.best("tea") is Prices().best("tea")


def test_partials_builtins_and_callable_objects_can_be_kept(clock):
    policy = cache(60, "c")
    doubled = partial(pow, exp=2)
    assert [policy.call(doubled, 3), policy.call(doubled, 3), policy.call(max, 3, 4), policy.call(max, 3, 4)] == [
        9,
        9,
        4,
        4,
    ]
    assert policy.snapshot()["hits"] == 2


# ------------------------------------------------------------------ what cannot be a key

HINT = (
    " which is not hashable and cannot be part of a key; "
    "give the cache a key function, such as key=lambda ids: tuple(ids)"
)


@pytest.mark.parametrize(
    ("parameters", "args", "kwargs", "culprit"),
    [
        ("ids", ([1],), {}, "argument 'ids' is a list,"),
        ("a, b", (1, {}), {}, "argument 'b' is a dict,"),
        ("a, *, b", (1,), {"b": set()}, "argument 'b' is a set,"),
        ("a, *more", (1, 2, []), {}, "an argument in *more is a list,"),
        ("a, **more", (1,), {"x": 1, "y": []}, "argument 'y' is a list,"),
        ("a, *more, b=1, **rest", (([],),), {}, "argument 'a' is a tuple,"),
    ],
)
def test_an_argument_that_is_not_hashable_is_named(declared, parameters, args, kwargs, culprit):
    call = declared(cache(60, "c"), parameters)
    with pytest.raises(TypeError) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == f"cache 'c': {culprit}{HINT}"
    assert call.calls == []


def test_a_key_that_is_not_hashable_is_shown(guarded):
    call = guarded(cache(60, "c", key=lambda ids: ids), Flaky("answer"))
    with pytest.raises(ConfigError) as caught:
        call([1])
    assert str(caught.value) == "cache 'c': key must return something hashable, such as a string (got [1])"


def test_a_function_that_is_not_hashable_is_refused(clock):
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    with pytest.raises(TypeError, match=r"cache 'c': <.*Odd.*> is not hashable, so it cannot be told apart"):
        cache(60, "c").call(Odd())


# ------------------------------------------------------------------ what cannot be kept


def test_a_generator_function_is_refused_when_it_is_decorated(clock):
    def items():
        yield 1

    async def aitems():
        yield 1

    for fn, kind in ((items, "a generator"), (aitems, "an async generator")):
        with pytest.raises(ConfigError) as caught:
            cache(60, "c", replace=True)(fn)
        assert str(caught.value) == (
            f"cache 'c': cannot keep the items of {kind} function, which can be had only once; return a list"
        )


def test_a_coroutine_is_never_kept(clock):
    async def load() -> str:
        return "answer"

    policy = cache(60, "c")
    guarded = policy(lambda: load())
    for call in (lambda: policy.call(load), guarded):
        for _ in range(2):
            with pytest.raises(
                TypeError, match="cache 'c': got a coroutine, which answers only once and cannot be kept"
            ):
                call()
    assert policy.snapshot()["size"] == 0


def test_a_generator_that_a_function_returns_is_never_kept(guarded):
    call = guarded(cache(60, "c"), lambda: (x for x in "ab"))
    with pytest.raises(TypeError, match=r"cache 'c': got a generator, which answers only once and cannot be kept$"):
        call()


def test_a_cache_is_not_a_block(clock):
    with pytest.raises(TypeError, match="cache 'c' cannot be a block: a block has no answer to keep; decorate"):
        with cache(60, "c"):
            pass


# ------------------------------------------------------------------ so many answers


def test_the_least_recently_used_answer_goes_first(guarded):
    policy, load = cache(60, "c", max_size=2), Flaky(*"abcdef")
    call = guarded(policy, load)
    assert [call(1), call(2), call(1), call(3)] == ["a", "b", "a", "c"]  # 2 goes
    assert [call(1), call(3), call(2)] == ["a", "c", "d"]  # 1 goes
    assert call(1) == "e"
    assert (policy.snapshot()["size"], policy.snapshot()["evicted"]) == (2, 3)


def test_a_large_cache_keeps_what_is_used_all_the_time(guarded):
    policy, load = cache(60, "c", max_size=100), Flaky("answer")
    call = guarded.guarded(policy, load if not guarded.awaited else load.async_())

    async def acall() -> None:
        for number in range(500):
            await call("popular")
            await call(number)

    if guarded.awaited:
        guarded.clock.run(acall)
    else:
        for number in range(500):
            call("popular")
            call(number)
    assert policy.snapshot()["hits"] == 499
    assert policy.snapshot()["size"] == 100


# ------------------------------------------------------------------ being forgotten


def test_an_answer_can_be_forgotten(declared):
    policy = cache(60, "c")
    call = declared(policy, "number, region='eu'")
    assert [call(1), call(2)] == [1, 2]
    assert policy.invalidate(call.bare, 1, region="eu")
    assert not policy.invalidate(call.bare, 1)
    assert [call(1), call(2)] == [3, 2]


def test_the_decorated_function_says_what_to_forget(clock):
    policy = cache(60, "c")

    @retry(attempts=1)
    @policy
    def load(number: int) -> object:
        return object()

    class Source:
        @policy
        def load(self, number: int) -> object:
            return object()

    source = Source()
    first, other = load(1), source.load(1)
    assert policy.invalidate(load, number=1)
    assert policy.invalidate(source.load, 1)
    assert load(1) is not first
    assert source.load(1) is not other


def test_a_key_can_be_forgotten(guarded):
    policy, load = cache(60, "c", key=lambda name: name), Flaky("first", "second")
    call = guarded(policy, load)
    call("ann")
    assert (policy.invalidate_key("ann"), policy.invalidate_key("ann")) == (True, False)
    assert call("ann") == "second"


def test_everything_can_be_forgotten(guarded):
    policy, load = cache(60, "c"), Flaky(*"abcd")
    call = guarded(policy, load)
    assert [call(1), call(2)] == ["a", "b"]
    policy.clear()
    assert [call(1), call(2)] == ["c", "d"]
    assert policy.snapshot()["misses"] == 4


def test_starting_over_forgets_answers_and_counts(guarded):
    policy, load = cache(60, "c"), Flaky(*"ab")
    call = guarded(policy, load)
    call(1)
    policy.start_over()
    assert policy.snapshot()["misses"] == 0
    assert call(1) == "b"


# ------------------------------------------------------------------ live changes


def test_a_change_keeps_the_answers(guarded, clock):
    policy, load = cache(60, "c"), Flaky(*"abc")
    call = guarded(policy, load)
    call(1)
    policy.reconfigure(ttl=10)
    clock.advance(30)
    assert call(1) == "a", "an answer keeps the time it was given"
    clock.advance(30)
    assert call(1) == "b"
    clock.advance(10)
    assert call(1) == "c"


def test_a_smaller_size_drops_the_least_recently_used(guarded):
    policy, load = cache(60, "c"), Flaky(*"abcd")
    call = guarded(policy, load)
    for number in (1, 2, 3, 1):
        call(number)
    policy.reconfigure(max_size=1)
    assert policy.snapshot()["size"] == 1
    assert call(1) == "a"


def test_another_key_function_finds_other_answers(guarded):
    policy, load = cache(60, "c"), Flaky(*"abc")
    call = guarded(policy, load)
    call("Ann")
    policy.reconfigure(key=lambda name: name.lower())
    assert [call("Ann"), call("ANN")] == ["b", "b"]


def test_off_is_a_plain_call_and_on_again_finds_the_answers(guarded):
    policy, load = cache(60, "c"), Flaky(*"abc")
    call = guarded(policy, load)
    call(1)
    policy.mode = "off"
    assert [call(1), call(1)] == ["b", "c"]
    policy.mode = "enforce"
    assert call(1) == "a"
    disable()
    assert call(1) == "c"
    enable()
    assert call(1) == "a"


def test_a_derived_cache_has_the_settings_and_answers_of_its_own(clock):
    policy = cache(60, "c", key=lambda x: 1, max_size=5)
    other = policy.derive("d", ttl=5)
    assert (other.config.ttl, other.config.max_size, other.config.key) == (5, 5, policy.config.key)
    assert [policy.call(str, "a"), other.call(str, "b"), policy.call(str, "c")] == ["a", "b", "a"]


def test_a_cache_may_take_the_name_of_another(clock):
    first = cache(60, "c")
    with pytest.raises(ConfigError, match="replace=True"):
        cache(60, "c")
    second = cache(5, "c", replace=True)
    assert everkeel.registry.get("cache", "c") is second is not first


# ------------------------------------------------------------------ shadow mode


def test_a_shadow_makes_every_call_and_counts_what_it_would_have_served(guarded):
    policy, load = cache(60, "c", mode="shadow"), Flaky("a", "a", "b")
    call = guarded(policy, load)
    assert [call(1), call(1), call(1)] == ["a", "a", "b"]
    assert policy.snapshot()["would"] == {"hit": 2, "differ": 1}
    assert policy.snapshot()["success"] == 3


def test_a_shadow_expires_what_it_would_have_served(guarded, clock):
    policy = cache(60, "c", mode="shadow")
    call = guarded(policy, Flaky("a"))
    call(1)
    clock.advance(60)
    call(1)
    assert policy.snapshot()["would"] == {}


def test_a_shadow_refuses_nothing(declared):
    policy = cache(60, "c", mode="shadow")
    call = declared(policy, "ids")
    assert [call([1]), call([1])] == [1, 2]
    assert policy.snapshot()["would"] == {"refuse": 2}


def test_a_shadow_that_begins_to_act_serves_what_it_has_seen(guarded):
    policy, load = cache(60, "c", mode="shadow"), Flaky("a", "b")
    call = guarded(policy, load)
    call(1)
    policy.mode = "enforce"
    assert call(1) == "a"


def test_a_shadow_counts_errors_and_passes_them_on(guarded):
    policy = cache(60, "c", mode="shadow", ignore=KeyError)
    call = guarded(policy, Flaky(OSError, KeyError))
    with pytest.raises(OSError):
        call(1)
    with pytest.raises(KeyError):
        call(1)
    assert (policy.snapshot()["failure"], policy.snapshot()["ignored"]) == (1, 1)


def test_a_shadow_compares_nothing_that_cannot_be_compared(guarded):
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    policy = cache(60, "c", mode="shadow")
    call = guarded(policy, lambda x: Odd())
    call(1)
    call(1)
    assert policy.snapshot()["would"] == {"hit": 1}


# ------------------------------------------------------------------ composing


def test_a_hit_costs_nothing_of_what_is_inside(guarded):
    inner, outer = retry("r", backoff=0), cache(60, "c")
    load = Flaky(ConnectionError, "answer")
    call = guarded(pipeline(outer, inner), load)
    assert [call(1), call(1)] == ["answer", "answer"]
    assert load.calls == 2
    assert inner.snapshot()["success"] == 1


def test_a_cache_inside_a_retry_is_asked_again(guarded):
    load = Flaky(ConnectionError, "answer")
    call = guarded(pipeline(retry("r", backoff=0), cache(60, "c")), load)
    assert [call(1), call(1)] == ["answer", "answer"]
    assert load.calls == 2


def test_guard_puts_it_outside_of_the_fallback(clock):
    @guard(retry=2, cache=60, fallback="none")
    def load() -> str:
        return "answer"

    assert [policy.type for policy in policies_of(load)] == ["cache", "fallback", "retry"]
    assert policies_of(load)[0].config.ttl == 60


def test_the_same_answer_is_found_by_call_and_by_the_decorated_function(clock):
    policy = cache(60, "c")

    def load(number: int, region: str = "eu") -> object:
        return object()

    decorated = pipeline(policy, retry("r"))(load)
    assert decorated(1) is policy.call(load, 1, region="eu") is pipeline(policy, retry("s")).call(load, number=1)


# ------------------------------------------------------------------ being watched


def test_a_snapshot_counts_hits_and_misses(guarded):
    policy = cache(60, "c", max_size=7)
    call = guarded(policy, Flaky("a"))
    for number in (1, 1, 1, 2):
        call(number)
    shown = policy.snapshot()
    assert (shown["hits"], shown["misses"], shown["success"], shown["size"], shown["max_size"]) == (2, 2, 4, 2, 7)
    assert (shown["stale"], shown["coalesced"], shown["refreshed"], shown["loading"], shown["rejected"]) == (0,) * 5


def test_hits_and_misses_are_told(guarded, heard):
    policy = cache(60, "c", key=lambda name: name)
    call = guarded(policy, Flaky("a"))
    heard.clear()
    call("ann")
    call("ann")
    assert heard.names() == ["CacheMissed", "Succeeded", "CacheHit", "Succeeded"]
    assert {event.key for event in heard.of(everkeel.events.CacheHit, everkeel.events.CacheMissed)} == {"ann"}


def test_a_hit_is_one_lookup_while_nobody_listens_to_hits(clock):
    policy = cache(60, "c")

    @policy
    def load(x: int) -> int:
        return x

    assert "found(which)" in source(load)
    with policy.subscribe(print, everkeel.events.CacheMissed):
        assert "found(which)" in source(load)
    with policy.subscribe(lambda event: None, everkeel.events.CacheHit):
        assert "found(which)" not in source(load)
        assert load(1) == 1
    assert "found(which)" in source(load)


def test_a_hit_does_not_wait_in_a_coroutine(clock):
    @cache(60, "c")
    async def load(x: int) -> int:
        await asyncio.sleep(1)
        return x

    clock.run(load(1))
    with pytest.raises(StopIteration) as answered:
        load(1).send(None)
    assert answered.value.value == 1


# ------------------------------------------------------------------ a store of one's own


class Drawer:
    def __init__(self) -> None:
        self.entries = {}
        self.log = []

    def get(self, key, /):
        self.log.append("get")
        return self.entries.get(key)

    def set(self, key, entry, /):
        self.log.append("set")
        self.entries[key] = entry

    def delete(self, key, /):
        self.log.append("delete")
        return self.entries.pop(key, None) is not None

    def clear(self):
        self.log.append("clear")
        self.entries.clear()

    def __len__(self):
        return 0  # an empty store is a store


def test_answers_can_be_kept_in_a_store_of_ones_own(guarded):
    drawer = Drawer()
    policy, load = cache(60, "c", key=lambda x: x, store=drawer), Flaky("a", "b", "c")
    call = guarded(policy, load)
    assert [call(1), call(1)] == ["a", "a"]
    assert drawer.entries[1].value == "a"
    assert policy.invalidate_key(1)
    assert call(1) == "b"
    policy.clear()
    assert call(1) == "c"
    assert {"get", "set", "delete", "clear"} <= set(drawer.log)
    assert (policy.snapshot()["size"], policy.snapshot()["hits"]) == (None, 1)


def test_a_store_that_raises_harms_no_call(guarded, caplog):
    class Broken:
        def get(self, key, /):
            raise OSError("disk")

        delete = get

        def set(self, key, entry, /):
            raise OSError("disk")

        def clear(self):
            raise OSError("disk")

    policy, load = cache(60, "c", store=Broken()), Flaky("a", "b")
    call = guarded(policy, load)
    assert [call(1), call(1)] == ["a", "b"]
    policy.clear()
    assert not policy.invalidate_key(1)
    assert policy.snapshot()["store_errors"] >= 6
    assert "the store of cache 'c' raised" in caplog.text
