"""The tensors that a load sends: made from the model's own metadata, or given by the user.

They are made and checked before the first request leaves, and sent in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import BF16, BOOL, BYTES, float32_to_bf16
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import zeros
from tritonnb.inprocess.array_requests import make_request
from tritonnb.model_config.schema import ModelSpec, TensorSpec
from tritonnb.runtime.models.validation import RequestValidator

Tensors = dict[str, npt.NDArray[Any]]
Inputs = str | Mapping[str, npt.ArrayLike] | Sequence[Mapping[str, npt.ArrayLike]]
Shapes = Mapping[str, Sequence[int]]

#: Different random examples, as long as all of them together stay below so many bytes.
_EXAMPLES, _BYTES = 16, 64_000_000
#: Random integers are below this: class numbers, characters and token numbers of most models.
_INTEGERS = 100


class Examples:
    """The inputs of requests, one example after the other.

    Parameters
    ----------
    count : int
    make : callable
        ``make(number, rows)`` gives an example; called once for each number and number of rows.
    """

    def __init__(self, count: int, make: Callable[[int, int | None], Tensors]) -> None:
        self._count = count
        self._make = make
        self._made: dict[tuple[int, int | None], Tensors] = {}
        self._taken = 0

    def take(self, rows: int | None) -> Tensors:
        """The next example, with so many rows; None leaves it as it is."""
        key = (self._taken % self._count, rows)
        self._taken += 1
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]


def examples(spec: ModelSpec, inputs: Inputs, shapes: Shapes, seed: int) -> Examples:
    """Examples for a model.

    Parameters
    ----------
    spec : ModelSpec
    inputs : str, mapping or sequence of mappings
        ``"random"``, ``"zero"``, the tensors of one request by name, or several such.
    shapes : mapping of str to sequence of int
        The shape to use for an input of variable dimensions, without the batch dimension.
    seed : int
        Of random tensors.

    Raises
    ------
    InvalidArgumentError
        If they do not fit the model; in Triton's words where it would refuse such a request.
    """
    if isinstance(inputs, str):
        return _generated(spec, inputs, shapes, seed)
    several = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not several:
        raise InvalidArgumentError("inputs is an empty list: a load needs an example to send")
    given = [_checked(spec, each) for each in several]
    if spec.max_batch_size == 0:
        return Examples(len(given), lambda number, rows: given[number])
    return Examples(len(given), lambda number, rows: _with_rows(given[number], rows))


def _checked(spec: ModelSpec, inputs: Mapping[str, npt.ArrayLike]) -> Tensors:
    """The arrays as the model will get them."""
    request = make_request(spec, -1, inputs)
    arrays = {name: each.array for name, each in request.inputs.items()}
    RequestValidator(spec).check(request)
    return arrays


def _with_rows(example: Tensors, rows: int | None) -> Tensors:
    if rows is None:
        return example
    return {name: each.take(range(rows), axis=0, mode="wrap") for name, each in example.items()}


# --- made from the metadata -----------------------------------------------------------------------


def _generated(spec: ModelSpec, kind: str, shapes: Shapes, seed: int) -> Examples:
    if kind not in ("random", "zero"):
        raise InvalidArgumentError(f"inputs cannot be '{kind}': give 'random', 'zero', a dict of arrays, or a list")
    if unknown := set(shapes) - set(spec.inputs):
        raise InvalidArgumentError(
            f"shapes names '{min(unknown)}', but model '{spec.name}' has {', '.join(map(repr, spec.inputs))}"
        )
    wanted = [each for each in spec.inputs.values() if not each.optional]
    dims = {each.name: _dims(spec, each, shapes) for each in wanted}
    batching = spec.max_batch_size > 0

    def make(number: int, rows: int | None) -> Tensors:
        chance = np.random.default_rng((seed, number))
        made: Tensors = {}
        for each in wanted:
            shape = (rows or 1, *dims[each.name]) if batching else dims[each.name]
            made[each.name] = zeros(each.datatype, shape) if kind == "zero" else _random(each, shape, chance)
        return made

    size = sum(math.prod(dims[each.name]) * (each.datatype.itemsize or 12) for each in wanted)
    fitting = _BYTES // (max(1, spec.max_batch_size) * max(1, size))
    return Examples(1 if kind == "zero" else max(1, min(_EXAMPLES, fitting)), make)


def _dims(spec: ModelSpec, wanted: TensorSpec, shapes: Shapes) -> tuple[int, ...]:
    if wanted.shape_tensor:
        raise InvalidArgumentError(
            f"input '{wanted.name}' of model '{spec.name}' is a shape tensor, which cannot be made up: give inputs="
        )
    dims = tuple(shapes.get(wanted.name, wanted.dims))
    fits = len(dims) == len(wanted.dims) and all(b in (-1, a) for a, b in zip(dims, wanted.dims, strict=True))
    if not fits:
        raise InvalidArgumentError(
            f"shapes gives {list(dims)} for input '{wanted.name}', but model '{spec.name}' expects "
            f"{list(wanted.dims)} (the batch dimension is not part of it)"
        )
    if min(dims, default=1) < 0:
        example = [16 if each < 0 else each for each in dims]
        raise InvalidArgumentError(
            f"input '{wanted.name}' of model '{spec.name}' has variable dimensions {list(dims)}: "
            f"say which shape to send, such as shapes={{'{wanted.name}': {example}}}"
        )
    return dims


def _random(wanted: TensorSpec, shape: tuple[int, ...], chance: np.random.Generator) -> npt.NDArray[Any]:
    datatype = wanted.datatype
    if datatype is BYTES:
        letters = chance.integers(ord("a"), ord("z") + 1, (*shape, 8), np.uint8)
        made = np.empty(shape, object)
        for place in np.ndindex(shape):
            made[place] = letters[place].tobytes()
        return made
    if datatype is BOOL:
        return chance.integers(0, 2, shape).astype(np.bool_)
    if datatype is BF16:
        return float32_to_bf16(chance.random(shape, np.float32))
    if datatype.numpy.kind == "f":
        return chance.random(shape).astype(datatype.numpy)
    return chance.integers(0, _INTEGERS, shape).astype(datatype.numpy)
