"""One state per key, in bounded memory."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everkeel import ConfigError, RejectedError
from everkeel.compose import source


def by_tenant(tenant, *args, **kwargs):
    return tenant


@pytest.fixture(params=["plain", "woven"])
def form(request):
    """`form(policy, fn)`: `fn` guarded, on the plain path or woven."""
    if request.param == "woven":
        return lambda policy, fn: policy(fn)
    return lambda policy, fn: lambda *args, **kwargs: policy.call(fn, *args, **kwargs)


def test_each_key_has_a_state_of_its_own(gate, form):
    policy = gate("payments", limit=1, key=by_tenant)

    def work(tenant, inside=None):
        return inside() if inside else tenant

    guarded = form(policy, work)
    assert guarded("one", lambda: guarded("two")) == "two"
    with pytest.raises(RejectedError):
        guarded("one", lambda: guarded("one"))


def test_the_key_is_a_function_of_all_arguments(gate, form):
    seen = []
    policy = gate("payments", key=lambda *args, **kwargs: seen.append((args, kwargs)))
    form(policy, lambda a, *, b: None)(1, b=2)
    assert seen == [((1,), {"b": 2})]


def test_coroutine_functions_have_keys_too(gate):
    policy = gate("payments", limit=1, key=by_tenant)

    @policy
    async def work(tenant, inside=None):
        return await inside() if inside else tenant

    assert asyncio.run(work("one", lambda: work("two"))) == "two"
    with pytest.raises(RejectedError):
        asyncio.run(work("one", lambda: work("one")))
    with pytest.raises(RejectedError):
        asyncio.run(policy.acall(work.__wrapped__, "one", lambda: policy.acall(work.__wrapped__, "one")))


def test_streams_have_keys_too(gate):
    policy = gate("payments", limit=1, key=by_tenant)

    @policy
    def feed(tenant):
        yield tenant

    one = feed("one")
    assert next(one) == "one"
    assert list(feed("two")) == ["two"]
    with pytest.raises(RejectedError):
        next(feed("one"))
    one.close()
    assert list(feed("one")) == ["one"]


async def test_an_async_stream_that_is_closed_gives_its_place_back_at_once(gate, virtual_time):
    policy = gate("payments", limit=1, key=by_tenant)

    @policy
    async def feed(tenant):
        yield tenant
        yield tenant

    items = feed("one")
    assert await anext(items) == "one"
    await items.aclose()
    assert policy.state.at("one").inside == 0
    assert policy.state.at("one").endings == ["dropped"]


def test_a_block_says_its_key(gate):
    policy = gate("payments", limit=1, key=by_tenant)
    with policy.entry(key="one"), policy.entry(key="two"):
        with pytest.raises(RejectedError):
            policy.entry(key="one").__enter__()


def test_a_block_without_a_key_is_told_how_to_have_one(gate):
    policy = gate("payments", key=by_tenant)
    with pytest.raises(TypeError, match=r"gate 'payments' has a key function: use entry\(key=...\)"):
        policy.__enter__()


@pytest.mark.parametrize("key", [[], {}, {"a"}])
def test_a_key_that_is_not_hashable_is_said_to_be(gate, form, key):
    guarded = form(gate("payments", key=lambda: key), lambda: None)
    with pytest.raises(ConfigError, match="gate 'payments': key must return something hashable, such as a string"):
        guarded()


def test_an_error_of_the_key_function_is_the_callers_to_see(gate, form):
    guarded = form(gate("payments", key=lambda: {}["tenant"]), lambda: None)
    with pytest.raises(KeyError):
        guarded()


def test_a_type_error_of_the_key_function_is_not_taken_for_a_bad_key(gate, form):
    guarded = form(gate("payments", key=lambda: len(3)), lambda: None)
    with pytest.raises(TypeError, match="has no len"):
        guarded()


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, None])
def test_the_cap_is_a_whole_number(gate, wrong):
    with pytest.raises(ConfigError, match="gate 'payments': max_keys must be a whole number of at least 1"):
        gate("payments", key=by_tenant, max_keys=wrong)


def test_the_key_is_a_function(gate):
    with pytest.raises(ConfigError, match="gate 'payments': key must be a function of the call's arguments"):
        gate("payments", key="tenant")


# ------------------------------------------------------------------ forgetting


def test_at_the_cap_a_key_that_matters_no_more_is_forgotten(gate, form):
    policy = gate("payments", key=by_tenant, max_keys=2)
    guarded = form(policy, lambda tenant: None)
    for tenant in ("one", "two", "three"):
        guarded(tenant)
    assert len(policy.state.states) <= 2
    assert "three" in policy.state.states
    assert policy.snapshot()["overflow"] == 0


def test_a_key_that_matters_is_never_forgotten(gate):
    policy = gate("payments", limit=1, key=by_tenant, max_keys=2)
    with policy.entry(key="one"), policy.entry(key="two"):
        for n in range(20):
            policy.call(str, n)
        assert set(policy.state.states) == {"one", "two"}
        with pytest.raises(RejectedError):
            policy.call(str, "one")


def test_what_forgotten_keys_counted_stays_counted(gate, form):
    policy = gate("payments", key=by_tenant, max_keys=2)
    guarded = form(policy, lambda tenant: None)
    for tenant in range(10):
        guarded(tenant)
    assert policy.snapshot()["success"] == 10


def test_when_no_key_can_be_forgotten_new_ones_share_one_state(gate, caplog):
    policy = gate("payments", limit=1, key=by_tenant, max_keys=2)
    with policy.entry(key="one"), policy.entry(key="two"), policy.entry(key="three"):
        with pytest.raises(RejectedError):
            policy.call(str, "four")
    assert policy.snapshot()["overflow"] == 2
    assert "gate 'payments': 2 keys are in use; further keys share one state" in caplog.text


def test_the_operator_is_told_once(gate, caplog):
    policy = gate("payments", limit=5, key=by_tenant, max_keys=1)
    with policy.entry(key="one"):
        for tenant in range(5):
            policy.call(str, tenant)
    assert caplog.text.count("further keys share one state") == 1


def test_keys_get_states_of_their_own_again_when_there_is_room(gate):
    policy = gate("payments", limit=1, key=by_tenant, max_keys=1)
    with policy.entry(key="one"):
        policy.call(str, "two")
    policy.call(str, "two")
    assert set(policy.state.states) == {"two"}


def test_the_oldest_keys_that_matter_queue_up_again_behind_the_others(gate):
    policy = gate("payments", limit=1, key=by_tenant, max_keys=20)
    busy = [policy.entry(key=n).__enter__() for n in range(10)]
    for n in range(10, 20):
        policy.call(str, n)
    policy.call(str, "new")  # looks at a few of the oldest, all of them busy
    policy.call(str, "new")  # and now finds some that are not
    assert "new" in policy.state.states
    assert set(range(10)) <= set(policy.state.states)
    for entry in busy:
        entry.__exit__(None, None, None)


def test_threads_that_meet_a_new_key_together_share_its_state(gate):
    policy = gate("payments", limit=100, key=by_tenant)
    guarded = policy(lambda tenant: None)
    together = threading.Barrier(8)

    def work() -> None:
        for n in range(50):
            together.wait()
            guarded(n)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert policy.snapshot()["success"] == 8 * 50
    assert policy.snapshot()["keys"] == 50


# ------------------------------------------------------------------ live changes


def test_a_change_of_settings_reaches_every_key(gate):
    policy = gate("payments", limit=1, key=by_tenant)
    guarded = policy(lambda tenant, inside=None: inside() if inside else tenant)
    guarded("one")
    policy.reconfigure(limit=2)
    assert guarded("one", lambda: guarded("one")) == "one"


def test_a_keyed_shadow_lets_pass_and_counts(gate, form):
    policy = gate("payments", limit=1, key=by_tenant, mode="shadow")
    guarded = form(policy, lambda tenant, inside=None: inside() if inside else tenant)
    assert guarded("one", lambda: guarded("one")) == "one"
    assert guarded("one", lambda: guarded("two")) == "two"
    assert policy.snapshot()["would"] == {"reject": 1}


def test_what_a_shadow_learned_holds_when_it_enforces(gate):
    policy = gate("payments", limit=1, key=by_tenant, mode="shadow")
    with policy.entry(key="one"):
        policy.mode = "enforce"
        with pytest.raises(RejectedError):
            policy.call(str, "one")
    assert policy.call(str, "one") == "one"


def test_starting_over_forgets_every_key(gate):
    policy = gate("payments", key=by_tenant)
    guarded = policy(lambda tenant: None)
    guarded("one")
    policy.start_over()
    assert policy.snapshot()["keys"] == 0
    guarded("one")
    assert policy.snapshot()["keys"] == 1


def test_the_key_is_looked_up_in_the_woven_function(gate):
    guarded = gate("payments", key=by_tenant)(lambda tenant: None)
    assert "which = key(tenant)" in source(guarded)
    assert "gate = found(which)" in source(guarded)
