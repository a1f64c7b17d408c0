"""Doubles of TensorRT and of CUDA's runtime: the part of their documented interfaces that the tensorrt backend uses.

An engine file is JSON: its tensors, and the limits of its profiles. It computes ``OUT0 = IN0 + IN0``, and the sum of a
state and ``IN0`` if it has a state. The memory of the device is memory of this process.
"""

from __future__ import annotations

import ctypes
import enum
import json
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

Shape = tuple[int, ...]


class Status(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidDevice = 101


class Cuda(ModuleType):
    """``cuda.bindings.runtime``, with one device and its allocations."""

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)

    def __init__(self) -> None:
        super().__init__("cuda.bindings.runtime")
        self.allocations: dict[int, Any] = {}
        self.streams: set[int] = set()

    def cudaSetDevice(self, device: int) -> tuple[Status]:
        return (Status.cudaSuccess if device == 0 else Status.cudaErrorInvalidDevice,)

    def cudaStreamCreate(self) -> tuple[Status, int]:
        self.streams.add(number := len(self.streams) + 1)
        return Status.cudaSuccess, number

    def cudaStreamDestroy(self, stream: int) -> tuple[Status]:
        self.streams.remove(stream)
        return (Status.cudaSuccess,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Status]:
        assert stream in self.streams
        return (Status.cudaSuccess,)

    def cudaMalloc(self, size: int) -> tuple[Status, int]:
        memory = ctypes.create_string_buffer(size)
        self.allocations[ctypes.addressof(memory)] = memory
        return Status.cudaSuccess, ctypes.addressof(memory)

    def cudaFree(self, address: int) -> tuple[Status]:
        del self.allocations[address]
        return (Status.cudaSuccess,)

    def cudaMemcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> tuple[Status]:
        assert stream in self.streams
        on_device = target if kind == self.cudaMemcpyKind.cudaMemcpyHostToDevice else source
        assert size <= len(self.allocations[on_device])
        ctypes.memmove(target, source, size)
        return (Status.cudaSuccess,)


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def log(self, severity: int, message: str) -> None:
        raise NotImplementedError


class TensorIOMode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


DataType = enum.Enum("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64 INT4")
_NUMPY: dict[str, np.dtype[Any]] = {"FLOAT": np.dtype(np.float32), "INT32": np.dtype(np.int32)}


class Engine:
    """``tensorrt.ICudaEngine``."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.tensors: dict[str, dict[str, Any]] = content["tensors"]
        self.num_optimization_profiles = content["profiles"]
        self.log: ILogger
        self.num_io_tensors = len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode[self.tensors[name]["mode"]]

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[self.tensors[name]["dtype"]]

    def get_tensor_shape(self, name: str) -> list[int]:
        return list(self.tensors[name]["shape"])

    def is_shape_inference_io(self, name: str) -> bool:
        return bool(self.tensors[name].get("shape_tensor"))

    def get_tensor_profile_shape(self, name: str, profile: int) -> tuple[Shape, Shape, Shape]:
        smallest, largest = self.tensors[name]["limits"][profile]
        return smallest, largest, largest

    def create_execution_context(self) -> Context:
        return Context(self)


class Context:
    """``tensorrt.IExecutionContext``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._profile = -1
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self._profile = profile
        return profile < self._engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        smallest, largest = self._engine.tensors[name]["limits"][self._profile]
        self._shapes[name] = shape
        dims = zip(smallest, shape, largest, strict=True)
        return len(shape) == len(smallest) and all(low <= dim <= high for low, dim, high in dims)

    def get_tensor_shape(self, name: str) -> Shape:
        if self._engine.tensors[name].get("depends_on_values"):
            return (-1, 1)
        return self._shapes.get(name) or self._shapes["IN0"]

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert self._addresses.keys() == self._engine.tensors.keys()
        if self._engine.tensors["IN0"].get("fails"):
            self._engine.log.log(ILogger.ERROR, "out of\n memory")
            return False
        inputs = self._array("IN0"), self._array("STATE_IN" if "STATE_IN" in self._addresses else "IN0")
        for name in self._engine.tensors:
            if self._engine.get_tensor_mode(name) is TensorIOMode.OUTPUT:
                self._array(name)[:] = inputs[0] + inputs[1]
        return True

    def _array(self, name: str) -> Any:
        shape, dtype = self.get_tensor_shape(name), _NUMPY[self._engine.tensors[name]["dtype"]]
        content: Any = (ctypes.c_char * (prod(shape) * dtype.itemsize)).from_address(self._addresses[name])
        return np.frombuffer(content, dtype).reshape(shape)


class Runtime:
    """``tensorrt.Runtime``."""

    engine_host_code_allowed = False

    def __init__(self, log: ILogger) -> None:
        self._log = log

    def get_plugin_registry(self) -> Any:
        return SimpleNamespace(load_library=lambda path: object() if path == "good.so" else None)

    def deserialize_cuda_engine(self, content: bytes) -> Engine | None:
        try:
            engine = Engine(json.loads(content))
        except (ValueError, KeyError, TypeError):
            self._log.log(ILogger.WARNING, "not kept")
            self._log.log(ILogger.ERROR, "Serialization assertion failed: magic tag does not match")
            return None
        engine.log = self._log
        return engine


def fake_tensorrt() -> ModuleType:
    """The module ``tensorrt``."""
    module: Any = ModuleType("tensorrt")
    module.ILogger, module.Runtime = ILogger, Runtime
    module.TensorIOMode, module.DataType = TensorIOMode, DataType
    module.init_libnvinfer_plugins = lambda log, namespace: True
    return module
