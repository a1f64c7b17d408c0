"""The HTTP target of a load of a decoupled model: ``generate_stream``, with an event for each response."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from tritonnb.client.address import ModelAddress
from tritonnb.client.options import error_text
from tritonnb.core.errors import UnsupportedError
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.profile.over_http import HttpTarget
from tritonnb.profile.targets import TOKEN_COUNT, PendingRequest

_DATA = b"data:"
#: How servers without the generate extension answer.
_NO_EXTENSION = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}


class HttpStreamTarget(HttpTarget):
    """A decoupled model reached over HTTP.

    The generate extension has neither sequences nor priorities nor timeouts.

    Raises
    ------
    UnsupportedError
        If the model requires sequences.
    """

    def __init__(self, model: ModelAddress, config: pb.ModelConfig) -> None:
        super().__init__(model, config)
        if self.stateful:
            self.close()
            raise UnsupportedError(f"model '{model.name}': generate_stream sends no sequences: use over='grpc'")

    async def _exchange(self, pending: PendingRequest, head: bytes, body: bytes) -> str:
        arrival = pending.arrival
        if arrival.sequence_id or arrival.priority or arrival.timeout_us:
            return "generate_stream sends no sequences, priorities or timeouts: use over='grpc'"
        events = EventReader()
        error = ""

        def receive(data: bytes) -> None:
            nonlocal error
            now = time.monotonic_ns()
            for event in events.read(data):
                if "error" in event:
                    error = str(event["error"])
                else:
                    pending.add_response(now, _counted_tokens(event))

        status, content = await self._client.post(head, body, receive)
        if status == HTTPStatus.OK:
            return error
        hint = ": the server has no generate extension, use over='grpc'" if status in _NO_EXTENSION else ""
        return error or error_text(content) or f"HTTP status {status}{hint}"

    def _encode(self, pending: PendingRequest) -> tuple[bytes, bytes]:
        body = json.dumps({name: _elements(array) for name, array in pending.inputs.items()}).encode()
        headers = {**self._headers, "Content-Type": "application/json"}
        return self._client.head(f"{self._path}/generate_stream", len(body), headers), body


class EventReader:
    r"""Reads server-sent events with JSON objects from parts of a stream.

    Examples
    --------
    >>> events = EventReader()
    >>> list(events.read(b'data: {"OUT": 1}\n')), list(events.read(b'\ndata: {"OUT'))
    ([{'OUT': 1}], [])
    """

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> Iterator[Json]:
        """Return the events that end in this part of the stream."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                event = json.loads(line[len(_DATA) :])
                if isinstance(event, dict):
                    yield event


def _elements(array: Any) -> Any:
    """The elements of a tensor as the generate extension has them: a value, or a flat list."""
    elements = [value.decode() if isinstance(value, bytes) else value for value in array.reshape(-1).tolist()]
    return elements[0] if len(elements) == 1 else elements


def _counted_tokens(event: Json) -> int:
    count = event.get(TOKEN_COUNT, 0)
    return int(count[0] if isinstance(count, list) else count)
