"""The tensors of a model configuration for a framework: checked against the model, gathered, and scattered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tritonnb.backends.batching import Array, decode_strings, find_input, gather, publish_states, scatter
from tritonnb.backends.execution import Execution
from tritonnb.backends.model_checks import check_input_count, find_tensor
from tritonnb.core.datatypes import BY_NUMBER
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.schema import ModelSpec, TensorSpec

Shapes = Sequence[tuple[int, ...]]
Kind = pb.BatchInput.Kind


class BatchTensors:
    """The ragged inputs, ``batch_input`` and ``batch_output`` of a model configuration.

    Requests with ragged inputs (``allow_ragged_batch``) can share a batch with any shapes: the model gets such an
    input as one vector of all elements. The inputs that ``batch_input`` defines contain where each request begins and
    its shape; ``batch_output`` defines how output vectors are divided between the requests.

    Implements ``BatchInput`` and ``BatchOutput`` of *model_config.proto*.

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

    Examples
    --------
    >>> from google.protobuf import text_format
    >>> ragged = 'max_batch_size: 4 input { name: "X" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }'
    >>> BatchTensors(text_format.Parse(ragged, pb.ModelConfig())).ragged
    frozenset({'X'})
    """

    def __init__(self, config: pb.ModelConfig) -> None:
        batching = config.max_batch_size > 0
        # Without a batch dimension there is one request, and nothing to be ragged.
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

    def inputs(self, execution: Execution) -> dict[str, Array]:
        """Return the arrays of the inputs that describe a batch, by name."""
        return {name: values(_shapes(execution, source)).astype(dtype) for name, values, dtype, source in self._inputs}

    def parts(self, execution: Execution) -> dict[str, Shapes]:
        """Return the shapes of the requests' parts for each output that is one vector over all requests."""
        return {name: _shapes(execution, source) for name, source in self.shaped_like.items()}


def _shapes(execution: Execution, source: str) -> Shapes:
    arrays = (find_input(request, source) for request in execution.requests)
    # A request without the input counts as empty: the vectors that describe a batch need an entry for each request.
    return [(0,) if array is None else array.shape for array in arrays]


def _counts(shapes: Shapes) -> Array:
    return np.array([np.prod(shape, dtype=np.int64) for shape in shapes])


def _item_shapes(shapes: Shapes) -> Array:
    """Return the shape without the batch dimension, for each row of the batch."""
    return np.array([shape[1:] for shape in shapes for _ in range(shape[0])])


_VALUES: Mapping[int, Callable[[Shapes], Array]] = {
    Kind.BATCH_ELEMENT_COUNT: _counts,
    Kind.BATCH_ACCUMULATED_ELEMENT_COUNT: lambda shapes: np.cumsum(_counts(shapes)),
    Kind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: lambda shapes: np.cumsum([0, *_counts(shapes)]),
    # Only the shape of this input has a meaning.
    Kind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: lambda shapes: np.zeros(int(_counts(shapes).max(initial=0))),
    Kind.BATCH_ITEM_SHAPE: _item_shapes,
    Kind.BATCH_ITEM_SHAPE_FLATTEN: lambda shapes: _item_shapes(shapes).ravel(),
}


T = TypeVar("T")


class ConfiguredTensors:
    """The tensors that a model has according to its configuration.

    Parameters
    ----------
    config : inference.ModelConfig
    takes_ragged : bool, optional
        Whether the framework takes ragged inputs (``allow_ragged_batch``).

    Attributes
    ----------
    spec : ModelSpec
    batching : bool
        Whether the tensors have a batch dimension.
    batch : BatchTensors
        The inputs that describe a batch.
    ragged : frozenset of str
        Names of the ragged inputs.
    states : dict
        The name of the state input for each state output.
    inputs, outputs : list of str
        Names of all tensors, including tensors that describe a batch, controls and states.
    """

    def __init__(self, config: pb.ModelConfig, *, takes_ragged: bool = True) -> None:
        sequences = config.sequence_batching
        self.spec = ModelSpec.from_config(config)
        self.batching = config.max_batch_size > 0
        self.batch = BatchTensors(config)
        self.ragged = self.batch.ragged if takes_ragged else frozenset()
        self.states: dict[str, str] = {state.output_name: state.input_name for state in sequences.state}
        controls = [control.name for control in sequences.control_input]
        names = (*self.spec.inputs, *self.batch.input_names, *controls, *self.states.values())
        # A name can occur twice, for example a control that is also a configured input.
        self.inputs: list[str] = list(dict.fromkeys(names))
        self.outputs: list[str] = list(dict.fromkeys((*self.spec.outputs, *self.states)))

    def check(
        self,
        inputs: Mapping[str, T],
        outputs: Mapping[str, T],
        check: Callable[[TensorSpec, T, str], None],
        *,
        has_other_inputs: bool = False,
    ) -> None:
        """Check that the model has the tensors.

        Parameters
        ----------
        inputs, outputs : mapping of str to object
            The tensors of the model by name, in any form.
        check : callable
            Checks datatype and dims of a tensor of the configuration against the tensor of the model; the third
            argument is ``"input"`` or ``"output"``.
        has_other_inputs : bool, optional
            Whether the model may have more inputs than the configuration.

        Raises
        ------
        InvalidArgumentError
            If it has not.
        """
        # The number first, in the order of Triton's backends.
        if not has_other_inputs:
            check_input_count(self.spec.name, len(self.inputs), len(inputs))
        for name in self.inputs:
            find_tensor(name, inputs, "input")
        for name in self.outputs:
            find_tensor(name, outputs, "output")
        for name, spec in self.spec.inputs.items():
            check(spec, inputs[name], "input")
        for name, spec in self.spec.outputs.items():
            # Such an output is one vector over all requests: no `dims` can describe its shape.
            if name not in self.batch.shaped_like:
                check(spec, outputs[name], "output")

    def gather(
        self, execution: Execution, names: Iterable[str], *, optional: bool = False, decode: bool = False
    ) -> dict[str, Array]:
        """Return the arrays of a batch by name: arrays that describe it, and inputs.

        Parameters
        ----------
        execution : Execution
        names : iterable of str
            The inputs.
        optional : bool, optional
            Whether the requests may lack inputs, which are then missing in the result.
        decode : bool, optional
            Whether the framework takes strings as ``str`` (`decode_strings`).

        Raises
        ------
        InvalidArgumentError
            If an input is missing.
        """
        arrays = self.batch.inputs(execution)
        for name in names:
            if name in arrays:
                continue
            array = gather(execution, name, name in self.ragged)
            if array is not None:
                is_encoded = decode and array.dtype.kind == "O"
                arrays[name] = decode_strings(execution, name, array) if is_encoded else array
            elif not optional:
                raise InvalidArgumentError(f"model '{self.spec.name}': expected input '{name}', got none")
        return arrays

    def respond(self, execution: Execution, produced: Mapping[str, Any], states: Iterable[str] | None = None) -> None:
        """Respond to the requests of a batch with their rows of the outputs, and update their states.

        Parameters
        ----------
        execution : Execution
        produced : mapping of str to array
            What the model has produced, by name.
        states : iterable of str, optional
            The state outputs to publish; all of them if omitted.
        """
        published = {name: produced[name] for name in (self.states if states is None else states)}
        # States before outputs: if their rows do not fit, no request has been answered yet.
        publish_states(execution, published, self.batching)
        outputs = {name: (spec, produced[name]) for name, spec in self.spec.outputs.items()}
        scatter(execution, outputs, self.batching, self.batch.parts(execution))
