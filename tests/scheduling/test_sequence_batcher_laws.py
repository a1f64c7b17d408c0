"""Laws of the sequence batcher that hold in every history, found out by a random one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.laws import law
from tests.scheduling.harness import END, START, Begun
from tests.scheduling.invariants import check_invariants
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import Decision, Execute
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.reasons import explain
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_strategies import (
    DirectSettings,
    OldestSettings,
    OldestStrategy,
    SequenceBatcherSettings,
)
from tritonnb.scheduling.slots import Slot, SlotSequence

MAX_BATCH_SIZE = 3

delays = st.sampled_from([0, 5_000, 25_000])
direct = st.builds(
    DirectSettings,
    slot_count=st.just(MAX_BATCH_SIZE),
    max_queue_delay_ns=delays,
    minimum_slot_utilization=st.sampled_from([0.0, 0.5, 1.0]),
)
batchers = st.builds(
    DynamicBatcherSettings,
    max_batch_size=st.just(MAX_BATCH_SIZE),
    preferred_batch_sizes=st.sampled_from([(3,), (2,), (1, 3)]),
    max_queue_delay_ns=delays,
    preserve_ordering=st.booleans(),
    enforce_equal_shape=st.booleans(),
)
oldest = st.builds(OldestSettings, slot_count=st.sampled_from([1, 2]), batcher=batchers)


configured = st.builds(
    SequenceBatcherSettings,
    model_name=st.just("seq"),
    strategy=st.one_of(direct, oldest),
    max_sequence_idle_ns=st.sampled_from([20_000, 100_000]),
    iterative=st.booleans(),
)


class History(RuleBasedStateMachine):
    """Sequences, completions, cancellations, changes of instances and settings, and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.unanswered: dict[Schedulable, SlotSequence] = {}
        self.running: dict[int, Execute] = {}
        self.slot_of: dict[SlotSequence, Slot] = {}
        self.next_of: dict[SlotSequence, list[Schedulable]] = {}
        self.backlog: list[SlotSequence] = []
        self.count = 0

    @initialize(settings=configured, instances=st.integers(1, 2))
    def begin(self, settings: SequenceBatcherSettings, instances: int) -> None:
        self.batcher = SequenceBatcher(settings, instances)
        self.members = set(range(instances))
        self.begun = Begun(self.batcher)
        for instance in range(instances):
            self.follow(self.batcher.instance_idle(instance, self.now))

    def follow(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            assert explain(decision.reason)
            if isinstance(decision, Execute):
                self.executed(decision)
            else:
                sequence = self.unanswered.pop(decision.request)  # a KeyError: answered twice
                self.next_of[sequence].remove(decision.request)

    def executed(self, decision: Execute) -> None:
        assert decision.instance not in self.running, "an instance was given two batches"
        assert decision.slots is not None
        assert len(decision.slots) == len(decision.requests) == decision.size <= MAX_BATCH_SIZE
        real = [request for request in decision.requests if request is not None]
        sequences = [self.unanswered[request] for request in real]
        assert len(set(sequences)) == len(sequences), "two requests of one sequence in a batch"
        assert len(set(decision.slots)) == len(decision.slots), "two rows of one slot in a batch"
        assert real, "a batch of nothing but null requests"
        for request, slot in zip(decision.requests, decision.slots, strict=True):
            if request is None:
                assert "nulls" in decision.reason.facts
                continue
            sequence = self.unanswered[request]
            assert self.next_of[sequence].pop(0) is request, "overtaken inside its sequence"
            assert sequence.slot is not None
            assert (sequence.slot.instance, sequence.slot.index) == (decision.instance, slot)
            others = [queued for batch in self.running.values() for queued in batch.requests]
            assert not any(self.unanswered.get(other) is sequence for other in others), "two in flight"
        self.running[decision.instance] = decision

    @rule(
        id=st.sampled_from([1, 2, "1", "a", "b", "c"]),
        flags=st.sampled_from([0, 0, START, START, END, START | END]),
        key=st.sampled_from([None, None, "other"]),
        timeout_us=st.sampled_from([0, 0, 15]),
    )
    def arrive(self, id: int | str, flags: int, key: str | None, timeout_us: int) -> None:
        self.count += 1
        request = Schedulable(f"r{self.count}", batch_key=key, correlation_id=id, flags=flags, timeout_us=timeout_us)
        goes_on = self.batcher.table.known.get(id)
        assert goes_on is None or goes_on.id == id
        if goes_on is None and not flags & START:
            try:
                self.batcher.enqueue(request, self.now)
            except InvalidArgumentError:
                return
            raise AssertionError("admitted without START")
        decisions = self.batcher.enqueue(request, self.now)
        sequence = goes_on or self.begun.sequences[-1]
        assert sequence.id == id
        self.unanswered[request] = sequence
        self.next_of.setdefault(sequence, []).append(request)
        self.follow(decisions)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), again=st.booleans())
    def finish(self, data: st.DataObject, again: bool) -> None:
        instance = data.draw(st.sampled_from(sorted(self.running)))
        self.end(instance, again and self.batcher.settings.iterative)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """An instance fails during its execution, and recovers at once."""
        self.end(data.draw(st.sampled_from(sorted(self.running))), again=False, lost=True)

    def end(self, instance: int, again: bool, lost: bool = False) -> None:
        decision = self.running.pop(instance)
        order = self.batcher.response_order(instance)
        assert order is None or isinstance(self.batcher._strategies[instance], OldestStrategy)
        for request in decision.requests:
            if request is None:
                continue
            sequence = self.unanswered[request]
            if again:
                try:
                    self.next_of[sequence].append(request)
                    self.follow(self.batcher.reschedule(request, self.now))
                    continue
                except InvalidArgumentError:
                    self.next_of[sequence].remove(request)
            del self.unanswered[request]
            if self.batcher.needs_release_events:
                self.follow(self.batcher.released(request, self.now))
        if lost:
            slots = self.batcher._strategies[instance].slots if self.batcher.uses(instance) else []
            ended = [slot.sequence for slot in slots if slot.sequence is not None]
            self.follow(self.batcher.end_sequences(instance, "the instance failed", self.now))
            assert not any(self.next_of.get(sequence) for sequence in ended), "a request of a lost sequence waits"
            assert not set(ended) & set(self.batcher.table.known.values()), "a lost sequence goes on"
        self.follow(self.batcher.instance_idle(instance, self.now))

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.unanswered)))
        request.cancelled = True
        self.follow(self.batcher.cancel(request, self.now))

    @rule(step=st.sampled_from([1, 1_000, 5_000, 10_000, 25_000, 100_000]))
    def pass_time(self, step: int) -> None:
        end = self.now + step
        while (wake := self.batcher.next_wake_ns) is not None and wake <= end:
            self.now = max(self.now, wake)
            self.follow(self.batcher.wake(self.now))
            assert self.batcher.next_wake_ns is None or self.batcher.next_wake_ns > self.now
        self.now = end
        for sequence in self.batcher.table.known.values():
            idle_for = self.now - sequence.seen_ns
            assert sequence.slot is None or idle_for < self.batcher.settings.max_sequence_idle_ns

    @rule(settings=configured)
    def reconfigure(self, settings: SequenceBatcherSettings) -> None:
        settings = replace(settings, iterative=self.batcher.settings.iterative)
        self.follow(self.batcher.reconfigure(settings, self.now))
        self.pass_time(0)  # a shorter idle time may be over already

    @rule(members=st.sets(st.integers(0, 3), min_size=1, max_size=2))
    def change_instances(self, members: set[int]) -> None:
        used = {number for number in range(4) if self.batcher.uses(number)} | set(self.running)
        added = members - self.members
        self.follow(self.batcher.set_instances(members, self.now))
        self.members = members
        for instance in sorted(added - used):
            self.follow(self.batcher.instance_idle(instance, self.now))

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "batcher"):
            return
        check_invariants(self.batcher)
        waiting = sum(map(len, self.next_of.values()))
        assert self.batcher.queue_depth() == waiting
        for sequence in self.next_of:
            if sequence.slot is not None:
                assert self.slot_of.setdefault(sequence, sequence.slot) is sequence.slot, "it has moved"
        backlog = list(self.batcher.table.backlog)
        stayed = [request for request in self.backlog if request in self.batcher.table.backlog]
        assert backlog[: len(stayed)] == stayed, "the backlog has been reordered"
        if stayed:
            passed_over = self.backlog[self.backlog.index(stayed[0]) :]
            assert all(request.slot is None for request in passed_over), "overtaken in the backlog"
        self.backlog = backlog

    def teardown(self) -> None:
        """Nothing is lost: let everything end, everyone has been answered, and all instances have the new strategy."""
        if not hasattr(self, "batcher"):
            return
        rounds = 0
        while self.unanswered or self.batcher.table.retired:
            rounds += 1
            assert rounds < 1000, "it never ends"
            for instance in list(self.running):
                self.end(instance, again=False)
            self.now += 100_000
            self.follow(self.batcher.wake(self.now))
            self.holds()
        assert self.batcher.queue_depth() == 0
        assert not self.batcher._sequence_of, "requests that are over are remembered"


TestHistory = History.TestCase
TestHistory.settings = law(
    200,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
