"""Laws of the dynamic batcher that hold in every history, found out by a random one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.laws import law
from tests.scheduling.invariants import check_invariants
from tritonnb.core.errors import UnavailableError
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import Decision, Execute, ResponseOrder
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.policy import DynamicBatcherSettings, QueuePolicy, QueueSettings, TimeoutAction
from tritonnb.scheduling.reasons import explain

MAX_BATCH_SIZE = 8

policies = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(TimeoutAction),
    default_timeout_ns=st.sampled_from([0, 10_000, 40_000]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 3]),
)
queues = st.one_of(
    st.just(QueueSettings()),
    st.builds(QueueSettings, default_queue_policy=policies),
    st.builds(
        QueueSettings,
        priority_levels=st.just(3),
        default_priority_level=st.sampled_from([1, 2, 3]),
        default_queue_policy=policies,
        priority_queue_policy=st.dictionaries(st.sampled_from([1, 2, 3]), policies, max_size=2),
    ),
)
sizes = st.sets(st.integers(1, MAX_BATCH_SIZE), min_size=1, max_size=3).map(sorted).map(tuple)
batchers = st.builds(
    DynamicBatcherSettings,
    max_batch_size=st.just(MAX_BATCH_SIZE),
    preferred_batch_sizes=sizes,
    max_queue_delay_ns=st.sampled_from([0, 5_000, 25_000]),
    preserve_ordering=st.booleans(),
    queue=queues,
    enforce_equal_shape=st.booleans(),
    min_requests_to_start=st.sampled_from([0, 0, 0, 3]),
)


@dataclass
class Response:
    final: bool


class History(RuleBasedStateMachine):
    """Arrivals, completions, cancellations, changes of settings, and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.waiting: dict[Schedulable, int] = {}  # accepted and neither executed nor refused -> position
        self.running: dict[int, tuple[Execute, ResponseOrder | None]] = {}
        self.accepted = 0
        self.refused: set[Schedulable] = set()
        self.placed: list[Schedulable] = []
        self.delivered: list[Schedulable] = []
        self.retired: set[int] = set()
        self.levels_since = 0  # the first request accepted since levels were changed
        self.last_of_level: dict[int, int] = {}

    @initialize(batcher=batchers, instances=st.integers(1, 3))
    def begin(self, batcher: DynamicBatcherSettings, instances: int) -> None:
        self.batcher = DynamicBatcher(batcher, instances)
        for instance in range(instances):
            self.follow(self.batcher.instance_idle(instance, self.now))

    @property
    def queue_settings(self) -> QueueSettings:
        return self.batcher.settings.queue

    def follow(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            assert explain(decision.reason)
            if isinstance(decision, Execute):
                self.executed(decision)
            else:
                del self.waiting[decision.request]
                assert decision.request not in self.refused, "refused twice"
                self.refused.add(decision.request)

    def executed(self, decision: Execute) -> None:
        assert decision.instance in self.batcher.instances.active_ids
        assert decision.instance not in self.running, "an instance was given two batches"
        assert decision.size == sum(request.batch_size for request in decision.requests)
        assert decision.size <= MAX_BATCH_SIZE
        assert len({request.batch_key for request in decision.requests}) == 1
        for request in decision.requests:
            assert not request.cancelled, "executed although it was cancelled"
            position = self.waiting.pop(request)  # a KeyError: executed twice, or refused before
            level = self.queue_settings.level_of(request.priority)
            delays = self.policy_of(request).timeout_action is TimeoutAction.DELAY
            if position >= self.levels_since and not delays:
                assert self.last_of_level.get(level, -1) < position, "overtaken inside its level"
                self.last_of_level[level] = position
        order = self.batcher.response_order(decision.instance)
        if order:
            self.placed += decision.requests
        self.running[decision.instance] = decision, order

    @rule(
        size=st.integers(1, 4),
        key=st.sampled_from([None, None, "other"]),
        priority=st.integers(0, 4),
        timeout_us=st.sampled_from([0, 0, 5, 20]),
    )
    def arrive(self, size: int, key: str | None, priority: int, timeout_us: int) -> None:
        request = Schedulable(
            f"r{self.accepted}", batch_size=size, batch_key=key, priority=priority, timeout_us=timeout_us
        )
        self.waiting[request] = self.accepted
        try:
            self.follow(self.batcher.enqueue(request, self.now))
        except UnavailableError:
            assert self.policy_of(request).max_queue_size, "refused by a queue without limit"
            del self.waiting[request]
        else:
            self.accepted += 1
            assert request.queued_ns == self.now

    def policy_of(self, request: Schedulable) -> QueuePolicy:
        return self.queue_settings.policy_of(self.queue_settings.level_of(request.priority))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), streamed=st.integers(0, 2), in_parts=st.booleans())
    def finish(self, data: st.DataObject, streamed: int, in_parts: bool) -> None:
        instance = data.draw(st.sampled_from(sorted(self.running)))
        decision, order = self.running.pop(instance)
        for request in decision.requests:
            if order:
                for _ in range(streamed):
                    self.deliver(order.add_response(request, Response(final=False)))
                self.deliver(order.add_response(request, Response(final=True)))
            self.follow(self.batcher.released(request, self.now))
        if in_parts and self.batcher.payloads and instance in self.batcher.instances.active_ids:
            self.follow([*self.batcher.take_payload(instance, self.now), *self.batcher.make_pass(self.now)])
        else:
            self.follow(self.batcher.instance_idle(instance, self.now))

    def deliver(self, leaving: list[tuple[Schedulable, Response]]) -> None:
        self.delivered += [request for request, response in leaving if response.final]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.waiting)))
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

    @rule(step=st.sampled_from([1_000, 50_000]))
    def oversleep(self, step: int) -> None:
        self.now += step
        self.follow(self.batcher.wake(self.now))

    @rule(batcher=batchers)
    def reconfigure(self, batcher: DynamicBatcherSettings) -> None:
        self.levels_since = self.accepted
        self.last_of_level.clear()
        before = self.batcher.queue_depth()
        decisions = self.batcher.reconfigure(replace(batcher, max_batch_size=MAX_BATCH_SIZE), self.now)
        after = self.batcher.queue_depth() + sum(
            len(decision.requests) if isinstance(decision, Execute) else 1 for decision in decisions
        )
        assert before == after
        self.follow(decisions)

    @rule(count=st.integers(1, 3))
    def change_instances(self, count: int) -> None:
        old = set(self.batcher.instances.active_ids)
        new = set(range(count)) - (set(self.running) - old)  # a number is free once its last run has ended
        self.follow(self.batcher.set_instances(new, self.now))
        for instance in sorted(new - old):
            self.follow(self.batcher.instance_idle(instance, self.now))

    @invariant()
    def holds(self) -> None:
        batcher = self.batcher
        check_invariants(batcher)
        assert batcher.queue_depth() == len(self.waiting)
        assert self.delivered == self.placed[: len(self.delivered)], "preserve_ordering"
        wake = batcher.next_wake_ns
        if batcher.instances.idle and batcher.queue.size and batcher._slot_available() and not batcher._blocked:
            assert wake is not None
            if batcher.queue.pending:
                assert wake <= batcher.queue.pending_oldest_ns + batcher.settings.max_queue_delay_ns

    def teardown(self) -> None:
        """Nothing is lost: let everything end, and everyone has been answered."""
        if not hasattr(self, "batcher"):
            return
        self.batcher._requests_to_start = 0
        self.change_instances(2)
        while self.running or self.waiting:
            if self.running:
                instance, (decision, order) = self.running.popitem()
                for request in decision.requests:
                    if order:
                        self.deliver(order.add_response(request, Response(final=True)))
                self.follow(self.batcher.instance_idle(instance, self.now))
            else:
                self.now += 100_000
                self.follow(self.batcher.wake(self.now))
        assert self.delivered == self.placed
        assert self.batcher.queue_depth() == 0


TestHistory = History.TestCase
TestHistory.settings = law(
    200,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
