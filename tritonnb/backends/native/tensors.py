"""Requests for native backends, and their responses: between `InferRequest`, `InferResponse` and the shim."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.batching import with_configured_shape
from tritonnb.backends.native import library
from tritonnb.core.datatypes import BY_NUMBER, decode_bytes, encode_bytes
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.messages import InferRequest, InferResponse, ParameterValue, Tensor
from tritonnb.core.shapes import shape_text
from tritonnb.model_config.schema import ModelSpec

Array = npt.NDArray[np.generic]

#: The number of shapes and names that are converted once.
_CACHE = 1024


@functools.lru_cache(_CACHE)
def _dims(shape: tuple[int, ...]) -> Any:
    return (ctypes.c_int64 * len(shape))(*shape)


_encode = functools.lru_cache(_CACHE)(str.encode)


def write_request(model: int, spec: ModelSpec, request: InferRequest, token: int) -> tuple[int, list[object]]:
    """Describe a request to the shim.

    Parameters
    ----------
    model : int
        The handle of the model.
    spec : ModelSpec
        Its tensors.
    request : InferRequest
    token : int
        Identifies the request in events.

    Returns
    -------
    handle : int
    memory : list
        What the inputs are read from; it must be kept until the backend releases the request.
    """
    shim, correlation = library.load_shim(), request.correlation_id
    text = correlation.encode() if isinstance(correlation, str) and correlation else None
    number = correlation if isinstance(correlation, int) else 0
    handle: int = shim.tnb_request_new(
        model, token, request.id.encode(), number, text, request.flags, request.timeout_us
    )
    memory = [_add_input(handle, tensor) for tensor in request.inputs.values()]
    if request.states is not None:
        memory += [_add_input(handle, tensor) for tensor in request.states.inputs.values()]
    for name in spec.outputs if request.requested_outputs is None else request.requested_outputs:
        shim.tnb_request_add_output(handle, _encode(name))
    for name, value in request.parameters.items():
        _add_parameter(handle, name, value)
    return handle, memory


def _add_input(handle: int, tensor: Tensor) -> object:
    array, datatype = tensor.array, tensor.datatype
    memory: object
    if datatype.variable_size:
        memory = encoded = encode_bytes(array)
        address: Any = ctypes.cast(ctypes.c_char_p(encoded), ctypes.c_void_p)
        size = len(encoded)
    else:
        memory = contiguous = np.ascontiguousarray(array)
        address, size = contiguous.__array_interface__["data"][0], contiguous.nbytes
    shape = array.shape
    name = _encode(tensor.name)
    library.load_shim().tnb_request_add_input(handle, name, datatype.number, _dims(shape), len(shape), address, size)
    return memory


def _add_parameter(handle: int, name: str, value: ParameterValue) -> None:
    add, key = library.load_shim().tnb_request_add_parameter, name.encode()
    if isinstance(value, bool):
        add(handle, key, library.BOOL, int(value), 0.0, None)
    elif isinstance(value, int):
        add(handle, key, library.INT, value, 0.0, None)
    elif isinstance(value, float):
        add(handle, key, library.DOUBLE, 0, value, None)
    else:
        add(handle, key, library.STRING, 0, 0.0, value.encode())


def read_response(spec: ModelSpec, handle: int, request: InferRequest, final: bool) -> InferResponse:
    """Return a response of a model, whose arrays are valid until it is freed; an error if it is not valid."""
    view: library.NativeResponse = library.load_shim().tnb_response_view(handle).contents
    if view.error_code >= 0:
        message = view.error_message.decode(errors="replace")
        return InferResponse(error=TritonError(message, library.status_of(view.error_code)), final=final)
    try:
        outputs = [_read_output(spec, view.outputs[index]) for index in range(view.output_count)]
    except TritonError as error:
        return InferResponse(error=error, final=final)
    if request.requested_outputs is not None:
        outputs = [output for output in outputs if output.name in request.requested_outputs]
    parameters = dict(_parameter(view.parameters[index]) for index in range(view.parameter_count))
    return InferResponse(outputs, final=final, parameters=parameters or None)


def _read_output(spec: ModelSpec, native: library.NativeTensor) -> Tensor:
    tensor = read_tensor(native, f"model '{spec.name}': output")
    return with_configured_shape(tensor, spec.outputs.get(tensor.name), spec.max_batch_size > 0)


def read_tensor(native: library.NativeTensor, what: str) -> Tensor:
    """Return a tensor in the memory of the shim, which the array refers to.

    Raises
    ------
    InternalError
        If its size is not that of its shape and datatype.
    """
    name, datatype = native.name.decode(errors="replace"), BY_NUMBER.get(native.datatype)
    if datatype is None:
        raise InternalError(f"{what} '{name}': expected a datatype, got the number {native.datatype}")
    shape = tuple(native.shape[: native.dims_count])
    size: int = native.byte_size
    raw: Any = (ctypes.c_char * size).from_address(native.data) if size else b""
    if datatype.variable_size:
        elements: Array = decode_bytes(bytes(raw))
        fits = len(elements) == math.prod(shape)
    else:
        fits = size == math.prod(shape) * datatype.itemsize
        elements = np.frombuffer(raw, datatype.numpy) if fits and size else np.empty(0, datatype.numpy)
    if not fits:
        got = f"{len(elements)} elements" if datatype.variable_size else f"{size} bytes"
        raise InternalError(f"{what} '{name}' expected shape {shape_text(shape)} of {datatype.name}, got {got}")
    return Tensor(name, datatype, elements.reshape(shape))


def _parameter(native: library.NativeParameter) -> tuple[str, ParameterValue]:
    values: Mapping[int, ParameterValue] = {
        library.INT: native.integer,
        library.BOOL: bool(native.boolean),
        library.DOUBLE: native.number,
    }
    return native.name.decode(), values.get(native.type, (native.text or b"").decode(errors="replace"))
