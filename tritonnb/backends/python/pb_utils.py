"""``triton_python_backend_utils``: the module that Python models import, as on Triton.

Names and behaviour follow Triton's Python backend, so a *model.py* runs unchanged on both.
"""

from __future__ import annotations

import enum
import functools
import logging
from collections.abc import Callable
from types import ModuleType

import numpy as np
import numpy.typing as npt

from tritonnb.backends.python.calls import MetricFamily, is_model_ready, load_model, unload_model
from tritonnb.backends.python.error import TritonError, TritonModelException
from tritonnb.backends.python.instance_binding import InstanceBinding, current_binding
from tritonnb.backends.python.model_config import ConfigDict, ModelConfig
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
from tritonnb.core.suggestions import did_you_mean
from tritonnb.core.texts import encodable, shown

_logger = logging.getLogger(__name__)


class Logger:
    """A logger that writes to the server's log."""

    class LogLevel(enum.Enum):
        """Log levels, with the values of `logging`."""

        INFO = logging.INFO
        WARNING = logging.WARNING
        ERROR = logging.ERROR
        VERBOSE = logging.DEBUG

    INFO, WARNING, ERROR, VERBOSE = LogLevel

    _log = logging.getLogger("tritonnb.model")

    @classmethod
    def log(cls, message: str, level: LogLevel = INFO) -> None:
        """Write a message with a log level."""
        if not isinstance(message, str) or not isinstance(level, cls.LogLevel):
            raise TypeError(
                "Logger.log: expected a str and one of Logger.INFO, WARNING, ERROR, VERBOSE, got "
                f"{type(message).__name__} and {level!r}"
            )
        # "%s", because a message of a model may contain percent signs.
        cls._log.log(level.value, "%s", encodable(message), stacklevel=2)

    @classmethod
    def log_info(cls, message: str) -> None:
        """Write an information message."""
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Write a warning."""
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Write an error message."""
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Write a message that is shown with ``--log-verbose``."""
        cls.log(message, cls.VERBOSE)


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

_IN_NUMPY = [datatype for datatype in datatypes.DATATYPES if not datatype.bit_pattern]
TRITON_STRING_TO_NUMPY: dict[str, type] = {datatype.config_name: datatype.numpy.type for datatype in _IN_NUMPY}
# `bool` and not `numpy.bool_`, as in Triton's table: a model may compare types by identity.
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool
_NUMBER_TO_NUMPY = {datatype.number: datatype.numpy.type for datatype in _IN_NUMPY}


def utilities_for(binding: InstanceBinding) -> ModuleType:
    """Return the module as one instance imports it: its calls to a server go to the server of that instance."""
    module = ModuleType(NAME, __doc__)
    for name in __all__:
        setattr(module, name, globals()[name])
    for kind in (InferenceRequest, MetricFamily):
        # A class for each instance, since `InferenceRequest(...)` must know its server on any thread that the model
        # starts.
        setattr(module, kind.__name__, type(kind.__name__, (kind,), {"__slots__": (), "_binding": binding}))
    functions: tuple[Callable[..., object], ...] = (get_model_dir, is_model_ready, load_model, unload_model)
    for function in functions:
        call = functools.partial(binding.call, function)
        setattr(module, function.__name__, functools.update_wrapper(call, function))
    return module


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    """Return an input of a request, or None."""
    return request.input(name)


def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
    """Return an output of a response, or None."""
    tensors = response.output_tensors()
    found = next((tensor for tensor in tensors if tensor.name() == name), None)
    if found is None:
        error = response.error()
        failure = "" if error is None else f"an error: {error.message()}"
        names = [tensor.name() for tensor in tensors]
        _log_missed("get_output_tensor_by_name expected an output of the response", names, name, failure)
    return found


def get_input_config_by_name(model_config: ConfigDict, name: str) -> ConfigDict | None:
    """Return an input's entry in the model configuration, or None."""
    return _tensor_config(model_config, "input", name)


def get_output_config_by_name(model_config: ConfigDict, name: str) -> ConfigDict | None:
    """Return an output's entry in the model configuration, or None."""
    return _tensor_config(model_config, "output", name)


def _tensor_config(model_config: ConfigDict, kind: str, name: str) -> ConfigDict | None:
    entries: dict[str, ConfigDict] = {entry["name"]: entry for entry in model_config.get(kind, ())}
    if name not in entries:
        _log_missed(f"get_{kind}_config_by_name expected an {kind} of the configuration", list(entries), name)
    return entries.get(name)


def _log_missed(expected: str, names: list[str], name: object, failure: str = "") -> None:
    """Log, once for each name, that a model gets None: most models use it as if it were the tensor."""
    binding = current_binding()
    missed = f"{expected} {shown(name)}"
    if binding is not None and missed not in binding.missed:
        binding.missed.add(missed)
        _logger.warning(
            "model instance '%s': %s (%s), got %s%s",
            binding.name,
            expected,
            failure or ", ".join(map(repr, names)) or "none",
            shown(name),
            did_you_mean(name, names) if isinstance(name, str) else "",
        )


def using_decoupled_model_transaction_policy(model_config: ConfigDict) -> bool:
    """Return whether a model configuration belongs to a decoupled model."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> type:
    """Return the NumPy type of a datatype such as ``TYPE_FP32``; raises KeyError if it is unknown."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> type | None:
    """Return the NumPy type of a datatype number, or None."""
    return _NUMBER_TO_NUMPY.get(data_type)


def numpy_to_triton_type(data_type: npt.DTypeLike) -> int | None:
    """Return the datatype number of a NumPy type, or None."""
    if data_type == np.bytes_:
        return datatypes.BYTES.number
    return next((number for number, numpy_type in _NUMBER_TO_NUMPY.items() if data_type == numpy_type), None)


def serialize_byte_tensor(input_tensor: npt.NDArray[np.generic]) -> bytes | tuple[()] | None:
    """Serialize strings as BYTES; an empty tuple for an empty tensor, None if the tensor has no strings."""
    # An empty tuple, surprisingly: it is what Triton's function returns, and models test for it.
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return datatypes.encode_bytes(datatypes.as_bytes_array(input_tensor))


def deserialize_bytes_tensor(encoded_tensor: bytes) -> npt.NDArray[np.generic]:
    """Deserialize the strings of a BYTES tensor."""
    return datatypes.decode_bytes(encoded_tensor)


def get_model_dir() -> str:
    """Return the version directory of the model that is being imported or called."""
    binding = current_binding()
    return "" if binding is None else str(binding.directory)
