"""Traces: which requests are sampled, what a trace holds, and when which file is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.full_disk import files_up_to
from tritonnb.core.datatypes import BOOL, BYTES, FP16, FP32, INT8
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchExecuted, RequestArrived
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.telemetry.perfetto import to_perfetto
from tritonnb.telemetry.stream import EventStream
from tritonnb.telemetry.trace_entry import TraceEntry
from tritonnb.telemetry.trace_settings import TraceOptions, TraceSetting, TraceSettings, levels_of, number_of
from tritonnb.telemetry.tracing import Tracer, _TraceFile

STAMPS = frozenset({"TIMESTAMPS"})
EVERYTHING = frozenset({"TIMESTAMPS", "TENSORS"})


class Model:
    """A model that takes requests as a served one does, and answers when the test says so."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self.serial = 0

    def submit(self, request: InferRequest) -> None:
        self.serial += 1
        request.serial, request.model_version = self.serial, 1
        request.received_ns, request.queued_ns = 100, 200
        self.stream.emit(RequestArrived(200, "m", 1, self.serial, 1, 0, 0, request.id, 0, 0, 0))

    def execute(self, request: InferRequest) -> None:
        ran = ((request.serial, 1, 100, 200, ""),)
        self.stream.emit(BatchExecuted(600, "m", 1, 1, "m_0", 1, 300, 400, 500, 600, ran))


class Server:
    """A tracer and a model behind it."""

    def __init__(self, **options: Any) -> None:
        self.stream = EventStream()
        self.tracer = Tracer(self.stream, TraceOptions(**options))
        self.model = Model(self.stream)

    def infer(self, outputs: list[Tensor] | None = None, id: str = "", **inputs: Tensor) -> None:
        request = InferRequest("m", inputs, lambda request, response: None, id=id)
        trace = self.tracer.sample("m", {})
        if trace is not None:
            trace.submit(self.model.submit, request)
            self.model.execute(request)
            trace.responded(InferResponse(outputs or []), 700)
            trace.finish()
        self.tracer.flush()

    def close(self) -> None:
        self.tracer.close()
        self.tracer.flush()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())


def ids(path: Path) -> list[int]:
    return sorted({entry["id"] for entry in read(path)})


def test_trace_has_the_stamps_of_the_request_and_its_batch(path: Path) -> None:
    server = Server(file=str(path), levels=STAMPS, rate=1)
    server.infer(id="abc")
    server.close()
    model, *stamps = read(path)
    assert model == {"id": 1, "model_name": "m", "model_version": 1, "request_id": "abc"}
    assert [(stamp["timestamps"][0]["name"], stamp["timestamps"][0]["ns"]) for stamp in stamps] == [
        ("REQUEST_START", 100),
        ("QUEUE_START", 200),
        ("COMPUTE_START", 300),
        ("COMPUTE_INPUT_END", 400),
        ("COMPUTE_OUTPUT_START", 500),
        ("COMPUTE_END", 600),
        ("INFER_RESPONSE_COMPLETE", 700),
        ("REQUEST_END", 700),
    ]


@pytest.mark.parametrize(("rate", "count"), [(0, -1), (1000, -1), (1, 0)])
def test_request_selected_by_its_client_is_traced_at_any_rate(rate: int, count: int) -> None:
    setting = TraceSetting(TraceOptions(levels=STAMPS, rate=rate, count=count))
    assert not setting.sample()
    assert setting.sample(requested=True)
    assert not TraceSetting(TraceOptions(rate=1)).sample(requested=True)  # the level is OFF


def test_non_utf8_id_does_not_corrupt_the_trace_file(path: Path) -> None:
    server = Server(file=str(path), levels=STAMPS, rate=1)
    server.infer(id="a\udcff")
    server.close()
    assert [entry["request_id"] for entry in read(path) if "request_id" in entry] == ["a\ufffd"]


def test_tensors_are_traced_with_the_level_tensors(path: Path) -> None:
    server = Server(file=str(path), levels=EVERYTHING, rate=1)
    words = np.array([b'say "a"', b"b"], dtype=object)
    server.infer(
        [
            Tensor("Y", BOOL, np.array([[True, False]])),
            Tensor("H", FP16, np.zeros(2, np.float16)),
            Tensor("B", INT8, np.array([65], np.int8)),
        ],
        X=Tensor("X", FP32, np.array([[0.5, 1e10]], np.float32)),
        W=Tensor("W", BYTES, words),
    )
    server.close()
    tensors = [(entry["activity"], entry["tensor"]) for entry in read(path) if "tensor" in entry]
    assert tensors == [
        ("TENSOR_QUEUE_INPUT", {"name": "X", "data": "0.5,1e+10", "shape": "1,2", "dtype": "FP32"}),
        ("TENSOR_QUEUE_INPUT", {"name": "W", "data": '"say "a"","b"', "shape": "2", "dtype": "BYTES"}),
        ("TENSOR_BACKEND_OUTPUT", {"name": "Y", "data": "1,0", "shape": "1,2", "dtype": "BOOL"}),
        ("TENSOR_BACKEND_OUTPUT", {"name": "H", "data": "", "shape": "2", "dtype": "FP16"}),
        ("TENSOR_BACKEND_OUTPUT", {"name": "B", "data": "65", "shape": "1", "dtype": "INT8"}),
    ]


class Ensemble:
    """An ensemble of one step, which passes on each request and the answer of its model."""

    def __init__(self, name: str, step: str, model: Model | Ensemble) -> None:
        self.name = name
        self.step = step
        self.model = model

    def submit(self, request: InferRequest) -> None:
        request.model_version, request.received_ns, request.queued_ns = 1, 10, 20
        assert request.trace is not None
        self.sent = InferRequest(self.step, request.inputs, self.answered, id=request.id)
        self.above = request
        child = request.child_trace(self.sent)
        assert child is not None
        child.submit(self.model.submit, self.sent)

    def answered(self, request: InferRequest, response: InferResponse) -> None:
        self.above.answer(response)


def test_step_requests_are_traced_below_their_ensemble_with_tensors(path: Path) -> None:
    server = Server(file=str(path), levels=EVERYTHING, rate=1)
    ensemble = Ensemble("e", "m", server.model)
    trace = server.tracer.sample("e", {})
    assert trace is not None
    x, y = (Tensor(name, FP32, np.zeros(1, np.float32)) for name in "XY")
    trace.submit(ensemble.submit, InferRequest("e", {"X": x}, lambda request, response: None, id="r"))
    server.model.execute(ensemble.sent)
    ensemble.sent.answer(InferResponse([y]))
    trace.finish()
    server.close()
    below = [entry for entry in read(path) if entry["id"] == 2]
    assert below[0] == {"id": 2, "model_name": "m", "model_version": 1, "request_id": "r", "parent_id": 1}
    assert [child["timestamps"][0]["name"] for child in below if "timestamps" in child] == [
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
    ]
    tensors = [(child["activity"], child["tensor"]["name"]) for child in below if "tensor" in child]
    assert tensors == [("TENSOR_QUEUE_INPUT", "X"), ("TENSOR_BACKEND_OUTPUT", "Y")]
    assert not any("COMPUTE_START" in str(entry) for entry in read(path) if entry["id"] == 1)


def test_nested_ensemble_has_a_complete_trace_with_its_steps_below(path: Path) -> None:
    server = Server(file=str(path), levels=STAMPS, rate=1)
    inner = Ensemble("inner", "m", server.model)
    trace = server.tracer.sample("e", {})
    assert trace is not None
    trace.submit(Ensemble("e", "inner", inner).submit, InferRequest("e", {}, lambda request, response: None))
    server.model.execute(inner.sent)
    inner.sent.answer(InferResponse([]))
    trace.finish()
    server.close()
    named = {
        entry["id"]: (entry["model_name"], entry.get("parent_id")) for entry in read(path) if "model_name" in entry
    }
    assert named == {1: ("e", None), 2: ("inner", 1), 3: ("m", 2)}
    ended = [entry["id"] for entry in read(path) if "REQUEST_END" in str(entry)]
    assert ended == [1, 2, 3]


def test_every_rate_th_request_is_traced(path: Path) -> None:
    server = Server(file=str(path), levels=STAMPS, rate=3)
    for number in range(7):
        server.infer(id=str(number))
    server.close()
    assert [entry["request_id"] for entry in read(path) if "request_id" in entry] == ["2", "5"]


def test_trace_count_ends_tracing_and_writes_a_numbered_file(path: Path) -> None:
    server = Server(file=str(path), levels=STAMPS, rate=1, count=2)
    for _ in range(4):
        server.infer()
    assert ids(path.with_name("trace.json.0")) == [1, 2]
    assert server.tracer.settings.for_model().options.to_dict()["trace_count"] == "0"
    server.close()
    assert not path.exists()


def test_log_frequency_writes_a_file_for_that_many_traces(path: Path) -> None:
    server = Server(file=str(path), levels=STAMPS, rate=1, log_frequency=2)
    for _ in range(5):
        server.infer()
    assert [ids(path.with_name(f"trace.json.{number}")) for number in range(2)] == [[1, 2], [3, 4]]
    server.close()
    assert ids(path.with_name("trace.json.2")) == [5]


def test_changed_settings_flush_collected_traces_and_the_file_stays_json(path: Path) -> None:
    server = Server(file=str(path), levels=STAMPS, rate=1)
    server.infer()
    server.tracer.update("", {"rate": 2})
    server.tracer.flush()
    assert ids(path) == [1]
    server.infer()
    server.infer()
    server.close()
    assert ids(path) == [1, 2]


def test_trace_in_progress_is_written_after_its_settings_were_removed(path: Path) -> None:
    server = Server(file=str(path), levels=STAMPS, rate=1)
    trace = server.tracer.sample("m", {})
    assert trace is not None
    server.tracer.update("", {"levels": frozenset()})
    trace.stamp("HTTP_RECV_START", 1)
    assert not path.exists()
    trace.finish()
    server.tracer.flush()
    assert ids(path) == [1]


def test_tracer_is_detached_while_nothing_is_traced(path: Path) -> None:
    server = Server(file=str(path), levels=STAMPS, rate=1)
    server.infer()
    server.tracer.update("", {"levels": frozenset()})
    assert not server.tracer.active
    assert server.stream._sinks == ()


def settings(**options: Any) -> TraceSettings:
    return TraceSettings(TraceOptions(**options), lambda setting: None)


def test_model_inherits_unset_trace_settings_from_the_server() -> None:
    traced = settings(file="f", rate=7)
    traced.update("m", {"count": 3})
    traced.update("", {"rate": 9})
    assert (traced.for_model("m").options.rate, traced.for_model("m").options.count) == (9, 3)
    assert (traced.for_model("other").options.rate, traced.for_model("other").options.count) == (9, -1)
    traced.update("m", {"count": None})
    traced.update("", {"rate": None})
    assert traced.for_model("m") is traced.for_model()
    assert traced.for_model().options.rate == 7


def test_unrelated_settings_keep_the_remaining_trace_count() -> None:
    traced = settings(file="f", rate=1, levels=STAMPS)
    traced.update("", {"count": 5})
    traced.update("m", {"count": 3})
    assert traced.for_model("m").sample()
    assert traced.for_model().sample()
    traced.update("", {"log_frequency": 9})
    assert (traced.for_model("m").options.count, traced.for_model().options.count) == (2, 4)
    traced.update("m", {"log_frequency": 8})
    assert traced.for_model("m").options.count == 2


def test_exhausted_trace_count_accepts_only_a_new_count_or_no_level() -> None:
    traced = settings(file="f", rate=1, levels=STAMPS)
    with pytest.raises(InvalidArgumentError, match=r"^Attempting to set invalid trace setting :$"):
        traced.update("", {"count": 0})
    traced.update("", {"count": 1})
    assert traced.for_model().sample()
    with pytest.raises(InvalidArgumentError, match=r"^Attempting to set invalid trace setting :$"):
        traced.update("", {"rate": 2})
    traced.update("m", {"count": 1})
    traced.for_model("m").sample()
    traced.update("", {"count": 1, "rate": 3})  # what is used up is the model's own
    assert (traced.for_model("m").options.count, traced.for_model("m").options.rate) == (0, 3)
    assert traced.for_model().sample() is False
    traced.update("", {"levels": frozenset()})


@pytest.mark.parametrize(
    ("options", "reason"), [({"rate": 0}, "sample rate must be non-zero"), ({}, "trace file name is not given")]
)
def test_invalid_settings_are_refused_and_change_nothing(options: dict[str, Any], reason: str) -> None:
    traced = settings(**options)
    with pytest.raises(InvalidArgumentError, match=f"Attempting to set invalid trace setting :{reason}"):
        traced.update("", {"levels": STAMPS, "count": 5})
    assert traced.for_model().options == TraceOptions(**options)


@pytest.mark.parametrize(("text", "number"), [("12abc", 12), (" 5", 5), ("-1", 2**32 - 1)])
def test_numbers_are_read_with_tritons_tolerance(text: str, number: int) -> None:
    assert number_of("trace_rate", text) == number


@pytest.mark.parametrize("digits", [10, 5000])
def test_numbers_beyond_32_bits_are_refused(digits: int) -> None:
    with pytest.raises(InvalidArgumentError, match="value is out of range"):
        number_of("trace_rate", "9" * digits)


def test_unknown_trace_levels_are_ignored() -> None:
    assert levels_of(["LOUD", "TENSORS"]) == {"TENSORS"}  # type: ignore[comparison-overlap]
    assert levels_of(["LOUD"]) is None
    assert levels_of(["OFF"]) == frozenset()
    with pytest.raises(InvalidArgumentError, match="Expect only one trace level 'OFF' is specified"):
        levels_of(["OFF", "TENSORS"])


def test_overlapping_requests_have_separate_lanes_in_perfetto() -> None:
    entries: list[TraceEntry] = []
    for number, (begin, end) in enumerate([(0, 100), (50, 150), (100, 200)], 1):
        entries.append({"id": number, "model_name": "m", "model_version": 1})
        for name, ns in (("REQUEST_START", begin), ("QUEUE_START", begin), ("COMPUTE_START", end - 10)):
            entries.append({"id": number, "timestamps": [{"name": name, "ns": ns}]})
        entries.append({"id": number, "timestamps": [{"name": "REQUEST_END", "ns": end}]})
    events = to_perfetto(entries)["traceEvents"]
    requests = [event for event in events if event["name"].startswith("request")]
    assert [(request["tid"], request["ts"], request["dur"]) for request in requests] == [
        (1, 0, 0.1),
        (2, 0.05, 0.1),
        (1, 0.1, 0.1),
    ]
    assert [event["dur"] for event in events if event["name"] == "queue"] == [0.09, 0.09, 0.09]
    assert events[0] == {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "m"}}


@pytest.mark.parametrize("numbered", [False, True])
def test_trace_file_stays_valid_on_a_full_disk(tmp_path: Path, numbered: bool) -> None:
    file = _TraceFile(tmp_path / "trace.json")

    def entries(*numbers: int) -> str:
        return ",".join(json.dumps({"id": number, "text": "x" * 40}) for number in numbers)

    def written() -> dict[str, list[int]]:
        return {
            path.name: [entry["id"] for entry in json.loads(path.read_bytes())] for path in sorted(tmp_path.iterdir())
        }

    names = ["trace.json.0", "trace.json.1"] if numbered else ["trace.json"]
    with files_up_to(30), pytest.raises(OSError, match="File too large"):
        file.write(entries(0), numbered)
    assert written() == {}
    file.write(entries(1), numbered)
    with files_up_to(90), pytest.raises(OSError, match="File too large"):
        file.write(entries(2, 3), numbered)
    assert written() == {names[0]: [1]}
    file.write(entries(4), numbered)
    assert written() == ({names[0]: [1], names[1]: [4]} if numbered else {names[0]: [1, 4]})
