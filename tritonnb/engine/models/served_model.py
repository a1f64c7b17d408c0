"""A served model: one version of a model that accepts requests.

A `ServedModel` contains what all models have in common: configuration, statistics, requests in flight, cached
responses. Its driver executes the requests: a `SchedulerDriver` on the instances of the model, an `EnsembleDriver` as
requests to other models. Everything here runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from tritonnb.backends.contract import ModelContext
from tritonnb.backends.execution import Execution, executed_requests
from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.events import CacheHit, CacheMiss, Event, RequestRefused
from tritonnb.core.json_types import ModelMetadata, TensorMetadata
from tritonnb.core.messages import InferRequest, InferResponse, RequestHandler, RequestTrace, Respond
from tritonnb.engine.execution.instance import Instance
from tritonnb.engine.models.response_cache import Key, ResponseCache, key_of
from tritonnb.engine.models.validation import RequestValidator
from tritonnb.model_config.schema import ModelSpec, TensorSpec
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.telemetry.statistics import ModelStatistics
from tritonnb.telemetry.stream import EventStream

_serials: Final = itertools.count(1)
_monotonic_ns: Final = time.monotonic_ns  # for each request
logger = logging.getLogger(__name__)
_load_numbers = itertools.count(1)


class Driver(RequestHandler, Protocol):
    """The execution of the requests to a served model."""

    @property
    def instances(self) -> Collection[Instance]:
        """The instances that run the model; empty for an ensemble."""

    @property
    def sequences(self) -> SequenceBatcher | None:
        """The scheduler of a model with ``sequence_batching``; None for other models."""

    def accept(self, request: InferRequest, now: int) -> None:
        """Queue or start a valid request; raises TritonError if it is rejected."""

    def queue_depth(self) -> int:
        """Return the number of requests that are queued."""

    def stop(self) -> None:
        """Reject new requests, because the server is stopping."""

    async def wait_until_sequences_end(self) -> None:
        """Wait until all sequences have ended."""

    async def close(self) -> None:
        """Free all resources; no request may be in flight."""

    def abandon(self) -> None:
        """Begin to free all resources, without waiting: the event loop ends."""


class ServedModel:
    """One version of a model that accepts requests.

    Parameters
    ----------
    context : ModelContext
    stream : EventStream
    cache : ResponseCache, optional
        Used if ``response_cache`` is enabled in the configuration.
    output_labels : mapping of str to list of str, optional
        The lines of the ``label_filename`` of every output that has labels.

    Attributes
    ----------
    name, version : str, int
    config : inference.ModelConfig
        Completed and normalised, as the config endpoint returns it.
    spec : ModelSpec
        The tensors of the configuration, for the validation of requests.
    decoupled : bool
        ``model_transaction_policy { decoupled: true }``.
    statistics : ModelStatistics
    driver : Driver
        Set by the code that creates the model.
    output_labels : dict of str to list of str
        As passed to the constructor; an ensemble adds the labels of its steps.
    load_number : int
        The number of the load, which distinguishes it from earlier loads of the same version.
    load_seconds : float
        How long it took to load.
    stream : EventStream
    uses_cache : bool
        Whether responses are cached.
    """

    def __init__(
        self,
        context: ModelContext,
        stream: EventStream,
        cache: ResponseCache | None = None,
        output_labels: Mapping[str, list[str]] | None = None,
    ) -> None:
        self.name = context.name
        self.version = context.version
        self.context = context
        self.config = context.config
        self.spec = ModelSpec.from_config(context.config)
        self.decoupled = bool(context.config.model_transaction_policy.decoupled)
        self.statistics = ModelStatistics(self.name, self.version)
        self.driver: Driver
        self.output_labels = dict(output_labels or {})
        self.load_number = next(_load_numbers)
        self.load_seconds = 0.0
        self.stream = stream
        self._validator = RequestValidator(self.spec)
        self._cache = cache if context.config.response_cache.enable else None
        self.uses_cache = self._cache is not None
        if context.config.response_cache.enable and cache is None:
            logger.warning(
                "model '%s': response_cache has no effect, since the server has no cache: add "
                "--cache-config=local,size=BYTES (cache_config={'local': {'size': 'BYTES'}})",
                self.name,
            )
        #: The accepted requests without a final response. A set, so that they can be answered when the server stops.
        self._accepted: set[InferRequest] = set()
        self._pins = 0
        self._drained: asyncio.Future[None] | None = None

    # --- queries ------------------------------------------------------------------------------

    def metadata(self, versions: Sequence[int] | None = None) -> ModelMetadata:
        """Return the model metadata of the v2 protocol; ``versions`` are the versions to list, ascending."""
        return {
            "name": self.config.name,
            "versions": [str(version) for version in versions or [self.version]],
            "platform": self.config.platform or self.config.backend,
            "inputs": self._tensors(self.spec.inputs),
            "outputs": self._tensors(self.spec.outputs),
        }

    def _tensors(self, tensors: Mapping[str, TensorSpec]) -> list[TensorMetadata]:
        batch = [-1] if self.spec.max_batch_size > 0 else []
        return [
            {"name": tensor.name, "datatype": tensor.datatype.name, "shape": [*batch, *tensor.dims]}
            for tensor in tensors.values()
        ]

    @property
    def instances(self) -> Collection[Instance]:
        """The instances of the model; empty for an ensemble."""
        return self.driver.instances

    @property
    def open_sequences(self) -> int:
        """The number of sequences that have a slot and have neither ended nor exceeded the maximum idle time."""
        sequences = self.driver.sequences
        # Every open sequence in a slot has a deadline there, so nobody counts them a second time.
        return 0 if sequences is None else len(sequences.table.idle)

    def live_sequences(self) -> list[int | str]:
        """Return the correlation IDs of sequences that accept requests without START, in slots and in the backlog."""
        sequences = self.driver.sequences
        return [] if sequences is None else list(sequences.table.known)

    # --- requests -----------------------------------------------------------------------------

    def check(self, request: InferRequest) -> None:
        """Validate a request against the configuration; sets ``batch_size`` and ``batch_key``.

        Raises
        ------
        InvalidArgumentError
            If the request does not match the configuration.
        """
        self._validator.check(request)
        request.checked = True

    def submit(self, request: InferRequest, trace: RequestTrace | None = None) -> None:
        """Validate and accept a request; its responses are passed to ``request.respond``.

        `tritonnb.engine.submission.Submission` calls it for every door.

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
        """Validate and number a request, and pass it to the driver."""
        if not request.checked:
            self.check(request)
        request.model_name = self.name
        request.model_version = self.version
        # Before `accept`, since the cache may answer in it.
        request.accepted_by = self.driver
        now = _monotonic_ns()
        if not request.received_ns:
            request.received_ns = now
        request.serial = next(_serials)
        self.driver.accept(request, now)

    def report_refusal(self, error: TritonError) -> None:
        """Emit the event of a request that is refused before it is offered to the scheduler.

        `tritonnb.engine.submission.Submission.refuse` calls it.
        """
        now = time.monotonic_ns()
        self.emit(RequestRefused(now, self.name, self.version, next(_serials), 1, now, error.message, ""))

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """Pass a response on; after the final response the request is no longer in flight."""
        if request not in self._accepted:  # the model answers after the server has given up, see `abandon`
            return
        if response.final:
            self._accepted.discard(request)
        request.answer(response)
        if response.final:
            self._notice_drained()

    def abandon(self, reason: str) -> None:
        """Answer every request in flight with an error, although its model still runs: the server ends."""
        for request in list(self._accepted):
            error = UnavailableError(f"{reason} before model '{self.name}' answered the request")
            self.respond(request, InferResponse(error=error))
            request.cancelled = True  # a model that looks at it ends early
            if request.on_cancel is not None:
                request.on_cancel()

    def emit(self, event: Event) -> None:
        """Count an event in the statistics, and append it to the event stream."""
        self.statistics.fold(event)
        self.stream.emit(event)

    def emit_executed(self, execution: Execution, instance: str, failures: list[str], now: int) -> None:
        """Emit the `BatchExecuted` of a batch that `complete_responses` has completed."""
        requests = executed_requests(execution, failures)
        start, end = execution.exec_start_ns, execution.exec_end_ns
        compute_start, compute_end = execution.compute_start_ns, execution.compute_end_ns
        self.statistics.batch_executed(execution.size, start, compute_start, compute_end, end, requests)
        # fmt: off
        self.stream.emit_record((
            "BatchExecuted", now, self.name, self.version, execution.number, instance, execution.size,
            start, compute_start, compute_end, end, requests,
        ))
        # fmt: on

    # --- requests in flight -------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """The number of accepted requests without a final response, and of requests to ensembles that need the model.

        The model is not closed before it is 0.
        """
        return len(self._accepted) + self._pins

    def accept(self, request: InferRequest) -> None:
        """Count a request as in flight until `respond` passes on its final response."""
        self._accepted.add(request)

    def pin(self) -> None:
        """Keep the model for a request to an ensemble until `unpin`."""
        self._pins += 1

    def unpin(self) -> None:
        """Release the model; the counterpart of `pin`."""
        self._pins -= 1
        self._notice_drained()

    def _notice_drained(self) -> None:
        if self._drained is not None and not self.in_flight and not self._drained.done():
            self._drained.set_result(None)

    async def wait_until_drained(self) -> None:
        """Wait until every accepted request has its final response."""
        if self.in_flight:
            if self._drained is None or self._drained.done():
                self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    # --- response cache -----------------------------------------------------------------------

    def respond_from_cache(self, request: InferRequest) -> bool:
        """Respond from the cache if possible; otherwise have the response inserted."""
        # A hit would overtake the responses that preserve_ordering holds back; Triton orders it with them.
        if self._cache is None or (self.in_flight and self.config.dynamic_batching.preserve_ordering):
            return False
        began = time.monotonic_ns()
        key = key_of(self.load_number, request)
        response = self._cache.look_up(key)
        lookup_ns = time.monotonic_ns() - began
        if response is None:
            request.observe_responses(self._cache_inserter(key, lookup_ns))
            return False
        self.emit(CacheHit(began + lookup_ns, self.name, self.version, request.serial, request.received_ns, lookup_ns))
        if request.step is not None:
            # A hit takes no compute time, but its ensemble is counted only when every step has reported.
            request.step.executed(0, 0, 0, 0)
        request.answer(response)
        return True

    def _cache_inserter(self, key: Key, lookup_ns: int) -> Respond:
        """Return an observer that inserts a successful response into the cache."""

        def insert(request: InferRequest, response: InferResponse) -> None:
            # Triton stores an error as a response without outputs, and the next equal request "succeeds".
            if response.error is None and self._cache is not None:
                began = time.monotonic_ns()
                if self._cache.insert(key, response):
                    now = time.monotonic_ns()
                    self.emit(CacheMiss(now, self.name, self.version, request.serial, lookup_ns + now - began))

        return insert
