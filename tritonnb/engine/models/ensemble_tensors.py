"""The tensors that are passed between the steps of an ensemble.

An `EnsembleTensor` also contains whether its first dimension is the batch dimension, since not all models batch, and
its sequence, which the response parameters of a step can change for the steps that follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import InferRequest, ParameterValue, Tensor
from tritonnb.core.ownership import read_only_view
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.core.shapes import fits

_IDS: Final = 2**64


@final
class SequenceFlags:
    """The sequence that a request or tensor belongs to: ``correlation_id`` and ``flags`` of `InferRequest`."""

    __slots__ = ("correlation_id", "flags")

    def __init__(self, correlation_id: int | str = 0, flags: int = 0) -> None:
        self.correlation_id = correlation_id
        self.flags = flags

    @staticmethod
    def from_request(request: InferRequest) -> SequenceFlags:
        """Return the sequence of a request."""
        correlation_id, flags = request.correlation_id, request.flags
        return SequenceFlags(correlation_id, flags) if flags or correlation_id != 0 else NO_SEQUENCE

    def overridden(self, parameters: Mapping[str, ParameterValue] | None) -> SequenceFlags:
        """Apply the response parameters ``sequence_id``, ``sequence_start``, ``sequence_end`` of a step.

        Raises
        ------
        InvalidArgumentError
            If a parameter has the wrong type.
        """
        if not parameters:
            return self
        correlation_id: ParameterValue = parameters.get("sequence_id", self.correlation_id)
        if isinstance(correlation_id, bool) or not isinstance(correlation_id, (int, str)):
            raise InvalidArgumentError(
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
            )
        flags = self.flags
        for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
            value = parameters.get(name)
            if value is None:
                continue
            if type(value) is not bool:
                raise InvalidArgumentError(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
            flags = flags | flag if value else flags & ~flag
        return SequenceFlags(correlation_id % _IDS if isinstance(correlation_id, int) else correlation_id, flags)

    def as_parameters(self) -> dict[str, ParameterValue]:
        """Return the parameters of every response of an ensemble; an integer is written as a signed 64-bit integer."""
        correlation_id = self.correlation_id
        # Triton's IDs are unsigned, and its integer parameters are signed.
        if isinstance(correlation_id, int) and correlation_id >= _IDS // 2:
            correlation_id -= _IDS
        return {
            "sequence_id": correlation_id,
            "sequence_start": bool(self.flags & SEQUENCE_START),
            "sequence_end": bool(self.flags & SEQUENCE_END),
        }


NO_SEQUENCE: Final = SequenceFlags()


@final
class EnsembleTensor:
    """A tensor of an ensemble.

    Attributes
    ----------
    tensor : Tensor
    batch_size : int
        Number of rows; 0 if the tensor comes from a model that does not batch.
    sequence : SequenceFlags
    """

    __slots__ = ("batch_size", "sequence", "tensor")

    def __init__(self, tensor: Tensor, batch_size: int, sequence: SequenceFlags) -> None:
        self.tensor = tensor
        self.batch_size = batch_size
        self.sequence = sequence

    def renamed(self, name: str, dims: tuple[int, ...], batching: bool) -> Tensor:
        """Return the tensor as the input of a model.

        Between a model that batches and a model that does not, a batch dimension of 1 is added or removed. The array is
        read-only, since other steps may also read it.

        Parameters
        ----------
        name : str
        dims : tuple of int
            The dims in the model's configuration; -1 is a variable dimension.
        batching : bool
            Whether the model batches.
        """
        array = read_only_view(self.tensor.array)
        if batching != (self.batch_size > 0):
            # Triton's rule: a tensor with the very shape of `dims` gets a batch dimension; any other is taken to have
            # it.
            is_single_row = fits(array.shape, dims)
            if batching and is_single_row:
                array = array[None]
            elif not batching and not is_single_row and self.batch_size == 1:
                array = array[0]
        return Tensor(name, self.tensor.datatype, array)
