"""Heads of binary requests that were read before.

A client that sends one tensor after the other sends the same JSON each time. Once such a head has been
read and checked, all that a request needs is known of it: only the bytes behind it differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tritonnb.core.messages import InferRequest, Respond, Tensor, discard_response
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.model_config.schema import ModelSpec

_MOST_HEADS = 256
_LONGEST_HEAD = 4096


@dataclass(frozen=True, slots=True)
class _Template:
    """A request that was accepted, without its contents."""

    request: InferRequest
    answer: ResponseFormat
    body_length: int
    #: name, datatype, NumPy dtype, elements, offset in the body, and shape of each input
    inputs: tuple[tuple[Any, ...], ...]


class RequestTemplates:
    """The known heads of one model's requests.

    Attributes
    ----------
    spec : ModelSpec
        Of the model as it was loaded when they were read.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._known: dict[bytes, _Template] = {}
        # What a shape tensor holds decides which requests may share a batch.
        self._usable = not any(each.shape_tensor for each in spec.inputs.values())

    def make(
        self, body: bytes | bytearray, length: int, respond: Respond
    ) -> tuple[InferRequest, ResponseFormat] | None:
        """The request of a body whose first ``length`` bytes are a known head; None if they are not."""
        template = self._known.get(bytes(body[:length]))
        if template is None or len(body) != template.body_length:
            return None
        inputs = {
            name: Tensor(name, datatype, np.frombuffer(body, dtype, count, at).reshape(shape))
            for name, datatype, dtype, count, at, shape in template.inputs
        }
        return template.request.clone(inputs, respond), template.answer

    def learn(self, body: bytes | bytearray, length: int, request: InferRequest, answer: ResponseFormat) -> None:
        """Remember the head of a request that has been checked, if its inputs are all binary."""
        if any(each.region is not None for each in answer.outputs.values()):
            return
        if not self._usable or request.id or not 0 < length <= _LONGEST_HEAD or length == len(body):
            return
        at = length
        inputs = []
        for name, tensor in request.inputs.items():
            datatype, array = tensor.datatype, tensor.array
            if not datatype.itemsize:
                return
            inputs.append((name, datatype, datatype.numpy, array.size, at, array.shape))
            at += array.nbytes
        if at != len(body):
            return  # some input came in JSON
        if len(self._known) >= _MOST_HEADS:
            self._known.clear()
        bare = request.clone({}, discard_response)
        self._known[bytes(body[:length])] = _Template(bare, answer, len(body), tuple(inputs))
