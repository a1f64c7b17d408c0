"""The latency of a request split into causes, and the changes that remove them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import tritonnb as tnb
from tests.laws import law
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchExecuted
from tritonnb.lab.analysis.latency_split import CAUSES, LatencySplitter
from tritonnb.lab.simulation.service import Service
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.batches import RequestRecord
from tritonnb.recording.recording import Recording

MS = 1_000_000


def sequence(ms: float, number: int, *, start: bool = False, end: bool = False) -> Arrival:
    return Arrival(ms=ms, sequence_id=number, sequence_start=start, sequence_end=end)


@dataclass(frozen=True)
class Scenario:
    """A configuration, arrivals, and what one of the requests waits for, in ms."""

    config: str
    arrivals: list[Arrival]
    request: int
    parts: dict[str, float]
    remedies: dict[str, dict[str, object]]
    execution_ms: float = 10


SCENARIOS = {
    "executed at once": Scenario("max_batch_size: 4 dynamic_batching { }", [Arrival(ms=0)], 1, {}, {}),
    "the only instance is busy": Scenario(
        "max_batch_size: 4 dynamic_batching { }",
        [Arrival(ms=0), Arrival(ms=3)],
        2,
        {"instances_busy": 7},
        {"instances_busy": {"count": 2}},
    ),
    "waits for the delay": Scenario(
        "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5000 }",
        [Arrival(ms=0), Arrival(ms=3)],
        1,
        {"queue_delay": 5},
        {"queue_delay": {"max_queue_delay_microseconds": 0}},
    ),
    "joins a batch that waits for the delay": Scenario(
        "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5000 }",
        [Arrival(ms=0), Arrival(ms=3)],
        2,
        {"queue_delay": 2},
        {},
    ),
    "earlier requests fill the batch": Scenario(
        "max_batch_size: 2 dynamic_batching { }",
        [Arrival(ms=0), Arrival(ms=1), Arrival(ms=2), Arrival(ms=4)],
        4,
        {"instances_busy": 6, "earlier_requests": 10},
        {"instances_busy": {"count": 4}, "earlier_requests": {"max_batch_size": 3}},
    ),
    "its rows do not fit": Scenario(
        "max_batch_size: 4 dynamic_batching { }",
        [Arrival(ms=0), Arrival(ms=1, rows=2), Arrival(ms=2, rows=3)],
        3,
        {"instances_busy": 8, "did_not_fit": 10},
        {"did_not_fit": {"max_batch_size": 5}, "instances_busy": {"count": 3}},
    ),
    "a request with a higher priority overtakes it": Scenario(
        "max_batch_size: 1 dynamic_batching { priority_levels: 2 default_priority_level: 2 }",
        [Arrival(ms=0), Arrival(ms=1), Arrival(ms=2, priority=1)],
        2,
        {"instances_busy": 9, "priority": 10},
        {"priority": {"priority_levels": 0, "default_priority_level": 0}, "instances_busy": {"count": 2}},
    ),
    "another shape": Scenario(
        "max_batch_size: 4 dynamic_batching { }",
        [Arrival(ms=0), Arrival(ms=1, batch_key=7), Arrival(ms=2, batch_key=8)],
        3,
        {"instances_busy": 8, "different_inputs": 10},
        {"instances_busy": {"count": 3}, "different_inputs": {"count": 2}},
    ),
    "the batch is complete at a preferred size": Scenario(
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2 ] }",
        [Arrival(ms=0), Arrival(ms=1), Arrival(ms=2), Arrival(ms=3)],
        4,
        {"instances_busy": 7, "preferred_size": 10},
        {"instances_busy": {"count": 4}, "preferred_size": {"preferred_batch_size": []}},
    ),
    "the delay of the batch before expired": Scenario(
        "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 2000 }",
        [Arrival(ms=0), Arrival(ms=3), Arrival(ms=8)],
        3,
        {"instances_busy": 4, "batch_closed": 10},
        {"batch_closed": {"max_queue_delay_microseconds": 0}, "instances_busy": {"count": 3}},
    ),
    "without a batcher": Scenario(
        "max_batch_size: 4",
        [Arrival(ms=0), Arrival(ms=1), Arrival(ms=2)],
        3,
        {"instances_busy": 8, "earlier_requests": 10},
        {"instances_busy": {"count": 3}, "earlier_requests": {"dynamic_batching": {}}},
    ),
    "its timeout passed": Scenario(
        "max_batch_size: 1 dynamic_batching { default_queue_policy { timeout_action: DELAY "
        "default_timeout_microseconds: 5000 } }",
        [Arrival(ms=0), Arrival(ms=1), Arrival(ms=7)],
        2,
        {"instances_busy": 9, "timed_out": 10},
        {"instances_busy": {"count": 2}, "timed_out": {"default_timeout_microseconds": 10000}},
    ),
    "all slots are taken": Scenario(
        "max_batch_size: 1 sequence_batching { }",
        [sequence(0, 1, start=True), sequence(1, 2, start=True, end=True), sequence(15, 1, end=True)],
        2,
        {"sequence_slot": 14, "instances_busy": 10},
        {"sequence_slot": {"max_batch_size": 2}, "instances_busy": {"count": 2}},
    ),
    "an earlier request of its sequence": Scenario(
        "max_batch_size: 2 sequence_batching { }",
        [sequence(0, 1, start=True), sequence(1, 1), sequence(2, 1, end=True)],
        3,
        {"instances_busy": 8, "sequence_order": 10},
        {},
    ),
    "slots wait for others": Scenario(
        "max_batch_size: 2 sequence_batching { direct { max_queue_delay_microseconds: 3000 "
        "minimum_slot_utilization: 1 } }",
        [sequence(0, 1, start=True)],
        1,
        {"queue_delay": 3},
        {"queue_delay": {"max_queue_delay_microseconds": 0}},
    ),
    "the oldest strategy, an earlier request of its sequence": Scenario(
        "max_batch_size: 2 sequence_batching { oldest { max_candidate_sequences: 2 } }",
        [sequence(0, 1, start=True), sequence(1, 1), sequence(2, 1, end=True)],
        3,
        {"sequence_order": 18},
        {},
    ),
    "the oldest strategy, all slots are taken": Scenario(
        "max_batch_size: 2 sequence_batching { oldest { max_candidate_sequences: 1 } }",
        [sequence(0, 1, start=True), sequence(1, 2, start=True, end=True), sequence(15, 1, end=True)],
        2,
        {"sequence_slot": 24},
        {"sequence_slot": {"max_candidate_sequences": 2}},
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_latency_is_split_into_its_causes(scenario: Scenario) -> None:
    rec = tnb.simulate(scenario.config, scenario.arrivals, tnb.fixed(scenario.execution_ms))
    blame = rec.blame(scenario.request)
    parts = {cause: ns / MS for cause, ns in blame.parts.items()}
    assert parts == {**scenario.parts, "compute_infer": scenario.execution_ms}
    assert {cause: remedy.edits for cause, remedy in blame.remedies.items()} == scenario.remedies


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_simulated_remedy_has_the_predicted_effect(scenario: Scenario) -> None:
    rec = tnb.simulate(scenario.config, scenario.arrivals, tnb.fixed(scenario.execution_ms))
    blame = rec.blame(scenario.request)
    for cause, remedy in blame.remedies.items():
        changed = rec.what_if(**remedy.edits).after.blame(scenario.request)
        assert remedy.before_ns == blame.parts[cause]
        assert remedy.after_ns == changed.parts.get(cause, 0) < remedy.before_ns
        assert remedy.latency_after_ns == changed.latency_ns < blame.latency_ns


# --- laws ---------------------------------------------------------------------------------------

QUEUES = (
    "",
    "preserve_ordering: true",
    "priority_levels: 3 default_priority_level: 2",
    "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 4000 }",
    "priority_levels: 2 default_priority_level: 1 default_queue_policy { default_timeout_microseconds: 9000 }",
)
PREFERRED = ("", "preferred_batch_size: [ 2 ]", "preferred_batch_size: [ 3, 6 ]")
DELAYS = (0, 1000, 6000)
STRATEGIES = (
    "",
    "direct { max_queue_delay_microseconds: 3000 minimum_slot_utilization: 0.5 }",
    "oldest { max_candidate_sequences: 2 }",
    "oldest { max_candidate_sequences: 3 max_queue_delay_microseconds: 3000 preferred_batch_size: [ 2 ] }",
)

dynamic = st.builds(
    lambda preferred, delay, queue: f"dynamic_batching {{ {preferred} {queue} max_queue_delay_microseconds: {delay} }}",
    st.sampled_from(PREFERRED),
    st.sampled_from(DELAYS),
    st.sampled_from(QUEUES),
)
instances = st.integers(1, 3).map(lambda count: f"instance_group {{ count: {count} }}")
services = st.sampled_from([tnb.fixed(3), tnb.linear(0.5, 1), tnb.jittered(tnb.fixed(2), sigma=0.5)])
arrivals_lists = st.lists(
    st.builds(
        Arrival,
        time_us=st.integers(0, 40).map(lambda step: step * 500.0),
        rows=st.integers(1, 6),
        priority=st.integers(0, 3),
        batch_key=st.sampled_from([None, 5]),
    ),
    min_size=1,
    max_size=25,
).map(lambda arrivals: sorted(arrivals, key=lambda arrival: arrival.time_us))
sequence_arrivals = st.lists(st.integers(1, 5), min_size=1, max_size=8).map(
    lambda lengths: tnb.sequences(lengths, every_ms=2, stagger_ms=1)
)


def check_split(rec: Recording) -> None:
    """The intervals of every request are adjacent, not empty, of known causes, and sum to its latency."""
    [config] = rec.configs.values()
    splitter = LatencySplitter(rec, config)
    completed_ns = {event.batch: event.time_ns for event in rec.events if isinstance(event, BatchExecuted)}
    for request in rec.requests:
        intervals = splitter.split(request)
        assert all(interval.duration_ns > 0 and interval.cause in CAUSES for interval in intervals)
        edges = [interval.begin_ns for interval in intervals] + [intervals[-1].end_ns]
        assert edges[0] == request.received_ns
        assert [interval.end_ns for interval in intervals] == edges[1:]
        response_ns = sum(interval.duration_ns for interval in intervals if interval.cause == "response")
        total = sum(interval.duration_ns for interval in intervals)
        assert total == request.latency_ns + response_ns
        assert edges[-1] >= completed_ns[request.batch]
        causes = {interval.cause for interval in intervals}
        assert not causes & {"overhead", "reception", "rate_limiter"}  # a simulation has no such time


@law(60, suppress_health_check=list(HealthCheck))
@given(dynamic | st.just(""), instances, arrivals_lists, services)
def test_parts_of_every_request_sum_to_its_latency(
    batching: str, group: str, arrivals: list[Arrival], service: Service
) -> None:
    check_split(tnb.simulate(f"max_batch_size: 6 {batching} {group}", arrivals, service, seed=3))


@law(60, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(STRATEGIES), instances, sequence_arrivals, services)
def test_parts_of_every_request_of_a_sequence_sum_to_its_latency(
    strategy: str, group: str, arrivals: list[Arrival], service: Service
) -> None:
    config = f"max_batch_size: 3 sequence_batching {{ {strategy} }} {group}"
    check_split(tnb.simulate(config, arrivals, service, seed=3))


# --- the interface ------------------------------------------------------------------------------


@pytest.fixture
def rec() -> Recording:
    arrivals = [(0, 1), (2000, 8), (3000, 1)]
    return tnb.simulate('name: "m" max_batch_size: 8 dynamic_batching { }', arrivals, tnb.fixed(5))


def test_slowest_request_is_the_default(rec: Recording) -> None:
    assert rec.blame() == rec.blame(3) == rec.blame(rec.requests[-1])
    assert rec.blame().latency_ns == max(request.latency_ns for request in rec.requests)


def test_request_can_be_named_by_the_clients_id(rec: Recording) -> None:
    for event in rec.events:
        if getattr(event, "serial", 0) == 3:
            event.id = "mine"
    again = Recording(rec.events, rec.configs)
    assert again.blame("mine").parts == rec.blame(3).parts
    assert again.blame("mine").title == "Request mine: 12.000 ms from reception to response"


def test_blame_of_a_request_that_did_not_run_is_an_error(rec: Recording) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected the serial or the id of a request that ran, got 9$"):
        rec.blame(9)
    with pytest.raises(InvalidArgumentError, match="at least one executed request"):
        Recording().blame()
    with pytest.raises(InvalidArgumentError, match="expected the configuration of model 'm', got none"):
        Recording(rec.events).blame()


def test_refused_request_has_its_reason() -> None:
    config = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    rec = tnb.simulate(config, [(0, 1), (1, 1), (2, 1)], tnb.fixed(5))
    with pytest.raises(InvalidArgumentError, match=r"got 3, which was refused: .*Exceeds maximum queue size"):
        rec.blame(3)


def test_table_has_the_parts_and_the_remedies(rec: Recording) -> None:
    text, markup = repr(rec.blame()), rec.blame()._repr_html_()
    for words in ("earlier_requests", "5.000", "42%", "max_batch_size: 9 removes it"):
        assert words in text
        assert words in markup


def with_one_long_execution(config: str, arrivals: list[Arrival], batch: int) -> Recording:
    """A recording in which a batch takes 90 ms, and all others 5 ms."""
    numbers = count(1)
    return tnb.simulate(config, arrivals, tnb.service_time(lambda rows: 90 if next(numbers) == batch else 5, unit="ms"))


ONE_BY_ONE = 'name: "m" max_batch_size: 1'


def test_diagnosis_names_an_unusually_long_execution() -> None:
    rec = with_one_long_execution(ONE_BY_ONE, [Arrival(ms=100 * number) for number in range(9)], 7)
    blame = rec.blame()
    assert blame.outliers == {"compute_infer": "this execution took 18 times as long as expected"}
    assert "its batch was executed; this execution took 18 times as long as expected" in repr(blame)
    assert "remedy" not in repr(blame)
    assert rec.blame(1).outliers == {}


def test_requests_waiting_for_an_unusually_long_execution_name_it() -> None:
    arrivals = [*(Arrival(ms=100 * number) for number in range(9)), Arrival(ms=801)]
    rec = with_one_long_execution(ONE_BY_ONE, arrivals, 9)
    waiting = rec.blame(10)
    assert waiting.outliers == {"instances_busy": "batch 9 took 18 times as long as expected"}
    assert waiting.remedies == {}


def test_few_executions_are_not_compared() -> None:
    rec = with_one_long_execution(ONE_BY_ONE, [Arrival(ms=100 * number) for number in range(4)], 4)
    assert rec.blame().outliers == {}


def test_request_ids_are_escaped(rec: Recording) -> None:
    request = replace(rec.requests[0], id="<b>")
    assert "<b>&lt;b&gt;" not in rec.blame(request)._repr_html_().replace("<p><b>Request &lt;b&gt;", "")
    assert "Request &lt;b&gt;" in rec.blame(request)._repr_html_()


def test_ordered_responses_wait_for_earlier_batches() -> None:
    config = "max_batch_size: 4 dynamic_batching { preserve_ordering: true } instance_group { count: 2 }"
    rec = tnb.simulate(config, [(0, 4), (1000, 1)], tnb.linear(per_row_ms=5, base_ms=0))
    blame = rec.blame(2)
    assert blame.parts == {"compute_infer": 5 * MS, "response": 14 * MS}
    assert blame.remedies["response"].edits == {"preserve_ordering": False}


def test_long_recording_is_simulated_from_an_idle_time() -> None:
    arrivals = [Arrival(ms=4 * number) for number in range(3000)] + [Arrival(ms=12_001), Arrival(ms=12_002)]
    rec = tnb.simulate("max_batch_size: 4 dynamic_batching { }", arrivals, tnb.fixed(3))
    blame = rec.blame(3002)
    assert blame.parts["instances_busy"] == 2 * MS
    assert blame.remedies["instances_busy"].edits == {"count": 2}


def test_latencies_of_a_live_server_are_split_exactly() -> None:
    with tnb.serve() as server:

        @server.model(max_batch_size=8, dynamic_batching={"max_queue_delay_microseconds": 1000})
        def double(X: tnb.FP32[4]) -> tnb.FP32[4]:
            return X * 2

        with server.record() as rec:
            tnb.load(server["double"], rate=400, requests=60).wait()
    for request in rec.requests:
        blame = rec.blame(request)
        assert blame.latency_ns == request.latency_ns + blame.parts.get("response", 0)
        assert blame.parts["compute_infer"] > 0


def test_instances_of_a_named_group_are_counted_once() -> None:
    """Function models have a named group."""
    config = 'name: "m" max_batch_size: 4 instance_group { name: "m" count: 1 } dynamic_batching { }'
    rec = tnb.simulate(config, [(0, 1), (1000, 1)], tnb.fixed(5))
    assert rec.instances == ["m_0"]
    assert rec.blame(2).parts == {"instances_busy": 4 * MS, "compute_infer": 5 * MS}


# --- the tail -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows_recording(recorded: Callable[[str], Recording]) -> Recording:
    """A recording of a real Triton under bursts, whose machine was busy with other work."""
    return recorded("rows")


@pytest.mark.parametrize("request_id", ["q1295", "q1510", "q1556", "q2438"])
def test_wait_before_an_execution_is_no_part_of_its_factor(rows_recording: Recording, request_id: str) -> None:
    """Their executions took 6 to 12 ms, as others of their size; what took long is the time before these began."""
    blame = rows_recording.blame(request_id)
    assert "compute_infer" not in blame.outliers
    assert blame.parts["overhead"] > blame.parts["compute_infer"]
    for outlier in rows_recording.outliers:
        factor = outlier.batch.compute_ns / 1e6 / rows_recording.median_ms(outlier.batch.size)
        assert factor > 2, outlier
    if request_id in ("q1295", "q2438"):
        assert re.fullmatch(
            r"its batch began (25.1|34.6) ms after it could have; the median is 0.1 ms", blame.outliers["overhead"]
        )


def test_causes_of_the_slowest_requests_are_added_up(rows_recording: Recording) -> None:
    """As by hand: compute 46 %, earlier requests 21 %, busy instances 18 %, overhead 7 %."""
    tail = rows_recording.blame(percentile=99)
    one_by_one = [rows_recording.blame(request) for request in tail.requests]
    assert len(one_by_one) == 34
    assert tail.latency_ns == sum(blame.latency_ns for blame in one_by_one) == sum(tail.parts.values())
    shares = {cause: round(100 * share) for cause, _, share, _, _ in tail.rows()}
    assert {cause: shares[cause] for cause in ("compute_infer", "earlier_requests", "instances_busy", "overhead")} == {
        "compute_infer": 47, "earlier_requests": 21, "instances_busy": 18, "overhead": 7,
    }  # fmt: skip
    assert tail.shared[0].batches == (1678, 1679)
    assert tail.shared[0].requests == 16
    assert tail.remedy is not None
    assert tail.remedy.helped > 20
    for words in (
        "34 requests (p99 and above), 90.1 to 129.2 ms", "batches 1678, 1679 (16 of 34 requests, stalled: ",
        "remedy: count: ", "helps", "stalled execution",
    ):  # fmt: skip
        assert words in repr(tail)
    assert "earlier_requests" in tail._repr_html_()


@pytest.mark.parametrize("rate", [40, 90])
def test_requests_that_are_slow_by_chance_have_no_remedy(rate: int) -> None:
    """Executions drawn again are shorter than the longest ones, whatever the configuration."""
    config = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000 }'
    varying = tnb.jittered(tnb.fixed(8), sigma=0.6)
    rec = tnb.simulate(f"{config} instance_group {{ count: 4 }}", tnb.poisson(rate, 12, seed=1), varying, seed=rate)
    tail = rec.blame(percentile=99)
    assert tail.parts["compute_infer"] > 0.8 * tail.latency_ns
    assert tail.remedy is None
    assert "compute_infer" not in rec.blame().remedies


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ("latency > 8", lambda request, batch: request.latency_ns > 8 * MS),
        ("rows > 2", lambda request, batch: request.size > 2),
        ("batch > 2 and time < 100", lambda request, batch: batch > 2 and request.received_ns < 100 * MS),
        ("compute > 7 or queue < 1", lambda request, batch: batch > 2 or request.queue_ns < 1 * MS),
        ("priority < 1", lambda request, batch: True),
    ],
)
def test_requests_of_a_condition_are_explained(where: str, chosen: Callable[[RequestRecord, int], bool]) -> None:
    arrivals = [Arrival(one.time_us, 1 + number % 3) for number, one in enumerate(tnb.poisson(150, 1, seed=1))]
    rec = tnb.simulate('name: "m" max_batch_size: 4 dynamic_batching { }', arrivals, tnb.linear(1, 5))
    sizes = {batch.number: batch.size for batch in rec.batches}
    tail = rec.blame(where=where)
    expected = {request.serial for request in rec.requests if chosen(request, sizes[request.batch])}
    assert {request.serial for request in tail.requests} == expected
    assert sum(tail.parts.values()) == tail.latency_ns
    assert where in tail.title


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"percentile": 100}, "percentile expected a number from 0 to below 100, got 100"),
        ({"percentile": "99"}, "percentile expected a number or None, got '99'"),
        ({"percentile": 99, "where": "rows > 1"}, "expected a request, percentile= or where=, got several"),
        ({"where": "latency > 1000"}, "blame expected requests with latency > 1000, got none of 3"),
        ({"where": "colour > 1"}, r"expected a quantity \(batch, compute, latency, priority, queue, rows, time\)"),
        ({"request": 1, "percentile": 99}, "expected a request, percentile= or where=, got several"),
    ],
)
def test_tail_that_cannot_be_explained_is_an_error(rec: Recording, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        rec.blame(**arguments)
    with pytest.raises(InvalidArgumentError, match="at least one executed request, got none"):
        Recording().blame(percentile=50)


def test_instances_of_different_speed_are_shown_and_said() -> None:
    """One instance takes 1.25 times as long as the other, in the recording and in simulations of it."""
    config = 'name: "m" max_batch_size: 4 dynamic_batching { } instance_group { count: 2 }'
    rec = tnb.simulate(config, tnb.poisson(200, 4, seed=1), tnb.fixed(8))
    slow = {event.batch for event in rec.events if isinstance(event, BatchExecuted) and event.instance.endswith("1")}
    for event in rec.events:
        if isinstance(event, BatchExecuted) and event.batch in slow:
            late_ns = (event.time_ns - event.exec_start_ns) // 4
            event.time_ns += late_ns
            event.compute_end_ns += late_ns
            event.exec_end_ns += late_ns
    uneven = Recording(sorted(rec.events, key=lambda event: event.time_ns), rec.configs)
    said = "instances have different speeds: an execution of m_0_1 takes 1.2"
    assert said in repr(uneven.twin())
    assert said in "".join(uneven.twin().predict().remarks)
    assert said in repr(uneven.blame(percentile=90))
    assert said[1:] in repr(uneven.what_if(count=1))
    even = tnb.simulate(config, tnb.poisson(200, 4, seed=1), tnb.fixed(8))
    assert "different speeds" not in repr(even.twin())


def test_file_may_name_another_instance_where_a_batch_was_executed() -> None:
    config = 'name: "m" max_batch_size: 2 instance_group { count: 2 } sequence_batching { direct { } }'
    rec = tnb.simulate(config, tnb.sequences([2, 2], every_ms=5), tnb.fixed(3))
    executed = next(event for event in rec.events if isinstance(event, BatchExecuted))
    events = [replace(event, instance="m_7") if event is executed else event for event in rec.events]
    blame = Recording(events, rec.configs).blame()
    assert repr(blame)


@pytest.mark.parametrize("asked", [{}, {"percentile": 90}], ids=str)
def test_interrupted_search_for_remedies_keeps_the_causes(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    single = tnb.simulate("max_batch_size: 4 dynamic_batching { }", [(0, 1)] * 40, tnb.fixed(10))
    models = {"net": "max_batch_size: 4", "caller": "max_batch_size: 4"}
    services: dict[str, Any] = {"net": tnb.fixed(10), "caller": tnb.calling(["net"])}
    calls = tnb.simulate(models, [(0, 1)] * 40, services)

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tritonnb.lab.analysis.rerun.Rerun.run", interrupt)
    monkeypatch.setattr("tritonnb.lab.analysis.pipeline_what_if.PipelineRerun.run", interrupt)
    for rec, cause in ((single, "earlier_requests"), (calls, "instances_busy")):
        for text in (repr(rec.blame(**asked)), rec.blame(**asked)._repr_html_()):
            assert "not known, since the search was interrupted" in text
            assert cause in text
