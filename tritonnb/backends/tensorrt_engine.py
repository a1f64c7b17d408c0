"""A TensorRT engine: its tensors, the shapes that its profiles allow, and execution contexts; streams of CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorrt as trt
from cuda.bindings import runtime

from tritonnb.backends.model_checks import ModelTensor
from tritonnb.core.datatypes import BY_NAME, DataType
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError

#: By the name in ``tensorrt.DataType``; Triton has no datatype for the others.
_DATATYPES = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "UINT8": "UINT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "BOOL": "BOOL",
}
Shape = tuple[int, ...]


class EngineLog(trt.ILogger):  # type: ignore[misc]
    """The errors of TensorRT, which its functions report in no other way."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._last = ""

    def log(self, severity: Any, message: str) -> None:
        """Keep an error; called by TensorRT."""
        if severity <= trt.ILogger.ERROR:
            self._last = " ".join(message.split())

    def take_error(self) -> str:
        """Return the last error, once."""
        message, self._last = self._last, ""
        return message or "no error was logged"


class TensorRtEngine:
    """A deserialized engine.

    Parameters
    ----------
    engine : tensorrt.ICudaEngine
    log : EngineLog

    Attributes
    ----------
    inputs, outputs : dict of str to ModelTensor
    profile_count : int

    Raises
    ------
    InvalidArgumentError, UnsupportedError
        If a tensor has a type that Triton does not have, or is a shape tensor.
    """

    def __init__(self, engine: Any, log: EngineLog) -> None:
        self._engine = engine
        self.log = log
        self.profile_count = int(engine.num_optimization_profiles)
        self.inputs: dict[str, ModelTensor] = {}
        self.outputs: dict[str, ModelTensor] = {}
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            if engine.is_shape_inference_io(name):
                raise UnsupportedError(
                    f"tensor '{name}': expected an execution tensor, got a shape tensor: run the plan on Triton"
                )
            is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            tensor = ModelTensor(name, _datatype(engine, name), tuple(engine.get_tensor_shape(name)))
            (self.inputs if is_input else self.outputs)[name] = tensor

    @property
    def batching(self) -> bool:
        """True if the first dimension of every tensor is variable."""
        return all(tensor.shape[:1] == (-1,) for tensor in (*self.inputs.values(), *self.outputs.values()))

    def limits(self, name: str, profile: int) -> tuple[Shape, Shape]:
        """Return the smallest and the largest shape of an input in a profile."""
        smallest, _, largest = self._engine.get_tensor_profile_shape(name, profile)
        return tuple(smallest), tuple(largest)

    def max_batch_size(self, profile: int) -> int:
        """Return the largest first dimension that a profile allows for every input."""
        return min((self.limits(name, profile)[1][0] for name in self.inputs), default=0)

    def new_context(self, profile: int, stream: int) -> Any:
        """Return an execution context with a profile; wait for the stream before it is used.

        Raises
        ------
        InternalError
            If TensorRT cannot create it.
        """
        context = self._engine.create_execution_context()
        if context is None or not context.set_optimization_profile_async(profile, stream):
            raise InternalError(f"unable to create TensorRT context: {self.log.take_error()}")
        return context


def _datatype(engine: Any, name: str) -> DataType:
    kind = engine.get_tensor_dtype(name).name
    if kind not in _DATATYPES:
        raise InvalidArgumentError(f"tensor '{name}': expected one of {', '.join(_DATATYPES)}, got {kind}")
    return BY_NAME[_DATATYPES[kind]]


Array = npt.NDArray[np.generic]


class CudaStream:
    """A stream of a device, with one buffer for each name; to be used on one thread.

    Parameters
    ----------
    device_id : int

    Attributes
    ----------
    handle : int
        The ``cudaStream_t``.

    Raises
    ------
    InternalError
        If the device does not exist, or CUDA reports another error.
    """

    def __init__(self, device_id: int) -> None:
        self._buffers: dict[str, tuple[int, int]] = {}
        _call(runtime.cudaSetDevice, device_id)
        self.handle = int(_call(runtime.cudaStreamCreate))

    def reserve(self, name: str, byte_size: int) -> int:
        """Return the address of a buffer with at least this size; its contents are lost if it grows."""
        address, size = self._buffers.get(name, (0, 0))
        if size < max(byte_size, 1):
            if address:
                self.wait()
                _call(runtime.cudaFree, address)
            address = int(_call(runtime.cudaMalloc, max(byte_size, 1)))
            self._buffers[name] = address, max(byte_size, 1)
        return address

    def send(self, name: str, array: Array) -> int:
        """Copy an array into a buffer, and return the buffer's address; the array must live until `wait`."""
        address = self.reserve(name, array.nbytes)
        self._copy(address, array.ctypes.data, array.nbytes, _KINDS.cudaMemcpyHostToDevice)
        return address

    def receive(self, name: str, array: Array) -> None:
        """Copy the begin of a buffer into an array, which is complete after `wait`."""
        address, _ = self._buffers[name]
        self._copy(array.ctypes.data, address, array.nbytes, _KINDS.cudaMemcpyDeviceToHost)

    def _copy(self, target: int, source: int, byte_size: int, kind: Any) -> None:
        _call(runtime.cudaMemcpyAsync, target, source, byte_size, kind, self.handle)

    def wait(self) -> None:
        """Wait until everything in the stream is done."""
        _call(runtime.cudaStreamSynchronize, self.handle)

    def close(self) -> None:
        """Free the buffers and the stream."""
        buffers, self._buffers = self._buffers, {}
        for address, _ in buffers.values():
            _call(runtime.cudaFree, address)
        _call(runtime.cudaStreamDestroy, self.handle)


_KINDS = runtime.cudaMemcpyKind


def _call(function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
    """Call a function of CUDA's runtime, and return its result."""
    error, *results = function(*arguments)
    if int(error):
        raise InternalError(f"CUDA: {function.__name__} failed: {error.name}")
    return results[0] if results else None
