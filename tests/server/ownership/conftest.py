"""Models that write to their inputs, and a server with some of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from tests.server.isolated import ISOLATED
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server

DATATYPES = {"FP32": tnb.FP32, "INT64": tnb.INT64, "BOOL": tnb.BOOL, "FP16": tnb.FP16, "BYTES": tnb.BYTES}


SCHEDULING: dict[str, dict[str, Any]] = {
    "no batches": {},
    "default scheduler": {"max_batch_size": 8},
    "dynamic batcher": {"max_batch_size": 8, "dynamic_batching": {}},
}


#: A model that writes to its input, once as *model.py* and once (`reverse`) as a function.
REVERSE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            x[...] = x[..., ::-1].copy()
            again = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", again)]))
        return responses
"""


def write_python_model(repository: Path, name: str, body: str, config: str = "", datatype: str = "TYPE_FP32") -> None:
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(body)
    tensors = "".join(f'{kind} {{ name: "{t}" data_type: {datatype} dims: -1 }} ' for kind, t in XY)
    (repository / name / "config.pbtxt").write_text(f'backend: "python" {tensors} {config}')


XY = (("input", "X"), ("output", "Y"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    for suffix, config in (("", ""), ("_isolated", ISOLATED)):
        write_python_model(repository, f"reverse_py{suffix}", REVERSE, config)
        write_python_model(repository, f"reverse_py_strings{suffix}", REVERSE, config, "TYPE_STRING")
    cache = {"local": {"size": "1000000"}}
    with Server(repository, port=0, grpc_port=0, cache_config=cache, allow_client_shm=True) as server:
        yield server


def reverse(x: Any) -> Any:
    x[...] = x[..., ::-1].copy()
    return x


class Gate:
    """Models whose executions wait until the gate is open."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def through(self, compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def gated(x: Any) -> Any:
            self.entered.release()
            self.open.wait()
            return compute(x)

        return gated


def serve(
    server: Server, name: str, datatype: str, scheduling: str, compute: Callable[[Any], Any], **fields: Any
) -> ModelHandle:
    """Serve ``compute`` as a model with the input X and the output Y of one variable dimension."""
    tensor = DATATYPES[datatype][-1]

    def function(X: Any) -> Any:
        return {"Y": compute(X)}

    function.__annotations__ = {"X": tensor, "return": {"Y": tensor}}
    server.model(name=name, **{**SCHEDULING[scheduling], **fields})(function)
    return server[name]
