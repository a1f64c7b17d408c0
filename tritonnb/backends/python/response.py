"""``pb_utils.InferenceResponse`` and ``pb_utils.InferenceResponseSender``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tritonnb.backends.python.declared_outputs import DeclaredOutputs
from tritonnb.backends.python.error import TritonError, TritonModelException, from_core_error, to_core_error
from tritonnb.backends.python.tensor import Tensor, to_core_tensor
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import InferRequest, InferResponse, ParameterValue
from tritonnb.core.parameters import find_parameter_error


def check_types(parameters: object) -> None:
    """Check the types of parameters.

    Raises
    ------
    TritonModelException
        If they are wrong; with Triton's text.
    """
    if parameters is None:
        return
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        # No floats: Triton's Python backend refuses them in responses although the protocol has doubles.
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")


def find_unsupported(parameters: Mapping[str, ParameterValue] | None) -> InternalError | None:
    """Return the error if parameters cannot be sent, else None."""
    if not parameters:
        return None
    for name, value in parameters.items():
        problem = find_parameter_error(name, value)
        if problem:
            return InternalError("Unsupported value type on parameters", hint=problem)
    return None


TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1


class InferenceResponse:
    """The response to a request.

    Parameters
    ----------
    output_tensors : sequence of Tensor, optional
    error : TritonError, optional
    parameters : dict, optional
        Response parameters: strings, integers, booleans.
    """

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Any = None,  # the compiled class would refuse other types than a dict with its own message
    ) -> None:
        # Nearly every model passes a list, and the general check is slow.
        if type(output_tensors) is not list and (
            not isinstance(output_tensors, Sequence) or isinstance(output_tensors, str | bytes)
        ):
            raise TypeError(f"InferenceResponse: expected a sequence of tensors, got {type(output_tensors).__name__}")
        for tensor in output_tensors:
            if tensor is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
            if type(tensor) is not Tensor:
                raise TritonModelException(
                    f"InferenceResponse: expected pb_utils.Tensor objects, got {type(tensor).__name__}"
                )
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse: expected a pb_utils.TritonError, got {type(error).__name__}")
        check_types(parameters)
        self._tensors = output_tensors
        self._error = error
        self._parameters: dict[str, ParameterValue] | None = parameters

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors."""
        return list(self._tensors)

    def has_error(self) -> bool:
        """Return whether it is an error response."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error."""
        return self._error

    def parameters(self) -> str:
        """Return the response parameters as JSON."""
        return json.dumps(self._parameters or {})


#: Sends one response to a request.
Send = Callable[[InferResponse], None]


class InferenceResponseSender:
    """The sender of a request's responses; only one response if the model is not decoupled."""

    __slots__ = ("_outputs", "_request", "_send")

    def __init__(self, send: Send, request: InferRequest, outputs: Sequence[str]) -> None:
        self._send = send
        self._request = request
        self._outputs = outputs

    def send(self, response: Any = None, flags: Any = 0) -> None:
        """Send a response, the final flag, or both.

        Parameters
        ----------
        response : InferenceResponse, optional
        flags : int, optional
            0 or ``TRITONSERVER_RESPONSE_COMPLETE_FINAL``.
        """
        if not isinstance(response, InferenceResponse | None):
            raise TypeError(f"InferenceResponseSender: expected an InferenceResponse, got {type(response).__name__}")
        final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if flags and not final:
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not final:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        try:
            if response is None:
                self._send(InferResponse(empty=True))
            else:
                self._send(to_core_response(response, self._outputs, final))
        except InternalError as error:
            raise TritonModelException(error.message) from None

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request or disconnected."""
        return self._request.cancelled


def to_core_response(response: InferenceResponse, output_names: Sequence[str], final: bool = True) -> InferResponse:
    """Convert a model's response to the server's, with the outputs that have these names."""
    if response._error is not None:
        return InferResponse(error=to_core_error(response._error), final=final)
    error = find_unsupported(response._parameters)
    if error is not None:
        return InferResponse(error=error, final=final)
    # Dropped outputs are not even converted: their values may be what cannot be converted.
    outputs = [to_core_tensor(tensor) for tensor in response._tensors if tensor._name in output_names]
    if len(outputs) != len(response._tensors) and isinstance(output_names, DeclaredOutputs):
        output_names.report([tensor._name for tensor in response._tensors])
    return InferResponse(outputs, final=final, parameters=response._parameters)


def from_core_response(response: InferResponse, message: str | None = None) -> InferenceResponse:
    """Convert the server's response to a model's, with another error message if there is one."""
    if response.error is not None:
        return InferenceResponse(error=from_core_error(response.error, message))
    tensors = [Tensor.received(output) for output in response.outputs]
    return InferenceResponse(tensors, parameters=response.parameters)
