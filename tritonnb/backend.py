"""Everything for writing a backend: the contract, and the helpers that the built-in backends also use.

A backend is a `Backend` that creates a `BackendModel` for each model version, which creates a `BackendModelInstance`
for each instance. It is registered under the entry point group ``tritonnb.backends``;
`tritonnb.model_zoo.minimal_backend` is a complete one. Exceptions are in `tritonnb.errors`.

Examples
--------
An instance gathers the rows of all requests of a batch, runs the model, and scatters the rows of the outputs:

>>> import numpy as np
>>> class DoubleInstance(BackendModelInstance):
...     def __init__(self, spec: ModelSpec) -> None:
...         self.spec = spec
...
...     def execute(self, execution: Execution) -> None:
...         x = gather(execution, "X")
...         execution.compute_started()
...         y = 2 * x
...         execution.compute_ended()
...         scatter(execution, {"Y": (self.spec.outputs["Y"], y)}, batching=self.spec.max_batch_size > 0)

An instance can be tested without a server:

>>> fp32 = datatype_of(np.float32)
>>> spec = ModelSpec("double", 8, {"X": TensorSpec("X", fp32, (1,))}, {"Y": TensorSpec("Y", fp32, (1,))})
>>> def discard(request: InferRequest, response: InferResponse) -> None:
...     pass
>>> rows = [np.array([[value]], np.float32) for value in (1.5, 4.0)]
>>> requests = [InferRequest("double", {"X": Tensor("X", fp32, array)}, discard) for array in rows]
>>> execution = Execution(requests, size=2, deliver=discard)
>>> DoubleInstance(spec).execute(execution)
>>> [response.outputs[0].array.tolist() for response in execution.responses]
[[[3.0]], [[8.0]]]
"""

from tritonnb.backends.batching import decode_strings, gather, output_tensor, publish_states, scatter
from tritonnb.backends.configured_tensors import BatchTensors
from tritonnb.backends.contract import (
    Backend,
    BackendModel,
    BackendModelInstance,
    InstanceSpec,
    MemoryPlace,
    ModelContext,
    ServerCalls,
)
from tritonnb.backends.devices import memory_in_use
from tritonnb.backends.execution import Execution, ResponseSender
from tritonnb.backends.model_checks import (
    ModelTensor,
    boolean_parameter,
    check_input_count,
    check_tensor,
    complete_config,
    find_model_file,
    find_tensor,
    integer_parameter,
)
from tritonnb.core.datatypes import DataType, datatype_of
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.schedulable import Schedulable
from tritonnb.model_config.schema import ModelSpec, TensorSpec

__all__ = [
    "Backend",
    "BackendModel",
    "BackendModelInstance",
    "BatchTensors",
    "DataType",
    "Execution",
    "InferRequest",
    "InferResponse",
    "InstanceSpec",
    "MemoryPlace",
    "ModelContext",
    "ModelSpec",
    "ModelTensor",
    "ResponseSender",
    "Schedulable",
    "ServerCalls",
    "Tensor",
    "TensorSpec",
    "boolean_parameter",
    "check_input_count",
    "check_tensor",
    "complete_config",
    "datatype_of",
    "decode_strings",
    "find_model_file",
    "find_tensor",
    "gather",
    "integer_parameter",
    "memory_in_use",
    "output_tensor",
    "publish_states",
    "scatter",
]
