"""What is sent to a view: exact counts, and everything, or a sample if that is too much."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

import tritonnb as tnb
from tritonnb.core.events import BatchExecuted, CacheHit, EnsembleExecuted, pack
from tritonnb.notebook.feed import BURST, MOST_BATCHES, MOST_MEMBERS, Feed
from tritonnb.notebook.view_encoding import TICKS
from tritonnb.notebook.view_metadata import describe_config
from tritonnb.recording.recording import Recording

DYNAMIC = 'name: "m" max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 5000 }'
DIRECT = """name: "m" max_batch_size: 2 instance_group { count: 2 }
    sequence_batching { direct { } state { input_name: "S" output_name: "S" data_type: TYPE_FP32 dims: 3 } }"""


def feed_of(rec: Recording, **options: Any) -> Feed:
    return Feed("m", rec.configs["m"], rec.span_ns[0], **options)


def rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the batches that were encoded as columns."""
    return [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]


def ms(ticks: float) -> float:
    return ticks / TICKS


@pytest.fixture
def rec() -> Recording:
    return tnb.simulate(DYNAMIC, tnb.poisson(rate=800, duration=0.2, seed=3), tnb.fixed(4))


def test_everything_of_a_recording_is_sent(rec: Recording) -> None:
    feed = feed_of(rec, sample=False, keep=5000)
    feed.fold(map(pack, rec.events))
    feed.flush(rec.span_ns[1])
    sent = json.loads(json.dumps(feed.history(rec.span_ns[1])))
    batches = rows(sent["batches"])
    assert [(each["n"], each["rows"], each["why"]) for each in batches] == [
        (each.number, each.size, each.why) for each in sorted(rec.batches, key=lambda each: each.sent_ns)
    ]
    assert sum(len(each["members"]) for each in batches) == len(rec.requests)
    first, recorded = batches[0], rec.batches[0]
    assert ms(first["end"] - first["start"]) == pytest.approx(recorded.compute_ns / 1e6, abs=2e-4)
    assert ms(first["sent"] - first["oldest"]) == pytest.approx(recorded.queue_ns / 1e6, abs=2e-4)
    assert sent["counts"]["requests"] == len(rec.requests)
    assert sent["counts"]["rows"] == sum(each.size for each in rec.requests)
    assert sent["depth"] == 0
    assert sent["pending"] == []


def test_deliveries_add_up_to_the_history(rec: Recording) -> None:
    feed = feed_of(rec)
    batches, depths = {}, []  # type: ignore[var-annotated]
    for at in range(0, len(rec.events), 7):
        part = rec.events[at : at + 7]
        feed.fold(map(pack, part))
        sent = feed.flush(part[-1].time_ns)
        batches |= {each["n"]: each for each in rows(sent["batches"])}
        for done in rows(sent["done"]):
            batches[done["n"]].update(done)
        depths += sent["depths"]
    history = feed.history(rec.span_ns[1])
    assert list(batches.values()) == rows(history["batches"])
    assert depths == history["depths"]
    assert feed.quiet


def test_depth_is_that_of_the_scheduler(rec: Recording) -> None:
    feed = feed_of(rec, sample=False, keep=5000)
    feed.fold(map(pack, rec.events))
    depths = dict(map(tuple, feed.flush(0)["depths"]))
    batches = rows(feed.history(0)["batches"])
    for batch in batches:
        if [each["sent"] for each in batches].count(batch["sent"]) == 1:
            assert depths[batch["sent"]] == batch["depth"]


def test_waiting_requests_are_sent_while_they_wait() -> None:
    rec = tnb.simulate(DYNAMIC, [(0, 1), (1000, 2)], tnb.fixed(1))
    feed = feed_of(rec)
    feed.fold(pack(each) for each in rec.events if each.time_ns < 2_000_000)
    sent = feed.flush(2_000_000)
    assert [(label, size, ms(queued), row) for label, size, _, queued, row, *_ in sent["pending"]] == [
        ("1", 1, 0.0, 0),
        ("2", 2, 1.0, 1),
    ]
    assert (sent["depth"], ms(sent["now"]), feed.quiet) == (2, 2.0, False)


def test_a_sample_is_drawn_and_everything_is_counted() -> None:
    arrivals = tnb.constant(rate=400_000, duration=0.02)
    rec = tnb.simulate('name: "m" max_batch_size: 64 dynamic_batching { }', arrivals, tnb.fixed(0.1))
    feed = feed_of(rec)
    feed.fold(map(pack, rec.events))
    sent = feed.flush(rec.span_ns[1])
    batches = rows(sent["batches"])
    drawn = sum(len(each["members"]) for each in batches)
    every, part = batches[0]["drawn"]
    assert drawn <= BURST * MOST_MEMBERS + len(batches)
    assert every * part > 1
    assert sent["counts"]["requests"] == 8000
    assert sent["counts"]["rows"] == 8000
    assert len(sent["depths"]) <= 200
    assert max(depth for _, depth in sent["depths"]) > 0
    assert sum(each["requests"] for each in batches) >= drawn


def test_requests_that_are_not_drawn_are_counted_in_each_delivery(rec: Recording) -> None:
    """After a delivery that was too large, only every k-th batch is kept in the first place."""
    rec = tnb.simulate('name: "m" max_batch_size: 1', tnb.constant(rate=20_000, duration=0.5), tnb.fixed(0.01))
    feed = feed_of(rec)
    events = list(map(pack, rec.events))
    delivered = []
    for at in range(0, len(events), 1500):
        feed.fold(events[at : at + 1500])
        delivered.append(feed.flush(events[at][1]))
    assert delivered[-1]["counts"]["requests"] == delivered[-1]["counts"]["batches"] == len(rec.requests)
    assert delivered[-1]["depth"] == 0
    assert feed.quiet
    batches = [rows(delivery["batches"]) for delivery in delivered]
    assert len(batches[0]) <= BURST * MOST_BATCHES
    assert all(len(each) <= MOST_BATCHES + 1 for each in batches[3:])
    assert all(each["end"] is not None for delivery in batches[:-1] for each in delivery[:-1])
    assert not feed._waiting


def test_lanes_are_those_of_the_current_instances(rec: Recording) -> None:
    config = rec.configs["m"]
    config.instance_group.add(count=3)
    feed = Feed("m", config, 0)
    assert feed.history(0)["instances"] == ["m_0_0", "m_0_1", "m_0_2"]
    fewer = pb.ModelConfig()
    fewer.CopyFrom(config)
    fewer.instance_group[0].count = 1
    assert feed.reconfigure(fewer)
    assert feed.flush(0)["instances"] == ["m_0_0"]


def test_history_is_bounded(rec: Recording) -> None:
    feed = feed_of(rec, keep=5)
    feed.fold(map(pack, rec.events))
    feed.flush(0)
    history = feed.history(0)
    assert len(rows(history["batches"])) == 5
    assert history["counts"]["batches"] == len(rec.batches)


def test_requests_from_before_the_view_count_until_they_leave(rec: Recording) -> None:
    waiting = [each for each in rec.events if type(each).__name__ == "RequestArrived"][:1]
    feed = feed_of(rec, depth=1)
    feed.fold(pack(each) for each in rec.events if each not in waiting)
    sent = feed.flush(0)
    assert sent["depth"] == 0
    assert min(depth for _, depth in sent["depths"]) == 0


def test_failed_requests_are_counted_and_sent_with_their_batch(rec: Recording) -> None:
    failing = [
        replace(each, requests=tuple((*request[:4], "OTHER") for request in each.requests))
        if isinstance(each, BatchExecuted) and each.batch % 2
        else each
        for each in rec.events
    ]
    feed = feed_of(rec, sample=False, keep=5000)
    feed.fold(map(pack, failing))
    feed.flush(rec.span_ns[1])
    sent = feed.history(rec.span_ns[1])
    assert sent["counts"]["failed"] == sum(len(each.requests) for each in rec.batches if each.number % 2)
    assert all(each["failed"] == (each["requests"] if each["n"] % 2 else 0) for each in rows(sent["batches"]))


def test_refused_requests_are_sent_with_their_reason() -> None:
    config = (
        'name: "m" max_batch_size: 1 dynamic_batching { default_queue_policy { default_timeout_microseconds: 500 } }'
    )
    rec = tnb.simulate(config, [(0, 1), (10, 1)], tnb.fixed(10))
    feed = feed_of(rec)
    feed.fold(map(pack, rec.events))
    ((begin, end, label, _, message, _),) = feed.flush(0)["refused"]
    assert (ms(begin), ms(end), label, message) == (0.01, pytest.approx(0.51), "2", "Request timeout expired")  # type: ignore[comparison-overlap]


def test_slots_are_those_of_the_recording() -> None:
    arrivals = tnb.sequences([3] * 6, every_ms=60, stagger_ms=10)
    rec = tnb.simulate(DIRECT, arrivals, tnb.fixed(5))
    feed = feed_of(rec, sample=False, keep=5000)
    feed.fold(map(pack, rec.events))
    feed.flush(rec.span_ns[1])
    sent = feed.history(rec.span_ns[1])
    assert [each[:3] for each in sent["occupancy"]] == [
        [each.sequence, each.instance, each.slot] for each in rec.slot_occupancy
    ]
    assert [each[4] for each in sent["occupancy"]] == [
        each.assigned_ns * TICKS // 1_000_000 for each in rec.slot_occupancy
    ]
    assert [each[7] for each in sent["occupancy"]] == [3] * 6
    assert sent["counts"]["nulls"] == sum(each.requests.count(None) for each in rec.batches)
    assert [len(each["members"]) for each in rows(sent["batches"])] == sent["batches"]["rows"]


def test_metadata_have_the_values_of_the_configuration() -> None:
    rec = tnb.simulate(DIRECT, [tnb.Arrival(0, sequence_id=1, sequence_start=True)], tnb.fixed(1))
    meta = describe_config("m", rec.configs["m"])
    assert (meta["batcher"], meta["strategy"], meta["slots"], meta["idle"]) == ("sequence", "direct", 2, 1000.0)
    assert meta["states"] == ["S [3]"]
    dynamic = describe_config("m", tnb.simulate(DYNAMIC, [(0, 1)], tnb.fixed(1)).configs["m"])
    assert (dynamic["preferred"], dynamic["delay"], dynamic["max_batch_size"]) == ([4], 5.0, 8)


def test_cache_hits_are_requests_without_a_batch(rec: Recording) -> None:
    feed = feed_of(rec)
    feed.fold([pack(CacheHit(5, "m", 1, 77, 3, 1))])
    assert not feed.quiet
    counts = feed.flush(10)["counts"]
    assert (counts["requests"], counts["cached"], counts["batches"]) == (1, 1, 0)
    assert feed.quiet


def test_an_ensemble_names_the_models_to_watch() -> None:
    steps = "".join(f'step {{ model_name: "{name}" model_version: -1 }} ' for name in ("detect", "crop", "detect"))
    config = text_format.Parse(f'platform: "ensemble" ensemble_scheduling {{ {steps} }}', pb.ModelConfig())
    feed = Feed("e", config, 0)
    feed.fold([pack(EnsembleExecuted(9, "e", 1, 7, 1, 0, 0, 1, 2, 3, 4, ""))])
    assert feed.flush(10)["counts"]["requests"] == 1
    assert feed.meta["note"].endswith("Watch the models of its steps: detect, crop.")
