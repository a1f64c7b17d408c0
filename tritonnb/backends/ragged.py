"""Ragged batches: the inputs that a batch itself has, and outputs that are taken apart by an input's shapes.

Requests whose inputs may be ragged (``allow_ragged_batch``) share a batch whatever their shapes: the model gets
such an input as one long vector. Where each request begins and what shape it has, the model is told by the
inputs that ``batch_input`` defines; ``batch_output`` says how its own long vectors are divided again.

Implements ``BatchInput`` and ``BatchOutput`` of *model_config.proto*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.batching import find_input
from tritonnb.backends.contract import Execution
from tritonnb.core.datatypes import BY_NUMBER
from tritonnb.core.protobuf import model_config_pb2 as pb

Shapes = Sequence[tuple[int, ...]]
Kind = pb.BatchInput.Kind


class BatchTensors:
    """What a model's configuration says of its batches.

    Parameters
    ----------
    config : inference.ModelConfig

    Attributes
    ----------
    ragged : frozenset of str
        Inputs that are given to the model as one vector; none where the model does not batch.
    input_names : list of str
        The inputs that the batch has.
    shaped_like : dict of str to str
        For each output that is a vector over all requests the input that has the shapes of its parts.
    """

    def __init__(self, config: Any) -> None:
        batching = config.max_batch_size > 0
        self.ragged = frozenset(each.name for each in config.input if each.allow_ragged_batch and batching)
        self._inputs = [
            (target, _VALUES[each.kind], BY_NUMBER[each.data_type].numpy, each.source_input[0])
            for each in config.batch_input
            for target in each.target_name
        ]
        self.input_names = [name for name, _, _, _ in self._inputs]
        self.shaped_like = {target: each.source_input[0] for each in config.batch_output for target in each.target_name}

    def inputs(self, execution: Execution) -> dict[str, npt.NDArray[Any]]:
        """The inputs that a batch has, by name."""
        return {name: values(_shapes(execution, source)).astype(dtype) for name, values, dtype, source in self._inputs}

    def parts(self, execution: Execution) -> dict[str, Shapes]:
        """For each output that is a vector over all requests the shapes of its parts."""
        return {name: _shapes(execution, source) for name, source in self.shaped_like.items()}


def _shapes(execution: Execution, source: str) -> Shapes:
    arrays = (find_input(request, source) for request in execution.requests)
    return [(0,) if each is None else each.shape for each in arrays]


def _counts(shapes: Shapes) -> npt.NDArray[Any]:
    return np.array([np.prod(each, dtype=np.int64) for each in shapes])


def _accumulated_with_zero(shapes: Shapes) -> npt.NDArray[Any]:
    return np.concatenate([[0], np.cumsum(_counts(shapes))])


def _item_shapes(shapes: Shapes) -> npt.NDArray[Any]:
    """One row for each row of the batch: the shape without the batch dimension."""
    return np.array([each[1:] for each in shapes for _ in range(each[0])])


_VALUES: Mapping[int, Callable[[Shapes], npt.NDArray[Any]]] = {
    Kind.BATCH_ELEMENT_COUNT: _counts,
    Kind.BATCH_ACCUMULATED_ELEMENT_COUNT: lambda shapes: np.cumsum(_counts(shapes)),
    Kind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: _accumulated_with_zero,
    # Only the shape of this one means anything.
    Kind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: lambda shapes: np.zeros(int(_counts(shapes).max(initial=0))),
    Kind.BATCH_ITEM_SHAPE: _item_shapes,
    Kind.BATCH_ITEM_SHAPE_FLATTEN: lambda shapes: _item_shapes(shapes).ravel(),
}
