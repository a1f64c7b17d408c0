"""Where a load sends its requests; here: to a server in this process.

A target takes a `PendingRequest` and says when it was answered; it never blocks the thread that sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tritonnb.core.errors import UnavailableError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.inprocess.array_requests import make_request
from tritonnb.model_config.schema import ModelSpec
from tritonnb.profile.examples import Tensors
from tritonnb.simulation.arrivals import Arrival

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle

Answered = Callable[["PendingRequest", int, str], None]


class PendingRequest:
    """One request of a load.

    Attributes
    ----------
    arrival : Arrival
        What is sent.
    inputs : dict of str to numpy.ndarray
    client : int
        Who sends it, in a closed loop.
    intended_ns, sent_ns : int
        When it should be sent, and when it was. Monotonic clock.
    answered : callable
        ``answered(shot, time_ns, error)``, called once from any thread; the error is empty for a
        success.
    sent : InferRequest, asyncio.Task or None
        What the target needs to cancel it.
    error : str
        Of a response before the final one.
    """

    __slots__ = ("answered", "arrival", "client", "error", "inputs", "intended_ns", "sent", "sent_ns")

    def __init__(self, arrival: Arrival, inputs: Tensors, client: int, intended_ns: int, answered: Answered) -> None:
        self.arrival = arrival
        self.inputs = inputs
        self.client = client
        self.intended_ns = intended_ns
        self.answered = answered
        self.sent_ns = 0
        self.sent: Any = None
        self.error = ""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """Take one response of a server in this process; called on its loop."""
        if response.error is not None:
            self.error = response.error.message or response.error.status.label
        if response.final:
            self.answered(self, time.monotonic_ns(), self.error)


class Target(Protocol):
    """Where requests go.

    Attributes
    ----------
    spec : ModelSpec
    stateful : bool
        Whether the model takes requests of sequences only.
    """

    spec: ModelSpec
    stateful: bool

    @property
    def alive(self) -> bool:
        """Whether answers may still come."""

    def send(self, shot: PendingRequest) -> None:
        """Send a request."""

    def cancel(self, shot: PendingRequest) -> None:
        """Nobody waits for the request any more."""

    def close(self) -> None:
        """No request follows."""


class InProcess:
    """A model of a server in this process, without a socket."""

    def __init__(self, model: ModelHandle) -> None:
        self.spec = model.served.spec
        self._server = model.server
        self.stateful = is_stateful(model.served.config, lambda *step: self._server.engine.model(*step).config)
        self._version = model.version

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return self._server.alive

    def send(self, shot: PendingRequest) -> None:
        """Hand the request to the server's loop."""
        arrival = shot.arrival
        shot.sent = request = make_request(
            self.spec,
            self._version,
            shot.inputs,
            priority=arrival.priority,
            timeout_us=arrival.timeout_us,
            sequence_id=arrival.sequence_id,
            sequence_start=arrival.sequence_start,
            sequence_end=arrival.sequence_end,
        )
        request.respond = shot.respond
        try:
            self._server.submitter.submit(request)
        except UnavailableError as error:
            shot.answered(shot, time.monotonic_ns(), error.message)

    def cancel(self, shot: PendingRequest) -> None:
        """Tell the engine."""
        self._server.submitter.cancel(shot.sent)

    def close(self) -> None:
        """Nothing to free."""


def is_stateful(config: Any, config_of: Callable[[str, int], Any]) -> bool:
    """Whether requests need a sequence; one of an iterative sequence is a sequence itself.

    ``config_of`` gives the configuration of a step's model, by name and version: an ensemble needs what its steps need.
    """
    if config.HasField("sequence_batching"):
        return not config.sequence_batching.iterative_sequence
    steps = config.ensemble_scheduling.step
    return any(is_stateful(config_of(each.model_name, each.model_version), config_of) for each in steps)
