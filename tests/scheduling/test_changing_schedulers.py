"""One scheduler takes the place of another while requests wait and run: none is lost, none is answered twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tritonclient.grpc import model_config_pb2 as pb

from tests.laws import law
from tests.scheduling.harness import END, MS, START, members
from tests.scheduling.invariants import check_invariants
from tritonnb.core.errors import UnavailableError
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import Decision, Execute
from tritonnb.scheduling.from_config import make_scheduler, reconfigure_scheduler
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_strategies import SequenceBatcherSettings

NONE = ""
BATCHES = "dynamic_batching { }"
WAITS = "dynamic_batching { max_queue_delay_microseconds: 10000 preferred_batch_size: 4 }"
LEVELS = "dynamic_batching { priority_levels: 3 default_priority_level: 2 }"
TIMEOUT = """dynamic_batching { default_queue_policy {
    default_timeout_microseconds: 5000 allow_timeout_override: true max_queue_size: 1 } }"""


def config(text: str) -> pb.ModelConfig:
    return text_format.Parse('name: "m" max_batch_size: 4 ' + text, pb.ModelConfig())


def test_added_dynamic_batcher_batches_waiting_requests() -> None:
    scheduler = make_scheduler(config(NONE), 1, {})
    scheduler.instance_idle(0, 0)
    assert [members(decision) for decision in scheduler.enqueue(Schedulable("a"), 0)] == ["a"]
    for name in "bcd":
        scheduler.enqueue(Schedulable(name), 1)
    scheduler, decisions = reconfigure_scheduler(scheduler, config(BATCHES), 2)
    assert not decisions
    assert [members(decision) for decision in scheduler.instance_idle(0, 3)] == ["b c d"]


def test_formed_payloads_are_split_when_the_batcher_is_removed() -> None:
    scheduler = make_scheduler(config(BATCHES), 2, {})
    scheduler.instance_idle(0, 0)
    for name in "abcdefgh":
        scheduler.enqueue(Schedulable(name), 0)
    scheduler, decisions = reconfigure_scheduler(scheduler, config(NONE), 1)
    assert not decisions
    assert [members(decision) for decision in scheduler.instance_idle(1, 2)] == ["b"]
    assert [members(decision) for decision in scheduler.instance_idle(0, 3)] == ["c"]


def test_batch_that_waited_for_its_delay_runs_immediately_when_the_batcher_is_removed() -> None:
    scheduler = make_scheduler(config(WAITS), 1, {})
    scheduler.instance_idle(0, 0)
    assert not scheduler.enqueue(Schedulable("a"), 0)
    _, decisions = reconfigure_scheduler(scheduler, config(NONE), 1)
    assert [members(decision) for decision in decisions] == ["a"]


def test_waiting_requests_are_not_refused_by_the_queue_size_of_a_new_batcher() -> None:
    scheduler = make_scheduler(config(NONE), 1, {})
    for name in "abc":
        scheduler.enqueue(Schedulable(name), 0)
    scheduler, decisions = reconfigure_scheduler(scheduler, config(TIMEOUT), 1)
    assert not decisions
    assert scheduler.queue_depth() == 3
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        scheduler.enqueue(Schedulable("d"), 2)


def test_added_dynamic_batcher_knows_earlier_cancellations() -> None:
    scheduler = make_scheduler(config(NONE), 1, {})
    cancelled = Schedulable("a")
    for request in (cancelled, Schedulable("b")):
        scheduler.enqueue(request, 3)
    cancelled.cancelled = True
    assert not scheduler.cancel(cancelled, 4)
    scheduler, (refused,) = reconfigure_scheduler(scheduler, config(BATCHES), 10)
    assert (refused.request, refused.counted_as, refused.reason.facts) == (cancelled, "CANCELED", {"waited_ns": 7})
    assert [members(decision) for decision in scheduler.instance_idle(0, 11)] == ["b"]


@pytest.mark.parametrize("text", [NONE, BATCHES, WAITS])
def test_scheduler_is_empty_after_export_waiting(text: str) -> None:
    scheduler = make_scheduler(config(text), 1, {})
    for name in "abcdef":
        scheduler.enqueue(Schedulable(name), 0)
    decisions, waiting = scheduler.export_waiting(1)
    assert not decisions
    assert [request.id for request in waiting] == list("abcdef")
    assert scheduler.queue_depth() == 0


def sequences(text: str) -> SequenceBatcher:
    scheduler = make_scheduler(config(f"sequence_batching {{ {text} }}"), 1, {})
    assert isinstance(scheduler, SequenceBatcher)
    scheduler.instance_idle(0, 0)
    return scheduler


def test_sequences_end_under_the_strategy_under_which_they_began() -> None:
    scheduler = sequences("direct { }")
    begun = Schedulable("a1", correlation_id=1, flags=START)
    assert [members(decision) for decision in scheduler.enqueue(begun, 0)] == ["a1"]
    other, decisions = reconfigure_scheduler(
        scheduler, config("sequence_batching { oldest { max_candidate_sequences: 2 } }"), MS
    )
    assert other is scheduler
    assert not decisions
    assert not scheduler.enqueue(Schedulable("b1", correlation_id=2, flags=START | END), 2 * MS)
    scheduler.released(begun, 3 * MS)
    assert not scheduler.instance_idle(0, 3 * MS), "sequence 1 goes on, so the new strategy waits"
    last = Schedulable("a2", correlation_id=1, flags=END)
    (direct,) = scheduler.enqueue(last, 4 * MS)
    assert members(direct) == "a2"
    assert "slots" in direct.reason.facts
    scheduler.released(last, 5 * MS)
    (oldest,) = scheduler.instance_idle(0, 5 * MS)
    assert members(oldest) == "b1"
    assert "preferred" in oldest.reason.facts


def test_endless_sequence_delays_a_new_strategy_by_its_idle_time() -> None:
    scheduler = sequences("direct { } max_sequence_idle_microseconds: 10000")
    begun = Schedulable("a1", correlation_id=1, flags=START)
    scheduler.enqueue(begun, 0)
    scheduler.released(begun, MS)
    scheduler.instance_idle(0, MS)
    wanted = config("sequence_batching { oldest { } max_sequence_idle_microseconds: 10000 }")
    reconfigure_scheduler(scheduler, wanted, 2 * MS)
    scheduler.enqueue(Schedulable("b1", correlation_id=2, flags=START), 3 * MS)
    assert scheduler.next_wake_ns == 10 * MS
    assert [members(decision) for decision in scheduler.wake(10 * MS)] == ["b1"]


def test_restored_strategy_keeps_its_sequences() -> None:
    scheduler = sequences("direct { }")
    before: SequenceBatcherSettings = scheduler.settings
    begun = Schedulable("a1", correlation_id=1, flags=START)
    scheduler.enqueue(begun, 0)
    reconfigure_scheduler(scheduler, config("sequence_batching { oldest { } }"), MS)
    waiting = Schedulable("b1", correlation_id=2, flags=START)
    scheduler.enqueue(waiting, 2 * MS)
    scheduler.released(begun, 3 * MS)
    scheduler.instance_idle(0, 3 * MS)
    assert [members(decision) for decision in scheduler.reconfigure(before, 4 * MS)] == ["- b1"]


class History(RuleBasedStateMachine):
    """Arrivals, cancellations, executions, changes of dynamic batchers, and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.scheduler = make_scheduler(config(NONE), 2, {})
        self.waiting: dict[Schedulable, None] = {}
        self.running: dict[int, list[Schedulable]] = {}
        for instance in range(2):
            self.follow(self.scheduler.instance_idle(instance, 0))

    def follow(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Execute):
                assert decision.instance not in self.running, "an instance was given two batches"
                self.running[decision.instance] = list(decision.requests)
                for request in decision.requests:
                    del self.waiting[request]  # a KeyError: answered twice
            else:
                assert decision.request.cancelled or decision.error.message == "Request timeout expired"
                del self.waiting[decision.request]

    @rule(
        size=st.integers(1, 4),
        key=st.sampled_from([None, "other"]),
        priority=st.integers(0, 3),
        timeout_us=st.sampled_from([0, 5_000]),
    )
    def arrive(self, size: int, key: str | None, priority: int, timeout_us: int) -> None:
        request = Schedulable("r", batch_size=size, batch_key=key, priority=priority, timeout_us=timeout_us)
        self.waiting[request] = None
        try:
            self.follow(self.scheduler.enqueue(request, self.now))
        except UnavailableError:
            del self.waiting[request]

    @rule(text=st.sampled_from([NONE, BATCHES, WAITS, LEVELS, TIMEOUT]))
    def reconfigure(self, text: str) -> None:
        self.scheduler, decisions = reconfigure_scheduler(self.scheduler, config(text), self.now)
        self.follow(decisions)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.waiting)))
        request.cancelled = True
        self.follow(self.scheduler.cancel(request, self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(sorted(self.running)))
        for request in self.running.pop(instance):
            self.follow(self.scheduler.released(request, self.now))
        self.follow(self.scheduler.instance_idle(instance, self.now))

    @rule(step=st.sampled_from([1, MS, 5 * MS, 20 * MS]))
    def pass_time(self, step: int) -> None:
        end = self.now + step
        while (wake := self.scheduler.next_wake_ns) is not None and wake <= end:
            self.now = max(self.now, wake)
            self.follow(self.scheduler.wake(self.now))
        self.now = end

    @invariant()
    def holds(self) -> None:
        check_invariants(self.scheduler)
        assert self.scheduler.queue_depth() == len(self.waiting)

    def teardown(self) -> None:
        """Nothing is lost: let everything end, and everyone has been answered."""
        self.reconfigure(NONE)
        while self.running:
            instance, _ = self.running.popitem()
            self.follow(self.scheduler.instance_idle(instance, self.now))
        assert not self.waiting


TestHistory = History.TestCase
TestHistory.settings = law(
    200,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
