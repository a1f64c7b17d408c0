"""``triton_python_backend_utils``: what Python models import, here as on Triton.

Names and behaviour are those of Triton's Python backend, so a *model.py* runs unchanged on both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tritonnb.backends.python.error import TritonError, TritonModelException
from tritonnb.backends.python.instance_binding import InstanceBinding, current_binding
from tritonnb.backends.python.logger import Logger
from tritonnb.backends.python.metrics import MetricFamily
from tritonnb.backends.python.model_config import ModelConfig
from tritonnb.backends.python.model_control import is_model_ready, load_model, unload_model
from tritonnb.backends.python.request import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceTrace,
    PreferredMemory,
)
from tritonnb.backends.python.response import (
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceResponse,
    InferenceResponseSender,
)
from tritonnb.backends.python.tensor import Tensor
from tritonnb.core import datatypes

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

NAME = "triton_python_backend_utils"

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    each.config_name: each.numpy.type for each in datatypes.DATATYPES if each is not datatypes.BF16
}
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool
_NUMBER_TO_NUMPY = {each.number: each.numpy.type for each in datatypes.DATATYPES if each is not datatypes.BF16}

T = TypeVar("T")


def utilities_for(binding: InstanceBinding) -> ModuleType:
    """The utilities as one instance imports them: what they ask a server for, they ask that instance's."""
    module = ModuleType(NAME, __doc__)
    for name in __all__:
        setattr(module, name, globals()[name])
    for kind in (InferenceRequest, MetricFamily):
        setattr(module, kind.__name__, type(kind.__name__, (kind,), {"__slots__": (), "_binding": binding}))
    for function in (get_model_dir, is_model_ready, load_model, unload_model):
        setattr(module, function.__name__, _on_behalf_of(binding, function))
    return module


def _on_behalf_of(binding: InstanceBinding, function: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> T:
        with binding.acting():
            return function(*args, **options)

    return call


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    """An input of a request, or None."""
    return request.input(name)


def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
    """An output of a response, or None."""
    return next((each for each in response.output_tensors() if each.name() == name), None)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """An input's entry in the model configuration, or None."""
    return next((each for each in model_config.get("input", ()) if each["name"] == name), None)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """An output's entry in the model configuration, or None."""
    return next((each for each in model_config.get("output", ()) if each["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether a model configuration is that of a decoupled model."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The NumPy type of ``TYPE_FP32`` and the like; a KeyError for an unknown one."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The NumPy type of a datatype number; None if there is none."""
    return _NUMBER_TO_NUMPY.get(data_type)


def numpy_to_triton_type(data_type: npt.DTypeLike) -> int | None:
    """The datatype number of a NumPy type; None if there is none."""
    if data_type == np.bytes_:
        return datatypes.BYTES.number
    return next((number for number, each in _NUMBER_TO_NUMPY.items() if data_type == each), None)


def serialize_byte_tensor(input_tensor: npt.NDArray[Any]) -> bytes | tuple[()] | None:
    """Strings in the wire form of BYTES; an empty tuple for an empty tensor, None where it holds no byte strings."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return datatypes.encode_bytes(datatypes.as_bytes_array(input_tensor))


def deserialize_bytes_tensor(encoded_tensor: bytes) -> npt.NDArray[Any]:
    """The strings of BYTES in wire form."""
    return datatypes.decode_bytes(encoded_tensor)


def get_model_dir() -> str:
    """The version directory of the model that is being imported or called."""
    binding = current_binding()
    return "" if binding is None else str(binding.directory)
