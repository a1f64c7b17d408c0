"""Inference requests over HTTP: from a body to a request that the model has accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tritonnb.core.messages import InferRequest, Respond
from tritonnb.endpoints.http.infer_request import read_request
from tritonnb.endpoints.http.request_cache import HttpRequestCache
from tritonnb.endpoints.models import InferenceModel
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.runtime.shared_memory import SharedMemory


class RequestReader:
    """Reads requests, and remembers those of each model (`HttpRequestCache`).

    Parameters
    ----------
    loaded : callable
        Returns the models that are loaded.
    shared_memory : SharedMemory
        Of the engine.
    max_input_size : int
        ``--http-max-input-size``, in bytes.
    """

    def __init__(
        self, loaded: Callable[[], Sequence[InferenceModel]], shared_memory: SharedMemory, max_input_size: int
    ) -> None:
        self._loaded = loaded
        self._shared_memory = shared_memory
        self._max_input_size = max_input_size
        self._caches: dict[tuple[str, int], HttpRequestCache] = {}

    def read(
        self, served: InferenceModel, body: bytes | bytearray, length: int, respond: Respond
    ) -> tuple[InferRequest, ResponseFormat]:
        """Read and check a request whose first ``length`` bytes are JSON.

        Raises
        ------
        TritonError
            If the request is invalid; with Triton's text.
        """
        spec = served.spec
        cache = self._caches.get((served.name, served.version))
        if cache is None or cache.spec is not spec:  # the model was loaded after the cache was made
            cache = self._make_cache(served)
        cached = cache.find(body, length, respond)
        if cached is not None:
            return cached
        request, response_format = read_request(
            spec, served.version, body, length, self._max_input_size, self._shared_memory, respond
        )
        served.check(request)
        cache.store(body, length, request, response_format)
        return request, response_format

    def cached_models(self) -> list[tuple[str, int]]:
        """The names and versions of the models whose requests are remembered."""
        return list(self._caches)

    def _make_cache(self, served: InferenceModel) -> HttpRequestCache:
        """Make the cache of a model that was loaded; the caches of unloaded models are dropped."""
        loaded = {(model.name, model.version) for model in self._loaded()}
        self._caches = {model: cache for model, cache in self._caches.items() if model in loaded}
        cache = HttpRequestCache(served.spec)
        self._caches[served.name, served.version] = cache
        return cache
