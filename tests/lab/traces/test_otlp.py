"""Spans: decoding, combining, receiving them over HTTP, from this project's server and from a real Triton."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import json
import threading
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tritonnb as tnb
from tests.client.conftest import needs_triton
from tests.client.servers import start, write_model
from tests.lab.traces.test_from_trace import ids_of_batches
from tests.lab.traces.traffic import send
from tools.fuzz.cost import Growing, check_growth
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.traces import record
from tritonnb.lab.traces.from_trace import recording_of
from tritonnb.lab.traces.otlp import ExportTraceServiceRequest, Span, SpanCollector

STAMPS = {"REQUEST_START": 0, "QUEUE_START": 1, "REQUEST_END": 9}
COMPUTE = {"COMPUTE_START": 2, "COMPUTE_INPUT_END": 3, "COMPUTE_OUTPUT_START": 7, "COMPUTE_END": 8}


def spans(requests: int, batch: int = 4) -> list[dict[str, Any]]:
    """The two spans of each request, in the JSON form; requests of a batch differ by nanoseconds."""
    made = []
    for number in range(1, requests + 1):
        begin = 1_700_000_000_000_000_000 + (number - 1) // batch * 10_000_000 + (number - 1) % batch
        ids = f"{2 * number:016x}", f"{2 * number + 1:016x}"
        stamps = [
            [{"name": name, "timeUnixNano": str(begin + ms * 1_000_000)} for name, ms in group.items()]
            for group in (STAMPS, COMPUTE)
        ]
        attributes = {
            "triton.model_name": {"stringValue": "m"},
            "triton.model_version": {"intValue": "1"},
            "triton.trace_id": {"intValue": str(number)},
            "triton.trace_parent_id": {"intValue": "0"},
            "triton.request_id": {"stringValue": f"r{number}"},
        }
        pairs = [{"key": key, "value": value} for key, value in attributes.items()]
        made.append({"spanId": ids[1], "parentSpanId": ids[0], "name": "compute", "events": stamps[1]})
        made.append({"spanId": ids[0], "parentSpanId": "ff", "name": "m", "attributes": pairs, "events": stamps[0]})
    return made


def reported_spans() -> list[dict[str, Any]]:
    """Three requests that ran at the same time, in two batches on two instances, as this project's server reports."""
    facts = {"requests": 2, "rows": 5, "instance": 1, "idle_ns": 5000, "preferred": [5, 8], "max_batch_size": 8}
    facts_of_one = {"requests": 1, "rows": 4, "instance": 0, "idle_ns": 0}
    batches = [
        {"id": 7, "size": 5, "instance": "m_0_1", "rule": "preferred_size", "facts": facts, "index": 1},
        {"id": 8, "size": 4, "instance": "m_0_0", "rule": "no_delay", "facts": facts_of_one, "index": 0},
        {"id": 7, "size": 5, "instance": "m_0_1", "rule": "preferred_size", "facts": facts, "index": 0},
    ]
    items = spans(3)
    for execution, batch, rows in zip(items[::2], batches, (2, 4, 3), strict=True):
        sent_ns = int(execution["events"][0]["timeUnixNano"]) - 5000
        values = {**batch, "facts": json.dumps(batch["facts"]), "request_size": rows, "sent_ns": sent_ns}
        execution["attributes"] = [
            {
                "key": f"tritonnb.batch.{name}",
                "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
            }
            for name, value in values.items()
        ]
    return items


def as_json(items: list[dict[str, Any]]) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": items}]}]}).encode()


def as_protobuf(items: list[dict[str, Any]]) -> bytes:
    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add().scope_spans.add()
    for item in items:
        span = scope.spans.add(name=item["name"])
        span.span_id, span.parent_span_id = bytes.fromhex(item["spanId"]), bytes.fromhex(item["parentSpanId"])
        for event in item["events"]:
            span.events.add(name=event["name"], time_unix_nano=int(event["timeUnixNano"]))
        for attribute in item.get("attributes", ()):
            value = attribute["value"]
            pair = span.attributes.add(key=attribute["key"])
            if "intValue" in value:
                pair.value.int_value = int(value["intValue"])
            else:
                pair.value.string_value = value["stringValue"]
    return message.SerializeToString()


FORMS = {
    "json": (as_json, {"Content-Type": "application/json"}),
    "protobuf": (as_protobuf, {"Content-Type": "application/x-protobuf"}),
}


def post(url: str, content: bytes, headers: dict[str, str]) -> int:
    with urllib.request.urlopen(urllib.request.Request(url, content, headers), timeout=10) as response:
        return response.status


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compressed", [False, True])
def test_otlp_message_becomes_a_recording(form: str, compressed: bool) -> None:
    encode, headers = FORMS[form]
    content = encode(spans(40))
    if compressed:
        content, headers = gzip.compress(content), {**headers, "Content-Encoding": "gzip"}
    with tnb.otlp_receiver(port=0) as receiver:
        assert post(receiver.url, content, headers) == 200
        recording = receiver.recording("max_batch_size: 8 dynamic_batching { }")
    assert recording.batch_sizes() == {4: 10}
    assert ids_of_batches(recording)[0] == ("r1", "r2", "r3", "r4")


@pytest.mark.parametrize("form", FORMS)
def test_spans_of_a_request_may_arrive_in_different_messages(form: str) -> None:
    encode, headers = FORMS[form]
    every = spans(8)
    with tnb.otlp_receiver(port=0) as receiver:
        for part in (every[::2], every[1::2]):
            post(receiver.url, encode(part), headers)
        assert len(receiver.requests) == 8


@pytest.mark.parametrize("form", FORMS)
def test_reported_reasons_are_not_inferred(form: str) -> None:
    encode, headers = FORMS[form]
    config = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [5, 8] } instance_group { count: 2 }"
    with tnb.otlp_receiver(port=0) as receiver:
        post(receiver.url, encode(reported_spans()), headers)
        recording = receiver.recording(config)
    assert {(batch.instance, batch.size): batch.why for batch in recording.batches} == {
        ("m_0_1", 5): "2 requests, 5 rows: preferred batch size reached (preferred: 5, 8); instance 1 idle for 5.0 µs",
        (
            "m_0_0",
            4,
        ): "1 request, 4 rows: max_queue_delay is 0, so whatever waited was sent; instance 0 just became free",
    }
    assert sorted(ids_of_batches(recording)) == [("r2",), ("r3", "r1")]
    assert {request.id: request.size for request in recording.requests} == {"r1": 2, "r2": 4, "r3": 3}
    assert recording.source.notes == (
        "model 'm': batches, instances, rows and reasons are those that the server reported",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, None) for name in ("facts", "rule", "instance", "size", "sent_ns", "index", "request_size")),
        *((name, {"stringValue": "?"}) for name in ("facts", "rule", "id", "size")),
        *(("facts", {"stringValue": text}) for text in ("[1]", "{}", '{"rows": "?", "requests": 1}')),
    ],
)
def test_unreadable_reason_in_a_span_is_ignored(name: str, value: object) -> None:
    items = reported_spans()
    for execution in items[::2]:
        kept = [pair for pair in execution["attributes"] if pair["key"] != f"tritonnb.batch.{name}"]
        changed = [] if value is None else [{"key": f"tritonnb.batch.{name}", "value": value}]
        execution["attributes"] = [*kept, *changed]
    with tnb.otlp_receiver(port=0) as receiver:
        receiver.receive(as_json(items), "application/json")
        recording = receiver.recording("max_batch_size: 8 dynamic_batching { }")
    assert recording.batch_sizes() == {3: 1}
    assert all(batch.why.endswith("(inferred)") for batch in recording.batches)


def test_recording_of_spans_explains_missing_shapes() -> None:
    with tnb.otlp_receiver(port=0) as receiver:
        receiver.receive(as_json(spans(8)), "application/json")
        recording = receiver.recording("max_batch_size: 8 dynamic_batching { }")
        assert recording.source is not None
        (note,) = [note for note in recording.source.notes if "batch sizes" in note]
        assert note.endswith("are not known: spans have no shapes; trace files of record(rows=True) have them")
        with tnb.Server(port=0) as server, tnb.connect(server.url) as remote:
            with pytest.raises(tnb.TritonError, match=r"rows=True has no effect with a receiver, since spans have no"):
                with remote.record([], receiver=receiver, rows=True):
                    raise AssertionError("the block must not run")


def test_partly_reported_requests_are_a_sample() -> None:
    with tnb.otlp_receiver(port=0) as receiver:
        receiver.receive(as_json(reported_spans()[2:]), "application/json")
        recording = receiver.recording("max_batch_size: 8 dynamic_batching { }")
    assert recording.source.sampled == "the trace contains 7 of the 9 rows in the batches of model 'm'"


def test_files_with_messages_are_recordings(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_bytes(as_json(spans(8)))
    (tmp_path / "lines.json").write_bytes(b"\n".join([as_json(spans(8)[:8]), as_json(spans(8)[8:])]))
    (tmp_path / "message.bin").write_bytes(as_protobuf(spans(8)))
    for name in ("one.json", "lines.json", "message.bin"):
        assert tnb.Recording.from_trace(tmp_path / name).batch_sizes() == {4: 2}, name


@pytest.mark.parametrize(
    ("content", "headers", "message"),
    [
        (b"{", {"Content-Type": "application/json"}, "OTLP trace message in JSON"),
        (b"\xff\xff", {"Content-Type": "application/x-protobuf"}, "OTLP trace message in protobuf"),
        (b"text", {"Content-Type": "application/json", "Content-Encoding": "gzip"}, "compressed with gzip"),
        (b"text", {"Content-Type": "application/json", "Content-Encoding": "br"}, "content encoding gzip or none"),
    ],
)
def test_malformed_trace_message_is_refused(content: bytes, headers: dict[str, str], message: str) -> None:
    with tnb.otlp_receiver(port=0) as receiver:
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(receiver.url, content, headers)
        assert refused.value.code == 400
        assert message in refused.value.read().decode()


def test_receiver_that_its_own_thread_frees_closes_its_port() -> None:
    """The garbage collector runs on any thread: there it must not wait for the thread itself."""
    receiver = tnb.otlp_receiver(port=0)
    port, background = receiver.port, receiver._loop
    cycle: list[object] = [receiver]
    cycle.append(cycle)
    del receiver, cycle
    background.call(gc.collect)
    background._thread.join(20)
    tnb.otlp_receiver(port).close()


def test_closed_receiver_releases_port_and_thread() -> None:
    before = threading.active_count()
    receiver = tnb.otlp_receiver(port=0)
    with pytest.raises(tnb.TritonError, match=f"port {receiver.port} of 127.0.0.1 cannot be opened"):
        tnb.otlp_receiver(receiver.port)
    receiver.close()
    receiver.close()
    assert threading.active_count() == before
    tnb.otlp_receiver(receiver.port).close()


@pytest.mark.parametrize(
    ("port", "host", "error"),
    [
        (65_536, "127.0.0.1", tnb.TritonError),
        ("4318", "127.0.0.1", tnb.TritonError),
        (0, "no.such.host.invalid", tnb.TritonError),
        (0, "a" * 64, UnicodeError),
    ],
)
def test_receiver_that_cannot_listen_leaves_no_thread(port: Any, host: Any, error: type[Exception]) -> None:
    before = threading.active_count()
    with pytest.raises(error):
        tnb.otlp_receiver(port, host=host)
    assert threading.active_count() == before


@pytest.mark.parametrize("form", FORMS)
def test_cost_of_spans_grows_with_the_number_of_messages(form: str) -> None:
    encode, headers = FORMS[form]
    every = spans(1024)
    messages = [gzip.compress(encode(every[begin : begin + 64])) for begin in range(0, len(every), 64)]

    def run(data: bytes) -> None:
        count = len(data) >> 15
        with tnb.otlp_receiver(port=0) as receiver:
            for message in messages[:count]:
                receiver.receive(message, headers["Content-Type"], "gzip")
            recording = receiver.recording("max_batch_size: 8 dynamic_batching { }")
        assert len(recording.batches) == 8 * count

    check_growth(run, Growing(b"", bytes(1 << 15)), largest=len(messages) << 15)  # about the size of a message


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("triton", [False, pytest.param(True, marks=needs_triton)], ids=["tritonnb", "triton"])
def test_server_sends_its_spans_to_the_receiver(tmp_path: Path, triton: bool) -> None:
    write_model(tmp_path / "repository", "one")
    with tnb.otlp_receiver(port=0) as receiver:
        trace = ["mode=opentelemetry", f"opentelemetry,url={receiver.url}", "opentelemetry,bsp_schedule_delay=200"]
        with (
            start(tmp_path / "repository", triton=triton, trace=trace) as server,
            tnb.connect(server.grpc) as remote,
        ):
            with remote.record("one", receiver=receiver) as recording:
                send(server.grpc, "one", 300, rate=300)
            assert remote.trace_settings("one")["trace_level"] == ["OFF"]
            logged = server.logged("one")
            config = remote["one"].running_config()
        requests = [dataclasses.replace(request, batch=None) for request in receiver.requests]
    assert Counter(ids_of_batches(recording)) == Counter(map(tuple, logged))
    assert recording.agreement.share >= 0.95, recording.agreement
    assert any("that the server reported" in note for note in recording.source.notes) != triton
    assert any(batch.why.endswith("(inferred)") for batch in recording.batches) == triton
    inferred = recording_of(requests, {"one": config})
    rules = zip(inferred.batches, recording.batches, strict=True)
    equal = sum(first.reason.rule == second.reason.rule for first, second in rules)
    print(f"\n{equal} of {len(recording.batches)} inferred rules are those of the recording")
    assert equal >= 0.95 * len(recording.batches)


@pytest.mark.parametrize(
    ("attributes", "events"),
    [
        ({"triton.trace_id": ""}, {}),
        ({"triton.trace_id": 2**64}, {}),
        ({"triton.model_version": "one"}, {}),
        ({"triton.trace_parent_id": []}, {}),
        ({}, {"QUEUE_START": -1}),
        ({}, {"QUEUE_START": 2**63}),
    ],
)
def test_span_with_invalid_values_is_refused(attributes: dict[str, Any], events: dict[str, int]) -> None:
    collector = SpanCollector(lambda request: None)
    with pytest.raises(InvalidArgumentError, match="expected"):
        collector.add(Span("1", "", "m", {"triton.model_name": "m", **attributes}, list(events.items())))


class Clock:
    """The time of a wait, in which nobody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(
    ("comes_s", "timeout_s", "as_spans", "complete", "ends_s"),
    [
        (7.0, 15.0, True, 4, 7.0),  # Triton sends spans every 5 s
        (29.0, 30.0, True, 4, 29.0),
        (60.0, 30.0, True, 2, 30.0),
        (7.0, 15.0, False, 2, 1.0),  # a trace file is complete when it does not grow
        (0.5, 15.0, False, 4, 0.5),
    ],
)
def test_spans_are_awaited_until_the_server_has_sent_those_of_all_counted_requests(
    monkeypatch: pytest.MonkeyPatch, comes_s: float, timeout_s: float, as_spans: bool, complete: int, ends_s: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(record, "time", clock)
    every = [SimpleNamespace(complete=True, model="m", parent="") for _ in range(4)]

    def collect() -> list[Any]:
        return every if clock.now_s >= comes_s else every[:2]

    quiet_s = timeout_s if as_spans else record._QUIET_S
    assert len(record._wait(collect, ["m"], 4, timeout_s, quiet_s)) == complete
    assert clock.now_s == pytest.approx(ends_s, abs=0.2)
    notes = record._missing(collect(), ["m"], 4, as_spans, timeout_s)
    assert bool(notes) == (complete < 4)
    for note in notes:
        assert note.startswith("the server counted 4 requests, the trace contains 2")
        assert ("bsp_schedule_delay=500" in note) == as_spans


def test_models_that_were_executed_and_not_traced_are_named() -> None:
    traced = [SimpleNamespace(model="caller")]
    every: Any = traced
    assert record._untraced_calls(every, {"caller": 3}) == []
    [note] = record._untraced_calls(every, {"caller": 3, "called": 3, "idle": 0})
    assert note.startswith("no request of 'called' is in the trace: if a model calls it")
