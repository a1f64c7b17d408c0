"""The small parts that schedulers are made of, and how a configuration puts them together."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from tests.scheduling.harness import MS, members
from tritonnb.core.errors import UnavailableError
from tritonnb.core.events import RequestArrived
from tritonnb.core.packed_events import pack
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import ResponseOrder, request_arrived
from tritonnb.scheduling.default_scheduler import DefaultScheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.from_config import make_scheduler, reconfigure_scheduler
from tritonnb.scheduling.instances import Instances
from tritonnb.scheduling.policy import DynamicBatcherSettings, QueuePolicy, QueueSettings, TimeoutAction
from tritonnb.scheduling.queue import Deadlines
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_strategies import DirectSettings, OldestSettings, SequenceBatcherSettings


def config(text: str) -> pb.ModelConfig:
    return text_format.Parse(text, pb.ModelConfig())


@dataclass
class Response:
    text: str
    final: bool = True


def test_head_of_the_order_may_stream_and_later_requests_wait_for_its_final_response() -> None:
    order = ResponseOrder()
    for request in "abc":
        order.add_request(request)
    b, a1, a2, c = Response("b"), Response("a1", final=False), Response("a2"), Response("c")
    assert order.add_response("b", b) == []
    assert order.add_response("a", a1) == [("a", a1)]
    assert order.add_response("a", a2) == [("a", a2), ("b", b)]
    assert order.add_response("c", c) == [("c", c)]
    assert order.add_response("c", b) == [("c", b)], "a request whose final response was sent is forgotten"


def test_response_to_an_unknown_request_is_sent_immediately() -> None:
    order = ResponseOrder()
    order.add_request("a")
    assert order.add_response("x", "whatever") == [("x", "whatever")]


def test_arrival_is_packed_as_its_event() -> None:
    request = Schedulable(
        "id", priority=1, timeout_us=2, correlation_id="c", flags=3, batch_size=4, batch_key="shapes", serial=5
    )
    event = RequestArrived(
        time_ns=6, model="m", version=7, serial=5, size=4, priority=1, timeout_us=2, id="id",
        correlation_id="c", flags=3, shape_key=hash("shapes"),
    )  # fmt: skip
    assert request_arrived(request, "m", 7, 6) == pack(event)


def test_deadline_can_be_postponed_moved_forward_and_removed() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("b", 20)
    deadlines.set("a", 30)
    assert deadlines.next() == 20
    deadlines.set("a", 15)
    assert deadlines.next() == 15
    deadlines.forget("a")
    assert list(deadlines.pop_due(25)) == ["b"]
    assert deadlines.next() is None


def test_removed_deadlines_are_not_kept() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10_000):
        deadlines.set(number, 10**9 + number)
        deadlines.forget(number)
    assert len(deadlines) == 0
    assert len(deadlines._heap) < 100


def test_expired_deadline_can_be_set_again() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    assert list(deadlines.pop_due(10)) == ["a"]
    assert len(deadlines) == 0
    deadlines.set("a", 20)
    assert deadlines.next() == 20


def test_equal_deadlines_are_due_in_the_order_in_which_they_were_set() -> None:
    deadlines: Deadlines[object] = Deadlines()
    items = [object() for _ in range(9)]
    for item in items:
        deadlines.set(item, 10)
    assert list(deadlines.pop_due(10)) == items


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 4), st.integers(0, 20)),
            st.tuples(st.just("forget"), st.integers(0, 4), st.just(0)),
            st.tuples(st.just("pop"), st.just(0), st.integers(0, 20)),
        ),
        max_size=30,
    )
)
def test_deadline_table_knows_the_nearest_time(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    table: dict[int, int] = {}
    for step, item, time in steps:
        if step == "set":
            deadlines.set(item, time)
            table[item] = time
        elif step == "forget":
            deadlines.forget(item)
            table.pop(item, None)
        else:
            popped = [table.pop(request) for request in deadlines.pop_due(time)]
            assert popped == sorted(popped)
            assert all(due <= time for due in popped)
            assert all(due > time for due in table.values())
        assert set(deadlines) == set(table)
        assert deadlines.next() == min(table.values(), default=None)


def test_changed_deadlines_stay_ordered_without_accumulating() -> None:
    deadlines: Deadlines[int] = Deadlines()
    times = {item: (item * 37) % 100 for item in range(100)}
    for item, time in times.items():
        for turn in range(100):
            deadlines.set(item, time + 100 - turn)
            assert len(deadlines._heap) <= 2 * len(deadlines) + 64
    assert list(deadlines.pop_due(200)) == sorted(times, key=times.__getitem__)


def test_longest_idle_instance_is_taken_first_and_a_removed_one_never() -> None:
    instances = Instances(3)
    for instance, now in ((2, 5), (0, 6), (1, 7)):
        instances.release(instance, now)
    instances.release(2, 8)
    instances.release(9, 8)
    assert list(instances.idle) == [2, 0, 1]
    instances.replace({0, 1})
    taken = instances.take_instance()
    assert (taken.instance, taken.idle_since_ns, taken.has_run) == (0, 6, False)


def test_configuration_without_a_batcher_uses_the_default_scheduler() -> None:
    assert isinstance(make_scheduler(config("max_batch_size: 8"), 1, {}), DefaultScheduler)


def test_dynamic_batching_becomes_settings() -> None:
    scheduler = make_scheduler(
        config(
            """
            max_batch_size: 8
            input { name: "x" dims: -1 }
            dynamic_batching {
              preferred_batch_size: [ 6, 2 ] max_queue_delay_microseconds: 100 preserve_ordering: true
              priority_levels: 2 default_priority_level: 2
              default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }
              priority_queue_policy { key: 1 value { allow_timeout_override: true max_queue_size: 3 } }
            }
            """
        ),
        1,
        {"TRITONSERVER_DELAY_SCHEDULER": "4"},
    )
    assert isinstance(scheduler, DynamicBatcher)
    assert scheduler.settings == DynamicBatcherSettings(
        max_batch_size=8,
        preferred_batch_sizes=(2, 6),
        max_queue_delay_ns=100_000,
        preserve_ordering=True,
        queue=QueueSettings(
            2,
            2,
            QueuePolicy(TimeoutAction.DELAY, default_timeout_ns=5_000),
            {1: QueuePolicy(allow_timeout_override=True, max_queue_size=3)},
        ),
        enforce_equal_shape=True,
        min_requests_to_start=4,
    )


def test_ragged_inputs_and_fixed_shapes_are_not_compared() -> None:
    text = 'max_batch_size: 4 input { name: "x" dims: 3 } input { name: "y" dims: -1 allow_ragged_batch: true }'
    scheduler = make_scheduler(config(text + "dynamic_batching {}"), 1, {})
    assert isinstance(scheduler, DynamicBatcher)
    assert not scheduler.settings.enforce_equal_shape
    assert scheduler.settings.preferred_batch_sizes == (4,)


def test_shape_tensors_are_compared_as_inputs_of_variable_shape_are() -> None:
    text = 'max_batch_size: 4 input { name: "x" dims: 3 is_shape_tensor: true } dynamic_batching {}'
    scheduler = make_scheduler(config(text), 1, {})
    assert isinstance(scheduler, DynamicBatcher)
    assert scheduler.settings.enforce_equal_shape


def test_sequence_batching_is_direct_unless_oldest_is_set() -> None:
    direct = make_scheduler(
        config('name: "m" max_batch_size: 4 sequence_batching { max_sequence_idle_microseconds: 5 }'),
        1,
        {"TRITONSERVER_DELAY_SCHEDULER": "4", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "2"},
    )
    oldest = make_scheduler(
        config('name: "m" sequence_batching { oldest { max_candidate_sequences: 7 } iterative_sequence: true }'),
        1,
        {"TRITONSERVER_DELAY_SCHEDULER": "4"},
    )
    assert isinstance(direct, SequenceBatcher)
    assert isinstance(oldest, SequenceBatcher)
    assert direct.settings == SequenceBatcherSettings(
        "m", DirectSettings(4), 5_000, min_requests_to_start=4, min_backlog_to_start=2
    )
    assert oldest.settings == SequenceBatcherSettings(
        "m",
        OldestSettings(7, DynamicBatcherSettings(1, (), min_requests_to_start=4, instance_bound=True)),
        1_000_000_000,
        iterative=True,
    )


def test_delays_of_sequences_are_configured_in_microseconds() -> None:
    text = 'name: "m" max_batch_size: 8 sequence_batching { %s }'
    direct = make_scheduler(
        config(text % "direct { max_queue_delay_microseconds: 7 minimum_slot_utilization: 0.5 }"), 1, {}
    )
    oldest = make_scheduler(
        config(text % "oldest { max_queue_delay_microseconds: 7 preferred_batch_size: 4 preserve_ordering: true }"),
        1,
        {},
    )
    assert isinstance(direct, SequenceBatcher)
    assert isinstance(oldest, SequenceBatcher)
    assert direct.settings.strategy == DirectSettings(8, 7_000, 0.5)
    batcher = DynamicBatcherSettings(8, (4,), 7_000, preserve_ordering=True, instance_bound=True)
    assert oldest.settings.strategy == OldestSettings(8, batcher)


@pytest.mark.parametrize("batching", ["", "dynamic_batching { }"])
def test_rate_limiter_selects_the_next_idle_instance(batching: str) -> None:
    scheduler = make_scheduler(
        config(f"max_batch_size: 8 {batching}"), 3, {}, dispatch_key={0: 5, 1: 2, 2: 4}.__getitem__
    )
    for instance in range(3):
        scheduler.instance_idle(instance, 0)
    (decision,) = scheduler.enqueue(Schedulable("a"), 1)
    assert decision.instance == 1


@pytest.mark.parametrize("rate_limited", [False, True])
def test_changed_configuration_stages_batches_with_a_rate_limiter(rate_limited: bool) -> None:
    batching = config("max_batch_size: 8 dynamic_batching { }")
    for before in (config("max_batch_size: 8"), batching):
        scheduler = make_scheduler(before, 1, {}, dispatch_key=(lambda instance: 0) if rate_limited else None)
        scheduler, _ = reconfigure_scheduler(scheduler, batching, 1, rate_limited)
        assert isinstance(scheduler, DynamicBatcher)
        assert scheduler.settings.rate_limited is rate_limited


def test_successor_of_a_stopping_scheduler_is_stopping() -> None:
    scheduler = make_scheduler(config("max_batch_size: 8"), 1, {})
    scheduler.stop()
    for text in ("dynamic_batching { }", ""):
        scheduler, _ = reconfigure_scheduler(scheduler, config(f"max_batch_size: 8 {text}"), 1)
        with pytest.raises(UnavailableError, match="Server is stopping"):
            scheduler.enqueue(Schedulable("a"), 2)


def test_changed_configuration_is_applied_in_place() -> None:
    text = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: %d }"
    scheduler = make_scheduler(config(text % 300_000), 1, {})
    scheduler.instance_idle(0, 0)
    scheduler.enqueue(Schedulable("a"), 0)
    same, decisions = reconfigure_scheduler(scheduler, config(text % 0), MS)
    assert same is scheduler
    assert [members(decision) for decision in decisions] == ["a"]
