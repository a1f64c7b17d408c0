"""``triton_python_backend_utils``: what Python models import, here as on Triton.

Names and behaviour are those of Triton's Python backend, so a *model.py* runs unchanged on both.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.contract import ResponseSender
from tritonnb.backends.python.model_config import ModelConfig
from tritonnb.core import datatypes
from tritonnb.core.errors import Status
from tritonnb.core.errors import TritonError as ServerError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.core.messages import Tensor as CoreTensor

__all__ = [
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "Logger",
    "ModelConfig",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

TRITON_STRING_TO_NUMPY = {
    each.config_name: each.numpy.type for each in datatypes.DATATYPES if each is not datatypes.BF16
}
_NUMBER_TO_NUMPY = {each.number: each.numpy.type for each in datatypes.DATATYPES if each is not datatypes.BF16}


#: Dtypes of tensors, beside strings; other byte orders are not among them.
_CARRIED = frozenset(each.numpy for each in datatypes.DATATYPES)


class TritonModelException(Exception):
    """What the utilities raise."""


class TritonError:
    """An error that a model answers a request with.

    Parameters
    ----------
    message : str
    code : int, optional
        One of the class's codes; INTERNAL by default.
    """

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if code not in range(8):
            raise TypeError(f"TritonError has no code {code!r}")
        self._message = message
        self._code = code

    def message(self) -> str:
        """The text."""
        return self._message

    def code(self) -> int:
        """The code."""
        return self._code


_STATUSES = (
    Status.UNKNOWN,
    Status.INTERNAL,
    Status.NOT_FOUND,
    Status.INVALID_ARG,
    Status.UNAVAILABLE,
    Status.UNSUPPORTED,
    Status.ALREADY_EXISTS,
    Status.CANCELLED,
)


class Tensor:
    """A named tensor.

    Parameters
    ----------
    name : str
    array : numpy.ndarray
        Strings of any kind become TYPE_STRING.
    """

    __slots__ = ("_array", "_name")

    def __init__(self, name: str, array: npt.ArrayLike) -> None:
        if not isinstance(array, np.ndarray):
            raise TritonModelException(f"Tensor '{name}' needs a NumPy array, got {type(array).__name__}")
        if array.dtype not in _CARRIED and array.dtype.kind not in "SUO":
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._array = array if array.flags.c_contiguous else np.ascontiguousarray(array)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor from anything that speaks DLPack, or from a DLPack capsule."""
        if not hasattr(tensor, "__dlpack__"):
            import torch.utils.dlpack

            tensor = torch.utils.dlpack.from_dlpack(tensor)
        device = tensor.__dlpack_device__()[0]
        return Tensor(name, np.from_dlpack(tensor if int(device) == 1 else tensor.cpu()))

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def shape(self) -> list[int]:
        """The tensor's shape, batch dimension included."""
        return list(self._array.shape)

    def as_numpy(self) -> npt.NDArray[Any]:
        """The values; strings are ``bytes`` in an object array. The array may be written to."""
        if not self._array.flags.writeable:
            self._array = self._array.copy()
        return self._array

    def triton_dtype(self) -> int:
        """The number of the datatype in ``inference.DataType``."""
        return datatypes.datatype_of(self._array.dtype).number

    def is_cpu(self) -> bool:
        """Whether the values are in CPU memory."""
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule of the values."""
        return self.as_numpy().__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.as_numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class InferenceResponse:
    """The answer to one request.

    Parameters
    ----------
    output_tensors : sequence of Tensor, optional
    error : TritonError, optional
    parameters : dict, optional
        Response parameters: strings, integers, booleans.
    """

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        for tensor in output_tensors:
            if type(tensor) is not Tensor:
                raise TritonModelException(
                    f"InferenceResponse takes pb_utils.Tensor objects, got {type(tensor).__name__}"
                )
        self._tensors = output_tensors
        self._error = error
        self._parameters = parameters

    def output_tensors(self) -> list[Tensor]:
        """The outputs."""
        return list(self._tensors)

    def has_error(self) -> bool:
        """Whether it is an error response."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error."""
        return self._error

    def parameters(self) -> str:
        """The response parameters as JSON."""
        return json.dumps(self._parameters or {})


class InferenceResponseSender:
    """Sends the responses of one request of a decoupled model."""

    __slots__ = ("_outputs", "_request", "_sender")

    def __init__(self, sender: ResponseSender, request: InferRequest, outputs: Sequence[str]) -> None:
        self._sender = sender
        self._request = request
        self._outputs = outputs

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both."""
        final = bool(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        if self._sender.closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if response is None:
            if not final:
                raise TritonModelException(
                    "Inference Response object must be provided when the response flags is set to zero."
                )
            self._sender.send(InferResponse(empty=True))
            return
        self._sender.send(to_core(response, self._outputs, final))

    def is_cancelled(self) -> bool:
        """Whether the client has gone away."""
        return self._request.cancelled


class InferenceRequest:
    """A request, as a model sees it. Made by the server; making one is for BLS."""

    __slots__ = ("_outputs", "_request", "_sender", "release_flags")

    def __init__(
        self,
        request: InferRequest | None = None,
        outputs: Sequence[str] = (),
        sender: ResponseSender | None = None,
        **bls: Any,
    ) -> None:
        if request is None or bls:
            raise TritonModelException("business logic scripting (BLS) is not supported yet")
        self._request = request
        self._outputs = outputs
        self._sender = sender
        self.release_flags = TRITONSERVER_REQUEST_RELEASE_ALL

    def set_release_flags(self, flags: int) -> None:
        """Say with ``TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`` that the request is to run again."""
        self.release_flags = flags

    def inputs(self) -> list[Tensor]:
        """The inputs, controls and states of the sequence batcher included."""
        tensors = [Tensor(each.name, each.array) for each in self._request.inputs.values()]
        if self._request.states is not None:
            tensors += [Tensor(each.name, each.array) for each in self._request.states.inputs.values()]
        return tensors

    def input(self, name: str) -> Tensor | None:
        """One input, or None."""
        tensor = self._request.inputs.get(name)
        if tensor is None and self._request.states is not None:
            tensor = self._request.states.inputs.get(name)
        return None if tensor is None else Tensor(name, tensor.array)

    def requested_output_names(self) -> list[str]:
        """The outputs that the client wants."""
        return list(self._outputs)

    def request_id(self) -> str:
        """The client's id of the request, or ""."""
        return self._request.id

    def correlation_id(self) -> int | str:
        """The correlation ID of the request's sequence, or 0."""
        return self._request.correlation_id

    def flags(self) -> int:
        """``TRITONSERVER_REQUEST_FLAG_…`` of the request."""
        return self._request.flags

    def timeout(self) -> int:
        """The request's timeout, in microseconds."""
        return self._request.timeout_us

    def priority(self) -> int:
        """The request's priority."""
        return self._request.priority

    def parameters(self) -> str:
        """The request parameters as JSON."""
        return json.dumps(self._request.parameters, ensure_ascii=False)

    def model_name(self) -> str:
        """The model that was asked for."""
        return self._request.model_name

    def is_cancelled(self) -> bool:
        """Whether the client has gone away."""
        return self._request.cancelled

    def get_response_sender(self) -> InferenceResponseSender:
        """Where a decoupled model sends its responses."""
        if self._sender is None:
            raise TritonModelException(
                "'get_response_sender' function must be called only when the model is using the decoupled "
                "transaction policy."
            )
        return InferenceResponseSender(self._sender, self._request, self._outputs)


class Logger:
    """Writes to the server's log."""

    INFO, WARNING, ERROR, VERBOSE = range(4)

    _log = logging.getLogger("tritonnb.model")
    _levels = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)

    @classmethod
    def log(cls, message: str, level: int = INFO) -> None:
        """Write a line of a level."""
        cls._log.log(cls._levels[level], "%s", message, stacklevel=2)

    @classmethod
    def log_info(cls, message: str) -> None:
        """Write a line of information."""
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Write a warning."""
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Write an error."""
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Write a line that is shown with ``--log-verbose``."""
        cls.log(message, cls.VERBOSE)


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
    """The NumPy type of a datatype number."""
    return _NUMBER_TO_NUMPY[data_type]


def numpy_to_triton_type(data_type: npt.DTypeLike) -> int:
    """The datatype number of a NumPy type."""
    return datatypes.datatype_of(data_type).number


def serialize_byte_tensor(input_tensor: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Strings in the wire form of BYTES, as a one-element object array; None for an empty tensor."""
    if input_tensor.size == 0:
        return None
    return np.asarray(datatypes.encode_bytes(datatypes.as_bytes_array(input_tensor)), dtype=object)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> npt.NDArray[Any]:
    """The strings of BYTES in wire form."""
    return datatypes.decode_bytes(encoded_tensor)


def get_model_dir() -> str:
    """The version directory of the model that is being imported or called."""
    from tritonnb.backends.python.modules import current_directory

    return current_directory()


def to_core(response: InferenceResponse, wanted: Sequence[str], final: bool = True) -> InferResponse:
    """A model's response as the server's; outputs that nobody wants are left out."""
    if response._error is not None:
        code = response._error.code()
        return InferResponse(error=ServerError(response._error.message(), _STATUSES[code]), final=final)
    outputs = [to_core_tensor(each) for each in response._tensors if each._name in wanted]
    return InferResponse(outputs, final=final, parameters=response._parameters)


def to_core_tensor(tensor: Tensor) -> CoreTensor:
    """A model's tensor as the server's."""
    datatype = datatypes.datatype_of(tensor._array.dtype)
    array = tensor._array
    if datatype is datatypes.BYTES:
        array = datatypes.as_bytes_array(array)
    return CoreTensor(tensor._name, datatype, array)
