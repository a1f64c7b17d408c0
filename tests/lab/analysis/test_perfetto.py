"""A recording as a timeline that Perfetto opens: what a viewer finds is what the recording holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.lab.analysis.perfetto import trace_events
from tritonnb.telemetry.trace_entry import TraceEvent

CONFIG = """name: "m" max_batch_size: 4 dynamic_batching { default_queue_policy { default_timeout_microseconds: 9000 } }
instance_group { count: 2 }"""


@pytest.fixture(scope="module")
def rec() -> tnb.Recording:
    return tnb.simulate(CONFIG, tnb.poisson(400, 0.1, seed=2), tnb.fixed(15))


def phase(events: list[TraceEvent], kind: str) -> list[Any]:
    return [event for event in events if event["ph"] == kind]


def test_every_instance_is_a_lane_and_every_batch_is_a_slice_with_its_reason(rec: tnb.Recording) -> None:
    events = trace_events(rec)
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in phase(events, "M")}
    assert names == {(1, 0): "m", (1, 1): "m_0_0", (1, 2): "m_0_1"}
    slices = [event for event in phase(events, "X") if "row" in event["name"]]
    drawn = [(names[event["pid"], event["tid"]], event["args"]["batch"], event["args"]["why"]) for event in slices]
    assert drawn == [(batch.instance, batch.number, batch.why) for batch in rec.batches]
    assert all(event["dur"] == 15_000 for event in slices)


def test_slices_of_a_lane_are_nested_or_disjoint(rec: tnb.Recording) -> None:
    for lane in (1, 2):
        slices = [event for event in phase(trace_events(rec), "X") if event["tid"] == lane]
        spans = [(round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)) for event in slices]
        for begin, end in spans:
            crossing = [(a, b) for a, b in spans if begin < a < end < b]
            assert not crossing


def test_waits_have_begin_and_end_and_refusals_are_marked(rec: tnb.Recording) -> None:
    begun, ended = (phase(trace_events(rec), kind) for kind in "be")
    assert [event["id"] for event in begun] == [event["id"] for event in ended]
    assert all(first["ts"] <= last["ts"] for first, last in zip(begun, ended, strict=True))
    assert len(begun) == len(rec.arrivals())
    assert rec.refused
    assert sum("refused" in event["args"] for event in begun) == len(rec.refused)


def test_pending_requests_counter_ends_at_zero(rec: tnb.Recording) -> None:
    counted = phase(trace_events(rec), "C")
    assert max(event["args"]["requests"] for event in counted) > 1
    assert counted[-1]["args"]["requests"] == 0
    assert [event["ts"] for event in counted] == sorted(event["ts"] for event in counted)


def test_null_requests_are_named(rec: tnb.Recording) -> None:
    config = "max_batch_size: 2 sequence_batching { direct { } }"
    arrivals = [
        tnb.Arrival(0, sequence_id=1, sequence_start=True),
        tnb.Arrival(1, sequence_id=2, sequence_start=True),
        tnb.Arrival(90_000, sequence_id=2, sequence_end=True),
    ]
    events = trace_events(tnb.simulate(config, arrivals, tnb.fixed(1)))
    assert [event["args"]["requests"] for event in phase(events, "X") if "row" in event["name"]][-1] == ["null", 3]


def test_trace_has_a_process_for_each_model_and_times_from_zero(tmp_path: Path) -> None:
    runs = [tnb.simulate(f'name: "{name}" max_batch_size: 2', [(5, 1), (7, 1)], tnb.fixed(1)) for name in "ba"]
    both = tnb.Recording([event for rec in runs for event in rec.events], {**runs[0].configs, **runs[1].configs})
    both.to_perfetto(tmp_path / "timeline.json")
    content = json.loads((tmp_path / "timeline.json").read_text())
    assert content["displayTimeUnit"] == "ms"
    events = content["traceEvents"]
    assert {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        1: "a",
        2: "b",
    }
    assert min(event["ts"] for event in events if "ts" in event) == 0


def test_empty_recording_is_an_empty_timeline() -> None:
    assert trace_events(tnb.Recording()) == []
