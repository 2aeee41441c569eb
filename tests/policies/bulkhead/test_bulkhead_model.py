"""The bulkhead against a model that fits on a page, and its forms against each other."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from everkeel import BulkheadFullError, bulkhead
from everkeel.testing import record_events


class Model:
    """What a bulkhead does, for somebody who has all the time in the world."""

    def __init__(self, limit: int, queue: int) -> None:
        self.limit, self.queue, self.newest = limit, queue, False
        self.running: list[int] = []
        self.waiting: list[int] = []
        self.rejected: list[int] = []

    def start(self, name: int) -> None:
        if len(self.running) < self.limit:
            self.running.append(name)
        elif len(self.waiting) < self.queue:
            self.waiting.append(name)
        else:
            self.rejected.append(name)

    def leave(self, name: int) -> None:
        (self.running if name in self.running else self.waiting).remove(name)
        self.hand_out()

    def hand_out(self) -> None:
        while self.waiting and len(self.running) < self.limit:
            self.running.append(self.waiting.pop(-1 if self.newest else 0))


def machine(make_tasks, form):
    class Bulkhead(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.policy = bulkhead(2, queue=2)
            self.crowd = make_tasks(self.policy, form)
            self.model = Model(2, 2)
            self.names = 0

        @rule()
        def somebody_comes(self) -> None:
            self.names += 1
            self.crowd.start(self.names)
            self.model.start(self.names)

        @precondition(lambda self: self.model.running)
        @rule(data=st.data(), fails=st.booleans())
        def somebody_ends(self, data: st.DataObject, fails: bool) -> None:
            name = data.draw(st.sampled_from(self.model.running))
            self.crowd.finish(name, error=ValueError("no") if fails else None)
            self.model.leave(name)

        @precondition(lambda self: self.model.running or self.model.waiting)
        @rule(data=st.data())
        def somebody_is_cancelled(self, data: st.DataObject) -> None:
            name = data.draw(st.sampled_from(self.model.running + self.model.waiting))
            self.crowd.cancel(name)
            self.model.leave(name)

        @rule(limit=st.integers(1, 4))
        def the_limit_changes(self, limit: int) -> None:
            self.policy.reconfigure(limit=limit)
            self.model.limit = limit
            self.model.hand_out()
            self.crowd.pass_time(0.001)

        @rule(queue=st.integers(0, 4), newest=st.booleans())
        def the_queue_changes(self, queue: int, newest: bool) -> None:
            self.policy.reconfigure(queue=queue, order="newest" if newest else "oldest")
            self.model.queue, self.model.newest = queue, newest

        @invariant()
        def they_agree(self) -> None:
            snapshot = self.policy.snapshot()
            assert self.crowd.running == self.model.running
            assert (snapshot["running"], snapshot["waiting"]) == (len(self.model.running), len(self.model.waiting))
            rejected = [name for name, end in self.crowd.ended.items() if isinstance(end, BulkheadFullError)]
            assert rejected == self.model.rejected
            assert self.policy.state.attention == bool(self.model.waiting or len(self.model.running) > self.model.limit)

        def teardown(self) -> None:
            self.crowd.close()
            assert len(self.policy.state.tokens) == self.policy.config.limit

    return Bulkhead


def test_it_does_what_the_model_does(form, make_tasks):
    run_state_machine_as_test(
        machine(make_tasks, form),
        settings=settings(max_examples=max(20, settings.default.max_examples // 5), stateful_step_count=30),
    )


# ------------------------------------------------------------------ the forms against each other


def trace(crowd, policy, seed: int, *, cancels: bool) -> list[object]:
    """Everything that can be seen of a bulkhead while a random story unfolds."""
    chance, came, names = Random(seed), [], iter(range(1000))
    with record_events() as heard:
        for _ in range(60):
            running, waiting = crowd.running, policy.snapshot()["waiting"]
            deed = chance.choice(["start", "start", "start", "finish", "finish", "fail", "cancel", "limit", "queue"])
            if deed == "start":
                crowd.start(next(names))
            elif deed in ("finish", "fail") and running:
                crowd.finish(chance.choice(sorted(running)), error=ValueError("no") if deed == "fail" else None)
            elif deed == "cancel" and cancels and running:
                crowd.cancel(chance.choice(sorted(running)))
            elif deed == "limit" and not waiting:  # many granted at once: threads would begin in any order
                policy.reconfigure(limit=chance.randint(1, 4))
            elif deed == "queue":
                policy.reconfigure(queue=chance.randint(0, 3), order=chance.choice(["oldest", "newest"]))
            # Not the name, which differs by form; not the time waited: threads of a test live in real time.
            snapshot = {key: value for key, value in policy.snapshot().items() if key not in ("name", "waited")}
            came.append((deed, [*crowd.begun], {name: type(end) for name, end in crowd.ended.items()}, snapshot))
        came.append(heard.names())
    return came


@pytest.mark.parametrize("seed", range(10))
def test_every_form_tells_the_same_story(forms, make_tasks, seed):
    def story(form):
        policy = bulkhead(2, queue=2)
        crowd = make_tasks(policy, form)
        try:
            return trace(crowd, policy, seed, cancels=True)
        finally:
            crowd.close()

    stories = forms(story)
    for style, came in stories.items():
        assert came == stories["plain"], f"{style} differs from plain (seed {seed})"


@pytest.mark.parametrize("seed", range(3))
def test_threads_tell_the_same_story_as_tasks(forms, make_tasks, make_threads, seed):
    def story(make):
        def tell(form):
            policy = bulkhead(2, queue=2)
            crowd = make(policy, form)
            try:
                return trace(crowd, policy, seed, cancels=False)[:-1]
            finally:
                crowd.close()

        return forms(tell)

    tasks, threads = story(make_tasks), story(make_threads)
    for style in tasks:
        assert threads[style] == tasks["plain"], f"{style} in threads differs from plain in tasks (seed {seed})"


def test_the_order_in_which_ready_tasks_run_does_not_matter(form, clock):
    async def main() -> int:
        policy, peak, inside = bulkhead(3, queue=100), 0, 0

        async def body(number: int) -> None:
            nonlocal peak, inside
            inside += 1
            peak = max(peak, inside)
            await asyncio.sleep(number % 3)
            inside -= 1

        call = form(policy, body)
        await asyncio.gather(*(call(number) for number in range(30)))
        assert policy.snapshot()["running"] == 0
        return peak

    for _ in range(5):
        assert clock.run(main, shuffle=True) == 3
