"""The validation of requests against the configuration of their model.

Order and messages follow Triton's core (``InferenceRequest::Normalize``): output names, number of inputs, input
names, batch size, and then for each input datatype, shape, and byte size. Properties of the configuration are computed
once, so that the validation of a request takes a few microseconds.
"""

from __future__ import annotations

from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import split_bytes
from tritonnb.core.errors import IncompleteStringError, InvalidArgumentError
from tritonnb.core.messages import ExpectedTensor, InferRequest, Tensor, UndecodedTensor
from tritonnb.core.shapes import element_count, fits, shape_text
from tritonnb.model_config.schema import ModelSpec, TensorSpec, resolve_reshape

_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended "
    "to each input shape. If you want to specify the full shape including the batch dim in your input dims "
    "config, try setting max_batch_size to zero. See the model configuration docs for more info on "
    "max_batch_size."
)


class RequestValidator:
    """A validator for the requests of one model.

    Parameters
    ----------
    spec : ModelSpec
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._batching = spec.max_batch_size > 0
        self._required = sum(1 for tensor in spec.inputs.values() if not tensor.optional)
        self._names_matter = self._required < len(spec.inputs)
        self._max_batch_size = spec.max_batch_size
        self._inputs = {
            name: ExpectedTensor(tensor.datatype, tensor.dims, tensor.reshape is not None)
            for name, tensor in spec.inputs.items()
        }
        self._outputs = frozenset(spec.outputs)
        self._correlation_id = spec.correlation_id
        names = sorted(spec.inputs)  # the order in which a client lists its inputs is irrelevant
        self._compared = {name for name in names if -1 in spec.inputs[name].dims and not spec.inputs[name].ragged}
        self._shape_tensors = [name for name in names if spec.inputs[name].shape_tensor]
        # Most models have fixed shapes and need no key at all; comparing None with None is cheap.
        self._keyed = self._names_matter or bool(self._compared or self._shape_tensors)

    def check(self, request: InferRequest) -> None:
        """Validate a request.

        Sets ``batch_size`` and ``batch_key``, decodes inputs that are not decoded yet, and applies ``reshape``.

        Raises
        ------
        InvalidArgumentError
            For the first rule that is violated, in Triton's order.
        """
        inputs = _hash_order(request)
        self._check_names(request, inputs)
        if self._batching:
            self._check_batch(request, inputs)
        compared: list[tuple[str, tuple[int, ...]]] = []
        for name, tensor, shape in inputs:
            expected = self._inputs[name]
            if tensor.datatype is not expected.datatype:
                self._refuse(
                    request,
                    f"inference input '{name}' data-type is '{tensor.datatype.name}', but model "
                    f"'{self._spec.name}' expects '{expected.datatype.name}'",
                )
            dims = shape[1:] if self._batching else shape
            # A -1 of the request is refused below, with its own text.
            if not fits(dims, expected.dims) and not _fits_either_way(dims, expected.dims):
                self._refuse_shape(request, self._spec.inputs[name], shape)
            if name in self._compared:
                compared.append((name, dims))
            if isinstance(tensor, UndecodedTensor):
                if -1 in dims or self._is_impossible(request, tensor):
                    self._refuse(
                        request,
                        f"All input dimensions should be specified for input '{name}' for model "
                        f"'{self._spec.name}', got {shape_text(shape)}",
                    )
                tensor = request.inputs[name] = self._decoded(request, tensor)
            elif self._batching and not shape[0]:
                self._check_size(request, tensor, 0)
            if expected.is_reshaped:
                request.inputs[name] = self._reshaped(tensor, self._spec.inputs[name], dims)
        if self._batching:
            self._check_batch_size(request)
        if self._correlation_id is not None:
            self._check_correlation_id(request, self._correlation_id)
        if self._keyed:
            request.batch_key = self._key(request, compared)

    def _check_correlation_id(self, request: InferRequest, control: TensorSpec) -> None:
        is_string = isinstance(request.correlation_id, str)
        if is_string is not control.datatype.variable_size:
            self._refuse(
                request,
                f"sequence batching control '{control.name}' data-type is '{'BYTES' if is_string else 'UINT64'}', but "
                f"model '{self._spec.name}' expects '{control.datatype.name}'",
            )

    def _check_names(self, request: InferRequest, inputs: _Inputs) -> None:
        unknown = [name for name in request.requested_outputs or () if name not in self._outputs]
        if unknown:
            raise InvalidArgumentError(f"unexpected inference output '{min(unknown)}' for model '{self._spec.name}'")
        if not self._required <= len(inputs) <= len(self._inputs):
            self._refuse_count(request)
        for name, _, _ in inputs:
            if name not in self._inputs:
                raise InvalidArgumentError(f"unexpected inference input '{name}' for model '{self._spec.name}'")

    def _check_batch(self, request: InferRequest, inputs: _Inputs) -> None:
        batch = 0
        for name, _, shape in inputs:
            if not shape:
                self._refuse(
                    request,
                    f"input '{name}' has no shape but model requires batch dimension for '{self._spec.name}'",
                )
            if not batch:
                batch = shape[0] % 2**32  # Triton stores it in 32 bits
            elif batch != shape[0]:
                raise InvalidArgumentError(
                    f"{request.id_prefix}input '{name}' batch size does not match other inputs for '{self._spec.name}'",
                    hint=self._batch_hint(inputs),
                )
        request.batch_size = max(1, batch)
        if batch < 2**31:  # negative ones are rejected later, since the size of the data does not match
            self._check_batch_size(request)

    def _check_batch_size(self, request: InferRequest) -> None:
        if request.batch_size > self._max_batch_size:
            self._refuse(
                request,
                f"inference request batch-size must be <= {self._spec.max_batch_size} for '{self._spec.name}'",
                hint=f"it has {request.batch_size} rows; send fewer, or set max_batch_size in the configuration, which "
                "a backend completes if it has none",
            )

    # --- contents -----------------------------------------------------------------------------

    def _decoded(self, request: InferRequest, tensor: UndecodedTensor) -> Tensor:
        if tensor.datatype.variable_size:
            array = self._strings(request, tensor)
        else:
            self._check_size(request, tensor, len(tensor.raw))
            array = np.frombuffer(tensor.raw, tensor.datatype.numpy)
        shape = (request.batch_size, *tensor.shape[1:]) if self._batching else tensor.shape
        return Tensor(tensor.name, tensor.datatype, array.reshape(shape))

    def _count(self, request: InferRequest, shape: tuple[int, ...]) -> int:
        # A batch dimension of 0 counts as 1.
        return element_count((request.batch_size, *shape[1:]) if self._batching else shape)

    def _is_impossible(self, request: InferRequest, tensor: UndecodedTensor) -> bool:
        """Return whether two negative dimensions, whose product is positive, conceal each other in the size."""
        negative = any(dim < 0 for dim in (tensor.shape[1:] if self._batching else tensor.shape))
        return negative and (tensor.datatype.variable_size or self._count(request, tensor.shape) >= 0)

    def _check_size(self, request: InferRequest, tensor: Tensor | UndecodedTensor, size: int) -> None:
        expected = self._count(request, tensor.shape) * tensor.datatype.itemsize
        if expected != size:
            self._refuse(
                request,
                f"input byte size mismatch for input '{tensor.name}' for model '{self._spec.name}'. Expected "
                f"{expected}, got {size}",
            )

    def _strings(self, request: InferRequest, tensor: UndecodedTensor) -> npt.NDArray[np.generic]:
        expected = self._count(request, tensor.shape)
        where = f"for inference input '{tensor.name}' for model '{self._spec.name}'"
        elements, at = split_bytes(tensor.raw, expected)
        left = len(tensor.raw) - at
        if 0 < left < 4:
            self._refuse(
                request,
                f"incomplete string length indicator {where}, expecting 4 bytes but only {left} bytes available. "
                "Please make sure the string length indicator is in one buffer.",
            )
        if left > 0:
            self._refuse(request, f"unexpected number of string elements {expected + 1} {where}, expecting {expected}")
        if len(elements) != expected:
            self._refuse(request, f"expected {expected} string elements {where}, got {len(elements)}")
        if left < 0:
            available = len(elements[-1])
            raise IncompleteStringError(
                f"incomplete string data for inference input '{tensor.name}', expecting string of length "
                f"{available - left} but only {available} bytes available"
            )
        return elements

    def _reshaped(self, tensor: Tensor, spec: TensorSpec, dims: tuple[int, ...]) -> Tensor:
        batch = tensor.shape[:1] if self._batching else ()
        shape = batch + resolve_reshape(dims, spec.dims, spec.reshape or ())
        return Tensor(tensor.name, tensor.datatype, tensor.array.reshape(shape))

    def _key(self, request: InferRequest, shapes: list[tuple[str, tuple[int, ...]]]) -> tuple[object, ...]:
        """Return the batch key: requests with equal keys may share a batch.

        Parameters
        ----------
        request : InferRequest
        shapes : list of tuple
            Names and dims of the inputs that have variable dims.
        """
        if len(shapes) > 1:
            shapes.sort()  # the order in which a client lists its inputs is irrelevant
        if not self._names_matter and not self._shape_tensors:
            return tuple(shapes)
        # As on Triton, optional inputs that are present in one request and missing in another keep the two apart.
        inputs = request.inputs
        names: tuple[object, ...] = (frozenset(inputs),) if self._names_matter else ()
        # The values of a shape tensor are a shape, so Triton compares them as well.
        tensors = [inputs[name] for name in self._shape_tensors if name in inputs]
        return (*names, *shapes, *[(tensor.name, tensor.shape, tensor.array.tobytes()) for tensor in tensors])

    def _batch_hint(self, inputs: _Inputs) -> str:
        """Return the shapes of inputs that disagree on the batch size."""
        shapes = ", ".join(
            f"'{name}' expected {shape_text((-1, *self._spec.inputs[name].dims))}, got {shape_text(shape)}"
            for name, _, shape in reversed(inputs)
        )
        return f"the first dimension is the batch, the same for all inputs: {shapes}"

    # --- errors -------------------------------------------------------------------------------

    def _refuse(self, request: InferRequest, message: str, hint: str = "") -> NoReturn:
        raise InvalidArgumentError(request.id_prefix + message, hint=hint)

    def _refuse_count(self, request: InferRequest) -> NoReturn:
        spec = self._spec
        got = ",".join(f"'{name}'" for name, _, _ in _hash_order(request))
        missing = ",".join(
            f"'{tensor.name}'"
            for tensor in spec.inputs.values()
            if not tensor.optional and tensor.name not in request.inputs
        )
        number = (
            f"number of inputs between {self._required} and {len(spec.inputs)}"
            if self._names_matter
            else f"{len(spec.inputs)} inputs"
        )
        # If no input is missing, Triton's message lacks the opening bracket.
        self._refuse(
            request,
            f"expected {number} but got {len(request.inputs)} inputs for model '{spec.name}'. Got input(s) [{got}], "
            f"but missing required input(s) {'[' if missing else ''}{missing}]. Please provide all required input(s).",
        )

    def _refuse_shape(self, request: InferRequest, spec: TensorSpec, shape: tuple[int, ...]) -> NoReturn:
        expected = (-1, *spec.dims) if self._batching else spec.dims
        note = _BATCH_NOTE if self._batching else ""
        self._refuse(
            request,
            f"unexpected shape for input '{spec.name}' for model '{self._spec.name}'. Expected "
            f"{shape_text(expected)}, got {shape_text(shape)}. {note}",
            hint="" if shape else "it is a single value: put it into lists, one for each dimension",
        )


def _hash_order(request: InferRequest) -> _Inputs:
    """Return the inputs in the order of Triton's hash map: the last input first, apart from collisions."""
    # With the shapes, since NumPy makes a new tuple for each look at one.
    items = [(name, tensor, tensor.shape) for name, tensor in request.unchecked_inputs.items()]
    items.reverse()
    return items


_Inputs = list[tuple[str, Tensor | UndecodedTensor, tuple[int, ...]]]


def _fits_either_way(dims: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(dims) == len(expected) and all(a == b or -1 in (a, b) for a, b in zip(dims, expected, strict=True))
