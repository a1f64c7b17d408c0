"""Deliveries to a view: exact counts at every rate, and single batches as long as there are few."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

import tritonnb as tnb
from tritonnb.core.events import BatchExecuted, BatchSent, CacheHit, EnsembleExecuted
from tritonnb.core.packed_events import pack
from tritonnb.notebook import view_session
from tritonnb.notebook.batch_tracker import BURST, MOST_BATCHES, MOST_MEMBERS
from tritonnb.notebook.view_encoding import NUMBER, TICKS
from tritonnb.notebook.view_session import ViewSession, describe_config, recorded_history
from tritonnb.recording.batches import Batch, RequestRecord
from tritonnb.recording.recording import Recording

DYNAMIC = 'name: "m" max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 5000 }'
DIRECT = """name: "m" max_batch_size: 2 instance_group { count: 2 }
    sequence_batching { direct { } state { input_name: "S" output_name: "S" data_type: TYPE_FP32 dims: 3 } }"""


def session_of(rec: Recording, **options: Any) -> ViewSession:
    return ViewSession("m", rec.configs["m"], rec.span_ns[0], **options)


def rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the batches that were encoded as columns."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def ms(ticks: float) -> float:
    return ticks / TICKS


@pytest.fixture
def rec() -> Recording:
    return tnb.simulate(DYNAMIC, tnb.poisson(rate=800, duration=0.2, seed=3), tnb.fixed(4))


def test_whole_recording_is_sent_to_the_view(rec: Recording) -> None:
    session = session_of(rec, limited=False, keep=5000)
    session.tracker.fold(map(pack, rec.events))
    session.flush(rec.span_ns[1])
    sent = json.loads(json.dumps(session.history()))
    batches = rows(sent["batches"])
    assert [(batch["n"], batch["rows"], batch["why"]) for batch in batches] == [
        (batch.number, batch.size, batch.why) for batch in sorted(rec.batches, key=lambda batch: batch.sent_ns)
    ]
    assert sum(len(batch["members"]) for batch in batches) == len(rec.requests)
    first, recorded = batches[0], rec.batches[0]
    assert ms(first["end"] - first["start"]) == pytest.approx(recorded.compute_ns / 1e6, abs=2e-4)
    assert ms(first["sent"] - first["oldest"]) == pytest.approx(recorded.queue_ns / 1e6, abs=2e-4)
    assert sent["counts"]["requests"] == len(rec.requests)
    assert sent["counts"]["rows"] == sum(request.size for request in rec.requests)
    assert sent["depth"] == 0
    assert sent["pending"] == []


@pytest.mark.parametrize("parts_later", [0, 1, 3], ids=["at once", "while a part is followed", "while three are"])
def test_deliveries_add_up_to_the_history(rec: Recording, parts_later: int) -> None:
    """Even if they are encoded, on another thread, while the tracker follows the next events."""
    session = session_of(rec)
    batches, depths, taken = {}, [], []  # type: ignore[var-annotated]
    for at in range(0, len(rec.events) + 7 * parts_later, 7):
        part = rec.events[at : at + 7]
        session.tracker.fold(map(pack, part))
        if part:
            taken.append(session.tracker.take_changes(part[-1].time_ns))
        if len(taken) <= parts_later and part:
            continue
        sent = session.encode(taken.pop(0))
        batches |= {batch["n"]: batch for batch in rows(sent["batches"])}
        for done in rows(sent["done"]):
            batches[done["n"]].update(done)
        depths += sent["depths"]
    assert not taken
    history = session.history()
    assert list(batches.values()) == rows(history["batches"])
    assert all(batch["end"] is not None for batch in batches.values())
    assert depths == history["depths"]
    assert session.tracker.quiet


@pytest.mark.parametrize("rate", [20, 800])
def test_view_opened_later_equals_one_opened_earlier(rate: int) -> None:
    rec = tnb.simulate(DYNAMIC, tnb.poisson(rate=rate, duration=1, seed=3), tnb.fixed(4))
    later, before = session_of(rec), session_of(rec)
    later.replay(list(map(pack, rec.events)))
    for event in rec.events:
        before.tracker.fold([pack(event)])
        before.flush(event.time_ns)
    shown, expected = (json.loads(json.dumps(session.history())) for session in (later, before))
    assert [shown[name] for name in ("counts", "depth", "levels")] == [
        expected[name] for name in ("counts", "depth", "levels")
    ]
    newest = rows(shown["batches"])[-10:]
    assert [batch["n"] for batch in newest] == [batch.number for batch in rec.batches[-10:]]
    assert ms(shown["spans"][-1][1]) * 1e6 + rec.span_ns[0] >= rec.batches[-1].exec_end_ns - 1e4


def test_cost_of_a_recording_does_not_depend_on_its_duration() -> None:
    rec = tnb.simulate(DYNAMIC, [(0, 8)] * 5, tnb.fixed(10_000_000))
    history = rec.view().history
    lanes = history["levels"]["lanes"].values()
    assert sum(sum(level["busy"]) for lane in lanes for level in lane) == sum(batch.compute_ns for batch in rec.batches)
    assert sum(len(level["at"]) for lane in lanes for level in lane) < 10_000


def test_batch_completed_during_encoding_is_in_the_next_delivery(rec: Recording) -> None:
    tracker, batch = session_of(rec).tracker, rec.batches[0]
    tracker.fold(pack(event) for event in rec.events if event.time_ns <= batch.sent_ns)
    assert [drawn.sent[NUMBER] for drawn in tracker.take_changes(batch.sent_ns).sent] == [batch.number]
    tracker.fold(pack(event) for event in rec.events if batch.sent_ns < event.time_ns <= batch.exec_end_ns)
    assert [drawn.sent[NUMBER] for drawn in tracker.take_changes(batch.exec_end_ns).done] == [batch.number]


def test_events_that_were_received_are_in_the_next_delivery(rec: Recording) -> None:
    session = session_of(rec)
    session.flush(rec.span_ns[0])
    assert session.tracker.quiet
    session.tracker.receive(pack(rec.events[0]))
    assert not session.tracker.quiet
    assert session.flush(rec.events[0].time_ns)["counts"]["requests"] == 1


def test_tracker_keeps_only_events_of_its_model(rec: Recording) -> None:
    session = session_of(rec, recent=3)
    for event in rec.events:
        session.tracker.receive(pack(replace(event, model="other")))
        session.tracker.receive(pack(event))
    assert session.tracker.recent() == list(map(pack, rec.events[-3:]))
    assert session.tracker.counts.requests == len(rec.requests)


def test_queue_depth_equals_the_schedulers(rec: Recording) -> None:
    session = session_of(rec, limited=False, keep=5000)
    session.tracker.fold(map(pack, rec.events))
    depths = dict(map(tuple, session.flush(0)["depths"]))
    batches = rows(session.history()["batches"])
    for batch in batches:
        if [other["sent"] for other in batches].count(batch["sent"]) == 1:
            assert depths[batch["sent"]] == batch["depth"]


def test_waiting_requests_are_sent_while_they_wait() -> None:
    rec = tnb.simulate(DYNAMIC, [(0, 1), (1000, 2)], tnb.fixed(1))
    session = session_of(rec)
    session.tracker.fold(pack(event) for event in rec.events if event.time_ns < 2_000_000)
    sent = session.flush(2_000_000)
    assert [(label, size, ms(queued), row) for label, size, _, queued, row, *_ in sent["pending"]] == [
        ("1", 1, 0.0, 0),
        ("2", 2, 1.0, 1),
    ]
    assert (sent["depth"], ms(sent["now"]), session.tracker.quiet) == (2, 2.0, False)


def deliveries(rec: Recording, session: ViewSession, size: int = 1500) -> list[dict[str, Any]]:
    """Fold and flush a recording in parts."""
    events = list(map(pack, rec.events))
    sent = []
    for at in range(0, len(events), size):
        session.tracker.fold(events[at : at + size])
        sent.append(session.flush(events[min(at + size, len(events)) - 1][1]))
    return sent


@pytest.fixture(scope="module")
def fast() -> Recording:
    """20,000 batches per second: more than can be sent one by one."""
    return tnb.simulate('name: "m" max_batch_size: 1', tnb.constant(rate=20_000, duration=0.5), tnb.fixed(0.01))


def test_delivery_names_the_time_until_which_it_has_all_batches(fast: Recording) -> None:
    sent = deliveries(fast, session_of(fast))
    exact = [(delivery["since"], delivery["exact"]) for delivery in sent]
    assert all(since <= until < delivery["now"] for (since, until), delivery in zip(exact, sent, strict=True))
    shown = {batch["n"] for delivery in sent for batch in rows(delivery["batches"])}
    begin = fast.span_ns[0]
    in_exact_spans = {
        batch.number
        for batch in fast.batches
        for since, until in exact
        if since < (batch.sent_ns - begin) * TICKS // 1_000_000 <= until
    }
    assert in_exact_spans <= shown
    assert len(shown) < len(fast.batches) / 5
    assert max(len(rows(delivery["batches"])) for delivery in sent) <= BURST * MOST_BATCHES


def test_unsent_requests_are_counted_in_each_delivery(fast: Recording) -> None:
    session = session_of(fast)
    sent = deliveries(fast, session)
    assert sent[-1]["counts"]["requests"] == sent[-1]["counts"]["batches"] == len(fast.requests)
    assert sent[-1]["depth"] == 0
    assert session.tracker.quiet
    assert all(len(rows(delivery["batches"])) <= MOST_BATCHES for delivery in sent[5:])


def test_large_batches_are_sent_up_to_a_number_of_requests() -> None:
    arrivals = tnb.constant(rate=400_000, duration=0.02)
    rec = tnb.simulate('name: "m" max_batch_size: 64 dynamic_batching { }', arrivals, tnb.fixed(0.1))
    sent = deliveries(rec, session_of(rec), size=len(rec.events))
    members = sum(len(batch["members"]) for delivery in sent for batch in rows(delivery["batches"]))
    assert 0 < members <= BURST * MOST_MEMBERS
    assert sent[-1]["counts"]["rows"] == 8000


@pytest.mark.parametrize("rate", [5, 200, 2000, 20_000])
def test_counters_are_exact_at_every_rate(rate: int) -> None:
    config = 'name: "m" max_batch_size: 8 instance_group { count: 2 } dynamic_batching { }'
    arrivals = tnb.poisson(rate=rate, duration=2000 / rate + 0.5, seed=rate)
    rec = tnb.simulate(config, arrivals, tnb.linear(per_row_ms=0.05, base_ms=0.1))
    session = session_of(rec)
    sent = deliveries(rec, session, size=300)
    lanes = session.history()["levels"]["lanes"]
    for name in ("busy", "batches", "rows", "largest"):
        merge = max if name == "largest" else sum
        delivered = [
            merge(delivery["counters"]["lanes"][lane][name])
            for delivery in sent
            for lane in delivery["counters"]["lanes"]
        ]
        kept = [merge(level[name]) for levels in lanes.values() for level in levels if level[name]]
        recorded = {
            "busy": sum(batch.exec_end_ns - batch.exec_start_ns for batch in rec.batches),
            "batches": len(rec.batches),
            "rows": sum(batch.size for batch in rec.batches),
            "largest": max(batch.size for batch in rec.batches),
        }[name]
        assert merge(delivered) == merge(kept) == recorded
    queue = [delivery["counters"]["queue"] for delivery in sent]
    waited = sum(sum(columns["waited"]) for columns in queue)
    assert waited == sum(batch.sent_ns - request.queued_ns for batch, request in batches_with_requests(rec))


def batches_with_requests(rec: Recording) -> list[tuple[Batch, RequestRecord]]:
    by_number = {batch.number: batch for batch in rec.batches}
    return [(by_number[request.batch], request) for request in rec.requests]


def test_history_has_all_counters_and_is_bounded_over_hours() -> None:
    session = ViewSession("m", pb.ModelConfig(name="m"), 0)
    events = tnb.simulate(DYNAMIC, [(0, 1)], tnb.fixed(0.005)).events
    (sent,) = (event for event in events if isinstance(event, BatchSent))
    (executed,) = (event for event in events if isinstance(event, BatchExecuted))
    sizes = {}
    hour = 3_600_000_000_000
    for time_ns in range(0, 10 * hour, hour // 400):
        batch = replace(executed, time_ns=time_ns, batch=time_ns, exec_start_ns=time_ns, exec_end_ns=time_ns + 5000)
        session.tracker.fold([pack(replace(sent, time_ns=time_ns, batch=time_ns)), pack(batch)])
        session.flush(time_ns)
        if time_ns % hour == 0:
            sizes[time_ns // hour] = len(json.dumps(session.history()["levels"]))
    levels = session.history()["levels"]["lanes"]["m_0_0"]
    assert sum(sum(level["batches"]) for level in levels) == 4000
    assert sum(sum(level["busy"]) for level in levels) == 4000 * 5000
    assert sizes[9] < 1.5 * sizes[3]


def test_requests_without_a_priority_have_the_default_level() -> None:
    config = """name: "m" max_batch_size: 8
        dynamic_batching { priority_levels: 3 default_priority_level: 2 }"""
    rec = tnb.simulate(config, [tnb.Arrival(0), tnb.Arrival(0, priority=3)], tnb.fixed(1))
    session = session_of(rec)
    session.tracker.fold(map(pack, rec.events))
    members = [member for batch in rows(session.flush(rec.span_ns[1])["batches"]) for member in batch["members"]]
    assert sorted(priority for _, _, priority, *_ in members) == [2, 3]


def test_lanes_are_those_of_the_current_instances(rec: Recording) -> None:
    config = rec.configs["m"]
    config.instance_group.add(count=3)
    session = ViewSession("m", config, 0)
    assert session.history()["instances"] == ["m_0_0", "m_0_1", "m_0_2"]
    fewer = pb.ModelConfig()
    fewer.CopyFrom(config)
    fewer.instance_group[0].count = 1
    assert session.reconfigure(fewer)
    assert session.flush(0)["instances"] == ["m_0_0"]


def test_history_keeps_a_limited_number_of_batches(rec: Recording) -> None:
    session = session_of(rec, keep=5)
    session.tracker.fold(map(pack, rec.events))
    session.flush(rec.span_ns[1])
    history = session.history()
    assert len(rows(history["batches"])) == 5
    assert history["counts"]["batches"] == len(rec.batches)


def test_requests_from_before_the_view_count_until_they_leave(rec: Recording) -> None:
    waiting = [event for event in rec.events if type(event).__name__ == "RequestArrived"][:1]
    session = session_of(rec, depth=1)
    session.tracker.fold(pack(event) for event in rec.events if event not in waiting)
    sent = session.flush(rec.span_ns[1])
    assert sent["depth"] == 0
    assert min(depth for _, depth in sent["depths"]) == 0


def test_batch_running_when_the_view_opens_counts_as_busy_from_that_time(rec: Recording) -> None:
    running = rec.batches[0]
    opened_ns = (running.exec_start_ns + running.exec_end_ns) // 2
    session = ViewSession("m", rec.configs["m"], opened_ns)
    session.tracker.fold(pack(event) for event in rec.events if opened_ns < event.time_ns <= running.exec_end_ns)
    lane = session.flush(running.exec_end_ns)["counters"]["lanes"][running.instance]
    assert sum(lane["busy"]) == running.exec_end_ns - opened_ns


def test_failed_requests_are_counted_and_sent_with_their_batch(rec: Recording) -> None:
    failing = [
        replace(event, requests=tuple((*request[:4], "OTHER") for request in event.requests))
        if isinstance(event, BatchExecuted) and event.batch % 2
        else event
        for event in rec.events
    ]
    session = session_of(rec, limited=False, keep=5000)
    session.tracker.fold(map(pack, failing))
    session.flush(rec.span_ns[1])
    sent = session.history()
    assert sent["counts"]["failed"] == sum(len(batch.requests) for batch in rec.batches if batch.number % 2)
    assert all(batch["failed"] == (batch["requests"] if batch["n"] % 2 else 0) for batch in rows(sent["batches"]))


def test_refused_requests_are_sent_with_their_reason() -> None:
    config = (
        'name: "m" max_batch_size: 1 dynamic_batching { default_queue_policy { default_timeout_microseconds: 500 } }'
    )
    rec = tnb.simulate(config, [(0, 1), (10, 1)], tnb.fixed(10))
    session = session_of(rec)
    session.tracker.fold(map(pack, rec.events))
    ((begin, end, label, _, message, _),) = session.flush(rec.span_ns[1])["refused"]
    assert (ms(begin), label, message) == (0.01, "2", "Request timeout expired")
    assert ms(end) == pytest.approx(0.51)


def test_drawn_slots_equal_the_recorded_ones() -> None:
    arrivals = tnb.sequences([3] * 6, every_ms=60, stagger_ms=10)
    rec = tnb.simulate(DIRECT, arrivals, tnb.fixed(5))
    session = session_of(rec, limited=False, keep=5000)
    session.tracker.fold(map(pack, rec.events))
    session.flush(rec.span_ns[1])
    sent = session.history()
    assert [encoded[:3] for encoded in sent["occupancy"]] == [
        [occupancy.sequence, occupancy.instance, occupancy.slot] for occupancy in rec.slot_occupancy
    ]
    assert [encoded[4] for encoded in sent["occupancy"]] == [
        occupancy.assigned_ns * TICKS // 1_000_000 for occupancy in rec.slot_occupancy
    ]
    assert [encoded[7] for encoded in sent["occupancy"]] == [3] * 6
    assert sent["counts"]["nulls"] == sum(batch.requests.count(None) for batch in rec.batches)
    assert [len(batch["members"]) for batch in rows(sent["batches"])] == sent["batches"]["rows"]


def test_metadata_have_the_values_of_the_configuration() -> None:
    rec = tnb.simulate(DIRECT, [tnb.Arrival(0, sequence_id=1, sequence_start=True)], tnb.fixed(1))
    meta = describe_config("m", rec.configs["m"])
    assert (meta["batcher"], meta["strategy"], meta["slots"], meta["idle"]) == ("sequence", "direct", 2, 1000.0)
    assert meta["states"] == ["S [3]"]
    dynamic = describe_config("m", tnb.simulate(DYNAMIC, [(0, 1)], tnb.fixed(1)).configs["m"])
    assert (dynamic["preferred"], dynamic["delay"], dynamic["max_batch_size"]) == ([4], 5.0, 8)


def test_cache_hits_are_requests_without_a_batch(rec: Recording) -> None:
    session = session_of(rec)
    session.tracker.fold([pack(CacheHit(5, "m", 1, 77, 3, 1))])
    assert not session.tracker.quiet
    counts = session.flush(10)["counts"]
    assert (counts["requests"], counts["cached"], counts["batches"]) == (1, 1, 0)
    assert session.tracker.quiet


def test_view_of_an_ensemble_names_the_step_models() -> None:
    steps = "".join(f'step {{ model_name: "{name}" model_version: -1 }} ' for name in ("detect", "crop", "detect"))
    config = text_format.Parse(f'platform: "ensemble" ensemble_scheduling {{ {steps} }}', pb.ModelConfig())
    session = ViewSession("e", config, 0)
    session.tracker.fold([pack(EnsembleExecuted(9, "e", 1, 7, 1, 0, 0, 1, 2, 3, 4, ""))])
    assert session.flush(10)["counts"]["requests"] == 1
    assert session.meta["note"].endswith("Watch the models of its steps: detect, crop.")


@pytest.mark.parametrize("config", [DYNAMIC, DIRECT])
@pytest.mark.parametrize("time_ns", [-(2**62), 0, 10**13, 2**62 - 1])
def test_any_time_in_a_file_costs_a_bounded_number_of_intervals(
    config: str, time_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_session, "_MOST_INTERVALS", 500)
    monkeypatch.setattr(view_session, "_MOST_COUNTED", 1000)
    load = tnb.sequences([2, 2], every_ms=5) if config is DIRECT else tnb.poisson(100, 0.05, seed=1)
    rec = tnb.simulate(config, load, tnb.fixed(3))
    whole = rec.events
    for index, event in enumerate(whole):
        for field in (field.name for field in fields(event) if field.name.endswith("_ns") and field.type == "int"):
            crafted: Any = {field: time_ns}
            events = [*whole[:index], replace(event, **crafted), *whole[index + 1 :]]
            counted = recorded_history(Recording(events, rec.configs))["levels"]
            lanes = [*counted["lanes"].values(), *counted["slots"].values()]
            assert sum(len(level["at"]) for levels in lanes for level in levels) < 5000
