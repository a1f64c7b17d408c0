"""A response that a door cannot write fails its request, and no other request of the batch."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

import tritonnb as tnb
from tests.engine.ensembles import serve_function
from tests.server.test_caller_laws import Served
from tritonnb.core.datatypes import BYTES
from tritonnb.core.messages import InferRequest, InferResponse, Tensor

TEXTS = """
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
output { name: "text_output" data_type: TYPE_STRING dims: 1 }
"""


class Model:
    """A model that echoes texts; the writers of ``bad`` fail, and its first execution waits."""

    def __init__(self) -> None:
        self.entered, self.held = threading.Event(), threading.Event()

    def __call__(self, request: InferRequest) -> list[Any]:
        text = request.inputs["text_input"].array.flat[0]
        if text == b"first":
            self.entered.set()
            assert self.held.wait(30)
        if text == b"bad":
            request.observe_responses(spoil)
        return [[Tensor("text_output", BYTES, np.array([[text]], np.object_))]]


def spoil(request: InferRequest, response: InferResponse) -> None:
    """Put an object into the output that no writer can write; backends refuse it in what models return."""
    for tensor in response.outputs:
        tensor.array = np.array([[Ellipsis]], np.object_)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def server(model: Model) -> Iterator[tnb.Server]:
    with tnb.Server(port=0, grpc_port=0, openai=tnb.OpenAiOptions(allow=True)) as server:
        serve_function(Served(server), "m", model, "dynamic_batching { }", TEXTS)  # type: ignore[arg-type]
        yield server
        model.held.set()


def post(server: tnb.Server, path: str, document: Any) -> str:
    response = requests.post(f"{server.url}/{path}", json=document, timeout=30)
    return f"{response.status_code} {response.text}"


def http(server: tnb.Server, text: str) -> str:
    x = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
    return post(server, "v2/models/m/infer", {"inputs": [x]})


def http_binary(server: tnb.Server, text: str) -> str:
    x = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
    document = {"inputs": [x], "parameters": {"binary_data_output": True}}
    return post(server, "v2/models/m/infer", document)


def http_compressed(server: tnb.Server, text: str) -> str:
    x = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
    url, headers = f"{server.url}/v2/models/m/infer", {"Accept-Encoding": "gzip"}
    response = requests.post(url, data=json.dumps({"inputs": [x]}), headers=headers, timeout=30)
    return f"{response.status_code} {response.text}"


def grpc_input(text: str) -> list[grpcclient.InferInput]:
    tensor = grpcclient.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], np.object_))
    return [tensor]


def grpc(server: tnb.Server, text: str) -> str:
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        try:
            return str(client.infer("m", grpc_input(text)).as_numpy("text_output"))
        except InferenceServerException as error:
            return str(error)


def grpc_stream(server: tnb.Server, text: str) -> str:
    answers: SimpleQueue[str] = SimpleQueue()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(
            lambda result, error: answers.put(str(result.as_numpy("text_output") if error is None else error))
        )
        client.async_stream_infer("m", grpc_input(text))
        return answers.get(timeout=30)


def generate(server: tnb.Server, text: str) -> str:
    return post(server, "v2/models/m/generate", {"text_input": text})


def generate_stream(server: tnb.Server, text: str) -> str:
    return post(server, "v2/models/m/generate_stream", {"text_input": text})


def openai(server: tnb.Server, text: str) -> str:
    return post(server, "v1/completions", {"model": "m", "prompt": text})


def openai_stream(server: tnb.Server, text: str) -> str:
    return post(server, "v1/completions", {"model": "m", "prompt": text, "stream": True})


DOORS = [http, http_binary, http_compressed, grpc, grpc_stream, generate, generate_stream, openai, openai_stream]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_failing_writer_ends_its_own_request_only(
    server: tnb.Server, model: Model, door: Callable[[tnb.Server, str], str]
) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(lambda: server["m"](text_input=[[b"first"]]))
        assert model.entered.wait(30)
        texts = ["bad", "good", "bad", "better"]
        answers = [pool.submit(door, server, text) for text in texts]
        while server.call(lambda: server.engine.model("m").in_flight) < 5:
            pass
        model.held.set()
        first.result(30)
        said = [answer.result(30) for answer in answers]
    assert "good" in said[1]
    assert "better" in said[3]
    assert said[0] == said[2]
    assert "TypeError" in said[0] or "AttributeError" in said[0], said
    assert server.engine.model("m").in_flight == 0
