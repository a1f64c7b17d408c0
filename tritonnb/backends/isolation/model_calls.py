"""The calls of the model in a child: requests to other models, responses, metrics, logs, model control."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from tritonnb.backends.contract import ServerCalls
from tritonnb.backends.execution import Execution, ResponseSender
from tritonnb.backends.isolation import codec
from tritonnb.backends.isolation.channel import Channel, Header, Message, Payload
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.core.texts import printable
from tritonnb.telemetry.custom_metrics import CustomMetric, CustomMetricFamily, MetricKind

#: The methods of `ServerCalls` that a child calls by name.
_MODEL_CONTROL = ("load_model", "unload_model", "is_model_ready")


def not_healthy(instance: str) -> InternalError:
    """Return Triton's error for an instance after the end of its process."""
    return InternalError(f"Stub process '{instance}' is not healthy.")


class ChildCalls:
    """The calls of one child.

    `handle` is called on the instance's thread for messages on ``work``, and on the thread that reads ``calls`` for
    the others. Messages to the child are sent by a thread, so that no caller waits for a child that does not read.

    Parameters
    ----------
    name : str
        Name of the instance.
    server : ServerCalls or None
    calls : Channel

    Attributes
    ----------
    name : str
    current : Execution or None
        The batch that the instance executes.
    """

    def __init__(self, name: str, server: ServerCalls | None, calls: Channel) -> None:
        self.name = name
        self._server = server
        self._calls = calls
        self.current: Execution | None = None
        #: Of batches that were executed: response senders that the model may still use, and their requests.
        self._senders: dict[tuple[int, int], tuple[ResponseSender, InferRequest]] = {}
        self._sent: dict[int, InferRequest] = {}
        self._families: dict[str, CustomMetricFamily] = {}
        self._metrics: dict[int, CustomMetric] = {}
        self._checks: dict[int, Future[None]] = {}
        self._numbers = itertools.count(1)  # of metrics and checks
        self._outgoing: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._write, name=f"tritonnb replies to {name}", daemon=True).start()
        self._is_closed = False
        self._lock = threading.Lock()
        self._handlers: Mapping[str, Callable[..., None]] = {
            "infer": self._infer,
            "cancel": self._cancel,
            "respond": self._respond,
            "log": self._log,
            "ready": self._ready,
            "close_family": self._close_family,
            "change_metric": self._change_metric,
        }
        self._questions: Mapping[str, Callable[..., Any]] = {
            "open_family": self._open_family,
            "create_metric": self._create_metric,
            "metric_value": self._metric_value,
            **{call: functools.partial(self._call_server, call) for call in _MODEL_CONTROL},
        }

    def handle(self, message: Message) -> None:
        """Handle a message."""
        kind, *arguments = message.header
        if kind in self._questions:
            # On a thread, since loading a model takes long.
            threading.Thread(target=self._reply, args=(kind, *arguments), name="tritonnb call", daemon=True).start()
        elif kind in ("infer", "respond"):
            self._handlers[kind](message.payload, *arguments)
        else:
            self._handlers[kind](*arguments)

    def cancelled(self, request: InferRequest) -> None:
        """Inform the child that a request was cancelled, if it has the request."""
        for (number, index), known in self._requests():
            if known is request:
                self._post(["cancelled", number, index])

    def keep_senders(self, execution: Execution, indices: list[int], has_failed: bool) -> None:
        """Keep the response senders of the requests of an executed batch, if the model may still use them."""
        for index in indices:
            sender = execution.sender(index)
            if not (sender.closed or has_failed):
                self._senders[execution.number, index] = sender, execution.requests[index]
        self.current = None

    def _requests(self) -> list[tuple[tuple[int, int], InferRequest]]:
        """Return the requests without a final response that the child has."""
        execution = self.current
        running = [] if execution is None else [((execution.number, i), r) for i, r in enumerate(execution.requests)]
        return [*running, *((key, request) for key, (_, request) in list(self._senders.items()))]

    def check_ready(self) -> None:
        """Ask the child whether the instance is ready; raises its error if it is not."""
        answer: Future[None] = Future()
        with self._lock:
            if self._is_closed:
                raise not_healthy(self.name)
            number = next(self._numbers)
            self._checks[number] = answer
        self._post(["check_ready", number])
        answer.result()

    def close(self) -> None:
        """Cancel the requests of a child that has ended, close its metrics, and respond with an error in its place."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            checks = list(self._checks.values())
        self._outgoing.put(None)
        for request in list(self._sent.values()):
            if self._server is not None:
                self._server.cancel(request)
        for sender, _ in list(self._senders.values()):
            if not sender.closed:
                # Their batches are complete, so nobody else would answer these requests.
                sender.send(InferResponse(error=not_healthy(self.name)))
        self._senders.clear()
        for check in checks:
            check.set_exception(not_healthy(self.name))
        for family in self._families.values():
            self._server_calls().metrics.close(family)
        self._families.clear()

    # --- to the child -------------------------------------------------------------------------

    def _post(self, header: Header) -> None:
        self._outgoing.put(functools.partial(self._calls.send, header))

    def _write(self) -> None:
        while (send := self._outgoing.get()) is not None:
            try:
                send()
            except OSError:  # it has ended
                return

    def _reply(self, kind: str, number: int, *arguments: Any) -> None:
        value, error = None, None
        try:
            value = self._questions[kind](*arguments)
        except TritonError as raised:
            error = codec.encode_error(raised)
        except Exception as raised:
            error = codec.encode_error(InternalError(f"{type(raised).__name__}: {printable(raised)}"))
        self._post(["reply", number, value, error])

    def _send_response(self, number: int, response: InferResponse, was_accepted: bool) -> None:
        packer = codec.Packer()
        try:
            packer.send(self._calls, ["response", number, codec.encode_response(response, packer), was_accepted])
        except InternalError as error:  # there is not enough memory for the tensors
            self._send_response(number, InferResponse(error=error, final=response.final), was_accepted)

    # --- requests and responses ---------------------------------------------------------------

    def _infer(self, payload: Payload, number: int, encoded: list[Any], decoupled: bool, serial: int) -> None:
        def respond(request: InferRequest, response: InferResponse) -> None:
            if response.final:
                self._sent.pop(number, None)
            accepted = request.accepted_by is not None
            # This is the event loop of the server, which must not wait for a child that does not read.
            self._outgoing.put(functools.partial(self._send_response, number, response, accepted))

        request, _ = codec.decode_request(encoded, payload, respond)
        request.serial = 0
        self._sent[number] = request
        known = [known for _, known in self._requests() if known.serial]
        causes = [cause for cause in known if cause.serial == serial]
        if known:
            request.caller = (known[0].model_name, known[0].model_version, known[0].serial)
        self._server_calls().infer(request, decoupled=decoupled, cause=causes[0] if causes else None)

    def _cancel(self, number: int) -> None:
        request = self._sent.get(number)
        if request is not None:
            self._server_calls().cancel(request)

    def _respond(self, payload: Payload, number: int, index: int, encoded: list[Any]) -> None:
        execution = self.current
        if execution is not None and execution.number == number:
            sender = execution.sender(index)
        elif (number, index) in self._senders:
            sender, _ = self._senders[number, index]
        else:
            return
        # Without a copy: a response outside of a result comes in memory that carries this one message.
        response = codec.decode_response(encoded, payload, copy=False)
        if response.final:
            self._senders.pop((number, index), None)
        if not sender.closed:
            sender.send(response)

    def _ready(self, number: int, error: list[Any] | None) -> None:
        codec.settle(self._checks.pop(number), None, error)

    # --- logs and metrics ---------------------------------------------------------------------

    def _log(self, name: str, level: int, text: str, path: str, line: int, created: float) -> None:
        logger = logging.getLogger(None if name == "root" else name)
        # The levels may have changed since the child took them over.
        if logger.isEnabledFor(level):
            record = logging.LogRecord(name, level, path, line, text, (), None)
            record.created = created
            logger.handle(record)

    def _open_family(self, name: str, description: str, kind: str) -> None:
        self._families[name] = self._server_calls().metrics.open(name, description, MetricKind(kind))

    def _close_family(self, name: str) -> None:
        family = self._families.pop(name)
        for number, metric in list(self._metrics.items()):
            if family.metrics.get(metric.labels) is metric:
                del self._metrics[number]
        self._server_calls().metrics.close(family)

    def _create_metric(self, family: str, labels: list[list[str]], buckets: list[float] | None) -> int:
        number = next(self._numbers)
        self._metrics[number] = self._families[family].metric(dict(labels), buckets)
        return number

    def _change_metric(self, number: int, change: str, value: float) -> None:
        changes = {"increment": CustomMetric.increment, "set": CustomMetric.set, "observe": CustomMetric.observe}
        metric = self._metrics.get(number)
        if metric is not None:  # its family was closed on the other channel
            changes[change](metric, value)

    def _metric_value(self, number: int) -> float:
        return self._metrics[number].value()

    # --- the server ---------------------------------------------------------------------------

    def _call_server(self, call: str, *arguments: Any) -> Any:
        return getattr(self._server_calls(), call)(*arguments)

    def _server_calls(self) -> ServerCalls:
        if self._server is None:
            raise InternalError("expected the call to come from a model that a server runs")
        return self._server
