"""``python -m tests.project.walk``: print the functions that one HTTP request calls, as ``file function``."""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

from tritonnb import compiled

compiled.interpret()  # a profiler sees no calls of compiled functions

import numpy as np  # noqa: E402

import tritonnb as tnb  # noqa: E402

ROOT = Path(tnb.__file__).parents[1]
CONFIG = """
backend: "python" max_batch_size: 8 dynamic_batching {}
input { name: "X" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 16 ] }
"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in inputs]
"""


def main() -> None:
    """Send a request to a server that is warm, and print what it calls until the response is sent."""
    calls: list[str] = []
    is_recording = threading.Event()

    def record(frame: FrameType, event: str, _argument: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and is_recording.is_set() and file.is_relative_to(ROOT / "tritonnb"):
            calls.append(f"{file.relative_to(ROOT)} {frame.f_code.co_qualname}")

    threading.setprofile(record)
    with tempfile.TemporaryDirectory() as directory:
        version = Path(directory) / "identity" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        (version / "model.py").write_text(MODEL)
        with tnb.Server(directory, port=0) as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            for number in range(3):
                if number == 2:
                    is_recording.set()
                _send(connection, number)
            is_recording.clear()
            connection.close()
    sys.stdout.write("\n".join(calls))


def _send(connection: http.client.HTTPConnection, number: int) -> None:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
    head = json.dumps({"id": str(number), "inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body = head + np.full(16, number, np.float32).tobytes()
    connection.request("POST", "/v2/models/identity/infer", body, {"Inference-Header-Content-Length": str(len(head))})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"the request: expected status 200, got {response.status}: {content!r}")


if __name__ == "__main__":
    main()
