"""The memory of a request is freed when it is answered: no reference cycle waits for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.server.conftest import model_writer, python_model
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest
from tritonnb.server.server import Server

pytestmark = pytest.mark.slow

ASKS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        calls = [
            pb_utils.InferenceRequest(model_name="one", requested_output_names=["Y"], inputs=request.inputs()).exec()
            for request in requests
        ]
        return [pb_utils.InferenceResponse(call.output_tensors()) for call in calls]
"""
REFUSES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no")) for _ in requests]
"""


RAISES = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("no")
"""
AWAITS = RAISES.replace("def execute", "async def execute")
GIVES_NOTHING = RAISES.replace('raise ValueError("no")', "return []")
DECOUPLED = "model_transaction_policy { decoupled: true }"
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling {
  step {
    model_name: "raises"
    model_version: -1
    input_map { key: "X" value: "X" }
    output_map { key: "Y" value: "Y" }
  }
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    write_model = model_writer(tmp_path_factory.mktemp("models"))
    write_model("one", python_model("x + 1"))
    write_model("asks", ASKS)
    write_model("refuses", REFUSES)
    write_model("raises", RAISES)
    write_model("awaits", AWAITS)
    write_model("gives_nothing", GIVES_NOTHING)
    write_model("decoupled", RAISES, DECOUPLED)
    write_model("stateful", python_model("x + 1"), "sequence_batching { }")  # and no request has a sequence
    write_model("asks_in_vain", ASKS.replace('"one"', '"raises"'))
    repository = write_model("ensemble", "")
    (repository / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    with Server(repository, port=0, grpc_port=0) as server:
        yield server


@pytest.fixture(scope="module")
def frozen() -> Iterator[None]:
    """Spare the collections of each test the objects of all imported modules."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as `tests.conftest` leaves them


@pytest.fixture
def cycles(frozen: None) -> Iterator[Callable[[], int]]:
    """Count the requests that only the garbage collector would free."""
    gc.collect()
    gc.freeze()  # only what is allocated from now on is searched for cycles
    gc.disable()

    def leaked_requests() -> int:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        return sum(isinstance(leaked, InferRequest) for leaked in gc.garbage)

    yield leaked_requests
    gc.garbage.clear()
    gc.enable()


def in_process(server: Server, model: str, rows: int) -> None:
    with suppress(TritonError):
        server[model].infer_all(X=np.ones((rows, 1), np.float32))


def in_process_from_a_loop(server: Server, model: str, rows: int) -> None:
    async def ask() -> None:
        with suppress(TritonError):
            await server[model].infer_async(X=np.ones((rows, 1), np.float32))

    asyncio.run(ask())


def http(server: Server, model: str, rows: int) -> None:
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        with suppress(InferenceServerException):
            client.infer(model, [input_tensor(httpclient, rows)])


def generate(server: Server, model: str, rows: int) -> None:
    body = json.dumps({"X": [1] * rows}).encode()
    with suppress(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v2/models/{model}/generate", body).close()


def grpc(server: Server, model: str, rows: int) -> None:
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        with suppress(InferenceServerException):
            client.infer(model, [input_tensor(grpcclient, rows)])


def stream(server: Server, model: str, rows: int, headers: dict[str, str] | None = None) -> None:
    answers: SimpleQueue[Any] = SimpleQueue()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put(result), headers=headers)
        client.async_stream_infer(model, [input_tensor(grpcclient, rows)])
        answers.get(timeout=20)


def stream_that_ends_with_an_error(server: Server, model: str, rows: int) -> None:
    stream(server, model, rows, {"triton_grpc_error": "true"})


def input_tensor(library: Any, rows: int) -> Any:
    tensor = library.InferInput("X", [rows, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((rows, 1), np.float32))
    return tensor


WAYS = [in_process, in_process_from_a_loop, http, generate, grpc, stream, stream_that_ends_with_an_error]
FAILING = [
    "refuses", "raises", "awaits", "gives_nothing", "decoupled", "stateful", "asks_in_vain", "ensemble",
]  # fmt: skip


@pytest.mark.parametrize("ask", WAYS)
def test_answered_request_is_not_part_of_a_reference_cycle(
    server: Server, cycles: Callable[[], int], ask: Callable[..., None]
) -> None:
    for model in ["one", "asks"] * 3:
        ask(server, model, 1)
    assert cycles() == 0


@pytest.mark.parametrize("ask", WAYS)
def test_failed_request_is_not_part_of_a_reference_cycle(
    server: Server, cycles: Callable[[], int], ask: Callable[..., None]
) -> None:
    """An exception holds the frames of its traceback, and these hold the request."""
    for model in FAILING * 2:
        ask(server, model, 1)
    assert cycles() == 0


@pytest.mark.parametrize("ask", WAYS)
def test_refused_request_is_not_part_of_a_reference_cycle(
    server: Server, cycles: Callable[[], int], ask: Callable[..., None]
) -> None:
    for _ in range(3):
        ask(server, "one", 9)
    assert cycles() == 0


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("fault", ['raise ValueError("no")', "return later()"])
def test_model_that_fails_to_initialize_is_freed_immediately(
    tmp_path: Path, write_model: Callable[..., Path], fault: str
) -> None:
    model = f"""
class Weights:
    pass

class TritonPythonModel:
    def initialize(self, args):
        self.weights = Weights()
        {fault}
"""
    gc.collect()
    gc.disable()
    try:
        repository = write_model("fails", model)
        with Server(repository, port=None, allow_http=False, model_control_mode="explicit") as server:
            with suppress(TritonError):
                server.load("fails")
            assert not [tracked for tracked in gc.get_objects() if type(tracked).__name__ == "Weights"]
    finally:
        gc.enable()


def test_truncated_body_is_discarded_with_its_connection(server: Server, cycles: Callable[[], int]) -> None:
    head = b"POST /v2/models/one/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + bytes(500_000))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1000):
            pass
    cycles()
    assert not [leaked for leaked in gc.garbage if isinstance(leaked, list) and len(b"".join(_bytes(leaked))) > 100_000]


def _bytes(listed: list[Any]) -> list[bytes]:
    return [bytes(entry) for entry in listed if isinstance(entry, bytes | bytearray)]
