"""What all served model versions have in common: its configuration, statistics, and open requests.

Everything here is used on the server's loop.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

from tritonnb.backends.contract import ModelContext
from tritonnb.core.events import CacheHit, CacheMiss, Event
from tritonnb.core.json_types import JsonDict
from tritonnb.core.messages import InferRequest, InferResponse, RequestTrace, Respond
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
    """One version of a model, ready to take requests.

    Attributes
    ----------
    name, version : str, int
    config : inference.ModelConfig
        Completed and normalised, as the config endpoint shows it.
    spec : ModelSpec
        The tensors of the configuration, for checking requests.
    statistics : ModelStatistics
    instances : list of Instance
        What runs it; an ensemble has none.
    decoupled : bool
        ``model_transaction_policy { decoupled: true }``.
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
        self._validator = RequestValidator(self.spec)
        self._labels = read_labels(context)
        self._stream = stream
        self._loop = loop
        self._in_flight = 0
        self._drained: asyncio.Future[None] | None = None
        self._cache: ResponseCache | None = None
        self._load_number = next(_load_numbers)

    # --- what the endpoints ask ---------------------------------------------------------------

    def metadata(self, versions: Sequence[int] | None = None) -> JsonDict:
        """Model metadata of the v2 protocol; ``versions`` are those to list, ascending."""
        return describe(self.config, self.spec, versions or [self.version])

    def config_json(self) -> str:
        """What ``GET /v2/models/NAME/config`` answers."""
        return config_to_json(self.config)

    def labels(self, output_name: str) -> list[str] | None:
        """The lines of an output's ``label_filename``; None where it has none."""
        return self._labels.get(output_name)

    def check(self, request: InferRequest) -> None:
        """See whether a request fits the configuration; sets ``batch_size`` and ``batch_key``.

        Raises
        ------
        InvalidArgumentError
            If it does not.
        """
        self._validator.check(request)
        request.checked = True

    def queue_depth(self) -> int:
        """Requests that wait and do not run yet."""
        return 0

    def needed_models(self) -> Sequence[Served]:
        """The models that requests are passed on to, if it runs nothing itself."""
        return ()

    # --- requests -----------------------------------------------------------------------------

    def submit(self, request: InferRequest, trace: RequestTrace | None = None) -> None:
        """Check a request and accept it; its responses come through ``request.respond``.

        All requests come this way: those of HTTP, gRPC, the in-process API, ensembles and BLS.

        Parameters
        ----------
        request : InferRequest
        trace : RequestTrace, optional
            Records the request and its responses.

        Raises
        ------
        TritonError
            If the request is refused at once; ``request.respond`` is not called then.
        """
        if trace is None:
            self._accept(request)
        else:
            trace.submit(self._accept, request)

    def _accept(self, request: InferRequest) -> None:
        """Check a request and start it; raises TritonError if it is refused."""
        raise NotImplementedError

    def cancel(self, request: InferRequest) -> None:
        """Drop a request if it still waits; called by `InferRequest.cancel` only."""
        raise NotImplementedError

    def stop(self) -> None:
        """Accept no new work: the server is stopping."""
        raise NotImplementedError

    async def close(self) -> None:
        """Free everything now; nothing may be in flight."""
        raise NotImplementedError

    async def drain_and_close(self) -> None:
        """Wait until every accepted request has its final response, then free everything."""
        await self.wait_until_drained()
        await self.close()

    @property
    def in_flight(self) -> int:
        """Accepted requests without a final response."""
        return self._in_flight

    @property
    def open_sequences(self) -> int:
        """Sequences that may go on."""
        return 0

    async def wait_until_sequences_end(self) -> None:
        """Wait until no sequence may go on."""

    async def wait_until_drained(self) -> None:
        """Wait until every accepted request has its final response."""
        if self._in_flight:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await self._drained

    def _register(self, request: InferRequest) -> int:
        """Check and number a request; return the current time in ns."""
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
        """Answer from this response cache, if the configuration asks for one."""
        if self.config.response_cache.enable:
            self._cache = cache

    @property
    def uses_cache(self) -> bool:
        """Whether it answers from a response cache."""
        return self._cache is not None

    def _respond_from_cache(self, request: InferRequest) -> bool:
        """Respond from the cache if possible; else make sure that the response is inserted."""
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
        request.respond(request, response)
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
        """Count an ensemble's request as in flight until `unpin`, so that the model is not closed meanwhile."""
        self._in_flight += 1

    def unpin(self) -> None:
        """End what `pin` began: one request in flight fewer."""
        self._in_flight -= 1
        if self._drained is not None and not self._in_flight and not self._drained.done():
            self._drained.set_result(None)

    def _respond(self, request: InferRequest, response: InferResponse) -> None:
        request.respond(request, response)
        if response.final:
            self.unpin()

    def _emit(self, event: Event) -> None:
        self.statistics.fold(event)
        self._stream.emit(event)
