"""The same scheduler in virtual time: workloads, service times, and recordings."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import RequestArrived, RequestCancelled
from tritonnb.lab.simulation.arrivals import ClosedLoop, bursts, constant, poisson, sequences
from tritonnb.lab.simulation.run import instance_count
from tritonnb.lab.simulation.service import fixed, jittered, linear, measured, table
from tritonnb.lab.simulation.simulate import simulate
from tritonnb.recording.arrivals import Arrival

BATCHING = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000 }"
THIRD = 50_000 / 3
GUIDE = [(0, 4), (THIRD, 2), (0, 2), (2 * THIRD, 6), (2 * THIRD, 2)]


@pytest.mark.parametrize(
    ("batching", "sizes", "total_ms"),
    [
        ("", [4, 2, 2, 6, 2], 250),
        ("dynamic_batching { }", [4, 4, 8], 150),
        ("dynamic_batching { max_queue_delay_microseconds: 20000 }", [8, 8], 117),
    ],
)
def test_simulation_reproduces_the_conceptual_guide(batching: str, sizes: list[int], total_ms: int) -> None:
    rec = simulate(f"max_batch_size: 8 {batching}", GUIDE, fixed(50))
    assert [batch.size for batch in rec.batches] == sizes
    assert round(rec.batches[-1].exec_end_ns / 1e6) == total_ms


def test_simulated_batches_have_the_reasons_of_live_ones() -> None:
    assert "max_queue_delay 1.0 ms" in simulate(BATCHING, [(0, 1)], fixed(1)).batches[0].why


def test_configuration_may_be_a_message_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text(BATCHING)
    message = text_format.Parse(BATCHING, pb.ModelConfig())
    path = tmp_path / "config.pbtxt"
    first, *others = (simulate(config, GUIDE, fixed(5)) for config in (BATCHING, message, path, str(path)))
    assert all(first.events == other.events for other in others)
    with pytest.raises(InvalidArgumentError, match=r"cannot read the configuration '.*other\.pbtxt'"):
        simulate(tmp_path / "other.pbtxt", GUIDE, fixed(5))


@pytest.mark.parametrize(
    ("groups", "count"),
    [("", 1), ("{ count: 3 }", 3), ("{ }", 1), ("{ count: 2 gpus: [ 0, 1 ] }, { count: 1 }", 5)],
)
def test_instances_are_counted_over_groups_and_their_devices(groups: str, count: int) -> None:
    text = f"max_batch_size: 1 instance_group [ {groups} ]" if groups else "max_batch_size: 1"
    assert instance_count(text_format.Parse(text, pb.ModelConfig())) == count


def test_batch_events_contain_the_model_name() -> None:
    assert simulate('name: "m" max_batch_size: 1', [(0, 1)], fixed(5)).batches[0].instance == "m_0_0"


@given(st.integers(0, 1000), st.floats(0, 1))
def test_same_seed_creates_an_identical_recording(seed: int, sigma: float) -> None:
    arrivals = poisson(rate=2000, duration=0.02, seed=seed)
    first, second = (
        simulate(BATCHING, arrivals, jittered(linear(per_row_ms=0.1, base_ms=1), sigma=sigma), seed=seed)
        for _ in range(2)
    )
    assert first.events == second.events
    assert len(first.requests) == len(arrivals)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[str, list[Arrival], dict[str, Any]]:
    """A configuration with any kind of scheduling, arrivals, some of which are cancelled, and options."""
    scheduling, steps = draw(
        st.sampled_from(
            [
                ("dynamic_batching { max_queue_delay_microseconds: 1000 }", 1),
                (
                    "dynamic_batching { default_queue_policy { max_queue_size: 3 default_timeout_microseconds: 900 } }",
                    1,
                ),
                ("dynamic_batching { preserve_ordering: true }", 1),
                ("", 3),
                ("sequence_batching { direct { } }", 1),
                ("sequence_batching { oldest { max_candidate_sequences: 2 } }", 1),
                ("sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } }", 4),
            ]
        )
    )
    arrivals = []
    for _ in range(draw(st.integers(1, 25))):
        time_us = draw(st.integers(0, 9)) * 700
        cancel_us = draw(st.none() | st.integers(0, 12).map(lambda number: number * 600))
        sequence = draw(st.integers(1, 3)) if "direct" in scheduling or "oldest {" in scheduling else 0
        starts, ends = draw(st.booleans()), draw(st.booleans())
        flags = {"sequence_start": starts, "sequence_end": ends, "sequence_id": sequence}
        options: dict[str, Any] = {} if "iterative" in scheduling else flags
        arrivals.append(Arrival(time_us, cancel_us=cancel_us, steps=draw(st.integers(1, steps)), **options))
    config = f'name: "m" max_batch_size: 4 {scheduling} instance_group {{ count: {draw(st.integers(1, 2))} }}'
    return config, arrivals, {"seed": draw(st.integers(0, 9)), "replicas": draw(st.integers(1, 2))}


@given(workloads())
def test_keep_option_does_not_change_the_simulation(workload: tuple[str, list[Arrival], dict[str, Any]]) -> None:
    config, arrivals, options = workload
    service = jittered(linear(per_row_ms=0.1, base_ms=1), sigma=0.3)
    whole = simulate(config, arrivals, service, **options)
    kept = simulate(config, arrivals, service, keep="latencies", **options)
    sizes = {batch.number: batch.size for batch in whole.batches}
    assert sorted(
        zip(kept.serial, kept.latency_ns, kept.queue_ns, kept.rows, kept.batch_size[kept.batch], strict=True)
    ) == sorted(
        (request.serial, request.latency_ns, request.queue_ns, request.size, sizes[request.batch])
        for request in whole.requests
    )
    summary = simulate(config, arrivals, service, keep="summary", **options)
    assert summary == {name: whole.summary()[name] for name in summary}


def test_arrivals_may_be_an_iterator_if_only_numbers_are_kept() -> None:
    arrivals = [(1000 * number, 1) for number in range(100)]
    in_flight: list[int] = []

    def lazily() -> Iterator[tuple[float, int]]:
        for number, arrival in enumerate(arrivals, 1):
            in_flight.append(number)
            yield arrival

    def service(rows: int) -> int:
        in_flight.append(-len(in_flight))
        return 500_000

    kept = simulate(BATCHING, lazily(), service, keep="summary")
    assert kept == simulate(BATCHING, arrivals, fixed(0.5)).summary()
    assert in_flight.index(100) > 100, "arrivals were read before they were due"
    with pytest.raises(InvalidArgumentError, match=r"or an iterator in the order of time, got 5 after 9 µs"):
        simulate(BATCHING, iter([(9, 1), (5, 1)]), fixed(1), keep="summary")
    with pytest.raises(InvalidArgumentError, match="keep expected 'everything', 'latencies' or 'summary', got 'all'"):
        simulate(BATCHING, arrivals, fixed(1), keep="all")  # type: ignore[call-overload]


def test_refused_requests_are_in_the_recording() -> None:
    config = "max_batch_size: 1 dynamic_batching { default_queue_policy { default_timeout_microseconds: 500 } }"
    rec = simulate(config, [(0, 1), (10, 1), (20, 1)], fixed(10))
    assert [rejected.message for rejected in rec.refused] == ["Request timeout expired"] * 2


def test_client_can_cancel_a_request() -> None:
    config = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 9 } }"
    rec = simulate(config, [Arrival(0), Arrival(10, cancel_us=100)], fixed(10))
    assert [rejected.counted_as for rejected in rec.refused] == ["CANCELED"]
    assert [(event.serial, event.time_ns) for event in rec.events if isinstance(event, RequestCancelled)] == [
        (2, 100_000)
    ]


def test_arrivals_in_microseconds_become_nanoseconds() -> None:
    rec = simulate("max_batch_size: 1", [(2.5, 1), (40, 1)], fixed(0))
    assert [batch.exec_start_ns for batch in rec.batches] == [2_500, 40_000]


@pytest.mark.parametrize("time_ns", [-1, math.inf, math.nan, None, "5"])
def test_service_model_without_a_time_is_refused(time_ns: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="service model expected a time in ns of at least 0"):
        simulate("max_batch_size: 1", [(0, 1)], lambda rows: time_ns)


@pytest.mark.parametrize("enabled", [False, True])
def test_simulation_leaves_the_garbage_collector_as_it_is(enabled: bool) -> None:
    seen: list[bool] = []
    was = gc.isenabled()

    def service(rows: int) -> int:
        seen.append(gc.isenabled())
        return 1000

    try:
        gc.enable() if enabled else gc.disable()
        simulate("max_batch_size: 1", [(0, 1)], service)
        assert (seen, gc.isenabled()) == ([enabled], enabled)
    finally:
        gc.enable() if was else gc.disable()


def test_closed_loop_has_at_most_one_request_in_flight_for_each_client() -> None:
    rec = simulate("max_batch_size: 8 dynamic_batching { }", ClosedLoop(clients=4, requests=20), fixed(10))
    assert len(rec.requests) == 20
    assert max(batch.size for batch in rec.batches) <= 4


def test_closed_loop_clients_wait_the_think_time_between_requests() -> None:
    rec = simulate("max_batch_size: 1", ClosedLoop(clients=1, requests=2, think_ms=0.0025), fixed(1))
    assert [batch.exec_start_ns for batch in rec.batches] == [0, 1_002_500]


def test_sequences_run_in_slots() -> None:
    config = "max_batch_size: 2 sequence_batching { direct { } }"
    rec = simulate(config, sequences([3, 3, 3], every_ms=1, stagger_ms=0.01), fixed(0.1))
    assert len(rec.requests) == 9
    assert max(batch.size for batch in rec.batches) == 2


def test_instances_of_the_instance_group_work_side_by_side() -> None:
    config = "max_batch_size: 1 instance_group { count: 2 }"
    rec = simulate(config, [(0, 1), (0, 1)], fixed(10))
    assert {batch.instance for batch in rec.batches} == {"simulated_0_0", "simulated_0_1"}
    assert max(batch.exec_end_ns for batch in rec.batches) == 10_000_000


def test_generators_yield_ordered_arrivals() -> None:
    for arrivals in (constant(100, 1), poisson(100, 1, seed=3), bursts(3, 100, 1), sequences([4, 2], every_ms=0.007)):
        times = [arrival.time_us for arrival in arrivals]
        assert times == sorted(times)
        assert times[0] >= 0


def test_service_times_follow_their_models() -> None:
    assert table({1: 10, 2: 12, 4: 20})(3) == 16_000_000
    assert table({2: 5})(9) == 5_000_000
    with pytest.raises(InvalidArgumentError, match="batch sizes to milliseconds with at least one entry"):
        table({})
    part = {"count": 2, "ns": 2_000_000}
    entry = {"batch_size": 4, "compute_input": part, "compute_infer": part, "compute_output": part}
    assert measured({"batch_stats": [entry]})(4) == 3_000_000


def test_recording_is_in_order_of_time_and_of_version_1() -> None:
    rec = simulate(BATCHING, [Arrival(0), Arrival(900, cancel_us=950), Arrival(5000)], fixed(2))
    times = [event.time_ns for event in rec.events]
    assert times == sorted(times)
    assert times[0] < times[-1]
    assert {event.version for event in rec.events} == {1}


def test_arrival_has_all_attributes_of_a_request() -> None:
    rec = simulate(BATCHING, [Arrival(3, 2, 1, 7, batch_key="other"), (4, 1)], fixed(1))
    first, second = (event for event in rec.events if isinstance(event, RequestArrived))
    assert (first.time_ns, first.size, first.priority, first.timeout_us) == (3_000, 2, 1, 7)
    assert first.shape_key == hash("other")
    assert (second.time_ns, second.size, second.shape_key) == (4_000, 1, 0)


def test_rows_beyond_max_batch_size_are_refused_unless_the_model_does_not_batch() -> None:
    for most, rows in ((8, 9), (1, 2)):
        with pytest.raises(InvalidArgumentError, match=f"batch-size must be <= {most} for 'simulated', got {rows}"):
            simulate(f"max_batch_size: {most}", [(0, rows)], fixed(1))
    assert simulate("max_batch_size: 0", [(0, 9)], fixed(1)).batches[0].size == 9
