"""Tracing a real server: what a trace file holds, and the timeline that is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tritonclient.http as httpclient

from tests.server.conftest import EXAMPLES
from tritonnb.cli import main
from tritonnb.server import Server
from tritonnb.telemetry.trace_settings import TraceOptions

HTTP = [
    "HTTP_RECV_START",
    "HTTP_RECV_END",
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "INFER_RESPONSE_COMPLETE",
    "REQUEST_END",
    "HTTP_SEND_START",
    "HTTP_SEND_END",
]


def test_a_request_over_http_is_traced_from_socket_to_socket(tmp_path: Path, capsys):
    path = tmp_path / "trace.json"
    trace = TraceOptions(str(path))
    with (
        Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["identity_fp32"], trace=trace) as server,
        httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
    ):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
        given = httpclient.InferInput("INPUT0", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        client.infer("identity_fp32", [given], request_id="r")
    entries = json.loads(path.read_text())
    stamps = [stamp for entry in entries for stamp in entry.get("timestamps", ())]
    assert [each["name"] for each in stamps] == HTTP
    times = [each["ns"] for each in stamps]
    assert times == sorted(times)
    output = tmp_path / "perfetto.json"
    assert main(["trace", str(path), "-o", str(output)]) == 0
    events = json.loads(output.read_text())["traceEvents"]
    assert {"r", "queue", "compute infer"} <= {each["name"] for each in events}
