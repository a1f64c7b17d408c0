"""Inference messages that were read before, and answers that were written before.

A client that sends one tensor after the other sends the same message each time but for its raw contents, which
protobuf puts last. Once such a head has been read and checked, all that a request needs is known of it. In
the same way an answer is a known head with other raw contents behind it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.messages import InferRequest, InferResponse, Respond, Tensor, discard_response
from tritonnb.endpoints.tensors import ResponseFormat, contents
from tritonnb.model_config.schema import ModelSpec
from tritonnb.runtime.engine import Engine
from tritonnb.runtime.models.served_base import Served

_MOST_HEADS = 256
_LONGEST_HEAD = 4096
_LENGTH_DELIMITED = 2
_RAW_INPUT = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number << 3 | _LENGTH_DELIMITED
_RAW_OUTPUT = pb.ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number << 3 | _LENGTH_DELIMITED


@dataclass(frozen=True, slots=True)
class _Template:
    """A request that was accepted, without its contents."""

    spec: ModelSpec  # of the model as it was loaded then
    request: InferRequest
    answer: ResponseFormat
    length: int
    #: where an entry begins, and its tag and length
    marks: tuple[tuple[int, bytes], ...]
    #: name, datatype, NumPy dtype, elements, offset in the message, and shape of each input
    inputs: tuple[tuple[Any, ...], ...]


class MessageTemplates:
    """The known heads of one endpoint's requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[bytes, _Template] = {}

    def make(self, message: bytes | bytearray, respond: Respond) -> tuple[Served, InferRequest, ResponseFormat] | None:
        """The request of a message with a known head; None if it has none.

        Raises
        ------
        TritonError
            If the model is not served any more.
        """
        template = self._known.get(bytes(message[: _head_length(message)]))
        if template is None or len(message) != template.length:
            return None
        for at, mark in template.marks:
            if not message.startswith(mark, at):
                return None
        request = template.request
        served = self._engine.model(request.model_name, request.model_version)
        if served.spec is not template.spec:
            return None
        inputs = {
            name: Tensor(name, datatype, np.frombuffer(message, dtype, count, at).reshape(shape))
            for name, datatype, dtype, count, at, shape in template.inputs
        }
        return served, request.clone(inputs, respond), template.answer

    def learn(
        self, message: bytes | bytearray, version: int, served: Served, request: InferRequest, answer: ResponseFormat
    ) -> None:
        """Remember the head of a request that was accepted, if its inputs are all raw.

        Parameters
        ----------
        message : bytes
        version : int
            As the client gave it, -1 for none.
        served : Served
            What accepted it.
        request : InferRequest
        answer : ResponseFormat
        """
        length = _head_length(message)
        if request.id or length > _LONGEST_HEAD or any(each.shape_tensor for each in served.spec.inputs.values()):
            return
        if any(each.region is not None for each in answer.outputs.values()):
            return
        at, marks, inputs = length, [], []
        for name, tensor in request.inputs.items():
            datatype, array = tensor.datatype, tensor.array
            if not datatype.itemsize:
                return
            mark = bytes([_RAW_INPUT]) + _varint(array.nbytes)
            if not message.startswith(mark, at):
                return  # it came some other way
            marks.append((at, mark))
            at += len(mark)
            inputs.append((name, datatype, datatype.numpy, array.size, at, array.shape))
            at += array.nbytes
        if at != len(message):
            return
        if len(self._known) >= _MOST_HEADS:
            self._known.clear()
        bare = request.clone({}, discard_response)
        bare.model_version = version
        self._known[bytes(message[:length])] = _Template(
            served.spec, bare, answer, len(message), tuple(marks), tuple(inputs)
        )


def response_bytes(
    served: Served, request: InferRequest, response: InferResponse, answer: ResponseFormat
) -> bytes | None:
    """A ``ModelInferResponse`` as bytes; None if it is no common one.

    Common is one without an id, parameters, classes, and shared memory.
    """
    if request.id or response.parameters or response.error is not None:
        return None
    if any(each.classification or each.region is not None for each in answer.outputs.values()):
        return None
    described = tuple([(each.name, each.datatype.name, each.array.shape) for each in response.outputs])
    parts: list[bytes | memoryview] = [_response_head(served.name, served.version, described)]
    for tensor in response.outputs:
        content = contents(tensor)
        parts += (_OUTPUT_TAG, _varint(len(content)), content)
    return b"".join(parts)


_OUTPUT_TAG = bytes([_RAW_OUTPUT])


@functools.lru_cache(maxsize=4096)
def _response_head(name: str, version: int, outputs: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    described = [
        pb.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=shape)
        for name, datatype, shape in outputs
    ]
    message = pb.ModelInferResponse(model_name=name, model_version=str(version), outputs=described)
    head: bytes = message.SerializeToString()
    return head


def _head_length(message: bytes | bytearray) -> int:
    """Where the raw contents begin; the whole length if the message is not written in the usual order."""
    at, end = 0, len(message)
    while at < end - 1:
        tag = message[at]
        if tag == _RAW_INPUT:
            return at
        if tag & 7 != _LENGTH_DELIMITED:
            return end
        size, at = message[at + 1], at + 2
        if size & 0x80:
            size &= 0x7F
            shift = 7
            while at < end:
                byte = message[at]
                at += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
        at += size
    return end


@functools.lru_cache(maxsize=1024)
def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
