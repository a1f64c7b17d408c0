"""Pipelines as a server records them: which request made which call, however the model makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tritonnb as tnb
from tests.engine.ensembles import TENSORS, ensemble_source
from tests.server.isolated import ISOLATED
from tritonnb.recording.pipelines import PipelineRequest
from tritonnb.server.server import Server

#: A call, and the ways in which a model makes several of them.
CALLS = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import triton_python_backend_utils as pb_utils

def call(model="leaf"):
    x = pb_utils.Tensor("X", np.zeros((1, 1), np.float32))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["Y"], inputs=[x])

def answers(requests):
    tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for x in tensors]

"""
WAYS = {
    "one after another": "def execute(self, requests): call().exec(); call().exec(); return answers(requests)",
    "at the same time": """async def execute(self, requests):
        await asyncio.gather(call().async_exec(), call().async_exec())
        return answers(requests)""",
    "on threads": """def execute(self, requests):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: call().exec(), range(2)))
        return answers(requests)""",
    "of a decoupled model": """def execute(self, requests):
        for _ in range(2):
            list(call("stream").exec(decoupled=True))
        return answers(requests)""",
    "of an ensemble": "def execute(self, requests): call('e').exec(); call('e').exec(); return answers(requests)",
}
LEAF = "def execute(self, requests): return answers(requests)"
STREAM = """def execute(self, requests):
        for request, answer in zip(requests, answers(requests)):
            sender = request.get_response_sender()
            sender.send(answer)
            sender.send(answer)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)"""
DECOUPLED = "model_transaction_policy { decoupled: true }"

Write = Callable[..., Path]


def serve(write_model: Write, way: str, config: str = "") -> Path:
    def body(execute: str) -> str:
        return f"{CALLS}\nclass TritonPythonModel:\n    {execute}\n"

    write_model("leaf", body(LEAF))
    write_model("stream", body(STREAM), DECOUPLED)
    repository = write_model("caller", body(WAYS[way]), config)
    tensors = TENSORS.replace("INT32", "FP32")
    source = ensemble_source("leaf: X -> mid", "leaf: mid -> Y", tensors=tensors)
    (repository / "e" / "1").mkdir(parents=True)
    (repository / "e" / "config.pbtxt").write_text(str(source.config))
    return repository


def tree(request: PipelineRequest) -> tuple[object, ...]:
    return (request.model, request.kind, request.failed, *map(tree, request.steps))


LEAF_TREE = ("leaf", "call", "")
TREES = {
    "of a decoupled model": ("stream", "call", ""),
    "of an ensemble": ("e", "call", "", ("leaf", "step", ""), ("leaf", "step", "")),
}


@pytest.mark.parametrize("way", WAYS)
def test_recording_has_the_calls_of_a_model_below_its_request(write_model: Write, way: str, isolate: bool) -> None:
    repository = serve(write_model, way, ISOLATED if isolate else "")
    with Server(repository, port=0) as server:
        with server.record() as recording:
            for _ in range(2):
                server["caller"](X=np.ones((1, 1), np.float32))
    [pipeline] = recording.pipelines.values()
    below = TREES.get(way, LEAF_TREE)
    assert [tree(request) for request in pipeline.requests] == 2 * [("caller", "client", "", below, below)]
    for request in pipeline.requests:
        assert request.record is not None
        for number, step in enumerate(request.steps):
            assert (step.number, step.parent) == (number, request.serial)
            # A decoupled model has responded before its end is recorded.
            assert request.record.exec_start_ns <= step.received_ns <= step.answered_ns <= request.ended_ns
        path = request.critical_path()
        assert sum(end - begin for _, begin, end in path) == request.latency_ns
        assert sum(recording.blame(request).steps.values()) == request.latency_ns
    simulated = recording.what_if({}).before.pipelines["caller"].requests
    assert [tree(request) for request in simulated] == [tree(request) for request in pipeline.requests]


def test_calls_of_a_batch_belong_to_each_of_its_requests(write_model: Write, isolate: bool) -> None:
    batching = "dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 60000000 }"
    config = f"{batching} {ISOLATED if isolate else ''}"
    with Server(serve(write_model, "one after another", config), port=0) as server, server.record() as recording:

        async def both() -> None:
            await asyncio.gather(*(server["caller"].infer_async(X=np.ones((1, 1), np.float32)) for _ in range(2)))

        asyncio.run(both())
    first, second = recording.pipelines["caller"].requests
    assert first.steps == second.steps
    assert {step.parent for step in first.steps} == {min(first.serial, second.serial)}


def test_recording_has_the_calls_of_a_function_below_its_request() -> None:
    with tnb.Server(port=0) as server:

        @server.model(max_batch_size=8)
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        @server.model(max_batch_size=8)
        def quadruple(X: tnb.FP32[1]) -> tnb.FP32[1]:
            [twice] = server["double"](X=X).values()
            return next(iter(server["double"](X=twice).values()))

        with server.record() as recording:
            server["quadruple"](X=[[1.0]])
            server["double"](X=[[1.0]])
    [request] = recording.pipelines["quadruple"].requests
    assert tree(request) == ("quadruple", "client", "", ("double", "call", ""), ("double", "call", ""))
    assert list(recording.pipelines) == ["quadruple"]
