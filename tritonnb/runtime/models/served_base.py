"""The base class of served model versions: configuration, statistics, requests in flight.

Everything here runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

from tritonnb.backends.contract import ModelContext
from tritonnb.core.events import CacheHit, CacheMiss, Event
from tritonnb.core.messages import InferRequest, InferResponse, RequestTrace, Respond
from tritonnb.core.v2_json import ModelMetadata
from tritonnb.model_config.schema import ModelSpec
from tritonnb.model_config.to_json import config_to_json
from tritonnb.runtime.execution.instance import Instance
from tritonnb.runtime.models.model_metadata import describe, read_labels
from tritonnb.runtime.models.response_cache import Key, ResponseCache, key_of
from tritonnb.runtime.models.validation import RequestValidator
from tritonnb.telemetry.statistics import ModelStatistics
from tritonnb.telemetry.stream import EventStream

_serials = itertools.count(1)
_load_numbers = itertools.count(1)


class Served:
    """One version of a model that accepts requests.

    Attributes
    ----------
    name, version : str, int
    config : inference.ModelConfig
        Completed and normalised, as the config endpoint returns it.
    spec : ModelSpec
        The tensors of the configuration, for the validation of requests.
    statistics : ModelStatistics
    instances : list of Instance
        The instances that run it; empty for an ensemble.
    decoupled : bool
        ``model_transaction_policy { decoupled: true }``.
    load_seconds : float
        How long it took to load.
    """

    def __init__(self, context: ModelContext, stream: EventStream, loop: asyncio.AbstractEventLoop) -> None:
        self.name = context.name
        self.version = context.version
        self.context = context
        self.config = context.config
        self.spec = ModelSpec.from_config(context.config)
        self.decoupled = bool(context.config.model_transaction_policy.decoupled)
        self.statistics = ModelStatistics(self.name, self.version)
        self.instances: list[Instance] = []
        self.load_seconds = 0.0
        self._validator = RequestValidator(self.spec)
        self._labels = read_labels(context)
        self._stream = stream
        self._loop = loop
        self._in_flight = 0
        self._drained: asyncio.Future[None] | None = None
        self._cache: ResponseCache | None = None
        self._load_number = next(_load_numbers)

    # --- queries ------------------------------------------------------------------------------

    def metadata(self, versions: Sequence[int] | None = None) -> ModelMetadata:
        """The model metadata of the v2 protocol; ``versions`` are the versions to list, ascending."""
        return describe(self.config, self.spec, versions or [self.version])

    def config_json(self) -> str:
        """The response to ``GET /v2/models/NAME/config``."""
        return config_to_json(self.config)

    def labels(self, output_name: str) -> list[str] | None:
        """The lines of an output's ``label_filename``; None if it has none."""
        return self._labels.get(output_name)

    def check(self, request: InferRequest) -> None:
        """Validate a request against the configuration; sets ``batch_size`` and ``batch_key``.

        Raises
        ------
        InvalidArgumentError
            If it does not.
        """
        self._validator.check(request)
        request.checked = True

    def queue_depth(self) -> int:
        """The number of requests that are queued."""
        return 0

    async def check_ready(self) -> None:
        """Return if every instance is ready; raises the reason if one is not."""
        await asyncio.gather(*[instance.check_ready() for instance in self.instances])

    def needed_models(self) -> Sequence[Served]:
        """The models that an ensemble sends requests to; empty for other models."""
        return ()

    # --- requests -----------------------------------------------------------------------------

    def submit(self, request: InferRequest, trace: RequestTrace | None = None) -> None:
        """Validate and accept a request; its responses are passed to ``request.respond``.

        All requests are submitted here: those of HTTP, gRPC, the in-process API, ensembles and BLS.

        Parameters
        ----------
        request : InferRequest
        trace : RequestTrace, optional
            Records the request and its responses.

        Raises
        ------
        TritonError
            If the request is rejected; ``request.respond`` is not called.
        """
        if trace is None:
            self._accept(request)
        else:
            trace.submit(self._accept, request)

    def _accept(self, request: InferRequest) -> None:
        """Validate and start a request; raises TritonError if it is rejected."""
        raise NotImplementedError

    def cancel(self, request: InferRequest) -> None:
        """Remove a request from the queue; called by `InferRequest.cancel` only."""
        raise NotImplementedError

    def stop(self) -> None:
        """Reject new requests, because the server is stopping."""
        raise NotImplementedError

    async def close(self) -> None:
        """Free all resources; no request may be in flight."""
        raise NotImplementedError

    async def drain_and_close(self) -> None:
        """Wait until every accepted request has its final response, then free all resources."""
        await self.wait_until_drained()
        await self.close()

    @property
    def in_flight(self) -> int:
        """The number of accepted requests without a final response."""
        return self._in_flight

    @property
    def open_sequences(self) -> int:
        """The number of sequences that have not ended."""
        return 0

    def live_sequences(self) -> list[int | str]:
        """The correlation IDs of the sequences that accept requests without START, in slots and in the backlog."""
        return []

    async def wait_until_sequences_end(self) -> None:
        """Wait until all sequences have ended."""

    async def wait_until_drained(self) -> None:
        """Wait until every accepted request has its final response."""
        if self._in_flight:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await self._drained

    def _register(self, request: InferRequest) -> int:
        """Validate and number a request; returns the current time in ns."""
        if not request.checked:
            self.check(request)
        request.model_name = self.name
        request.model_version = self.version
        request.accepted_by = self
        now = time.monotonic_ns()
        if not request.received_ns:
            request.received_ns = now
        request.serial = next(_serials)
        return now

    def use_cache(self, cache: ResponseCache | None) -> None:
        """Use a response cache, if ``response_cache`` is enabled in the configuration."""
        if self.config.response_cache.enable:
            self._cache = cache

    @property
    def uses_cache(self) -> bool:
        """Whether responses are cached."""
        return self._cache is not None

    def _respond_from_cache(self, request: InferRequest) -> bool:
        """Respond from the cache if possible; otherwise have the response inserted."""
        if self._cache is None or (self._in_flight and self.config.dynamic_batching.preserve_ordering):
            return False
        began = time.monotonic_ns()
        key = key_of(self._load_number, request)
        response = self._cache.look_up(key)
        lookup_ns = time.monotonic_ns() - began
        if response is None:
            request.wrap_response(self._cache_inserter(key, lookup_ns))
            return False
        self._emit(CacheHit(began + lookup_ns, self.name, self.version, request.serial, request.received_ns, lookup_ns))
        if request.step is not None:
            request.step.executed(0, 0, 0, 0)
        request.answer(response)
        return True

    def _cache_inserter(self, key: Key, lookup_ns: int) -> Respond:
        """Return an observer that inserts a successful response into the cache."""

        def insert(request: InferRequest, response: InferResponse) -> None:
            if response.error is None and self._cache is not None:
                began = time.monotonic_ns()
                if self._cache.insert(key, response):
                    now = time.monotonic_ns()
                    self._emit(CacheMiss(now, self.name, self.version, request.serial, lookup_ns + now - began))

        return insert

    def pin(self) -> None:
        """Count a request of an ensemble as in flight until `unpin`, so that the model is not closed before that."""
        self._in_flight += 1

    def unpin(self) -> None:
        """Count one request in flight less; the counterpart of `pin`."""
        self._in_flight -= 1
        if self._drained is not None and not self._in_flight and not self._drained.done():
            self._drained.set_result(None)

    def _respond(self, request: InferRequest, response: InferResponse) -> None:
        request.answer(response)
        if response.final:
            self.unpin()

    def _emit(self, event: Event) -> None:
        self.statistics.fold(event)
        self._stream.emit(event)
