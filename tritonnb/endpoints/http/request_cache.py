"""Binary HTTP requests that were read before: their JSON is the same each time, only the bytes after it differ."""

from __future__ import annotations

from typing import Any

from tritonnb.core.messages import InferRequest, Respond, discard_response
from tritonnb.endpoints.bounded_cache import BoundedCache
from tritonnb.endpoints.models import InferenceModel
from tritonnb.endpoints.request_cache import LONGEST_HEAD, MAX_HEADS, RequestTemplate, is_repeatable
from tritonnb.endpoints.tensors import ResponseFormat


class HttpRequestCache:
    """The known requests to one endpoint.

    Parameters
    ----------
    limit : int, optional
        The number of JSON headers that are stored.
    """

    def __init__(self, limit: int = MAX_HEADS) -> None:
        #: By model, version, and JSON.
        self._templates: BoundedCache[tuple[str, int, bytes], RequestTemplate] = BoundedCache(limit)

    def find(
        self, served: InferenceModel, body: bytes | bytearray, length: int, respond: Respond
    ) -> tuple[InferRequest, ResponseFormat] | None:
        """The request of a body whose first ``length`` bytes are JSON; None if that JSON is not known."""
        template = self._templates.get((served.name, served.version, bytes(body[:length])))
        if template is None or template.spec is not served.spec or len(body) != template.length:
            return None
        return template.fill(body, respond), template.response_format

    def store(
        self,
        served: InferenceModel,
        body: bytes | bytearray,
        length: int,
        request: InferRequest,
        response_format: ResponseFormat,
    ) -> None:
        """Remember the JSON of a request that was accepted, if all its inputs are binary."""
        if not 0 < length <= LONGEST_HEAD or length == len(body):
            return
        if not is_repeatable(served.spec, request, response_format):
            return
        key = served.name, served.version, bytes(body[:length])
        if not self._templates.admits(key):
            return
        offset = length
        inputs: list[tuple[Any, ...]] = []
        for name, tensor in request.inputs.items():
            datatype, array = tensor.datatype, tensor.array
            inputs.append((name, datatype, datatype.numpy, array.size, offset, array.shape))
            offset += array.nbytes
        if offset != len(body):
            return  # some input is in JSON or in shared memory
        repeated = request.clone({}, discard_response)
        self._templates.store(key, RequestTemplate(served.spec, repeated, response_format, len(body), tuple(inputs)))
