"""Missing values, and parameters that nothing can carry, at every door: each is refused, and its neighbours are not."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

import tritonnb as tnb
from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.server.server import Server

#: Returns what the code in its input makes, or calls the model `other` with it.
MODEL = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            code = pb.get_input_tensor_by_name(request, "X").as_numpy()[0, 0].decode()
            try:
                response = eval(code, {**globals(), "same": request.inputs()})
            except pb.TritonModelException as error:
                response = pb.InferenceResponse(error=pb.TritonError(f"refused: {error}"))
            responses.append(response)
        return responses

def answer(values):
    return pb.InferenceResponse([pb.Tensor("Y", values)])

def call(values, **options):
    request = pb.InferenceRequest(
        model_name="other", requested_output_names=["Y"], inputs=[pb.Tensor("X", values)], **options
    )
    response = request.exec()
    return pb.InferenceResponse(error=response.error()) if response.has_error() else answer(np.array([[b"called"]]))
"""
OTHER = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("Y", request.inputs()[0].as_numpy())]) for request in requests]
"""
CONFIG = """
    backend: "python" max_batch_size: 4
    input { name: "X" data_type: TYPE_STRING dims: 1 }
    output { name: "Y" data_type: TYPE_STRING dims: 1 }
    dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 200000 }
"""


@pytest.fixture(params=[False, True], ids=["in-process", "isolated"], scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    for name, text in (("m", MODEL), ("other", OTHER)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG if name == "m" else CONFIG.split("dynamic")[0])
        (repository / name / "1" / "model.py").write_text(text)
    with Server(repository, port=0, grpc_port=0, isolate=request.param) as server:
        yield server


def with_neighbour(server: Server, code: str, **options: Any) -> tuple[str, list[list[bytes]]]:
    """The error of a request, and the answer of the other one in its batch."""
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(lambda: server["m"](X=[["answer(np.array([[b'other']]))"]])["Y"].tolist())
        try:
            text = str(server["m"](X=[[code]], **options)["Y"].tolist())
        except TritonError as error:
            text = error.message
        return text, other.result()


@pytest.mark.parametrize("use", ["answer", "call"])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("np.array([[None]], object)", "got a missing value (None) at index [0,0]"),
        ("np.array([[float('nan')]], object)", "got a missing value (nan) at index [0,0]"),
        ("np.array([[{'k': 1}]], object)", "got {'k': 1} at index [0,0]: convert it to str or bytes"),
        ("np.ma.array([[b'a']], mask=[[1]])", "expected an array without missing values, got masked elements"),
        ("np.ma.array([[1, 2]], mask=[[0, 1]])", "expected an array without missing values, got masked elements"),
    ],
)
def test_missing_values_of_a_python_model_fail_their_request(server: Server, use: str, values: str, words: str) -> None:
    text, other = with_neighbour(server, f"{use}({values})")
    assert words in text
    assert other == [[b"other"]] or use == "call"


def test_a_mask_that_hides_nothing_is_no_mask(server: Server) -> None:
    text, _ = with_neighbour(server, "answer(np.ma.array([[b'a']], mask=[[0]]))")
    assert text == "[[b'a']]"


def test_missing_values_are_refused_in_requests_and_loads(server: Server) -> None:
    words = r"model 'other': input 'X' expected BYTES values, got a missing value \(nan\) at index \[1,0\]"
    values = pd.DataFrame({"X": ["a", None]})
    remote = tnb.connect(server.url)
    for refused in (
        lambda: server["other"](X=values),
        lambda: server["other"].infer({"X": values.to_numpy()}),
        lambda: remote["other"](X=values),
        lambda: tnb.load(server["other"], clients=1, duration=0.1, inputs={"X": values}),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            refused()


#: A value that no parameter can have, as JSON.
LARGE = [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**400]


@pytest.mark.parametrize("value", LARGE)
def test_large_parameters_over_http_do_not_fail_their_neighbours(server: Server, value: int) -> None:
    tensor = {"name": "X", "datatype": "BYTES", "shape": [1, 1], "data": ["answer(np.array([[b'a']]))"]}
    body = json.dumps({"inputs": [tensor], "parameters": {"a": value}}).encode()

    def send() -> int:
        try:
            with urllib.request.urlopen(f"{server.url}/v2/models/m/infer", body, timeout=20) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code if json.loads(error.read())["error"] else 0

    with ThreadPoolExecutor(2) as pool:
        status = pool.submit(send)
        assert server["m"](X=[["answer(np.array([[b'other']]))"]])["Y"].tolist() == [[b"other"]]
        assert status.result() in (200, 400, 500)


def test_large_parameters_over_grpc_do_not_fail_their_neighbours(server: Server) -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="X", datatype="BYTES", shape=[1, 1])
    tensor.contents.bytes_contents.append(b"answer(np.array([[b'a']]))")
    message.parameters["a"].uint64_param = 2**64 - 1
    message.parameters["b"].double_param = float("nan")
    message.parameters["c"].string_param = "x" * 1_000_000

    def send() -> str:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            try:
                service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=20)
            except grpc.RpcError as error:
                return str(error.details())
        return ""

    with ThreadPoolExecutor(2) as pool:
        text = pool.submit(send)
        assert server["m"](X=[["answer(np.array([[b'other']]))"]])["Y"].tolist() == [[b"other"]]
        assert text.result() == "" or "param" in text.result()


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "'\\ud83d'"])
def test_parameters_that_a_model_cannot_send_fail_its_call(server: Server, value: object) -> None:
    text, other = with_neighbour(server, f"call(np.array([[b'a']]), parameters={{'p': {value}}})")
    assert "Unsupported value type on parameters" in text
    assert other == [[b"other"]]


def test_numpy_scalars_are_parameters() -> None:
    with Server(port=0) as server:

        @server.model
        def m(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X

        given: Any = {
            "a": np.int64(1),
            "b": np.float32(1.5),
            "c": np.bool_(True),
            "d": np.str_("x"),
            "e": "x" * 100_000,
        }
        assert server["m"](X=[1.0], parameters=given)["OUTPUT"].tolist() == [1.0]
