"""A model's tensors in the form in which requests are checked against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tritonnb.core.datatypes import BY_NUMBER, DataType

#: Stands for a data_type number that the schema does not know.
INVALID = DataType("<invalid>", "TYPE_INVALID", 0, np.dtype(object), 0)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Attributes
    ----------
    name : str
    datatype : DataType
    dims : tuple of int
        Without the batch dimension; -1 is a variable one.
    reshape : tuple of int or None
        What the backend sees instead of ``dims``.
    optional, ragged, shape_tensor : bool
        ``optional``, ``allow_ragged_batch`` and ``is_shape_tensor`` of an input.
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
        In the order of the configuration; of two tensors of one name the first.
    """

    name: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]

    @classmethod
    def from_config(cls, config: Any) -> ModelSpec:
        """The tensors of an ``inference.ModelConfig``."""
        inputs: dict[str, TensorSpec] = {}
        for each in config.input:
            inputs.setdefault(each.name, _spec(each, each.optional, each.allow_ragged_batch))
        outputs: dict[str, TensorSpec] = {}
        for each in config.output:
            outputs.setdefault(each.name, _spec(each))
        return cls(config.name, config.max_batch_size, inputs, outputs)


def _spec(tensor: Any, optional: bool = False, ragged: bool = False) -> TensorSpec:
    return TensorSpec(
        tensor.name,
        BY_NUMBER.get(tensor.data_type, INVALID),
        tuple(tensor.dims),
        tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        optional,
        ragged,
        tensor.is_shape_tensor,
    )


def resolve_reshape(dims: tuple[int, ...], configured: tuple[int, ...], reshape: tuple[int, ...]) -> tuple[int, ...]:
    """A ``reshape`` with the actual sizes of the variable dimensions, in order.

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
    return tuple([next(variable) if each == -1 else each for each in reshape])
