"""Limits that change under load, keys, forks, shadows."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

import everkeel
from everkeel import BulkheadFullError, bulkhead, events
from everkeel.testing import Flaky

# ------------------------------------------------------------------ another limit under load


def test_a_higher_limit_lets_waiters_in_at_once(crowd):
    policy = bulkhead(1, "db", queue=5)
    db = crowd(policy)
    db.start("a", "b", "c", "d")
    policy.reconfigure(limit=3)
    db.start("e")  # settles everybody
    assert sorted(db.running) == ["a", "b", "c"]
    assert policy.snapshot()["waiting"] == 2


def test_a_lower_limit_takes_places_away_as_they_are_given_back(crowd, capacity):
    policy = bulkhead(3, "db", queue=5)
    db = crowd(policy)
    db.start("a", "b", "c", "d")
    policy.reconfigure(limit=1)
    assert policy.snapshot()["running"] == 3
    db.finish("a")
    assert db.running == ["b", "c"]
    db.finish("b")
    assert db.running == ["c"]
    db.finish("c")
    assert db.running == ["d"]
    db.finish("d")
    assert capacity(policy) == 1


def test_a_limit_lowered_and_raised_again_pays_its_debt_first(crowd, capacity):
    policy = bulkhead(3, "db")
    db = crowd(policy)
    db.start("a", "b", "c")
    policy.reconfigure(limit=1)
    policy.reconfigure(limit=2)
    assert capacity(policy) == 0
    db.finish("a")
    assert capacity(policy) == 0
    db.finish("b")
    assert capacity(policy) == 1
    db.finish("c")
    assert capacity(policy) == 2


def test_a_limit_lowered_while_idle_holds_at_once(form, clock, capacity):
    policy = bulkhead(3, "db")
    policy.reconfigure(limit=1)
    assert capacity(policy) == 1
    assert policy.snapshot()["running"] == 0


@pytest.mark.parametrize("limits", [(1, 4, 2, 2, 5, 1, 3), (5, 1, 1, 5, 1)])
def test_any_number_of_changes_ends_with_as_many_places_as_the_last_one_says(crowd, capacity, limits):
    policy = bulkhead(3, "db")
    db = crowd(policy)
    db.start("a", "b")
    for limit in limits:
        policy.reconfigure(limit=limit)
    db.finish("a", "b")
    assert capacity(policy) == limits[-1]
    assert policy.snapshot()["running"] == 0


def test_a_longer_queue_takes_more_and_a_shorter_one_keeps_who_is_in_it(crowd):
    policy = bulkhead(1, "db", queue=1)
    db = crowd(policy)
    db.start("a", "b", "c")
    policy.reconfigure(queue=2)
    db.start("d")
    policy.reconfigure(queue=0)
    db.start("e")
    assert sorted(db.ended) == ["c", "e"]
    db.finish("a", "b")
    assert db.running == ["d"]


def test_another_limit_is_told(clock, heard):
    bulkhead(1, "db").reconfigure(limit=4)
    assert heard.of(events.LimitChanged) == [
        events.LimitChanged(policy="db", policy_type="bulkhead", before=1, limit=4, key=None)
    ]


def test_decorated_functions_see_the_change(form, clock):
    policy = bulkhead(1, "db")
    call = form(policy, Flaky("answer"))
    with policy:
        with pytest.raises(BulkheadFullError):
            call()
        policy.reconfigure(limit=2)
        assert call() == "answer"


# ------------------------------------------------------------------ keys


def test_each_key_has_places_of_its_own(keyed_crowd):
    policy = bulkhead(1, "db", queue=1, key=lambda name: name[0])
    db = keyed_crowd(policy)
    db.start("a1", "b1", "a2", "a3")
    assert db.running == ["a1", "b1"]
    assert isinstance(db.ended["a3"], BulkheadFullError)
    db.finish("a1")
    assert db.running == ["b1", "a2"]


@pytest.fixture(params=["plain", "woven", "unrolled", "seam"])
def keyed_crowd(request, clock, monkeypatch, make_tasks):
    """A keyed policy cannot be a plain block: it would not know its key."""
    from everkeel.policies.bulkhead.state import Places
    from everkeel.runtime.state import State

    if request.param == "unrolled":
        monkeypatch.setattr(Places, "fragment", State.fragment)
    if request.param == "seam":
        monkeypatch.setattr(Places, "fragment", lambda self, kind: None)
    made = []

    class Form:
        style = request.param

        def __call__(self, policy, fn):
            if self.style != "plain":
                return policy(fn)

            async def call(*args):
                return await policy.acall(fn, *args)

            return call

    def make(policy):
        made.append(make_tasks(policy, Form()))
        return made[-1]

    yield make
    for crowd in made:
        crowd.close()


def test_the_snapshot_of_a_keyed_bulkhead_is_over_all_keys(keyed_crowd):
    policy = bulkhead(1, "db", queue=1, key=lambda name: name[0])
    db = keyed_crowd(policy)
    db.start("a1", "b1", "a2", "a3")
    snapshot = policy.snapshot()
    assert (snapshot["running"], snapshot["waiting"], snapshot["rejected"], snapshot["keys"]) == (2, 1, 1, 2)


def test_events_of_a_keyed_bulkhead_name_the_key(keyed_crowd, heard):
    policy = bulkhead(1, "db", queue=1, key=lambda name: name[0])
    keyed_crowd(policy).start("a1", "a2", "a3")
    assert [event.key for event in heard.of(events.CallQueued, events.CallRejected)] == ["a", "a"]


def test_another_limit_is_for_every_key(keyed_crowd, capacity):
    policy = bulkhead(1, "db", queue=5, key=lambda name: name[0])
    db = keyed_crowd(policy)
    db.start("a1", "a2", "b1", "b2")
    policy.reconfigure(limit=2)
    db.start("c1")
    assert sorted(db.running) == ["a1", "a2", "b1", "b2", "c1"]
    assert capacity(policy, key="new") == 2


def test_a_key_first_seen_while_the_limit_changes_has_as_many_places_as_the_others(clock, capacity):
    # Between the new config and its reaching every key, another thread may make the places of a new one.
    policy = bulkhead(1, "db", key=lambda name: name)
    original = type(policy.state).everyone

    def at_a_bad_moment(keyed):
        keyed.at("new")
        return original(keyed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(policy.state), "everyone", at_a_bad_moment)
        policy.reconfigure(limit=3)
    assert capacity(policy, key="new") == 3


def test_a_keyed_block_names_its_key(clock):
    policy = bulkhead(1, "db", key=lambda name: name)
    with policy.entry(key="a"), policy.entry(key="b"), pytest.raises(BulkheadFullError):
        policy.call(str.upper, "a")
    with pytest.raises(TypeError, match="bulkhead 'db' has a key function: use entry\\(key=\\.\\.\\.\\)"):
        with policy:
            pass  # pragma: no cover - never entered


def test_a_key_in_use_is_not_forgotten_at_the_cap(clock, capacity):
    policy = bulkhead(1, "db", key=lambda name: name, max_keys=1)
    with policy.entry(key="a"):
        policy.call(str.upper, "b")
        with pytest.raises(BulkheadFullError):
            policy.call(str.upper, "a")
    policy.call(str.upper, "c")
    assert capacity(policy, key="a") == 1


# ------------------------------------------------------------------ shadow, off, disabled


def test_a_shadow_lets_everybody_in_and_counts_who_would_have_waited_or_been_rejected(crowd, heard):
    policy = bulkhead(1, "db", queue=1, mode="shadow")
    db = crowd(policy)
    db.start("a", "b", "c")
    assert db.running == ["a", "b", "c"]
    snapshot = policy.snapshot()
    assert (snapshot["would"], snapshot["rejected"]) == ({"queue": 1, "reject": 1}, 0)
    assert [event.action for event in heard.of(events.WouldHave)] == ["queue", "reject"]
    db.finish("a", "b", "c")
    assert policy.snapshot()["success"] == 3


def test_in_a_shadow_room_in_the_queue_comes_back(crowd):
    policy = bulkhead(1, "db", queue=1, mode="shadow")
    db = crowd(policy)
    db.start("a", "b")
    db.finish("b")
    db.start("c")
    assert policy.snapshot()["would"] == {"queue": 2}


def test_in_a_shadow_the_queues_of_keys_are_counted_apart(keyed_crowd):
    policy = bulkhead(1, "db", queue=1, mode="shadow", key=lambda name: name[0])
    db = keyed_crowd(policy)
    db.start("a1", "b1", "a2", "b2", "a3")
    assert policy.snapshot()["would"] == {"queue": 2, "reject": 1}


def test_calls_in_flight_survive_a_change_of_mode(crowd, capacity):
    policy = bulkhead(2, "db")
    db = crowd(policy)
    db.start("enforced")
    policy.mode = "shadow"
    db.start("watched", "beyond")
    policy.mode = "enforce"
    assert capacity(policy) == 0
    db.finish("enforced", "watched", "beyond")
    assert capacity(policy) == 2


def test_off_lets_everybody_in_and_counts_nothing(crowd):
    policy = bulkhead(1, "db", mode="off")
    db = crowd(policy)
    db.start("a")
    db.finish("a")
    assert policy.snapshot()["success"] == 0


def test_a_disabled_everkeel_limits_nothing(form, clock):
    policy = bulkhead(1, "db")
    call = form(policy, Flaky("answer"))
    with policy:
        everkeel.disable()
        assert call() == "answer"
        everkeel.enable()
        with pytest.raises(BulkheadFullError):
            call()


def test_start_over_forgets_and_frees(form, clock, capacity):
    policy = bulkhead(1, "db")
    call = form(policy, Flaky("answer"))
    call()
    policy.start_over()
    assert (policy.snapshot()["success"], capacity(policy)) == (0, 1)
    assert call() == "answer"


# ------------------------------------------------------------------ fork


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_with_all_places_free():
    script = textwrap.dedent(
        """
        import os, threading
        from everkeel import BulkheadFullError, bulkhead

        policy = bulkhead(2, queue=3)
        held, go = [threading.Event(), threading.Event()], threading.Event()
        threads = [threading.Thread(target=policy.call, args=(lambda one=one: (one.set(), go.wait()),)) for one in held]
        threads += [threading.Thread(target=policy.call, args=(int,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for one in held:
            one.wait()
        while policy.snapshot()["waiting"] < 2:
            pass
        child = os.fork()
        if child == 0:
            try:
                before = policy.snapshot()
                assert (before["running"], before["waiting"]) == (0, 0), before
                policy.reconfigure(queue=0)
                with policy.entry(), policy.entry():
                    try:
                        policy.call(int)
                    except BulkheadFullError:
                        os._exit(0)
                os._exit(2)
            except BaseException as error:
                print(error, flush=True)
                os._exit(3)
        _, status = os.waitpid(child, 0)
        assert policy.snapshot()["running"] == 2, "the parent's are still there"
        go.set()
        for thread in threads:
            thread.join()
        assert policy.snapshot()["success"] == 4
        raise SystemExit(os.waitstatus_to_exitcode(status))
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script], capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_async_call_in_a_shadow_is_never_cancelled_or_delayed(form, clock):
    policy = bulkhead(1, "db", mode="shadow")

    async def main() -> list[float]:
        call = form(policy, asyncio.sleep)
        return await asyncio.gather(*(call(1, number) for number in range(5)))

    assert clock.run(main) == [0, 1, 2, 3, 4]
    assert clock.monotonic() == 1.0
