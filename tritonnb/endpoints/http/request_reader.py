"""Inference requests over HTTP: from a body to a request that the model has accepted."""

from __future__ import annotations

from tritonnb.core.messages import InferRequest, Respond
from tritonnb.endpoints.http.infer_request import read_request
from tritonnb.endpoints.http.request_cache import HttpRequestCache
from tritonnb.endpoints.models import InferenceModel
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.runtime.shared_memory import SharedMemory


class RequestReader:
    """Reads requests, and remembers them.

    Parameters
    ----------
    shared_memory : SharedMemory
        Of the engine.
    max_input_size : int
        ``--http-max-input-size``, in bytes.
    cache : HttpRequestCache
    """

    def __init__(self, shared_memory: SharedMemory, max_input_size: int, cache: HttpRequestCache) -> None:
        self._shared_memory = shared_memory
        self._max_input_size = max_input_size
        self._cache = cache

    def read(
        self, served: InferenceModel, body: bytes | bytearray, length: int, respond: Respond
    ) -> tuple[InferRequest, ResponseFormat]:
        """Read and check a request whose first ``length`` bytes are JSON.

        Raises
        ------
        TritonError
            If the request is invalid; with Triton's text.
        """
        cached = self._cache.find(served, body, length, respond)
        if cached is not None:
            return cached
        request, response_format = read_request(
            served.spec, served.version, body, length, self._max_input_size, self._shared_memory, respond
        )
        served.check(request)
        self._cache.store(served, body, length, request, response_format)
        return request, response_format
