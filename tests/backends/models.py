"""Tiny models for every backend, and a way to run one batch on them without a server."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from google.protobuf import text_format
from onnx import TensorProto, helper, save_model
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.backends.contract import Backend, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.backends.registry import BackendRegistry
from tritonnb.core.datatypes import datatype_of
from tritonnb.core.messages import InferRequest, InferResponse, Tensor

TENSORS = """
    input { name: "IN0" data_type: TYPE_FP32 dims: -1 }
    output { name: "OUT0" data_type: TYPE_FP32 dims: -1 }
"""

PYTHON = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""


class Identity(torch.nn.Module):
    """A module that returns its input."""

    def forward(self, IN0: torch.Tensor) -> torch.Tensor:
        return IN0 + 0


def write_identity(backend: str, directory: Path) -> None:
    """Write an identity model from IN0 to OUT0 for a backend."""
    version = directory / "1"
    version.mkdir(parents=True, exist_ok=True)
    if backend == "python":
        (version / "model.py").write_text(PYTHON)
    elif backend == "onnxruntime":
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "n"]) for name in ("IN0", "OUT0")]
        node = helper.make_node("Identity", ["IN0"], ["OUT0"])
        graph = helper.make_graph([node], "identity", ends[:1], ends[1:])
        opset = [helper.make_opsetid("", 17)]
        save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), version / "model.onnx")
    elif backend == "openvino":
        import openvino as ov  # only here, since its import takes long

        parameter = ov.opset13.parameter([-1, -1], np.float32)
        result = ov.opset13.convert_like(parameter, parameter)
        parameter.output(0).set_names({"IN0"})
        result.output(0).set_names({"OUT0"})
        ov.save_model(ov.Model([result], [parameter], "identity"), version / "model.xml", compress_to_fp16=False)
    elif backend == "pytorch":
        save_scripted(Identity(), directory)


def save_scripted(module: torch.nn.Module, directory: Path) -> None:
    """Write a module as version 1 of a model."""
    version = directory / "1"
    version.mkdir(parents=True, exist_ok=True)
    torch.jit.script(module).save(str(version / "model.pt"))  # type: ignore[no-untyped-call]  # of PyTorch


def config_of(backend: str, tensors: str = TENSORS, extra: str = "", max_batch_size: int = 8) -> pb.ModelConfig:
    """A configuration, normalised as far as backends look at it."""
    text = f'name: "m" backend: "{backend}" max_batch_size: {max_batch_size} {tensors} {extra}'
    return text_format.Parse(text, pb.ModelConfig())


ON_CPU = InstanceSpec("m_0_0", 0, "KIND_CPU")


class Loaded:
    """One instance of a model, initialised, in this thread; ``isolated``: in its own process."""

    def __init__(
        self,
        config: pb.ModelConfig,
        directory: Path,
        settings: dict[str, str] | None = None,
        spec: InstanceSpec = ON_CPU,
        isolated: bool = False,
    ) -> None:
        registry = BackendRegistry(lambda backend: settings or {})
        context = ModelContext("m", 1, config, directory, settings or {})
        backend: Backend = registry.isolated(context) if isolated else registry.get(config.backend)
        completed = backend.auto_complete(context) or config
        self.context = ModelContext("m", 1, completed, directory, settings or {})
        self.config = completed
        self.model: Any = backend.create_model(self.context)  # of any backend
        self.model.initialize()
        self.instance: Any = self.model.create_instance(spec)
        self.instance.initialize()
        self._numbers = itertools.count(1)
        self.streamed: list[tuple[InferRequest, InferResponse]] = []

    def run(self, *requests: InferRequest) -> list[InferResponse | None]:
        """Execute one batch; the responses, in the order of the requests."""
        size = sum(request.batch_size for request in requests)
        number = next(self._numbers)
        execution = Execution(list(requests), size, lambda *answer: self.streamed.append(answer), number)
        self.instance.execute(execution)
        return execution.responses


def request(outputs: tuple[str, ...] | None = None, **inputs: Any) -> InferRequest:
    """A request of some arrays, the first dimension being the batch."""
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    tensors = {name: Tensor(name, datatype_of(array.dtype), array) for name, array in arrays.items()}
    created = InferRequest("m", tensors, lambda *_: None, requested_outputs=outputs)
    created.batch_size = max(1, next(iter(arrays.values())).shape[0])
    return created


def rows(*values: float) -> npt.NDArray[np.float32]:
    """FP32 of shape [n, 1]."""
    return np.array(values, np.float32).reshape(-1, 1)
