"""A recording as a timeline that Perfetto opens: what a viewer finds is what the recording holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.recording.perfetto import trace_events

CONFIG = """name: "m" max_batch_size: 4 dynamic_batching { default_queue_policy { default_timeout_microseconds: 9000 } }
instance_group { count: 2 }"""


@pytest.fixture(scope="module")
def rec() -> tnb.Recording:
    return tnb.simulate(CONFIG, tnb.poisson(400, 0.1, seed=2), tnb.fixed(15))


def phase(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in events if each["ph"] == kind]


def test_every_instance_is_a_lane_and_every_batch_a_slice_that_says_why(rec) -> None:
    events = trace_events(rec)
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in phase(events, "M")}
    assert names == {(1, 0): "m", (1, 1): "m_0_0", (1, 2): "m_0_1"}
    slices = [each for each in phase(events, "X") if "row" in each["name"]]
    found = [(names[each["pid"], each["tid"]], each["args"]["batch"], each["args"]["why"]) for each in slices]
    assert found == [(each.instance, each.number, each.why) for each in rec.batches]
    assert all(each["dur"] == 15_000 for each in slices)


def test_slices_of_a_lane_lie_in_each_other_or_apart(rec) -> None:
    for lane in (1, 2):
        slices = [each for each in phase(trace_events(rec), "X") if each["tid"] == lane]
        spans = [(round(each["ts"] * 1000), round((each["ts"] + each["dur"]) * 1000)) for each in slices]
        for begin, end in spans:
            crossing = [(a, b) for a, b in spans if begin < a < end < b]
            assert not crossing


def test_every_wait_begins_and_ends_and_refusals_are_told(rec) -> None:
    begun, ended = (phase(trace_events(rec), kind) for kind in "be")
    assert [each["id"] for each in begun] == [each["id"] for each in ended]
    assert all(first["ts"] <= last["ts"] for first, last in zip(begun, ended, strict=True))
    assert len(begun) == len(rec.arrivals())
    assert rec.refused
    assert sum("refused" in each["args"] for each in begun) == len(rec.refused)


def test_the_counter_ends_at_nothing_waiting(rec) -> None:
    counted = phase(trace_events(rec), "C")
    assert max(each["args"]["requests"] for each in counted) > 1
    assert counted[-1]["args"]["requests"] == 0
    assert [each["ts"] for each in counted] == sorted(each["ts"] for each in counted)


def test_null_requests_are_named(rec) -> None:
    config = "max_batch_size: 2 sequence_batching { direct { } }"
    arrivals = [
        tnb.Arrival(0, sequence_id=1, sequence_start=True),
        tnb.Arrival(1, sequence_id=2, sequence_start=True),
        tnb.Arrival(90_000, sequence_id=2, sequence_end=True),
    ]
    events = trace_events(tnb.simulate(config, arrivals, tnb.fixed(1)))
    assert [each["args"]["requests"] for each in phase(events, "X") if "row" in each["name"]][-1] == ["null", 3]


def test_models_are_processes_and_times_begin_at_nothing(tmp_path: Path) -> None:
    runs = [tnb.simulate(f'name: "{name}" max_batch_size: 2', [(5, 1), (7, 1)], tnb.fixed(1)) for name in "ba"]
    both = tnb.Recording([event for rec in runs for event in rec.events], {**runs[0].configs, **runs[1].configs})
    both.to_perfetto(tmp_path / "timeline.json")
    content = json.loads((tmp_path / "timeline.json").read_text())
    assert content["displayTimeUnit"] == "ms"
    events = content["traceEvents"]
    assert {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"} == {1: "a", 2: "b"}
    assert min(each["ts"] for each in events if "ts" in each) == 0


def test_nothing_recorded_is_an_empty_timeline() -> None:
    assert trace_events(tnb.Recording()) == []
