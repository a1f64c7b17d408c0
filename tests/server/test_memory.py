"""What a request took is free when it is answered: no circle of objects waits for the garbage collector."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.server.conftest import python_model
from tritonnb.core.messages import InferRequest
from tritonnb.server import Server

ASKS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        asked = [
            pb_utils.InferenceRequest(model_name="one", requested_output_names=["Y"], inputs=each.inputs()).exec()
            for each in requests
        ]
        return [pb_utils.InferenceResponse(each.output_tensors()) for each in asked]
"""
REFUSES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no")) for _ in requests]
"""


@pytest.fixture
def server(write_model: Callable[..., Path]) -> Iterator[Server]:
    for name, body in (("one", python_model("x + 1")), ("asks", ASKS), ("refuses", REFUSES)):
        repository = write_model(name, body)
    with Server(repository, port=0, grpc_port=0) as server:
        yield server


@pytest.fixture
def circles() -> Iterator[Callable[[], int]]:
    """How many requests only the garbage collector would free."""
    gc.collect()
    gc.disable()

    def found() -> int:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        return sum(isinstance(each, InferRequest) for each in gc.garbage)

    yield found
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("model", ["one", "asks", "refuses"])
@pytest.mark.parametrize("library", [httpclient, grpcclient], ids=["http", "grpc"])
def test_an_answered_request_is_in_no_circle(server: Server, circles: Callable[[], int], library, model: str):
    port = server.port if library is httpclient else server.grpc_port
    given = library.InferInput("X", [1, 1], "FP32")
    given.set_data_from_numpy(np.ones((1, 1), np.float32))
    with library.InferenceServerClient(f"127.0.0.1:{port}") as client:
        for _ in range(3):
            try:
                client.infer(model, [given])
            except InferenceServerException:
                assert model == "refuses"
    assert circles() == 0


def test_nor_is_one_of_a_stream(server: Server, circles: Callable[[], int]):
    given = grpcclient.InferInput("X", [1, 1], "FP32")
    given.set_data_from_numpy(np.ones((1, 1), np.float32))
    answers: SimpleQueue = SimpleQueue()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put(result))
        for _ in range(3):
            client.async_stream_infer("one", [given])
        assert [answers.get(timeout=20).as_numpy("Y").item() for _ in range(3)] == [2, 2, 2]
    assert circles() == 0


def test_a_body_that_is_cut_off_goes_with_its_connection(server: Server, circles: Callable[[], int]):
    head = b"POST /v2/models/one/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + bytes(500_000))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1000):
            pass
    circles()
    assert not [each for each in gc.garbage if isinstance(each, list) and len(b"".join(_bytes(each))) > 100_000]


def _bytes(listed: list) -> list[bytes]:
    return [each for each in listed if isinstance(each, bytes | bytearray)]
