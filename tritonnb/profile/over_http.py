"""A load over HTTP: to the server of this process, or to any other of the v2 protocol."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from tritonnb.core.datatypes import BYTES, encode_bytes
from tritonnb.model_config.schema import ModelSpec
from tritonnb.profile.remote import RemoteModel, error_text
from tritonnb.profile.targets import PendingRequest, is_stateful
from tritonnb.runtime.execution.loop import BackgroundLoop
from tritonnb.simulation.arrivals import Arrival


class OverHttp:
    """A model behind HTTP; binary tensors, as many connections as requests in flight.

    Parameters
    ----------
    model : RemoteModel

    Raises
    ------
    InvalidArgumentError
        If the server does not know the model.
    UnavailableError
        If no server answers there.
    """

    alive = True

    def __init__(self, model: RemoteModel) -> None:
        config = model.config()
        self.spec = ModelSpec.from_config(config)
        self.stateful = is_stateful(config, lambda *step: model.sibling(*step).config())
        from tritonnb.profile.http_client import HttpClient  # httptools may be missing

        self._client = HttpClient(model.url)
        self._path = f"{model.path}/infer"
        self._loop = BackgroundLoop("tritonnb-load-http")
        self._encoded: dict[int, tuple[bytes, bytes]] = {}
        # Of each sequence the request that was sent last: the next one waits for it, since
        # connections do not keep their order among each other.
        self._last: dict[int | str, asyncio.Task[None]] = {}

    def send(self, shot: PendingRequest) -> None:
        """Send the request from the connection's own thread."""
        self._loop.loop.call_soon_threadsafe(self._begin, shot, *self._request(shot))

    def cancel(self, shot: PendingRequest) -> None:
        """Close the connection."""
        self._loop.loop.call_soon_threadsafe(lambda: shot.sent.cancel())

    def close(self) -> None:
        """Close all connections, and the thread that held them."""
        self._loop.call(self._client.close)
        self._loop.stop()

    def _begin(self, shot: PendingRequest, head: bytes, body: bytes) -> None:
        sequence = shot.arrival.sequence_id
        previous = self._last.get(sequence) if sequence else None
        shot.sent = task = self._loop.loop.create_task(self._post(shot, head, body, previous))
        task.add_done_callback(lambda done: self._given_up(shot) if done.cancelled() else None)
        if sequence:
            self._last[sequence] = task
            if shot.arrival.sequence_end:
                task.add_done_callback(lambda done: self._forget(sequence, done))

    def _given_up(self, shot: PendingRequest) -> None:
        """Answer for a task that was cancelled, perhaps before it began."""
        shot.answered(shot, time.monotonic_ns(), "cancelled by the client")

    def _forget(self, sequence: int | str, done: object) -> None:
        if self._last.get(sequence) is done:
            del self._last[sequence]

    async def _post(self, shot: PendingRequest, head: bytes, body: bytes, previous: asyncio.Task[None] | None) -> None:
        error = ""
        try:
            if previous is not None:
                await asyncio.wait([previous])
            status, content = await self._client.post(head, body)
            if status != 200:
                error = error_text(content) or f"HTTP status {status}"
        except Exception as raised:  # whatever it is, the load waits for an answer
            error = str(raised) or type(raised).__name__
        shot.answered(shot, time.monotonic_ns(), error)

    def _request(self, shot: PendingRequest) -> tuple[bytes, bytes]:
        """Head and body; of stateless requests every example is encoded once."""
        arrival = shot.arrival
        if arrival.sequence_id or arrival.priority or arrival.timeout_us:
            return self._encode(shot)
        found = self._encoded.get(id(shot.inputs))
        if found is None:
            found = self._encoded[id(shot.inputs)] = self._encode(shot)
        return found

    def _encode(self, shot: PendingRequest) -> tuple[bytes, bytes]:
        head: dict[str, Any] = {
            "inputs": [],
            "parameters": {"binary_data_output": True} | request_parameters(shot.arrival),
        }
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


def request_parameters(arrival: Arrival) -> dict[str, Any]:
    """Request parameters of the sequence and schedule policy extensions."""
    found: dict[str, Any] = {}
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
