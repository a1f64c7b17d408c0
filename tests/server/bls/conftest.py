"""Models that call other models, in the server's process and in a child process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.server.conftest import python_model
from tritonnb.server.server import Server

Write = Callable[..., Path]


HEAD = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

def ask(model, x, **options):
    tensor = pb_utils.Tensor("X", np.asarray(x, np.float32).reshape(1, 1))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["Y"], inputs=[tensor], **options)

def value(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return float(pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()[0, 0])

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [self.answer(request, x) for request, x in zip(requests, inputs)]

    def answer(self, request, x):
        y = np.asarray(self.run(request, float(x[0, 0])), np.float32).reshape(1, -1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])
"""


COUNTING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            for number in range(int(x[0, 0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), number, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def server(write_model: Write, isolate: bool) -> Iterator[Server]:
    """The models that call others run in this process, or in their own processes."""
    in_process = 'parameters { key: "EXECUTION_PROCESS" value { string_value: "in_process" } }'
    write_model("count", COUNTING, f"model_transaction_policy {{ decoupled: true }} {in_process}")
    repository = write_model("double", python_model("x * 2"), in_process)
    with Server(repository, port=0, model_control_mode="explicit", load_models=["*"], isolate=isolate) as server:
        yield server


@pytest.fixture
def scripted(server: Server, write_model: Write) -> Callable[..., Callable[[float], list[float]]]:
    """Serve a model whose ``run(self, request, x)`` has this body; gives a way to ask it."""

    def serve(body: str, name: str = "caller", count: int = 1) -> Callable[[float], list[float]]:
        lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
        write_model(name, f"{HEAD}\n    def run(self, request, x):\n{lines}\n", f"instance_group {{ count: {count} }}")
        config = Path(server.engine.options.model_repositories[0]) / name / "config.pbtxt"
        config.write_text(config.read_text().replace("dims: 1", "dims: [ -1 ]"))
        server.load(name)
        return lambda x: server[name](X=np.array([[x]], np.float32))["Y"].ravel().tolist()

    return serve
