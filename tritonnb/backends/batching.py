"""Gather the inputs of a batch into one array, and scatter its outputs over the requests.

The counterpart of the helpers that Triton has for C++ backends (*backend_input_collector.h*,
*backend_output_responder.h*), for NumPy arrays. The input of a batch of one request is copied only for a model that
writes to its inputs. Each response gets a copy of its request's rows of the output (`Execution.respond`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.execution import Execution
from tritonnb.core.errors import InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.messages import InferRequest, Tensor
from tritonnb.core.ownership import ensure_writeable
from tritonnb.core.shapes import shape_text
from tritonnb.model_config.schema import TensorSpec, resolve_reshape

Array = npt.NDArray[np.generic]

#: In bytes: what ONNX Runtime's own allocator guarantees, and the widest vector registers of CPUs need.
ALIGNMENT = 64


def aligned(array: Array) -> Array:
    """Return an array at an address that is a multiple of `ALIGNMENT`, in C order; copied only if it is elsewhere.

    Where a loop over vector registers begins depends on the address, and so does the order of a sum. Without this, a
    response would depend on the length of the request's header, behind which a tensor lies in the body.

    Examples
    --------
    >>> aligned(np.arange(6, dtype=np.float32)[1:]).tolist()
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    # Surprisingly, NumPy's own large arrays are not aligned either: malloc puts them 16 bytes behind the beginning of a
    # page.
    if array.dtype.kind == "O" or (array.flags.c_contiguous and _address(array) % ALIGNMENT == 0):
        return array
    copy = _empty_aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def _empty_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    # NumPy itself only promises 16 bytes, so there is room to begin elsewhere.
    buffer = np.empty(size + ALIGNMENT, np.uint8)
    start = -_address(buffer) % ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _concatenate(parts: Sequence[Array]) -> Array:
    """Concatenate along the first dimension, to an aligned array."""
    first = parts[0]
    if first.dtype.kind == "O":
        return np.concatenate(parts)
    rows = sum(len(part) for part in parts)
    # Into aligned memory at once: concatenating first and aligning afterwards would copy the batch twice.
    return np.concatenate(parts, out=_empty_aligned((rows, *first.shape[1:]), first.dtype))


def find_input(request: InferRequest, name: str) -> Array | None:
    """Return the array of a request's input, or of its implicit state of that name; None if the request has neither."""
    tensor = request.inputs.get(name)
    if tensor is None and request.states is not None:
        tensor = request.states.inputs.get(name)
    return None if tensor is None else tensor.array


def gather(execution: Execution, name: str, ragged: bool = False, writeable: bool = False) -> Array | None:
    """Concatenate one input of all requests along the batch dimension.

    If a request lacks an input that others of the batch have, or its shape differs from the first request's shape, the
    request gets an error response. Its rows are zeros, so that the other requests keep their rows. The scheduler
    compares the shapes of inputs, but not the shapes of implicit states.

    Parameters
    ----------
    execution : Execution
    name : str
        Name of the input.
    ragged : bool, optional
        Flatten the input of each request and concatenate the vectors instead.
    writeable : bool, optional
        Whether the model may write to the array. An array that is shared is then copied, unless the caller of the
        request asked for read-only inputs (``copy=False``).

    Returns
    -------
    numpy.ndarray or None
        Shape ``[rows, dims...]``, or ``[elements]`` if ragged; None if no request has the input.

    Examples
    --------
    >>> from tritonnb.core.datatypes import FP32
    >>> inputs = [Tensor("X", FP32, np.array([[value]], np.float32)) for value in (1, 2)]
    >>> requests = [InferRequest("double", {"X": tensor}, print) for tensor in inputs]
    >>> gather(Execution(requests, size=2, deliver=print), "X").tolist()
    [[1.0], [2.0]]
    """
    requests = execution.requests
    if ragged:
        # Ragged inputs have no rows to keep in place, so a request without the input simply adds nothing.
        vectors = [array.ravel() for request in requests if (array := find_input(request, name)) is not None]
        return _concatenate(vectors) if vectors else None
    # Nothing to concatenate: a batch of one request is passed on where it lies.
    if len(requests) == 1:
        array = find_input(requests[0], name)
        if array is None or not writeable or requests[0].read_only_inputs:
            return array
        return ensure_writeable(array)
    parts = [find_input(request, name) for request in requests]
    present = next((part for part in parts if part is not None), None)
    if present is None:
        return None
    rows: list[Array] = []
    for index, part in enumerate(parts):
        # Triton's ONNX Runtime backend uses the shape of the first state for all of them, and computes wrong values.
        if part is None or part.shape[1:] != present.shape[1:]:
            fail_mismatch(execution, index, name, None if part is None else part.shape, present.shape)
            fill = b"" if present.dtype.kind == "O" else 0
            part = np.full((requests[index].batch_size, *present.shape[1:]), fill, present.dtype)
        rows.append(part)
    return _concatenate(rows)


def fail_mismatch(
    execution: Execution, index: int, name: str, shape: Sequence[int] | None, expected: Sequence[int]
) -> None:
    """Fail a request if its input cannot be concatenated with the input of the first request of the batch.

    Nothing is done if the request already has a response, or is a null request.

    Parameters
    ----------
    execution : Execution
    index : int
        Index of the request in the batch.
    name : str
        Name of the input or state.
    shape : sequence of int or None
        The shape in this request; None if it has no such input.
    expected : sequence of int
        The shape in the first request, including the batch dimension.
    """
    # A request can fail in several inputs; the first error is its response.
    if execution.responses[index] is not None or execution.requests[index].is_null:
        return
    if shape is None:
        message = f"input '{name}': expected a tensor, as in the other requests of the batch, got none"
    else:
        message = (
            f"input '{name}' expected shape {shape_text((-1, *expected[1:]))}, as the first request of the batch has, "
            f"got {shape_text(shape)}; pad inputs and states to one shape, or set max_batch_size to 1"
        )
    execution.fail(index, InvalidArgumentError(message))


def decode_strings(execution: Execution, name: str, array: Array) -> Array:
    """Decode the gathered strings of an input, for runtimes whose Python interface takes ``str`` only.

    A request with a string that is not UTF-8 gets an error response; the other requests are executed.

    Parameters
    ----------
    execution : Execution
    name : str
        Name of the input.
    array : numpy.ndarray
        What `gather` returned: objects of type ``bytes``.

    Returns
    -------
    numpy.ndarray
        Objects of type ``str``, in the same shape.

    Examples
    --------
    >>> execution = Execution([InferRequest("upper", {}, print)], size=1, deliver=print)
    >>> decode_strings(execution, "X", np.array([[b"a"]], object)).tolist()
    [['a']]
    """
    encoded: list[bytes] = array.ravel().tolist()
    try:
        # All at once and without looking at requests, since a string that is not UTF-8 is rare.
        strings = [string.decode() for string in encoded]
    except UnicodeDecodeError:
        for index, request in enumerate(execution.requests):
            part = find_input(request, name)
            if part is None or execution.responses[index] is not None:
                continue
            try:
                for string in part.ravel().tolist():
                    string.decode()
            except UnicodeDecodeError:
                message = f"{request.id_prefix}input '{name}' has a string that is not UTF-8"
                execution.fail(index, InvalidArgumentError(message))
        # The failed request keeps its rows, with replaced characters that nobody will see.
        strings = [string.decode(errors="replace") for string in encoded]
    return np.array(strings, dtype=object).reshape(array.shape)


def scatter(
    execution: Execution,
    outputs: Mapping[str, tuple[TensorSpec, Array]],
    batching: bool,
    parts: Mapping[str, Sequence[tuple[int, ...]]] | None = None,
) -> None:
    """Respond to every request that has no response yet with its rows of the batch's outputs.

    Parameters
    ----------
    execution : Execution
    outputs : mapping of str to (TensorSpec, array)
        The outputs of the whole batch, with the batch dimension first if the model batches.
    batching : bool
        Whether the model batches (``max_batch_size > 0``). If not, the only request gets the whole arrays.
    parts : mapping of str to sequence of shapes, optional
        For outputs that are one vector over all requests (``batch_output``): the shape of each request's part.

    Examples
    --------
    >>> from tritonnb.core.datatypes import FP32
    >>> execution = Execution([InferRequest("double", {}, print)], size=1, deliver=print)
    >>> scatter(execution, {"Y": (TensorSpec("Y", FP32, (1,)), np.array([[2]], np.float32))}, batching=True)
    >>> execution.responses
    [InferResponse(outputs=[Tensor('Y', FP32, [1, 1])], final=True)]
    """
    parts = parts or {}
    divided = {name: _divide(name, outputs[name][1], shapes) for name, shapes in parts.items() if name in outputs}
    row = 0
    for index, request in enumerate(execution.requests):
        rows = request.batch_size
        if execution.responses[index] is None:
            try:
                tensors = [
                    output_tensor(spec, divided[name][index], batching)
                    if name in divided
                    else output_tensor(spec, _rows(name, array, row, rows) if batching else array, batching)
                    for name, (spec, array) in outputs.items()
                    if request.requested_outputs is None or name in request.requested_outputs
                ]
            except TritonError as error:
                execution.fail(index, error)
            else:
                execution.respond(index, tensors)
        row += rows


def append_zeros(array: Array, rows: int) -> Array:
    """Return the array with rows of zeros at the end, for models that need batches of a size."""
    return np.concatenate([array, np.zeros((rows, *array.shape[1:]), array.dtype)]) if rows > 0 else array


def with_configured_shape(tensor: Tensor, spec: TensorSpec | None, batching: bool) -> Tensor:
    """Undo the ``reshape`` of an output that a model creates itself, if it has the datatype of the configuration."""
    if spec is None or spec.reshape is None or spec.datatype is not tensor.datatype:
        return tensor
    return output_tensor(spec, tensor.array, batching)


def output_tensor(spec: TensorSpec, array: Array, batching: bool) -> Tensor:
    """Convert a model's output to the tensor that clients receive: undo the ``reshape`` of the configuration.

    Parameters
    ----------
    spec : TensorSpec
    array : numpy.ndarray
        The model's output, including the batch dimension.
    batching : bool
        Whether the model batches.

    Examples
    --------
    >>> from tritonnb.core.datatypes import FP32
    >>> output_tensor(TensorSpec("Y", FP32, (4,), reshape=(2, 2)), np.zeros((1, 2, 2), np.float32), batching=True)
    Tensor('Y', FP32, [1, 4])
    """
    return Tensor(spec.name, spec.datatype, undo_reshape(spec, array, batching))


def undo_reshape(spec: TensorSpec, array: Array, batching: bool) -> Array:
    """Return an output in the ``dims`` of the configuration, if it has a ``reshape`` (``InferenceResponse::Output``).

    Parameters
    ----------
    spec : TensorSpec
    array : numpy.ndarray
        The model's output, including the batch dimension; not reshaped if its size does not fit ``dims``.
    batching : bool
        Whether the model batches.
    """
    if spec.reshape is None:
        return array
    batch, dims = array.shape[:batching], array.shape[batching:]
    try:
        shape = (*batch, *resolve_reshape(dims, spec.reshape, spec.dims))
    except IndexError:
        return array
    return array.reshape(shape) if math.prod(shape) == array.size else array


def publish_states(
    execution: Execution, states: Mapping[str, Any], batching: bool, copy: Callable[[Any], Any] = np.copy
) -> None:
    """Make each request's rows of the state outputs the next state of its sequence.

    Parameters
    ----------
    execution : Execution
    states : mapping of str to array
        State outputs of the whole batch by ``output_name``.
    batching : bool
    copy : callable
        Copies an array.

    Examples
    --------
    Without implicit state, nothing happens:

    >>> execution = Execution([InferRequest("counter", {}, print)], size=1, deliver=print)
    >>> publish_states(execution, {"OUTPUT_STATE": np.zeros((1, 1))}, batching=True)
    """
    if not states:
        return
    row = 0
    for index, request in enumerate(execution.requests):
        rows = request.batch_size
        has_failed = execution.responses[index] is not None
        if request.states is not None and not has_failed:
            for name, array in states.items():
                # A view would keep the whole batch's output in memory until the sequence ends, and a model's output
                # may be memory of the model or of its input.
                part = _rows(name, array, row, rows) if batching else array
                try:
                    request.states.update(name, copy(part))
                except TritonError as error:
                    execution.fail(index, error)
                    break
        row += rows


def _divide(name: str, array: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    sizes = [math.prod(shape) for shape in shapes]
    if sum(sizes) != array.size:
        raise UnsupportedError(
            f"failed to split the output tensor '{name}' in responses: expected {sum(sizes)} elements in model output, "
            f"got {array.size}"
        )
    ends = np.cumsum(sizes)[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(array.ravel(), ends), shapes, strict=True)]


def _rows(name: str, array: Any, row: int, rows: int) -> Any:
    if array.ndim == 0 or row + rows > array.shape[0]:
        got = array.shape[0] if array.ndim else 0
        raise UnsupportedError(
            f"failed to split the output tensor '{name}' in responses: expected batch size of at least "
            f"{row + rows} in model output, got {got}"
        )
    return array[row : row + rows]
