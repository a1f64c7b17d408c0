"""Ragged batches: the inputs that describe a batch, and outputs that are divided by the shapes of an input.

Requests with ragged inputs (``allow_ragged_batch``) can share a batch whatever the shapes: the model gets such an input
as one vector of all elements. The inputs that ``batch_input`` defines contain where each request begins and its shape;
``batch_output`` defines how output vectors are divided between the requests.

Implements ``BatchInput`` and ``BatchOutput`` of *model_config.proto*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tritonnb.backends.batching import find_input
from tritonnb.backends.execution import Execution
from tritonnb.core.datatypes import BY_NUMBER
from tritonnb.core.protobuf import model_config_pb2 as pb

Shapes = Sequence[tuple[int, ...]]
Kind = pb.BatchInput.Kind


class BatchTensors:
    """The ragged inputs, ``batch_input`` and ``batch_output`` of a model configuration.

    Parameters
    ----------
    config : inference.ModelConfig

    Attributes
    ----------
    ragged : frozenset of str
        Inputs that the model gets as one vector; empty if the model does not batch.
    input_names : list of str
        The inputs that describe the batch.
    shaped_like : dict of str to str
        For each output that is one vector over all requests: the input with the shapes of its parts.
    """

    def __init__(self, config: pb.ModelConfig) -> None:
        batching = config.max_batch_size > 0
        self.ragged = frozenset(tensor.name for tensor in config.input if tensor.allow_ragged_batch and batching)
        self._inputs = [
            (target, _VALUES[batch_input.kind], BY_NUMBER[batch_input.data_type].numpy, batch_input.source_input[0])
            for batch_input in config.batch_input
            for target in batch_input.target_name
        ]
        self.input_names = [name for name, _, _, _ in self._inputs]
        self.shaped_like = {
            target: batch_output.source_input[0]
            for batch_output in config.batch_output
            for target in batch_output.target_name
        }

    def inputs(self, execution: Execution) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays of the inputs that describe a batch, by name."""
        return {name: values(_shapes(execution, source)).astype(dtype) for name, values, dtype, source in self._inputs}

    def parts(self, execution: Execution) -> dict[str, Shapes]:
        """For each output that is one vector over all requests: the shapes of the requests' parts."""
        return {name: _shapes(execution, source) for name, source in self.shaped_like.items()}


def _shapes(execution: Execution, source: str) -> Shapes:
    arrays = (find_input(request, source) for request in execution.requests)
    return [(0,) if array is None else array.shape for array in arrays]


def _counts(shapes: Shapes) -> npt.NDArray[np.generic]:
    return np.array([np.prod(shape, dtype=np.int64) for shape in shapes])


def _accumulated_with_zero(shapes: Shapes) -> npt.NDArray[np.generic]:
    return np.concatenate([[0], np.cumsum(_counts(shapes))])


def _item_shapes(shapes: Shapes) -> npt.NDArray[np.generic]:
    """The shape without the batch dimension, for each row of the batch."""
    return np.array([shape[1:] for shape in shapes for _ in range(shape[0])])


_VALUES: Mapping[int, Callable[[Shapes], npt.NDArray[np.generic]]] = {
    Kind.BATCH_ELEMENT_COUNT: _counts,
    Kind.BATCH_ACCUMULATED_ELEMENT_COUNT: lambda shapes: np.cumsum(_counts(shapes)),
    Kind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: _accumulated_with_zero,
    # Only the shape of this input has a meaning.
    Kind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: lambda shapes: np.zeros(int(_counts(shapes).max(initial=0))),
    Kind.BATCH_ITEM_SHAPE: _item_shapes,
    Kind.BATCH_ITEM_SHAPE_FLATTEN: lambda shapes: _item_shapes(shapes).ravel(),
}
