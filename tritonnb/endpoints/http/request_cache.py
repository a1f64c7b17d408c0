"""Binary HTTP requests that were read before: their JSON is the same each time, only the bytes after it differ."""

from __future__ import annotations

from typing import Any

from tritonnb.core.messages import InferRequest, Respond, discard_response
from tritonnb.endpoints.request_cache import LONGEST_HEAD, RequestTemplate, is_repeatable, store_bounded
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.model_config.schema import ModelSpec

_MAX_ENTRIES = 256


class HttpRequestCache:
    """The known requests to one model.

    Parameters
    ----------
    spec : ModelSpec

    Attributes
    ----------
    spec : ModelSpec
        Of the model as it was loaded when the requests were read.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._templates: dict[bytes, RequestTemplate] = {}

    def find(
        self, body: bytes | bytearray, length: int, respond: Respond
    ) -> tuple[InferRequest, ResponseFormat] | None:
        """The request of a body whose first ``length`` bytes are JSON; None if that JSON is not known."""
        template = self._templates.get(bytes(body[:length]))
        if template is None or len(body) != template.length:
            return None
        return template.fill(body, respond), template.response_format

    def store(
        self, body: bytes | bytearray, length: int, request: InferRequest, response_format: ResponseFormat
    ) -> None:
        """Remember the JSON of a request that was accepted, if all its inputs are binary."""
        if not 0 < length <= LONGEST_HEAD or length == len(body):
            return
        if not is_repeatable(self.spec, request, response_format):
            return
        offset = length
        inputs: list[tuple[Any, ...]] = []
        for name, tensor in request.inputs.items():
            datatype, array = tensor.datatype, tensor.array
            if not datatype.itemsize:
                return
            inputs.append((name, datatype, datatype.numpy, array.size, offset, array.shape))
            offset += array.nbytes
        if offset != len(body):
            return  # some input is in JSON or in shared memory
        template = RequestTemplate(request.clone({}, discard_response), response_format, len(body), tuple(inputs))
        store_bounded(self._templates, bytes(body[:length]), template, _MAX_ENTRIES)
