"""Priorities: who is let in when not all can be."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel import ShedError, concurrency_limit, events, priority
from everkeel.policies.concurrency.priorities import Classes
from everkeel.testing import assert_state, cancel_at_every_await, wait_until_idle

TABLE = {"critical": 0.4, "normal": 0.2, "low": 0.1}


async def held(name: str, seconds: float = 1.0) -> str:
    await asyncio.sleep(seconds)
    return name


def limit(**settings):
    return concurrency_limit(
        "orders", **{"initial": 10, "priorities": TABLE, "priority": lambda name, *_: name, **settings}
    )


def let_in(answers: list, name: str) -> int:
    return sum(answer == name for answer in answers)


async def all_at_once(call, names: list[str]) -> list:
    return await asyncio.gather(*(call(name) for name in names), return_exceptions=True)


# ------------------------------------------------------------------ the core

shares = st.lists(st.floats(0, 1), min_size=1, max_size=5).map(
    lambda parts: {f"class {i}": part / max(1.0, sum(parts)) for i, part in enumerate(parts)}
)


@given(shares, st.integers(1, 50), st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60))
def test_guaranteed_shares_are_held_under_any_mix(table, size, moves):
    classes = Classes(table)
    running = dict.fromkeys(table, 0)
    for which, leaves in moves:
        name = classes.names[which % len(table)]
        if running[name] and leaves:
            running[name] -= 1
        elif classes.may_enter(name, size, running):
            running[name] += 1
        assert sum(running.values()) <= size
        for other in table:
            if running[other] < classes.guaranteed(other, size):
                assert classes.may_enter(other, size, running)


@given(shares, st.integers(1, 50))
def test_an_idle_service_takes_any_class(table, size):
    classes = Classes(table)
    guaranteed = sum(classes.guaranteed(name, size) for name in table)
    for name in table:
        assert classes.may_enter(name, size, {}) or guaranteed - classes.guaranteed(name, size) >= size


@given(st.integers(1, 6), st.integers(1, 50), st.data())
def test_without_guarantees_whoever_ranks_higher_may_enter_whenever_a_lower_one_may(count, size, data):
    classes = Classes({f"class {i}": 0.0 for i in range(count)})
    running = {name: data.draw(st.integers(0, size)) for name in classes.names}
    allowed = [classes.may_enter(name, size, running) for name in classes.names]
    assert allowed == sorted(allowed, reverse=True)


# ------------------------------------------------------------------ who is shed


def test_the_lowest_is_shed_first(clock):
    policy = limit()
    answers = clock.run(all_at_once(policy(held), ["low"] * 10))
    assert let_in(answers, "low") == 4  # its own one, and what is neither promised nor left for those above
    answers = clock.run(all_at_once(policy(held), ["critical"] * 10))
    assert let_in(answers, "critical") == 7


def test_every_class_gets_its_share_however_many_of_another_come_first(clock):
    answers = clock.run(all_at_once(limit()(held), ["low"] * 50 + ["critical"] * 50 + ["normal"] * 50))
    assert let_in(answers, "critical") >= 4
    assert let_in(answers, "normal") >= 2
    assert let_in(answers, "low") >= 1


def test_the_error_says_what_priority_was_shed(clock):
    *_, error = clock.run(all_at_once(limit(initial=1)(held), ["low", "low"]))
    assert isinstance(error, ShedError)
    assert (error.priority, str(error)) == (
        "low",
        "concurrency limit 'orders' of 1 reached; shed a call of priority 'low'",
    )


def test_the_snapshot_shows_who_is_running(clock):
    policy = limit()

    async def main() -> dict:
        tasks = [asyncio.create_task(policy(held)(name)) for name in ("low", "critical", "critical")]
        await asyncio.sleep(0)
        shown = policy.snapshot()["running_by_priority"]
        await asyncio.gather(*tasks)
        return shown

    assert clock.run(main) == {"critical": 2, "normal": 0, "low": 1}
    assert_state(policy, running=0)


# ------------------------------------------------------------------ the queue


def test_a_free_place_goes_to_the_highest_who_waits(clock):
    policy, order = limit(initial=1, queue=5), []

    async def body(name: str) -> None:
        order.append(name)
        await asyncio.sleep(1)

    clock.run(all_at_once(policy(body), ["normal", "low", "normal", "critical", "low", "critical"]))
    assert order == ["normal", "critical", "critical", "normal", "low", "low"]


def test_a_full_queue_lets_the_higher_in_by_shedding_the_newest_of_the_lowest(clock, heard):
    policy = limit(initial=1, queue=2)

    async def main() -> list:
        call = policy(held)
        names = ["normal", "low", "normal", "critical", "critical", "critical"]
        tasks = [asyncio.create_task(call(name)) for name in names]
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = clock.run(main)
    assert [getattr(one, "priority", one) if isinstance(one, ShedError) else "in" for one in answers] == [
        "in",
        "low",
        "normal",
        "in",
        "in",
        "critical",
    ]
    assert [event.error.priority for event in heard.of(events.CallRejected)].count("low") == 1
    assert_state(policy, waiting=0, running=0)


def test_a_full_queue_of_lower_ones_does_not_keep_a_higher_one_from_a_free_place(clock):
    policy = limit(initial=10, queue=1)

    async def main() -> str:
        low = [asyncio.create_task(policy(held)("low", 5)) for _ in range(5)]  # four run, one waits
        await asyncio.sleep(0)
        assert policy.snapshot()["waiting"] == 1
        answer = await policy(held)("critical", 0)
        assert policy.snapshot()["waiting"] == 1
        await asyncio.gather(*low)
        return answer

    assert clock.run(main) == "critical"


def test_one_who_is_evicted_while_being_cancelled_is_only_cancelled(clock):
    policy = limit(initial=1, queue=1)

    async def main() -> bool:
        call = policy(held)
        first = asyncio.create_task(call("normal"))
        low = asyncio.create_task(call("low"))
        await asyncio.sleep(0)
        low.cancel()
        high = asyncio.create_task(call("critical"))
        await asyncio.gather(first, high)
        await asyncio.wait([low])
        return low.cancelled()

    assert clock.run(main)
    assert_state(policy, running=0, waiting=0)


def test_cancelled_at_every_await_no_place_is_lost(clock):
    policies = []

    async def main() -> None:
        policies.append(limit(initial=1, queue=2, replace=True))
        call = policies[-1](held)
        async with asyncio.TaskGroup() as group:
            group.create_task(call("low"))
            group.create_task(call("low"))
            await asyncio.sleep(0)
            await call("critical")

    async def check(outcome) -> None:
        await wait_until_idle()
        assert_state(policies[-1], running=0, waiting=0)

    assert cancel_at_every_await(main, check) > 1


# ------------------------------------------------------------------ where a priority comes from


def seen(policy, *args) -> str:
    got = []

    def body(*_) -> None:
        got.append(next(name for name, n in policy.snapshot()["running_by_priority"].items() if n))

    policy(body)(*args)
    return got[0]


def test_by_a_function_of_the_arguments(clock):
    assert seen(limit(), "normal") == "normal"


def test_by_the_context(clock):
    policy = limit(priority=None)
    with priority("low"):
        assert seen(policy) == "low"
    assert seen(policy) == "critical"


def test_by_the_context_where_the_function_has_no_answer(clock):
    with priority("low"):
        assert seen(limit(priority=lambda: None)) == "low"


def test_the_function_wins_over_the_context(clock):
    with priority("low"):
        assert seen(limit(), "critical") == "critical"


def test_calls_that_say_nothing_have_the_priority_that_was_set(clock):
    policy = limit(priority="normal")
    assert seen(policy) == "normal"
    with priority("low"):
        assert seen(policy) == "low"


def test_an_unknown_name_is_of_the_lowest_class(clock):
    assert seen(limit(), "vip") == "low"


def test_a_block_has_the_priority_of_its_context(clock):
    policy = limit()
    with priority("normal"), policy:
        assert policy.snapshot()["running_by_priority"]["normal"] == 1
    assert_state(policy, running=0)


def test_a_stream_has_the_priority_of_its_arguments(clock):
    policy = limit()

    def items(name: str):
        yield policy.snapshot()["running_by_priority"][name]

    async def aitems(name: str):
        yield policy.snapshot()["running_by_priority"][name]

    async def collect() -> list:
        return [item async for item in policy(aitems)("normal")]

    assert list(policy(items)("low")) == [1]
    assert clock.run(collect) == [1]
    assert_state(policy, running=0, success=2)


def test_a_priority_travels_into_tasks_and_not_back(clock):
    policy = limit(priority=None)

    async def main() -> list:
        async def child() -> list:
            await held("x", 0)
            return [seen(policy)]

        with priority("low"):
            task = asyncio.create_task(child())
        return [*await task, seen(policy)]

    assert clock.run(main) == ["low", "critical"]


# ------------------------------------------------------------------ modes and live changes


def test_a_shadow_counts_by_class_and_lets_everybody_in(clock):
    policy = limit(mode="shadow")
    answers = clock.run(all_at_once(policy(held), ["low"] * 10))
    assert let_in(answers, "low") == 10
    assert_state(policy, would={"reject": 6}, running=0, rejected=0)


def test_priorities_may_be_set_while_it_works_and_what_was_learned_stays(clock):
    policy = concurrency_limit("orders", initial=10)
    with pytest.raises(TimeoutError):
        policy.call(_times_out)
    policy.reconfigure(priorities=TABLE)
    assert_state(policy, limit=9, running_by_priority={"critical": 0, "normal": 0, "low": 0})
    policy.reconfigure(priorities=None)
    assert_state(policy, limit=9)
    assert policy.call(lambda: "still works") == "still works"


def _times_out() -> None:
    raise TimeoutError


def test_another_table_holds_from_the_next_call_on(clock):
    policy = limit()

    async def main() -> list:
        task = asyncio.create_task(policy(held)("low"))
        await asyncio.sleep(0)
        policy.reconfigure(priorities={"vip": 1.0})
        during = policy.snapshot()["running"]
        return [during, await policy(held)("vip", 0), await task]

    assert clock.run(main) == [1, "vip", "low"]
    assert_state(policy, running=0)


def test_keys_have_classes_of_their_own(clock):
    policy = limit(initial=1, key=lambda name, seconds, host: host)

    async def body(name: str, seconds: float, host: str) -> str:
        await asyncio.sleep(seconds)
        return host

    async def run() -> list:
        call = policy(body)
        return await asyncio.gather(
            call("low", 1, "a"), call("low", 1, "b"), call("low", 1, "a"), return_exceptions=True
        )

    first, second, third = clock.run(run)
    assert (first, second, type(third)) == ("a", "b", ShedError)
