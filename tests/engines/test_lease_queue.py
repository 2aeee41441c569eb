"""The lease queue against a model: whatever happens in whatever order, keys keep their order and nothing is lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import data, floats, integers, none, sampled_from

from everkeel.engines.memory.queue import BURIED, DELIVERED, PARKED, LeaseQueue


class Queue(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.queue = LeaseQueue()
        self.now = 0.0
        self.tokens = 0
        self.written = 0
        self.held = {}  # seq to lease: the newest claim on each row
        self.done = []  # (key, seq) in the order of delivery

    @rule(key=none() | sampled_from("ab"), delay=sampled_from([0.0, 0.0, 5.0]))
    def write(self, key, delay):
        self.written += 1
        self.queue.append(self.written, "t", key, self.now, delay)

    @rule(limit=integers(1, 5), lease=floats(1, 10), behind=sampled_from([True, False]))
    def claim(self, limit, lease, behind):
        self.tokens += 1
        taken = self.queue.claim(self.now, limit, lease, f"token{self.tokens}", behind=behind)
        assert len(taken) <= limit
        for entry, held in taken:
            assert entry.available_at <= self.now
            self.held[entry.seq] = held
        for key in "ab":
            ours = [entry.seq for entry, _ in taken if entry.key == key]
            assert ours == sorted(ours)
            if ours:  # nothing of the key that is not delivered stands before it
                before = [e for e in self.queue.entries() if e.key == key and e.seq < ours[0] and e.state != DELIVERED]
                assert before == []

    def some(self, data):
        return self.held[data.draw(sampled_from(sorted(self.held)))] if self.held else None

    @rule(data=data())
    def deliver(self, data):
        if lease := self.some(data):
            entry = self.queue.deliver(lease, self.now)
            if entry is not None:
                self.done.append((entry.key, entry.seq))
                assert self.queue.deliver(lease, self.now) is None

    @rule(data=data(), delay=sampled_from([0.0, 3.0]), counted=sampled_from([True, False]))
    def give_back(self, data, delay, counted):
        if lease := self.some(data):
            self.queue.give_back(lease, self.now + delay, counted=counted)
            assert not self.queue.give_back(lease, self.now, counted=counted)

    @rule(data=data())
    def bury(self, data):
        if lease := self.some(data):
            entry = self.queue.held(lease)
            if entry is not None and entry.key is not None:
                self.queue.bury(entry, park=True)
                assert entry.state == BURIED

    @rule(data=data())
    def replay(self, data):
        buried = [entry for entry in self.queue.entries() if entry.state == BURIED]
        if buried:
            self.queue.revive(data.draw(sampled_from(buried)), "again", self.now)

    @rule(seconds=floats(0.1, 20))
    def time_passes(self, seconds):
        self.now += seconds

    @invariant()
    def nothing_is_lost(self):
        assert len(list(self.queue.entries())) == self.written

    @invariant()
    def whoever_is_parked_stands_behind_a_buried_one(self):
        for entry in self.queue.entries():
            if entry.state == PARKED:
                before = [e for e in self.queue.entries() if e.key == entry.key and e.seq < entry.seq]
                assert any(e.state == BURIED for e in before)


Queue.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestQueue = Queue.TestCase
