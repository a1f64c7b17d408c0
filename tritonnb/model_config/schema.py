"""The tensors of a model, in the form that request validation and backends use."""

from __future__ import annotations

from dataclasses import dataclass

from tritonnb.core.datatypes import BY_NUMBER, INVALID, DataType
from tritonnb.core.protobuf import model_config_pb2 as pb


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Attributes
    ----------
    name : str
    datatype : DataType
    dims : tuple of int
        Shape without the batch dimension; -1 for variable dimensions.
    reshape : tuple of int or None
        The shape that the backend gets instead of ``dims``.
    optional, ragged, shape_tensor : bool
        ``optional``, ``allow_ragged_batch`` and ``is_shape_tensor`` of an input.

    Examples
    --------
    >>> from tritonnb.core.datatypes import FP32
    >>> TensorSpec("X", FP32, (4,), reshape=(2, 2)).backend_dims
    (2, 2)
    """

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    ragged: bool = False
    shape_tensor: bool = False

    @property
    def backend_dims(self) -> tuple[int, ...]:
        """The dims that the backend sees: ``reshape`` where it is configured, else ``dims``."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The tensors of a model.

    Attributes
    ----------
    name : str
    max_batch_size : int
    inputs, outputs : dict of str to TensorSpec
        In the order of the configuration; of several tensors with one name, the first.
    correlation_id : TensorSpec or None
        The control tensor for correlation IDs of a model with a sequence batcher.

    Examples
    --------
    >>> from google.protobuf import text_format
    >>> text = 'name: "m" max_batch_size: 8 input { name: "X" data_type: TYPE_FP32 dims: 4 }'
    >>> ModelSpec.from_config(text_format.Parse(text, pb.ModelConfig())).inputs["X"].dims
    (4,)
    """

    name: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    correlation_id: TensorSpec | None = None

    @classmethod
    def from_config(cls, config: pb.ModelConfig) -> ModelSpec:
        """Create it from an ``inference.ModelConfig``."""
        inputs: dict[str, TensorSpec] = {}
        for tensor in config.input:
            inputs.setdefault(tensor.name, _spec(tensor, tensor.optional, tensor.allow_ragged_batch))
        outputs: dict[str, TensorSpec] = {}
        for tensor in config.output:
            outputs.setdefault(tensor.name, _spec(tensor))
        return cls(config.name, config.max_batch_size, inputs, outputs, _correlation_id(config))


def _spec(tensor: pb.ModelInput | pb.ModelOutput, optional: bool = False, ragged: bool = False) -> TensorSpec:
    return TensorSpec(
        tensor.name,
        BY_NUMBER.get(tensor.data_type, INVALID),
        tuple(tensor.dims),
        tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        optional,
        ragged,
        tensor.is_shape_tensor,
    )


def _correlation_id(config: pb.ModelConfig) -> TensorSpec | None:
    for tensor in config.sequence_batching.control_input:
        for control in tensor.control:
            if control.kind == control.CONTROL_SEQUENCE_CORRID:
                return TensorSpec(tensor.name, BY_NUMBER.get(control.data_type, INVALID), ())
    return None


def resolve_reshape(dims: tuple[int, ...], configured: tuple[int, ...], reshape: tuple[int, ...]) -> tuple[int, ...]:
    """Replace the variable dimensions of a ``reshape`` by actual sizes, in order.

    Parameters
    ----------
    dims : tuple of int
        Actual shape, without the batch dimension.
    configured : tuple of int
        ``dims`` of the configuration; -1 for variable dimensions.
    reshape : tuple of int
        ``reshape`` of the configuration, with as many variable dimensions.

    As in Triton, only the variable dimensions of ``dims`` are looked at.

    Raises
    ------
    IndexError
        If ``dims`` lacks one of them.

    Examples
    --------
    >>> resolve_reshape((5, 2, 2), (-1, 2, 2), (-1, 4))
    (5, 4)
    """
    variable = iter([dims[index] for index, wanted in enumerate(configured) if wanted == -1])
    return tuple([next(variable) if size == -1 else size for size in reshape])
