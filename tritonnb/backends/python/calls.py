"""Calls from a model to its server: requests to other models (business logic scripting), metrics, model control.

The utilities are ``MetricFamily``, ``load_model``, ``unload_model`` and ``is_model_ready``.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import ClassVar, Self

from tritonnb.backends.contract import ServerCalls
from tritonnb.backends.python.error import TritonModelException
from tritonnb.backends.python.instance_binding import InstanceBinding, current_binding
from tritonnb.backends.python.response import InferenceResponse, find_unsupported, from_core_response
from tritonnb.backends.python.tensor import Tensor, decode_text
from tritonnb.core.errors import InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.messages import MAX_CORRELATION_ID_BYTES, Caller, InferRequest, InferResponse, discard_response
from tritonnb.core.texts import shown
from tritonnb.telemetry import custom_metrics
from tritonnb.telemetry.custom_metrics import MetricKind

#: The longest name of a model that is passed on, in characters: no directory can have a longer one.
_LONGEST_NAME = 1 << 10


class ResponseIterator:
    """A request in progress: an iterator over its responses as they arrive; the last response may be empty.

    A second iteration continues where the first iteration stopped; after the last response it starts from the first.

    Parameters
    ----------
    request : InferRequest
        The request that the model created. A copy is sent, so that the model can send it again.
    inputs : sequence of Tensor
        Its inputs, as the model passed them: duplicate names are an error, as on Triton.
    server : ServerCalls
    decoupled : bool
        Whether the model accepts any number of responses.
    cause : InferRequest, optional
        The request whose trace includes this one.
    caller : tuple of (str, int, int), optional
        `InferRequest.caller`.
    """

    def __init__(
        self,
        request: InferRequest,
        inputs: Sequence[Tensor],
        server: ServerCalls,
        decoupled: bool,
        cause: InferRequest | None,
        caller: Caller | None,
    ) -> None:
        self._responses: list[InferenceResponse] = []
        self._finished = False
        self._next = 0
        self._server = server
        self._condition = threading.Condition()
        self._waiter: Future[InferenceResponse] | None = None
        self._request = InferRequest(
            request.model_name,
            {name: tensor.copy() for name, tensor in request.inputs.items()},
            self._receive,
            model_version=request.model_version,
            id=request.id,
            requested_outputs=request.requested_outputs,
            parameters=dict(request.parameters),
            timeout_us=request.timeout_us,
            correlation_id=request.correlation_id,
            flags=request.flags,
        )
        self._request.caller = caller
        error = _find_error(request, inputs)
        if error is not None:
            self._receive(self._request, InferResponse(error=error))
            return
        server.infer(self._request, decoupled=decoupled, cause=cause)

    def _wait(self, index: int) -> InferenceResponse:
        """Wait for response ``index``, counted from 0.

        Raises
        ------
        IndexError
            If the request ended with fewer responses.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._finished or len(self._responses) > index)
            # Responses are kept, because Triton's iterator can be started again after its end.
            return self._responses[index]

    async def _wait_async(self) -> InferenceResponse:
        """Wait for the first response on the event loop of the caller."""
        with self._condition:
            if self._responses:
                return self._responses[0]
            # A Future of the standard library and not asyncio's: it is completed on the server's loop, while the model
            # waits on its own.
            waiter = self._waiter = Future()
        return await asyncio.wrap_future(waiter)

    def __iter__(self) -> Self:
        with self._condition:
            if self._finished and len(self._responses) <= self._next:
                self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        try:
            response = self._wait(self._next)
        except IndexError:
            raise StopIteration from None
        self._next += 1
        return response

    def cancel(self) -> None:
        """Cancel the request: its responses are no longer needed."""
        if not self._finished:
            self._server.cancel(self._request)

    def _receive(self, request: InferRequest, response: InferResponse) -> None:
        """Store a response; called on the server's event loop."""
        message = None
        if response.error is not None and request.accepted_by is None:  # otherwise it is the model's own error
            message = f"Model {self._request.model_name} - Error when running inference: {response.error.message}"
        received = from_core_response(response, message)
        if response.final:
            request.respond = discard_response  # so that no reference cycle keeps its tensors
        with self._condition:
            self._responses.append(received)
            self._finished = response.final
            self._condition.notify_all()
            waiter, self._waiter = self._waiter, None
        # Outside of the lock: completing the future runs callbacks of the model.
        if waiter is not None and waiter.set_running_or_notify_cancel():
            waiter.set_result(received)


def _find_error(request: InferRequest, inputs: Sequence[Tensor]) -> TritonError | None:
    """Return the error in a request that is found before it is sent to a model, if there is one."""
    correlation_id = request.correlation_id
    if isinstance(correlation_id, str) and len(correlation_id.encode()) > MAX_CORRELATION_ID_BYTES:
        return UnsupportedError(f"string correlation ID cannot be longer than {MAX_CORRELATION_ID_BYTES} characters")
    # The dict of the request has lost duplicates, so only the list of the model shows them.
    if len(inputs) > len(request.inputs):
        names = [tensor.name() for tensor in inputs]
        duplicate = next(name for name in names if names.count(name) > 1)
        return InvalidArgumentError(f"{request.id_prefix}input '{duplicate}' already exists in request")
    return find_unsupported(request.parameters)


class _RaisedToModel:
    """A context manager that converts errors of the server to the exception that models expect.

    Its text begins with ``failure``. This is not a generator, because the frames of `contextlib` would be part of the
    text for clients.
    """

    def __init__(self, failure: str) -> None:
        self._failure = failure

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TritonError):
            raise TritonModelException(f"{self._failure}: {error.message}") from error


class MetricFamily:
    """Metrics with one name and different labels.

    Parameters
    ----------
    name, description : str
    kind : int
        ``MetricFamily.COUNTER``, ``GAUGE`` or ``HISTOGRAM``.
    """

    COUNTER, GAUGE, HISTOGRAM = MetricKind

    _binding: ClassVar[InstanceBinding | None] = None

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        if not isinstance(kind, MetricKind):
            raise TypeError(f"MetricFamily: expected kind to be COUNTER, GAUGE or HISTOGRAM, got {shown(kind)}")
        binding = self._binding or current_binding()
        if binding is None or binding.server is None:
            raise TritonModelException("MetricFamily: expected to be created by a model that a server runs")
        with _RaisedToModel("Failed to create metric family"):
            self._family = binding.server.metrics.open(decode_text(name), decode_text(description), kind)
        # A family ends when its model drops it, at the latest with the model: on Triton it outlives both, and its
        # counters mislead.
        weakref.finalize(self, binding.server.metrics.close, self._family)

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:  # noqa: N802
        """Create the metric with these labels; a histogram also needs the upper bounds of its buckets."""
        with _RaisedToModel("Failed to create metric"):
            return Metric(self, self._family.metric({} if labels is None else labels, buckets))


class Metric:
    """A metric; created by `MetricFamily.Metric`."""

    def __init__(self, family: MetricFamily, metric: custom_metrics.CustomMetric) -> None:
        # Weak, since a metric must not keep its family: Triton refuses a metric whose family was deleted.
        self._family = weakref.ref(family)
        self._open_metric = metric

    def increment(self, value: float) -> None:
        """Add to a counter or gauge."""
        with _RaisedToModel("Failed to increment metric value"):
            self._metric().increment(value)

    def set(self, value: float) -> None:
        """Set a gauge."""
        with _RaisedToModel("Failed to set metric value"):
            self._metric().set(value)

    def observe(self, value: float) -> None:
        """Observe a value of a histogram."""
        with _RaisedToModel("Failed to observe metric value"):
            self._metric().observe(value)

    def value(self) -> float:
        """Return the value of a counter or gauge."""
        with _RaisedToModel("Failed to get metric value"):
            return self._metric().value()

    def _metric(self) -> custom_metrics.CustomMetric:
        if self._family() is None:
            raise TritonModelException(
                "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' "
                "object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
            )
        return self._open_metric


def load_model(model_name: str | bytes, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load or reload a model; the server must run in explicit model control mode.

    Parameters
    ----------
    model_name : str
    config : str, optional
        Configuration as JSON, used instead of *config.pbtxt*.
    files : mapping of str to bytes, optional
        Contents by ``file:<path>``, which replace the model's directory; they require ``config``.

    Raises
    ------
    TritonModelException
        If the model cannot be loaded, or the server runs in another mode.
    """
    text = decode_text(config)
    parameters: dict[str, str | bytes] = {"config": text} if text else {}
    for path, content in (files or {}).items():
        if not isinstance(content, bytes):
            raise TypeError(f"Object of type '{type(content).__name__}' is not an instance of 'bytes'")
        parameters[decode_text(path)] = content
    server, failure = _server("load model")
    with _RaisedToModel(failure):
        server.load_model(_model_name(model_name), parameters)


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Unload a model; a model that does not exist is ignored.

    Raises
    ------
    TritonModelException
        If the server runs in another mode.
    """
    server, failure = _server("unload model")
    with _RaisedToModel(failure):
        server.unload_model(_model_name(model_name), bool(unload_dependents))


def is_model_ready(model_name: str | bytes, model_version: str = "") -> bool:
    """Return whether a model version is ready; without a version, whether any version of the model is.

    Raises
    ------
    TritonModelException
        If the version is not a number.
    """
    version_text = decode_text(model_version)
    server, failure = _server("check model readiness")
    try:
        version = int(version_text) if version_text else -1
    except ValueError:
        raise TritonModelException(
            f"{failure}: failed to get model version from specified version string '{version_text}' (details: stol), "
            "version should be an integral value > 0"
        ) from None
    return server.is_model_ready(_model_name(model_name), version)


def _model_name(value: object) -> str:
    """Return the name of a model; the event loop, which looks it up and logs it, gets no objects of models."""
    name = decode_text(value)
    if len(name) > _LONGEST_NAME:
        raise TypeError(f"expected the name of a model, got a text of {len(name)} characters")
    return name


def _server(action: str) -> tuple[ServerCalls, str]:
    """Return the server of the model that calls, and the beginning of the text if the action fails."""
    binding = current_binding()
    if binding is None or binding.server is None:
        raise TritonModelException("expected the call to come from a model that a server runs")
    return binding.server, f"Failed to {action}: Failed to process the request for model '{binding.name}', message"
