"""The tensors that travel between the steps of an ensemble.

Each remembers whether its first dimension is a batch, since steps may batch or not, and which sequence it
belongs to, since a step may say so for the steps behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import SEQUENCE_END, SEQUENCE_START, InferRequest, ParameterValue, Tensor
from tritonnb.core.ownership import read_only_view

_IDS = 2**64


# These are made for every step of every request; frozen ones take three times as long to make.
@dataclass(slots=True)
class Sequence:
    """The sequence that a request or tensor belongs to: ``correlation_id`` and ``flags`` of `InferRequest`."""

    correlation_id: int | str = 0
    flags: int = 0

    @classmethod
    def of(cls, request: InferRequest) -> Sequence:
        """That of a request."""
        correlation_id, flags = request.correlation_id, request.flags
        return cls(correlation_id, flags) if flags or correlation_id != 0 else NO_SEQUENCE

    def overridden(self, parameters: Mapping[str, ParameterValue] | None) -> Sequence:
        """What a step's response parameters ``sequence_id``, ``sequence_start`` and ``sequence_end`` make of it.

        Raises
        ------
        InvalidArgumentError
            If one of them has a wrong type.
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
        return Sequence(correlation_id % _IDS if isinstance(correlation_id, int) else correlation_id, flags)

    def as_parameters(self) -> dict[str, ParameterValue]:
        """The parameters that every response of an ensemble carries; an integer is a signed one of 64 bits there."""
        correlation_id = self.correlation_id
        if isinstance(correlation_id, int) and correlation_id >= _IDS // 2:
            correlation_id -= _IDS
        return {
            "sequence_id": correlation_id,
            "sequence_start": bool(self.flags & SEQUENCE_START),
            "sequence_end": bool(self.flags & SEQUENCE_END),
        }


NO_SEQUENCE = Sequence()


@dataclass(slots=True)
class EnsembleTensor:
    """A tensor of an ensemble.

    Attributes
    ----------
    tensor : Tensor
    batch_size : int
        Rows; 0 where it comes from a model that does not batch.
    sequence : Sequence
    """

    tensor: Tensor
    batch_size: int
    sequence: Sequence

    def renamed(self, name: str, dims: tuple[int, ...], batching: bool) -> Tensor:
        """The tensor as a model takes it.

        Between a model that batches and one that does not, a batch of one comes or goes. The array is
        read-only: other steps may read it too.

        Parameters
        ----------
        name : str
        dims : tuple of int
            What the model's configuration says of it; -1 is a variable dimension.
        batching : bool
            Whether the model batches.
        """
        array = read_only_view(self.tensor.array)
        if batching != (self.batch_size > 0):
            fits = _fits(array.shape, dims)
            if batching and fits:
                array = array[None]
            elif not batching and not fits and self.batch_size == 1:
                array = array[0]
        return Tensor(name, self.tensor.datatype, array)


def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(b in (-1, a) for a, b in zip(shape, dims, strict=True))
