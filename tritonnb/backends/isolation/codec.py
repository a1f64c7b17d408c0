"""Requests, responses and errors as headers of messages, with their tensors in a `Packer`."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.isolation.packer import Packer, unpack
from tritonnb.core import errors
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest, InferResponse, Respond, Tensor
from tritonnb.core.problems import Fix, Problem

Encoded = list[Any]

_CLASSES: dict[str, type[TritonError]] = {
    kind.default_status.label: kind
    for kind in (
        errors.UnknownError,
        errors.InternalError,
        errors.NotFoundError,
        errors.InvalidArgumentError,
        errors.UnavailableError,
        errors.UnsupportedError,
        errors.AlreadyExistsError,
        errors.CancelledError,
    )
}


def encode_request(request: InferRequest, packer: Packer) -> Encoded:
    """Encode a request, with the inputs and implicit states that its model reads."""
    states = request.states
    return [
        [packer.add(tensor) for tensor in request.inputs.values()],
        None if states is None else [packer.add(tensor) for tensor in states.inputs.values()],
        request.model_name,
        request.model_version,
        request.id,
        request.requested_outputs,
        request.parameters,
        request.priority,
        request.timeout_us,
        request.correlation_id,
        request.flags,
        request.serial,
        request.batch_size,
        request.is_null,
        request.cancelled,
    ]


def decode_request(
    encoded: Encoded, payload: npt.NDArray[np.uint8], respond: Respond
) -> tuple[InferRequest, list[Tensor] | None]:
    """Decode a request.

    Parameters
    ----------
    encoded : list
        From `encode_request`.
    payload : numpy.ndarray of uint8
    respond : callable
        Gets its responses.

    Returns
    -------
    request : InferRequest
        Its inputs share the memory of the payload.
    states : list of Tensor or None
        The implicit states that it reads.
    """
    inputs, states, model, version, id, outputs, parameters, priority, timeout, correlation, flags, *rest = encoded
    request = InferRequest(
        model,
        {place[0]: unpack(place, payload) for place in inputs},
        respond,
        model_version=version,
        id=id,
        requested_outputs=None if outputs is None else tuple(outputs),
        parameters=parameters,
        priority=priority,
        timeout_us=timeout,
        correlation_id=correlation,
        flags=flags,
    )
    request.serial, request.batch_size, request.is_null, request.cancelled = rest
    return request, None if states is None else [unpack(place, payload) for place in states]


def encode_response(response: InferResponse, packer: Packer) -> Encoded:
    """Encode a response."""
    return [
        [packer.add(tensor) for tensor in response.outputs],
        None if response.error is None else encode_error(response.error),
        response.parameters or None,
        response.final,
        response.empty,
    ]


def decode_response(encoded: Encoded, payload: npt.NDArray[np.uint8], *, copy: bool) -> InferResponse:
    """Decode a response; ``copy`` gives its outputs memory of their own."""
    outputs, error, parameters, final, empty = encoded
    return InferResponse(
        [unpack(place, payload, copy=copy) for place in outputs],
        None if error is None else decode_error(error),
        final,
        parameters,
        empty,
    )


def encode_error(error: TritonError) -> Encoded:
    """Encode an error, with the exception of user code that caused it."""
    cause = error.model_error
    problems = [
        [problem.message, problem.line, problem.column, problem.hint, problem.fix and _fields(problem.fix)]
        for problem in error.problems
    ]
    return [error.message, error.status.label, error.hint, problems, None if cause is None else _encode_cause(cause)]


def decode_error(encoded: Encoded) -> TritonError:
    """Decode an error."""
    message, label, hint, problems, cause = encoded
    return _CLASSES[label](
        message,
        hint=hint,
        problems=[
            Problem(text, line, column, None if fix is None else Fix(*fix), of_problem)
            for text, line, column, of_problem, fix in problems
        ],
        model_error=None if cause is None else _decode_cause(cause),
    )


def _fields(fix: Fix) -> Sequence[str]:
    return fix.label, fix.text, fix.hint


def _encode_cause(error: BaseException) -> Encoded:
    kind = type(error)
    arguments = [argument if _is_plain(argument) else None for argument in error.args]
    exact = arguments == list(error.args)
    return [kind.__name__, kind.__module__, arguments if exact else [str(error)], list(getattr(error, "__notes__", ()))]


def _is_plain(value: object) -> bool:
    """Whether a value can be part of a message as it is."""
    return isinstance(value, (str, float, type(None))) or (isinstance(value, int) and -(2**63) <= value < 2**64)


def _decode_cause(encoded: Encoded) -> BaseException:
    """An exception of the same name: of the same class if it is built in."""
    name, module, arguments, notes = encoded
    kind = getattr(builtins, name, None) if module == "builtins" else None
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        kind = type(name, (Exception,), {"__module__": module})
    error: BaseException
    try:
        error = kind(*arguments)
    except TypeError:  # such as UnicodeDecodeError, which needs five arguments
        error = type(name, (Exception,), {"__module__": module})(*arguments)
    for note in notes:
        error.add_note(note)
    return error
