"""Gathering the inputs of a batch into one array, and scattering the outputs over its requests.

The helpers that Triton gives its C++ backends (*backend_input_collector.h*,
*backend_output_responder.h*), on NumPy arrays. A batch of one request is copied only for a model that
writes to its inputs, and every request is answered with a copy of its rows of the batch's output (`Execution.respond`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.contract import Execution
from tritonnb.core.errors import InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.messages import InferRequest, Tensor, shape_text
from tritonnb.core.ownership import ensure_writeable
from tritonnb.model_config.schema import TensorSpec, resolve_reshape

Array = npt.NDArray[Any]

#: Every output has one row for each row of the batch.
NO_PARTS: Mapping[str, Sequence[tuple[int, ...]]] = MappingProxyType({})


def input_of(request: InferRequest, name: str) -> Array | None:
    """An input of a request, or the implicit state of that name; None where it has neither."""
    tensor = request.inputs.get(name)
    if tensor is None and request.states is not None:
        tensor = request.states.inputs.get(name)
    return None if tensor is None else tensor.array


def gather(execution: Execution, name: str, ragged: bool = False, writeable: bool = False) -> Array | None:
    """One input of all requests, one below the other; if it is ragged, one long vector of all elements.

    A request that lacks the input while others have it, or has it in another shape than the first, is answered
    with an error, and its rows are zeros, so that the rows of the others stay where they are. The scheduler
    compares the shapes of inputs, and not those of implicit states.

    Parameters
    ----------
    execution : Execution
    name : str
    ragged : bool, optional
    writeable : bool, optional
        Whether the model may write to the array. What the request shares is copied then, unless its
        caller asked for read-only inputs.

    Returns
    -------
    numpy.ndarray or None
        None if no request has the input.
    """
    requests = execution.requests
    if ragged:
        vectors = [array.ravel() for each in requests if (array := input_of(each, name)) is not None]
        return np.concatenate(vectors) if vectors else None
    if len(requests) == 1:
        array = input_of(requests[0], name)
        if array is None or not writeable or requests[0].read_only_inputs:
            return array
        return ensure_writeable(array)
    parts = [input_of(request, name) for request in requests]
    present = next((each for each in parts if each is not None), None)
    if present is None:
        return None
    rows: list[Array] = []
    for index, part in enumerate(parts):
        if part is None or part.shape[1:] != present.shape[1:]:
            fail_unlike(execution, index, name, None if part is None else part.shape, present.shape)
            fill = b"" if present.dtype.kind == "O" else 0
            part = np.full((requests[index].batch_size, *present.shape[1:]), fill, present.dtype)
        rows.append(part)
    return np.concatenate(rows)


def fail_unlike(
    execution: Execution, index: int, name: str, shape: Sequence[int] | None, expected: Sequence[int]
) -> None:
    """Answer a request whose input cannot be joined with that of the others.

    Parameters
    ----------
    execution : Execution
    index : int
        Of the request; one that has an answer, or is a null request, is left alone.
    name : str
        Of the input or state.
    shape : sequence of int or None
        What it has; None where it has no such input.
    expected : sequence of int
        What the first request has, batch dimension included.
    """
    if execution.responses[index] is not None or execution.requests[index].is_null:
        return
    if shape is None:
        error = InvalidArgumentError(f"input '{name}' is missing, and other requests of the batch have it")
    else:
        error = InvalidArgumentError(
            f"input '{name}' expected shape {shape_text((-1, *expected[1:]))}, as the first request of the batch has, "
            f"got {shape_text(shape)}; pad inputs and states to one shape, or set max_batch_size to 1"
        )
    execution.fail(index, error)


def as_text(execution: Execution, name: str, array: Array) -> Array:
    """The gathered strings of an input as ``str``, for runtimes whose Python interface takes no bytes.

    A request with a string that is not UTF-8 is answered with an error, and its neighbours run.
    """
    try:
        text = [each.decode() for each in array.ravel()]
    except UnicodeDecodeError:
        for index, request in enumerate(execution.requests):
            part = input_of(request, name)
            if part is not None and execution.responses[index] is None and not all(map(_is_utf8, part.ravel())):
                execution.fail(
                    index,
                    InvalidArgumentError(f"{request.id_prefix}input '{name}' has a string that is not UTF-8"),
                )
        text = [each.decode(errors="replace") for each in array.ravel()]
    return np.array(text, dtype=object).reshape(array.shape)


def _is_utf8(string: bytes) -> bool:
    try:
        string.decode()
    except UnicodeDecodeError:
        return False
    return True


def scatter(
    execution: Execution,
    outputs: Mapping[str, tuple[TensorSpec, Array]],
    batching: bool,
    parts: Mapping[str, Sequence[tuple[int, ...]]] = NO_PARTS,
) -> None:
    """Answer every request that has no answer yet with its rows of the batch's outputs.

    Parameters
    ----------
    execution : Execution
    outputs : mapping of str to (TensorSpec, array)
        The outputs of the whole batch, batch dimension first where the model batches.
    batching : bool
        False where the model does not batch: the one request gets everything.
    parts : mapping of str to sequence of shapes
        Outputs that are vectors over all requests, and the shape of each request's part of them.
    """
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


def output_tensor(spec: TensorSpec, array: Array, batching: bool) -> Tensor:
    """An output as clients see it: a ``reshape`` of the configuration is undone.

    Parameters
    ----------
    spec : TensorSpec
    array : numpy.ndarray
        What the model gave, batch dimension included.
    batching : bool
    """
    return Tensor(spec.name, spec.datatype, undo_reshape(spec, array, batching))


def undo_reshape(spec: TensorSpec, array: Array, batching: bool) -> Array:
    """An output in the ``dims`` of the configuration, where it has a ``reshape`` (``InferenceResponse::Output``).

    Parameters
    ----------
    spec : TensorSpec
    array : numpy.ndarray
        What the model gave, batch dimension included. It is left as it is where it does not have as many
        elements as the ``dims`` ask for.
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
        Copies an array of their kind.
    """
    if not states:
        return
    row = 0
    for index, request in enumerate(execution.requests):
        rows = request.batch_size
        answered_with_error = execution.responses[index] is not None
        if request.states is not None and not answered_with_error:
            for name, array in states.items():
                # A view would keep the whole batch's output alive for as long as the sequence lives, and
                # what a model gives may be its own memory or its input's.
                part = _rows(name, array, row, rows) if batching else array
                request.states.update(name, copy(part))
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
