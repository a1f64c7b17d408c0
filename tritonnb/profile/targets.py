"""Where a load sends its requests: to a server in this process, or to any server of the v2 protocol.

A target takes a `Shot` and says when it was answered; it never blocks the thread that sends.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.array_requests import make_request
from tritonnb.core.datatypes import BYTES, encode_bytes
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.model_config.schema import ModelSpec
from tritonnb.profile.examples import Tensors
from tritonnb.runtime.loop import BackgroundLoop
from tritonnb.simulation.arrivals import Arrival

if TYPE_CHECKING:
    from tritonnb.model_handle import ModelHandle

Answered = Callable[["Shot", int, str], None]

#: In the URL of every model.
_MODELS = "/v2/models/"


class Shot:
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

    def send(self, shot: Shot) -> None:
        """Send a request."""

    def cancel(self, shot: Shot) -> None:
        """Nobody waits for the request any more."""

    def close(self) -> None:
        """No request follows."""


class InProcess:
    """A model of a server in this process, without a socket."""

    def __init__(self, model: ModelHandle) -> None:
        self.spec = model.served.spec
        self._server = model.server
        self.stateful = _is_stateful(model.served.config, lambda *step: self._server.engine.model(*step).config)
        self._version = model.version

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return self._server.alive

    def send(self, shot: Shot) -> None:
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

    def cancel(self, shot: Shot) -> None:
        """Tell the engine."""
        self._server.submitter.cancel(shot.sent)

    def close(self) -> None:
        """Nothing to free."""


class OverHttp:
    """A model behind HTTP, ours or another's; binary tensors, as many connections as requests in flight.

    Parameters
    ----------
    url : str
        ``http://HOST:PORT/v2/models/NAME``, with ``/versions/VERSION`` where one is meant.

    Raises
    ------
    InvalidArgumentError
        If that is no model's URL, or the server knows no such model.
    UnavailableError
        If nobody answers there.
    """

    alive = True

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        config = _config(self._url)
        self.spec = ModelSpec.from_config(config)
        self.stateful = _is_stateful(config, self._config_of_step)
        from tritonnb.profile.http_client import HttpClient  # httptools may be missing

        self._client = HttpClient(self._url)
        self._path = f"{urlsplit(self._url).path}/infer"
        self._loop = BackgroundLoop("tritonnb-load-http")
        self._encoded: dict[int, tuple[bytes, bytes]] = {}
        # Of each sequence the request that was sent last: the next one waits for it, since
        # connections do not keep their order among each other.
        self._last: dict[int | str, asyncio.Task[None]] = {}

    def send(self, shot: Shot) -> None:
        """Send the request from the connection's own thread."""
        self._loop.loop.call_soon_threadsafe(self._begin, shot, *self._request(shot))

    def cancel(self, shot: Shot) -> None:
        """Close the connection."""
        self._loop.loop.call_soon_threadsafe(lambda: shot.sent.cancel())

    def close(self) -> None:
        """Close all connections, and the thread that held them."""
        self._loop.call(self._client.close)
        self._loop.stop()

    def _begin(self, shot: Shot, head: bytes, body: bytes) -> None:
        sequence = shot.arrival.sequence_id
        previous = self._last.get(sequence) if sequence else None
        shot.sent = task = self._loop.loop.create_task(self._post(shot, head, body, previous))
        task.add_done_callback(lambda done: self._given_up(shot) if done.cancelled() else None)
        if sequence:
            self._last[sequence] = task
            if shot.arrival.sequence_end:
                task.add_done_callback(lambda done: self._forget(sequence, done))

    def _given_up(self, shot: Shot) -> None:
        """Answer for a task that was cancelled, perhaps before it began."""
        shot.answered(shot, time.monotonic_ns(), "cancelled by the client")

    def _forget(self, sequence: int | str, done: object) -> None:
        if self._last.get(sequence) is done:
            del self._last[sequence]

    async def _post(self, shot: Shot, head: bytes, body: bytes, previous: asyncio.Task[None] | None) -> None:
        error = ""
        try:
            if previous is not None:
                await asyncio.wait([previous])
            status, content = await self._client.post(head, body)
            if status != 200:
                error = _error_text(content) or f"HTTP status {status}"
        except Exception as raised:  # whatever it is, the load waits for an answer
            error = str(raised) or type(raised).__name__
        shot.answered(shot, time.monotonic_ns(), error)

    def _config_of_step(self, name: str, version: int) -> Any:
        models = self._url[: self._url.index(_MODELS) + len(_MODELS)]
        return _config(f"{models}{quote(name, safe='')}" + (f"/versions/{version}" if version != -1 else ""))

    def _request(self, shot: Shot) -> tuple[bytes, bytes]:
        """Head and body; of stateless requests every example is encoded once."""
        arrival = shot.arrival
        if arrival.sequence_id or arrival.priority or arrival.timeout_us:
            return self._encode(shot)
        found = self._encoded.get(id(shot.inputs))
        if found is None:
            found = self._encoded[id(shot.inputs)] = self._encode(shot)
        return found

    def _encode(self, shot: Shot) -> tuple[bytes, bytes]:
        head: dict[str, Any] = {"inputs": [], "parameters": _parameters(shot.arrival)}
        tensors: list[bytes] = []
        for name, array in shot.inputs.items():
            datatype = self.spec.inputs[name].datatype
            tensors.append(encode_bytes(array) if datatype is BYTES else array.tobytes())
            size = {"binary_data_size": len(tensors[-1])}
            shape = list(array.shape)
            head["inputs"].append({"name": name, "shape": shape, "datatype": datatype.name, "parameters": size})
        text = json.dumps(head, separators=(",", ":")).encode()
        body = b"".join([text, *tensors])
        return self._client.head(self._path, len(body), {"Inference-Header-Content-Length": str(len(text))}), body


def _parameters(arrival: Arrival) -> dict[str, Any]:
    """Request parameters: sequence and schedule policy extensions, and binary answers."""
    found: dict[str, Any] = {"binary_data_output": True}
    if arrival.sequence_id:
        found |= {
            "sequence_id": arrival.sequence_id,
            "sequence_start": arrival.sequence_start,
            "sequence_end": arrival.sequence_end,
        }
    if arrival.priority:
        found["priority"] = arrival.priority
    if arrival.timeout_us:
        found["timeout"] = arrival.timeout_us
    return found


def _is_stateful(config: Any, config_of: Callable[[str, int], Any]) -> bool:
    """Whether requests need a sequence; one of an iterative sequence is a sequence itself.

    ``config_of`` gives the configuration of a step's model, by name and version: an ensemble needs what its steps need.
    """
    if config.HasField("sequence_batching"):
        return not config.sequence_batching.iterative_sequence
    steps = config.ensemble_scheduling.step
    return any(_is_stateful(config_of(each.model_name, each.model_version), config_of) for each in steps)


def _config(url: str) -> Any:
    """The model's configuration, as its server tells it."""
    if _MODELS not in url:
        raise InvalidArgumentError(
            f"'{url}' is no model's URL: give http://HOST:PORT/v2/models/NAME, or server['NAME']"
        )
    try:
        with urllib.request.urlopen(f"{url}/config", timeout=30) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        raise InvalidArgumentError(f"{url}: {_error_text(error.read()) or error}") from error
    except OSError as error:
        raise UnavailableError(f"no server answers at {url}: {error}") from error
    return json_format.Parse(text, pb.ModelConfig(), ignore_unknown_fields=True)


def _error_text(content: bytes) -> str:
    """The error of a v2 answer; empty where the body is none."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, TypeError, KeyError):
        return ""
