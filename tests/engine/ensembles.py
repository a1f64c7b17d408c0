"""Ensembles, and models that call a function with each request."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.engine.conftest import Driver
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution, ResponseSender
from tritonnb.core.datatypes import INT32
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.engine.repository.directories import ModelSource

TENSORS = 'input { name: "X" data_type: TYPE_INT32 dims: 1 } output { name: "Y" data_type: TYPE_INT32 dims: 1 }'


def serve_ensemble(driver: Driver, *steps: str, name: str = "e", **options: Any) -> None:
    """Load an ensemble of the steps of `ensemble_source`."""
    driver.background.run(driver.engine.load_source(ensemble_source(*steps, name=name, **options)))


def ensemble_source(
    *steps: str, name: str = "e", options: str = "", tensors: str = TENSORS, batch: int = 8
) -> ModelSource:
    """Steps such as ``"a: X -> mid"``: the ensemble's tensors for the model's X and Y."""
    text = ""
    for step in steps:
        model, read, write = step.replace(":", " ").replace("->", " ").split()
        text += (
            f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{read}" }} '
            f'output_map {{ key: "Y" value: "{write}" }} }}'
        )
    config = text_format.Parse(
        f'name: "{name}" platform: "ensemble" max_batch_size: {batch} {tensors} '
        f"ensemble_scheduling {{ {text} {options} }}",
        pb.ModelConfig(),
    )
    return ModelSource(name, Path(), config, (1,))


#: Called with a request, and with its sender if the model is decoupled.
ModelFunction = Callable[..., Any]


class Answers(Backend):
    """A backend that calls a function with each request and its sender (None unless decoupled), on its thread."""

    name = "answers"

    def __init__(self, function: ModelFunction) -> None:
        self._function = function

    def create_model(self, context: ModelContext) -> BackendModel:
        function = self._function

        class Instance(BackendModelInstance):
            def execute(self, execution: Execution) -> None:
                for index, request in enumerate(execution.requests):
                    decoupled = context.config.model_transaction_policy.decoupled
                    if decoupled:
                        function(request, execution.sender(index))
                    else:
                        execution.respond(index, *function(request))

        class Model(BackendModel):
            def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
                return Instance()

        return Model(context)


def serve_function(
    driver: Driver, name: str, function: ModelFunction, extra: str = "", tensors: str = TENSORS, batch: int = 8
) -> None:
    config = text_format.Parse(
        f'name: "{name}" backend: "x" max_batch_size: {batch} {tensors} {extra}', pb.ModelConfig()
    )
    source = ModelSource(name, Path(), config, (1,), Answers(function))
    driver.background.run(driver.engine.load_source(source))


def y(*rows: int) -> Tensor:
    return Tensor("Y", INT32, np.array(rows, np.int32).reshape(-1, 1))


def plus(number: int) -> ModelFunction:
    return lambda request: ([Tensor("Y", INT32, request.inputs["X"].array + np.int32(number))],)


def recorded(seen: SimpleQueue[InferRequest]) -> ModelFunction:
    """An identity function that records its requests."""

    def function(request: InferRequest) -> Any:
        seen.put(request)
        return plus(0)(request)

    return function


def counting(request: InferRequest, sender: ResponseSender) -> None:
    for number in range(int(request.inputs["X"].array.flat[0])):
        sender.send(InferResponse([y(number)], final=False))
    sender.send(InferResponse(empty=True))


DECOUPLED = "model_transaction_policy { decoupled: true }"


def responses(driver: Driver, model: str, *rows: int, **options: Any) -> list[InferResponse]:
    """All responses to a request, the final one included."""
    done: Future[list[InferResponse]] = Future()
    seen: list[InferResponse] = []

    def respond(request: InferRequest, response: InferResponse) -> None:
        seen.append(response)
        if response.final:
            done.set_result(seen)

    x = Tensor("X", INT32, np.array(rows, np.int32).reshape(-1, 1))
    driver.background.call(driver.submit, InferRequest(model, {"X": x}, respond, **options))
    return done.result(timeout=30)
