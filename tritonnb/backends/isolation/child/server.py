"""The server, as a child sees it: the calls, log records and metrics of its model are messages to the server."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from tritonnb.backends.isolation.channel import Channel, Header, Payload
from tritonnb.backends.isolation.codec import Packer, decode_response, encode_request, settle
from tritonnb.core.messages import InferRequest
from tritonnb.core.texts import encodable
from tritonnb.telemetry.custom_metrics import CustomMetric, CustomMetricFamily, CustomMetrics, Labels, MetricKind


class ChildServerCalls:
    """The server, as the model's code calls it; allowed from any thread. Every call is a message to the server.

    Messages of the thread that runs a command are sent on ``work``: they arrive in order with its results, and the
    server attributes them to the instance.

    Parameters
    ----------
    work, calls : Channel

    Attributes
    ----------
    runs_command : bool
        Whether the main thread runs a command.
    metrics : CustomMetrics
        Custom metrics that models define.
    """

    def __init__(self, work: Channel, calls: Channel) -> None:
        self.work = work
        self.calls = calls
        self.runs_command = False
        self.metrics = ChildMetrics(self)
        self._main = threading.get_ident()
        self._numbers = itertools.count(1)
        self._replies: dict[int, Future[Any]] = {}
        self._requests: dict[int, InferRequest] = {}

    def send(self, header: Header, packer: Packer | None = None) -> None:
        """Send a message; the process ends if the server's no longer exists."""
        channel = self.work if self.runs_command and threading.get_ident() == self._main else self.calls
        try:
            (packer or Packer()).send(channel, header)
        except OSError:
            os._exit(1)

    def ask(self, kind: str, *arguments: object) -> Any:
        """Send a question and wait for the reply.

        Raises
        ------
        TritonError
            If the server replies with an error.
        """
        number = next(self._numbers)
        reply = self._replies[number] = Future()
        self.send([kind, number, *arguments])
        return reply.result()

    def settle(self, number: int, value: Any, error: list[Any] | None) -> None:
        """Pass a reply to the thread that waits for it."""
        settle(self._replies.pop(number), value, error)

    def infer(self, request: InferRequest, *, decoupled: bool, cause: InferRequest | None = None) -> None:
        """Run a request; its responses are passed to ``request.respond`` on the thread that reads ``calls``."""
        number = next(self._numbers)
        self._requests[number] = request
        packer = Packer()
        encoded = encode_request(request, packer)
        self.send(["infer", number, encoded, decoupled, 0 if cause is None else cause.serial], packer)

    def cancel(self, request: InferRequest) -> None:
        """Cancel a request."""
        request.cancelled = True
        # A search, since cancelling is rare and requests in flight are few.
        number = next((number for number, sent in list(self._requests.items()) if sent is request), None)
        if number is not None:
            self.send(["cancel", number])

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        """Load a model."""
        self.ask("load_model", name, parameters)

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model."""
        self.ask("unload_model", name, unload_dependents)

    def is_model_ready(self, name: str, version: int) -> bool:
        """Return whether a model is ready."""
        return bool(self.ask("is_model_ready", name, version))

    def receive(self, number: int, encoded: list[Any], was_accepted: bool, payload: Payload) -> None:
        """Pass on a response to a request that the model sent."""
        request = self._requests[number]
        response = decode_response(encoded, payload, copy=False)
        if response.final:
            del self._requests[number]
        request.accepted_by = self if was_accepted else None  # in place of the served model in the other process
        request.answer(response)


class ForwardingHandler(logging.Handler):
    """A handler that sends every record to the server.

    Parameters
    ----------
    server : ChildServerCalls
    """

    def __init__(self, server: ChildServerCalls) -> None:
        super().__init__()
        self._server = server

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; its traceback becomes part of the message."""
        text = encodable(self.format(record))
        self._server.send(["log", record.name, record.levelno, text, record.pathname, record.lineno, record.created])


def forward_logs(server: ChildServerCalls, levels: Mapping[str, int]) -> None:
    """Send all records to the server.

    Parameters
    ----------
    server : ChildServerCalls
    levels : mapping of str to int
        The levels of loggers in the server's process, by name; ``""`` is the root.
    """
    logging.getLogger().addHandler(ForwardingHandler(server))
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


class ChildMetrics(CustomMetrics):
    """The families that this child uses. Every change is sent to the server, which shares them with other instances."""

    def __init__(self, server: ChildServerCalls) -> None:
        super().__init__()
        self._server = server

    def create_family(self, name: str, description: str, kind: MetricKind) -> CustomMetricFamily:
        """Open the family in the server."""
        self._server.ask("open_family", name, description, kind.value)
        return _Family(name, description, kind, self._lock, self._server)

    def close(self, family: CustomMetricFamily) -> None:
        """Release a family, and close it in the server after the last user."""
        super().close(family)
        if not family.users:
            self._server.send(["close_family", family.name])


class _Family(CustomMetricFamily):
    def __init__(self, name: str, description: str, kind: MetricKind, lock: object, server: ChildServerCalls) -> None:
        super().__init__(name, description, kind, lock)  # type: ignore[arg-type]
        self._server = server

    def create_metric(self, labels: Labels, bounds: Sequence[float]) -> CustomMetric:
        """Create the metric also in the server."""
        buckets = list(bounds) if self.kind is MetricKind.HISTOGRAM else None
        number = self._server.ask("create_metric", self.name, labels, buckets)
        return _Metric(self, labels, bounds, number)


class _Metric(CustomMetric):
    def __init__(self, family: _Family, labels: Labels, bounds: Sequence[float], number: int) -> None:
        super().__init__(family.kind, labels, bounds, family._lock)
        self._server = family._server
        self._number = number

    def value(self) -> float:
        """Return the value in the server; other instances contribute to it."""
        super().value()
        return float(self._server.ask("metric_value", self._number))

    def increment(self, amount: float) -> None:
        """Add to a counter or gauge."""
        self._change(super().increment, amount)

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._change(super().set, value)

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""
        self._change(super().observe, value)

    def _change(self, change: Callable[[float], None], value: float) -> None:
        change(value)  # raises the error of an invalid value
        self._server.send(["change_metric", self._number, change.__name__, float(value)])
