"""Tracing a real server: what a trace file holds, and the timeline that is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.server.conftest import EXAMPLES
from tritonnb.cli.main import main
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.server.server import Server
from tritonnb.telemetry.trace_settings import TraceOptions

HTTP = [
    "HTTP_RECV_START",
    "HTTP_RECV_END",
    "REQUEST_START",
    "QUEUE_START",
    "BATCH_SENT",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "INFER_RESPONSE_COMPLETE",
    "REQUEST_END",
    "HTTP_SEND_START",
    "HTTP_SEND_END",
]


def test_request_over_http_is_traced_from_socket_to_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    trace = TraceOptions(str(path))
    with (
        Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["identity_fp32"], trace=trace) as server,
        httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
    ):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
        tensor = httpclient.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        client.infer("identity_fp32", [tensor], request_id="r")
    entries = json.loads(path.read_text())
    stamps = [stamp for entry in entries for stamp in entry.get("timestamps", ())]
    assert [stamp["name"] for stamp in stamps] == HTTP
    times = [stamp["ns"] for stamp in stamps]
    assert times == sorted(times)
    output = tmp_path / "perfetto.json"
    assert main(["trace", str(path), "-o", str(output)]) == 0
    events = json.loads(output.read_text())["traceEvents"]
    assert {"r", "queue", "compute infer"} <= {event["name"] for event in events}


def test_trace_begins_before_the_body_is_read(tmp_path: Path) -> None:
    trace = TraceOptions(str(tmp_path / "trace.json"), frozenset(["TIMESTAMPS"]), rate=1, count=9)
    with (
        Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["identity_fp32"], trace=trace) as server,
        httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
    ):
        for path, headers, traced in (
            ("models/identity_fp32/infer", {"Content-Encoding": "br"}, 1),
            ("models/identity_fp32/generate", {}, 1),
            ("models/unknown/infer", {}, 0),
        ):
            before = int(client.get_trace_settings()["trace_count"])
            assert client._post(f"v2/{path}", "no JSON", headers, None).status_code >= 400
            assert before - int(client.get_trace_settings()["trace_count"]) == traced


ASKS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        assert request.trace().get_context() is None
        for trace in (request.trace(), None):
            question = pb_utils.InferenceRequest(
                model_name="answers", requested_output_names=["Y"], inputs=request.inputs(), trace=trace
            )
            answer = question.exec()
        return [answer]
"""
ANSWERS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
"""


def test_request_with_a_trace_context_is_a_child_span(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    write_model("asks", ASKS)
    repository = write_model("answers", ANSWERS)
    path = tmp_path / "trace.json"
    trace = TraceOptions(str(path), frozenset(["TIMESTAMPS"]), rate=1)
    with Server(repository, port=0, trace=trace) as server:
        with httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            tensor = httpclient.InferInput("X", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
            client.infer("asks", [tensor])
    entries = json.loads(path.read_text())
    models = [entry for entry in entries if "model_name" in entry]
    assert models == [
        {"id": 1, "model_name": "asks", "model_version": 1},
        {"id": 2, "model_name": "answers", "model_version": 1, "parent_id": 1},
    ]
    below = [stamp["name"] for entry in entries if entry["id"] == 2 for stamp in entry.get("timestamps", ())]
    assert below == [
        "REQUEST_START", "QUEUE_START", "BATCH_SENT", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START",
        "COMPUTE_END", "REQUEST_END",
    ]  # fmt: skip


@pytest.mark.parametrize("transport", ["fast", "grpcio"])
def test_failed_request_over_grpc_is_traced(transport: str, tmp_path: Path, write_model: Callable[..., Path]) -> None:
    fails = "class TritonPythonModel:\n    def execute(self, requests):\n        raise ValueError('no')\n"
    trace = TraceOptions(str(tmp_path / "trace.json"), frozenset(["TIMESTAMPS"]), rate=1)
    options = GrpcOptions(transport=transport)
    with Server(write_model("fails", fails), port=0, grpc_port=0, grpc=options, trace=trace) as server:
        with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            tensor = grpcclient.InferInput("X", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
            with pytest.raises(InferenceServerException, match="no"):
                client.infer("fails", [tensor])
    entries = json.loads((tmp_path / "trace.json").read_text())
    stamps = [stamp["name"] for entry in entries for stamp in entry.get("timestamps", ())]
    assert {"REQUEST_START", "REQUEST_END", "GRPC_SEND_END"} <= set(stamps)
