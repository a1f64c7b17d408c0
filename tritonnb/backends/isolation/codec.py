"""Requests, responses and errors as headers of messages, with their tensors in a `Packer`.

The payload contains the bytes of the tensors one after another; strings have Triton's length-prefixed form.
"""

from __future__ import annotations

import builtins
import dataclasses
import itertools
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tritonnb.backends.isolation.channel import ONCE, Channel, Header, Payload, Region, create_region
from tritonnb.core import errors
from tritonnb.core.datatypes import BY_NUMBER, INVALID, decode_bytes, encode_bytes
from tritonnb.core.errors import Fix, InternalError, Problem, TritonError
from tritonnb.core.failures import frames_to_notes
from tritonnb.core.messages import InferRequest, InferResponse, Respond, Tensor
from tritonnb.core.texts import LONGEST_ERROR, printable

#: Payloads up to this size are part of the message: copying them through a socket costs less than sharing memory.
INLINE: Final = 1 << 15
#: Every tensor begins at a multiple of this, as vector instructions prefer.
_ALIGNMENT: Final = 64

#: Name, number of the datatype, shape, offset and length in the payload.
Place = list[Any]


class Packer:
    """A packer for the tensors of one message.

    Parameters
    ----------
    shared : SharedOutput, optional
        Receives large tensors at once, so that the caller may change them; otherwise they are copied by `send`.
    """

    def __init__(self, shared: SharedOutput | None = None) -> None:
        self.size = 0
        self._shared = shared
        self._parts: list[tuple[int, npt.NDArray[np.generic] | bytes]] = []
        self._has_written = False

    def add(self, tensor: Tensor) -> Place:
        """Add a tensor; return its place in the payload."""
        array = tensor.array
        raw = encode_bytes(array) if array.dtype.kind == "O" else None
        length = array.nbytes if raw is None else len(raw)
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self.size = offset + length
        if self._shared is not None and length > INLINE:
            self._shared.write(offset, array if raw is None else raw, self.size)
            self._has_written = True
        elif length:
            # A model may reuse its array as soon as it has responded, which is before the batch is sent.
            copied = array.tobytes() if raw is None and self._shared is not None else raw
            self._parts.append((offset, array if copied is None else copied))
        return [tensor.name, tensor.datatype.number, list(array.shape), offset, length]

    def send(self, channel: Channel, header: Header, shared: SharedOutput | None = None) -> None:
        """Send a message with the tensors.

        Parameters
        ----------
        channel : Channel
        header : list
        shared : SharedOutput, optional
            The memory for a large payload; without it, memory for this message alone is allocated.

        Raises
        ------
        InternalError
            If there is not enough memory.
        OSError
            If the other process has ended.
        """
        if self.size <= INLINE and not self._has_written:
            channel.send(header, self._inline())
            return
        once = shared is None
        output = SharedOutput(ONCE) if shared is None else shared
        for offset, part in self._parts:
            output.write(offset, part, self.size)
        try:
            output.send(channel, header)
        finally:
            if once:
                output.close()

    def _inline(self) -> bytearray:
        payload = bytearray(self.size)
        for offset, part in self._parts:
            raw = part if isinstance(part, bytes) else part.tobytes()
            payload[offset : offset + len(raw)] = raw
        return payload


class SharedOutput:
    """The shared memory for the large tensors of one side of a channel; larger memory replaces it on demand.

    Parameters
    ----------
    number : int, optional
        The number of the first region; by default regions are counted.
    """

    def __init__(self, number: int = 0) -> None:
        # From 1, since the number 0 of a frame is "no region".
        self._numbers = itertools.repeat(number) if number else itertools.count(1)
        self._region: Region | None = None
        self._is_new = True

    def write(self, offset: int, data: npt.NDArray[np.generic] | bytes, size: int) -> None:
        """Copy a tensor to its place in a payload of at least ``size`` bytes; earlier contents are kept."""
        region = self._region
        if region is None or region.size < size:
            region = create_region(size, next(self._numbers))
            if self._region is not None:
                region.bytes[: self._region.size] = self._region.bytes
                self._region.close()
            self._region, self._is_new = region, True
        if isinstance(data, bytes):
            region.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        else:
            np.ndarray(data.shape, data.dtype, region.bytes, offset)[...] = data

    def send(self, channel: Channel, header: Header) -> None:
        """Send a message with the memory as its payload."""
        channel.send(header, b"", self._region, self._is_new)
        self._is_new = False

    def close(self) -> None:
        """Free the memory, unless the receiver uses it; the next message gets other memory."""
        if self._region is not None:
            self._region.close()
            self._region = None


def unpack(place: Place, payload: Payload, *, copy: bool = False) -> Tensor:
    """Return a tensor of a message.

    Parameters
    ----------
    place : list
        From `Packer.add`.
    payload : numpy.ndarray of uint8
    copy : bool
        Whether the array gets its own memory; otherwise it shares the memory of the payload.
    """
    name, number, shape, offset, length = place
    datatype = BY_NUMBER.get(number, INVALID)
    array: npt.NDArray[np.generic]
    if datatype.numpy.kind == "O":
        array = decode_bytes(payload[offset : offset + length].tobytes()).reshape(shape)
    elif not length:
        array = np.empty(shape, datatype.numpy)
    else:
        array = np.ndarray(shape, datatype.numpy, payload, offset)
        if copy:
            array = array.copy()
    return Tensor(name, datatype, array)


Encoded = list[Any]

#: The class of each status; other modules derive theirs from these.
_CLASSES: dict[str, type[TritonError]] = {
    kind.default_status.label: kind for kind in TritonError.__subclasses__() if kind.__module__ == errors.__name__
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


def decode_request(encoded: Encoded, payload: Payload, respond: Respond) -> tuple[InferRequest, list[Tensor] | None]:
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


def decode_response(encoded: Encoded, payload: Payload, *, copy: bool) -> InferResponse:
    """Decode a response; ``copy`` gives its outputs their own memory."""
    outputs, error, parameters, final, empty = encoded
    return InferResponse(
        [unpack(place, payload, copy=copy) for place in outputs],
        None if error is None else decode_error(error),
        final,
        parameters,
        empty,
    )


def encode_error(error: Exception) -> Encoded:
    """Encode an error. An exception that is not a `TritonError` becomes the ``model_error`` of an `InternalError`."""
    if not isinstance(error, TritonError):
        error = InternalError(f"{type(error).__name__}: {printable(error)}", model_error=frames_to_notes(error))
    cause = error.model_error
    problems = [dataclasses.astuple(problem) for problem in error.problems]
    return [error.message, error.status.label, error.hint, problems, None if cause is None else _encode_cause(cause)]


def decode_error(encoded: Encoded) -> TritonError:
    """Decode an error."""
    message, label, hint, problems, cause = encoded
    return _CLASSES[label](
        message,
        hint=hint,
        problems=[
            Problem(text, line, column, None if fix is None else Fix(*fix), of_problem)
            for text, line, column, fix, of_problem in problems
        ],
        model_error=None if cause is None else _decode_cause(cause),
    )


def settle(future: Future[Any], value: Any, error: Encoded | None) -> None:
    """Set the result of a future, or the encoded error."""
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(decode_error(error))


def _encode_cause(error: BaseException) -> Encoded:
    kind = type(error)
    arguments = list(error.args) if all(map(_is_plain, error.args)) else [printable(error)]
    notes = getattr(error, "__notes__", ())
    texts = [printable(note) for note in notes] if isinstance(notes, (list, tuple)) else []
    return [kind.__name__, printable(kind.__module__), arguments, texts]


def _is_plain(value: object) -> bool:
    """Return whether a value can be part of a message as it is."""
    if isinstance(value, str):
        return len(value) <= LONGEST_ERROR
    return isinstance(value, (float, type(None))) or (isinstance(value, int) and -(2**63) <= value < 2**64)


def _decode_cause(encoded: Encoded) -> BaseException:
    """Return an exception of the same name: of the same class if it is built in."""
    name, module, arguments, notes = encoded
    kind = getattr(builtins, name, None) if module == "builtins" else None
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        # The real class would have to be imported here, and importing the code of a model is what isolation avoids.
        kind = type(name, (Exception,), {"__module__": module})
    error: BaseException
    try:
        error = kind(*arguments)
    except Exception:  # such as UnicodeDecodeError, which needs five arguments
        error = type(name, (Exception,), {"__module__": module})(*arguments)
    for note in notes:
        error.add_note(note)
    return error
