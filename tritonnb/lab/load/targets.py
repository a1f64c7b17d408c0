"""The targets of a load, and the target for a server in this process.

A target sends a `PendingRequest` and reports its completion; it never blocks the sending thread.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import RLock
from typing import Any, Generic, TypeVar

from tritonnb.client.address import ModelAddress
from tritonnb.client.array_requests import make_request
from tritonnb.core.messages import InferResponse, Tensor
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.engine.submission import Submission
from tritonnb.lab.load.examples import Tensors
from tritonnb.model_config.schema import ModelSpec
from tritonnb.recording.arrivals import Arrival
from tritonnb.server.model_handle import ModelHandle

#: Request parameters of the sequence and schedule policy extensions.
Parameters = dict[str, int | str]
#: An encoded request.
E = TypeVar("E")
OnComplete = Callable[["PendingRequest", int, str], None]
#: The output in which a model counts the tokens of a generation, and the input by which it is known to generate.
TOKEN_COUNT, SAMPLING = "num_output_tokens", "sampling_parameters"
#: Seconds without a connection after which a server is gone: one that is restarted is back earlier.
GONE_S = 5.0
#: The error of a request that the client cancelled.
CANCELLED = "cancelled by the client"


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request of a load.

    Attributes
    ----------
    arrival : Arrival
        Row count, priority and sequence of the request.
    inputs : dict of str to numpy.ndarray
    client : int
        Number of the client that sends it, in a closed loop.
    intended_ns, sent_ns : int
        Intended and actual send time (monotonic clock).
    on_complete : callable
        ``on_complete(pending, time_ns, error)``, called once from any thread; the error is empty for a success.
    handle : Submission, asyncio.Task, grpc.Future or None
        What the target needs to cancel the request.
    error : str
        Error of a response before the final one.
    first_ns : int
        When the first response arrived; 0 if there was none, or the target does not report responses one by one.
    responses : int
        Number of responses with outputs.
    tokens : int
        Number of generated tokens: as the model counts them (``num_output_tokens``), else the number of responses.
    """

    arrival: Arrival
    inputs: Tensors
    client: int
    intended_ns: int
    on_complete: OnComplete
    sent_ns: int = 0
    handle: object = None
    error: str = ""
    first_ns: int = 0
    responses: int = 0
    tokens: int = 0

    def respond(self, response: InferResponse) -> None:
        """Receive a response of a server in this process; called on its loop."""
        if response.error is not None:
            self.error = response.error.message or response.error.status.label
        now = time.monotonic_ns()
        if response.outputs:
            self.add_response(now, _counted_tokens(response))
        if response.final:
            self.on_complete(self, now, self.error)

    def add_response(self, time_ns: int, tokens: int) -> None:
        """Count a response with outputs.

        Parameters
        ----------
        time_ns : int
        tokens : int
            The number of tokens up to now, as the model counts them; 0 if it does not.
        """
        self.first_ns = self.first_ns or time_ns
        self.responses += 1
        self.tokens = tokens or self.tokens + 1

    @property
    def first_token_ns(self) -> int:
        """The time of the first token; 0 if it is unknown, because all tokens came in one response."""
        return self.first_ns if self.responses > 1 else 0


def _counted_tokens(response: InferResponse) -> int:
    """Return the number of tokens of the request, in the last response of a model that counts them."""
    for tensor in response.outputs:
        if tensor.name == TOKEN_COUNT and tensor.array.size:
            return int(tensor.array.reshape(-1)[0])
    return 0


class InProcessTarget:
    """A model of a server in this process, without a socket."""

    def __init__(self, model: ModelHandle) -> None:
        self.spec = model.served.spec
        self._server = model.server
        self.stateful = is_stateful(model.served.config, lambda *step: self._server.engine.model(*step).config)
        self.decoupled = model.served.decoupled
        self._version = model.version

    @property
    def end(self) -> str:
        """Why no response can come any more; empty while the server runs."""
        return "" if self._server.alive else "The server was stopped during the load."

    def send(self, pending: PendingRequest) -> None:
        """Submit the request to the server's loop."""
        arrival = pending.arrival
        pending.handle = submission = Submission(pending.respond)
        request = make_request(
            self.spec,
            self._version,
            pending.inputs,
            priority=arrival.priority,
            timeout_us=arrival.timeout_us,
            sequence_id=arrival.sequence_id,
            sequence_start=arrival.sequence_start,
            sequence_end=arrival.sequence_end,
        )
        engine = self._server.engine
        engine.submitter.submit(submission, request, engine.submit)

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel the request in the engine."""
        assert isinstance(pending.handle, Submission)
        self._server.engine.submitter.cancel(pending.handle)

    def close(self) -> None:
        """Do nothing: the target holds no resources."""


def is_stateful(config: pb.ModelConfig, config_of: Callable[[str, int], pb.ModelConfig]) -> bool:
    """Return whether each request needs a sequence; requests of iterative sequences do not.

    ``config_of`` returns a configuration by name and version: an ensemble is stateful if one of its steps is.
    """
    if config.HasField("sequence_batching"):
        return not config.sequence_batching.iterative_sequence
    steps = config.ensemble_scheduling.step
    return any(is_stateful(config_of(step.model_name, step.model_version), config_of) for step in steps)


def describe_missing_times(target: Target) -> str:
    """Explain why token times cannot be measured if the model generates tokens without streaming; else empty."""
    if target.decoupled or SAMPLING not in target.spec.inputs:
        return ""
    return (
        f"Times of tokens are not measured: model '{target.spec.name}' is not decoupled, it sends all tokens in one "
        "response."
    )


class RemoteTarget(ABC, Generic[E]):
    """A model reached over a network: the server of this process, or any other server of the v2 protocol.

    Subclasses define how a request is encoded and sent. Requests of a sequence are sent one after the other, because
    those on different connections, and concurrent calls, have no order.

    Parameters
    ----------
    model : ModelAddress
    config : ModelConfig
        The model's configuration on that server.
    """

    def __init__(self, model: ModelAddress, config: pb.ModelConfig) -> None:
        self.spec = ModelSpec.from_config(config)
        self.decoupled = config.model_transaction_policy.decoupled
        self.stateful = is_stateful(config, lambda *step: model.sibling(*step).config())
        self._encoded: dict[int, E] = {}
        # The requests of each sequence that wait for the request in flight.
        self._waiting: dict[int | str, deque[PendingRequest]] = {}
        self._lock = RLock()
        self._url = model.server.url
        # The first and the last of the latest attempts that found no server.
        self._missed_ns: tuple[int, int] | None = None

    @property
    def end(self) -> str:
        """Why no response can come any more; empty while the server is there, or may be restarting."""
        missed_ns = self._missed_ns
        if missed_ns is None or missed_ns[1] - missed_ns[0] < GONE_S * 1e9:
            return ""
        return f"The load ended because no server has responded at {self._url} for {GONE_S:g} s."

    def send(self, pending: PendingRequest) -> None:
        """Send the request, or keep it until the previous request of its sequence is complete."""
        sequence = pending.arrival.sequence_id
        with self._lock:
            if sequence and sequence in self._waiting:
                self._waiting[sequence].append(pending)
                return
            if sequence:
                self._waiting[sequence] = deque()
            self.begin(pending)

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel a request; one that was not sent yet completes at once."""
        with self._lock:
            waiting = self._waiting.get(pending.arrival.sequence_id, ())
            if not waiting or pending not in waiting:
                self.abort(pending)
                return
            waiting.remove(pending)
        pending.on_complete(pending, time.monotonic_ns(), CANCELLED)

    def complete(self, pending: PendingRequest, time_ns: int, error: str, *, is_connected: bool = True) -> None:
        """Complete a request that was sent, and send the next request of its sequence.

        Parameters
        ----------
        pending : PendingRequest
        time_ns : int
        error : str
        is_connected : bool, optional
            False if no connection could be made for the request.
        """
        self._missed_ns = None if is_connected else ((self._missed_ns or (time_ns, 0))[0], time_ns)
        pending.on_complete(pending, time_ns, error)
        with self._lock:
            waiting = self._waiting.get(pending.arrival.sequence_id)
            if waiting:
                self.begin(waiting.popleft())
            else:
                self._waiting.pop(pending.arrival.sequence_id, None)

    @abstractmethod
    def begin(self, pending: PendingRequest) -> None:
        """Send a request now; it is completed by `complete`."""

    @abstractmethod
    def abort(self, pending: PendingRequest) -> None:
        """Cancel a request that was sent."""

    @abstractmethod
    def close(self) -> None:
        """Free resources; no request follows."""

    def request(self, pending: PendingRequest) -> E:
        """Encode a request; the examples of requests without parameters are encoded once."""
        parameters, key = request_parameters(pending.arrival), id(pending.inputs)
        if parameters:
            return self.encode(pending.inputs, parameters)
        if key not in self._encoded:
            self._encoded[key] = self.encode(pending.inputs, parameters)
        return self._encoded[key]

    def tensors(self, inputs: Tensors) -> Iterator[Tensor]:
        """Yield the inputs with their datatypes."""
        return (Tensor(name, self.spec.inputs[name].datatype, array) for name, array in inputs.items())

    @abstractmethod
    def encode(self, inputs: Tensors, parameters: Parameters) -> E:
        """Encode inputs and parameters."""


def request_parameters(arrival: Arrival) -> Parameters:
    """Return the request parameters that an arrival needs; empty for a request without options."""
    parameters: Parameters = {}
    if arrival.sequence_id:
        flags = {"sequence_start": arrival.sequence_start, "sequence_end": arrival.sequence_end}
        parameters = {"sequence_id": arrival.sequence_id, **flags}
    options = {"priority": arrival.priority, "timeout": arrival.timeout_us}
    return parameters | {name: value for name, value in options.items() if value}


#: A model that receives the requests of a load; ``end`` says why no response can come any more, ``stateful`` is true if
#: each request needs a sequence, and ``decoupled`` if the model sends its responses one by one.
Target = InProcessTarget | RemoteTarget[Any]
