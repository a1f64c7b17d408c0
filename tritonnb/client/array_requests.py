"""Requests from NumPy arrays, with the checks that an endpoint makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.core.conversion import check_present, convert
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import MAX_CORRELATION_ID_BYTES, InferRequest, ParameterValue, Tensor, discard_response
from tritonnb.core.ownership import read_only_view, writeable_copy
from tritonnb.core.parameters import find_parameter_error, plain_parameter
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.core.texts import encodable
from tritonnb.model_config.schema import ModelSpec, TensorSpec

#: The outputs of a request by name.
Outputs = dict[str, npt.NDArray[Any]]


def _is_count(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and 0 <= int(value) < 2**64


def _is_sequence_id(value: object) -> bool:
    if isinstance(value, str):
        with suppress(UnicodeEncodeError):
            return len(value.encode()) <= MAX_CORRELATION_ID_BYTES
        return False
    return _is_count(value)


def _are_names(value: object) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(isinstance(element, str) for element in value)


_PARAMETERS = "a dict of str, int, float or bool by name"
_COUNT = "an int from 0 to 2**64 - 1"

#: Options of a request besides its inputs: whether a value is valid, and what is expected.
REQUEST_OPTIONS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "id": (lambda value: isinstance(value, str), "a str"),
    "outputs": (lambda value: value is None or _are_names(value), "a list of output names"),
    "parameters": (lambda value: value is None or isinstance(value, Mapping), _PARAMETERS),
    "priority": (_is_count, _COUNT),
    "timeout_us": (_is_count, _COUNT),
    "sequence_id": (_is_sequence_id, f"{_COUNT}, or a str of at most {MAX_CORRELATION_ID_BYTES} bytes"),
    "sequence_start": (lambda value: isinstance(value, (bool, np.bool_)), "True or False"),
    "sequence_end": (lambda value: isinstance(value, (bool, np.bool_)), "True or False"),
    "copy": (lambda value: isinstance(value, (bool, np.bool_)), "True or False"),
}


def _read_parameters(model: str, parameters: Mapping[object, object]) -> dict[str, ParameterValue]:
    """Return request parameters as every protocol, and the process of an isolated model, can carry them.

    Raises
    ------
    InvalidArgumentError
        If they are not; the message names the parameter.
    """
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}
    for name, value in plain.items():
        problem = find_parameter_error(name, value)
        if problem:
            raise InvalidArgumentError(f"model '{model}': parameters: expected {_PARAMETERS}: {problem}")
    return {encodable(str(name)): plain_parameter(value) for name, value in plain.items()}


def request_of_call(
    spec: ModelSpec,
    version: int,
    inputs: Sequence[Mapping[str, npt.ArrayLike] | None],
    keywords: dict[str, Any],
) -> InferRequest:
    """Return the request of a call of a model with inputs as a dict, keywords, or both.

    Parameters
    ----------
    spec : ModelSpec
    version : int
    inputs : sequence
        The positional arguments.
    keywords : dict
        Inputs, and `REQUEST_OPTIONS`, which are removed from it.

    Raises
    ------
    InvalidArgumentError
        If there are other positional arguments than a dict, or an input or an option is invalid.
    """
    argument = inputs[0] if inputs else None
    if len(inputs) > 1 or not (argument is None or isinstance(argument, Mapping)):
        known = ", ".join(f"{name}=" for name in spec.inputs)
        got = type(inputs[0]).__name__ if len(inputs) == 1 else f"{len(inputs)} positional arguments"
        raise InvalidArgumentError(f"model '{spec.name}': expected a dict of inputs or the keywords {known}, got {got}")
    chosen: dict[str, Any] = {}
    for name in tuple(keywords):
        if name in REQUEST_OPTIONS:
            value = keywords.pop(name)
            is_valid, expected = REQUEST_OPTIONS[name]
            if not is_valid(value):
                raise InvalidArgumentError(f"model '{spec.name}': {name}: expected {expected}, got {value!r}")
            chosen[name] = value.item() if isinstance(value, np.generic) else value
    if chosen.get("parameters"):
        chosen["parameters"] = _read_parameters(spec.name, chosen["parameters"])
    return make_request(spec, version, *inputs, **keywords, **chosen)


def make_request(
    spec: ModelSpec,
    version: int,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    /,
    *,
    id: str = "",
    outputs: Sequence[str] | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    priority: int = 0,
    timeout_us: int = 0,
    sequence_id: int | str = 0,
    sequence_start: bool = False,
    sequence_end: bool = False,
    copy: bool = True,
    **tensors: npt.ArrayLike,
) -> InferRequest:
    """Return a request from NumPy arrays or nested lists, which the caller may change afterwards.

    With ``copy=False`` the request reads the arrays themselves until it is answered, and models get them read-only.

    Raises
    ------
    InvalidArgumentError
        If the model does not have such an input, or an array has another datatype; lists are converted.
    """
    converted: dict[str, Tensor] = {}
    for name, value in {**(inputs or {}), **tensors}.items():
        tensor_spec = spec.inputs.get(name)
        if tensor_spec is None:
            raise InvalidArgumentError(
                f"unexpected inference input '{name}' for model '{spec.name}': "
                f"it has {', '.join(map(repr, spec.inputs)) or 'no inputs'}"
            )
        converted[name] = Tensor(name, tensor_spec.datatype, _from_numpy(spec.name, tensor_spec, value, copy))
    # A keyword of a compiled constructor costs several times as much as an attribute.
    request = InferRequest(spec.name, converted, discard_response)
    request.model_version = version
    request.id = id
    if outputs is not None:
        request.requested_outputs = tuple(outputs)
    if parameters:
        request.parameters.update(parameters)
    request.priority = priority
    request.timeout_us = timeout_us
    request.correlation_id = sequence_id
    request.flags = SEQUENCE_START * sequence_start | SEQUENCE_END * sequence_end
    request.read_only_inputs = not copy
    return request


def _from_numpy(model: str, tensor_spec: TensorSpec, value: npt.ArrayLike, copy: bool) -> npt.NDArray[np.generic]:
    datatype = tensor_spec.datatype
    if type(value) is np.ndarray and value.dtype == datatype.numpy and not datatype.variable_size:
        return writeable_copy(value) if copy else _read_only(value)
    what = f"input '{tensor_spec.name}' of model '{model}' is {datatype.name}"
    if value is None:
        raise InvalidArgumentError(f"{what}, got None")
    # Lists are converted; arrays of any library have a datatype already. NumPy has none for BF16 and BYTES.
    is_array = hasattr(value, "__array__")
    is_typed = is_array and not (datatype.bit_pattern or datatype.variable_size)
    try:
        check_present(value, datatype)
        array = np.asarray(value) if is_typed else convert(value, datatype)
    except Exception as error:  # arrays of other libraries may raise anything
        is_ours = not is_array or str(error).startswith("expected ")
        what = f"model '{model}': input '{tensor_spec.name}'" if is_ours else f"{what}, and"
        raise InvalidArgumentError(f"{what} {error}") from None
    if array.dtype == datatype.numpy:
        return writeable_copy(array) if copy else _read_only(array)
    what += f" (NumPy {datatype.numpy}), got "
    if isinstance(value, np.ndarray):
        raise InvalidArgumentError(
            f"{what}an array of {array.dtype}: convert it, such as with .astype('{datatype.numpy}')"
        )
    raise InvalidArgumentError(f"{what}{array.dtype} in a {type(value).__name__}: convert it to {datatype.numpy}")


def _read_only(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return the array itself if it is in C order, as arrays from a network are, else a copy."""
    return read_only_view(np.asarray(array, order="C"))
