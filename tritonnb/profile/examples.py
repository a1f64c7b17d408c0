"""The input tensors that a load sends: generated from the metadata of the model, or supplied by the user.

They are created and validated before the first request is sent, and used in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import zeros
from tritonnb.inprocess.array_requests import make_request
from tritonnb.model_config.schema import ModelSpec, TensorSpec
from tritonnb.profile.prompts import Prompt
from tritonnb.runtime.models.validation import RequestValidator

Tensors = dict[str, np.ndarray]
Inputs = str | Mapping[str, npt.ArrayLike] | Sequence[Mapping[str, npt.ArrayLike]]
Shapes = Mapping[str, Sequence[int]]

#: Number of different random examples, and the limit of their total size in bytes.
_EXAMPLES, _BYTES = 16, 64_000_000
#: Random integers are below this: valid as class, character and token indices of most models.
_INTEGERS = 100


class Examples:
    """The inputs of requests, one example after the other.

    Parameters
    ----------
    count : int
    make : callable
        ``make(number, rows)`` creates an example; called once for each combination.
    """

    def __init__(self, count: int, make: Callable[[int, int | None], Tensors]) -> None:
        self._count = count
        self._make = make
        self._cache: dict[tuple[int, int | None], Tensors] = {}
        self._next_index = 0

    def next_example(self, rows: int | None) -> Tensors:
        """Return the next example with this many rows; None keeps the rows of the example."""
        key = (self._next_index % self._count, rows)
        self._next_index += 1
        if key not in self._cache:
            self._cache[key] = self._make(*key)
        return self._cache[key]


def examples(spec: ModelSpec, inputs: Inputs, shapes: Shapes, seed: int) -> Examples:
    """Examples for a model.

    Parameters
    ----------
    spec : ModelSpec
    inputs : str, mapping or sequence of mappings
        ``"random"``, ``"zero"``, the tensors of one request by name, or several of these.
    shapes : mapping of str to sequence of int
        The shape to use for an input of variable dimensions, without the batch dimension.
    seed : int
        Seed of random tensors.

    Raises
    ------
    InvalidArgumentError
        If they do not fit the model; with Triton's message if Triton would reject the request.
    """
    if isinstance(inputs, str):
        return _generated(spec, inputs, shapes, seed)
    several = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not several:
        raise InvalidArgumentError("inputs expected at least one example, got an empty list")
    checked = [_checked(spec, example) for example in several]
    if spec.max_batch_size == 0:
        return Examples(len(checked), lambda number, rows: checked[number])
    return Examples(len(checked), lambda number, rows: _with_rows(checked[number], rows))


def _checked(spec: ModelSpec, inputs: Mapping[str, npt.ArrayLike]) -> Tensors:
    """Validate an example; returns the arrays as the model receives them."""
    request = make_request(spec, -1, inputs.tensors_for(spec) if isinstance(inputs, Prompt) else inputs)
    arrays = {name: tensor.array for name, tensor in request.inputs.items()}
    RequestValidator(spec).check(request)
    return arrays


def _with_rows(example: Tensors, rows: int | None) -> Tensors:
    if rows is None:
        return example
    return {name: array.take(range(rows), axis=0, mode="wrap") for name, array in example.items()}


# --- generated from the metadata ------------------------------------------------------------------


def _generated(spec: ModelSpec, kind: str, shapes: Shapes, seed: int) -> Examples:
    if kind not in ("random", "zero"):
        raise InvalidArgumentError(f"inputs expected 'random', 'zero', a dict of arrays or a list, got '{kind}'")
    if unknown := set(shapes) - set(spec.inputs):
        raise InvalidArgumentError(
            f"shapes expected inputs of model '{spec.name}' ({', '.join(map(repr, spec.inputs))}), got '{min(unknown)}'"
        )
    tensors = [tensor for tensor in spec.inputs.values() if not tensor.optional]
    dims = {tensor.name: _example_dims(spec, tensor, shapes) for tensor in tensors}
    batching = spec.max_batch_size > 0

    def make(number: int, rows: int | None) -> Tensors:
        rng = np.random.default_rng((seed, number))
        example: Tensors = {}
        for tensor in tensors:
            shape = (rows or 1, *dims[tensor.name]) if batching else dims[tensor.name]
            example[tensor.name] = zeros(tensor.datatype, shape) if kind == "zero" else _random(tensor, shape, rng)
        return example

    size = sum(math.prod(dims[tensor.name]) * (tensor.datatype.itemsize or 12) for tensor in tensors)
    fitting = _BYTES // (max(1, spec.max_batch_size) * max(1, size))
    return Examples(1 if kind == "zero" else max(1, min(_EXAMPLES, fitting)), make)


def _example_dims(spec: ModelSpec, tensor: TensorSpec, shapes: Shapes) -> tuple[int, ...]:
    if tensor.shape_tensor:
        raise InvalidArgumentError(
            f"input '{tensor.name}' of model '{spec.name}' is a shape tensor, which cannot be generated: give inputs="
        )
    dims = tuple(shapes.get(tensor.name, tensor.dims))
    fits = len(dims) == len(tensor.dims) and all(b in (-1, a) for a, b in zip(dims, tensor.dims, strict=True))
    if not fits:
        raise InvalidArgumentError(
            f"shapes for input '{tensor.name}' of model '{spec.name}' expected {list(tensor.dims)} (without the batch "
            f"dimension), got {list(dims)}"
        )
    if min(dims, default=1) < 0:
        example = [16 if dim < 0 else dim for dim in dims]
        raise InvalidArgumentError(
            f"input '{tensor.name}' of model '{spec.name}' has variable dimensions {list(dims)}: "
            f"give the shape to send, such as shapes={{'{tensor.name}': {example}}}"
        )
    return dims


def _random(tensor: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    datatype = tensor.datatype
    if datatype.variable_size:
        letters = rng.integers(ord("a"), ord("z") + 1, (*shape, 8), np.uint8)
        strings = np.empty(shape, object)
        for place in np.ndindex(shape):
            strings[place] = letters[place].tobytes()
        return strings
    if datatype.numpy.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if datatype.values_dtype.kind == "f":
        return datatype.from_values(rng.random(shape))
    return rng.integers(0, _INTEGERS, shape).astype(datatype.numpy)
