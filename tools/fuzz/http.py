"""HTTP/1.1: a connection with both ends in memory, the real endpoint, and models that respond at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from tests.endpoints.http1_peer import Loop, Server, Wire
from tests.endpoints.served import Echo, OneModel, spec_of
from tools.fuzz.targets import Try
from tools.fuzz.unexpected import UnexpectedErrors, require
from tritonnb.core.errors import NotFoundError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.endpoints.http.endpoint import HttpEndpoint
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.transport.connection import Http1Connection
from tritonnb.runtime.engine import Engine
from tritonnb.runtime.models.validation import RequestValidator
from tritonnb.runtime.options import EngineOptions

_TYPES = ("BOOL", "UINT8", "UINT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING", "BF16")
_MODELS = (
    'name: "echo" max_batch_size: 8 input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } '
    'output { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }',
    'name: "strings" input { name: "X" data_type: TYPE_STRING dims: [ 1 ] } '
    'output { name: "X" data_type: TYPE_STRING dims: [ 1 ] }',
    'name: "types"'
    + "".join(f' input {{ name: "{name}" data_type: TYPE_{name} dims: [ -1, 2 ] optional: true }}' for name in _TYPES)
    + "".join(f' output {{ name: "{name}" data_type: TYPE_{name} dims: [ -1, 2 ] }}' for name in _TYPES),
)
_STATUSES = {100, 200, 400, 403, 404, 405, 413, 500, 501, 503}
_LIMIT = 1 << 20


class Identity(Echo):
    """Returns its inputs."""

    def __init__(self, config: str) -> None:
        super().__init__()
        self.spec = spec_of(config)
        self.name = self.spec.name
        self._validator = RequestValidator(self.spec)

    def config_json(self) -> str:
        """The configuration (a method of models that a route calls)."""
        return "{}"

    def answer(self, request: InferRequest) -> None:
        """Respond to a request."""
        outputs = [Tensor(name, tensor.datatype, tensor.array) for name, tensor in request.inputs.items()]
        wanted = request.requested_outputs
        chosen = outputs if wanted is None else [output for output in outputs if output.name in wanted]
        request.respond(request, InferResponse(chosen))


class Models(OneModel):
    """An engine with a few models that respond at once; everything else is done by a real engine without models."""

    def __init__(self) -> None:
        super().__init__()
        self._models = {model.name: model for model in map(Identity, _MODELS)}
        self._engine = Engine(EngineOptions(allow_client_shm=True))
        self.shared_memory = self._engine.shared_memory

    def model(self, name: str, version: int = -1) -> Any:
        """A model, for inference."""
        if name not in self._models:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        return self._models[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Peer:
    """Connections to an endpoint."""

    def __init__(self, errors: UnexpectedErrors) -> None:
        self.loop = Loop()
        errors.watch(self.loop)
        endpoint = HttpEndpoint(
            cast(Any, Models()), host="127.0.0.1", port=0, options=HttpOptions(max_input_size=_LIMIT)
        )
        self.server = Server(self.loop)
        self.server.delegate = endpoint
        self.server.max_body_size = _LIMIT
        self.errors = errors

    def responses(self, *parts: bytes) -> tuple[bytes, str]:
        """What a new connection sends, and the state in which it ends."""
        wire = Wire()
        connection = Http1Connection(self.server)
        self.loop.call_soon(connection.connection_made, cast(asyncio.BaseTransport, wire))
        for part in parts:
            self.loop.call_soon(connection.data_received, part)
        for _ in range(8):  # handlers of Tornado take a few iterations
            self.loop.pass_time(0)
        state = wire.state
        connection.connection_lost(None)
        self.loop.pass_time(10)  # timers of the connection
        require(not self.server.connections, "the connection is still registered")
        self.errors.check()
        return wire.sent.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""), state


@contextmanager
def connections() -> Iterator[Try]:
    """Bytes on a connection; the first byte says where they are cut.

    The responses must not depend on the cut, nor on the heads that were seen before.
    """

    def run(data: bytes) -> None:
        cut, stream = data[:1], data[1:]
        at = len(stream) * (cut[0] if cut else 0) // 256
        whole = peer.responses(stream)
        _check(whole[0])
        # Bytes that are not a request may be refused earlier or later, depending on the cut.
        shorter, longer = sorted((whole, peer.responses(stream[:at], stream[at:])), key=lambda sent: len(sent[0]))
        is_same = longer[0].startswith(shorter[0]) and (longer[0] == shorter[0] or shorter[1] != "open")
        require(is_same, f"cut at {at}: {shorter!r}, {longer!r}")

    with UnexpectedErrors() as errors:
        peer = Peer(errors)
        yield run
        peer.loop.close()


@contextmanager
def inference_bodies() -> Iterator[Try]:
    """The body of an inference request.

    The first byte selects the model and the headers, the next two are the length of the JSON.
    """
    encodings = (b"", b"Content-Encoding: gzip\r\n", b"Content-Encoding: deflate\r\n", b"Accept-Encoding: gzip\r\n")

    def run(data: bytes) -> None:
        choice, length, body = data[0] if data else 0, int.from_bytes(data[1:3], "little"), data[3:]
        model = (b"echo", b"strings", b"types")[choice % 3]
        headers = encodings[choice // 3 % 4]
        if choice & 128:
            headers += b"Inference-Header-Content-Length: %d\r\n" % length
        head = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n"
        sent, state = peer.responses(head % (model, headers, len(body)) + body)
        require(state == "open", f"the connection is {state}")
        require(sent.startswith(b"HTTP/1.1 "), "expected a response, got none")
        _check(sent)

    with UnexpectedErrors() as errors:
        peer = Peer(errors)
        yield run
        peer.loop.close()


def _check(sent: bytes) -> None:
    """Check that responses are well-formed, and have statuses that are documented."""
    while sent:
        head, _, rest = sent.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        status = int(lines[0].split(b" ")[1])
        require(status in _STATUSES, f"undocumented status {status}")
        headers = dict(line.lower().split(b": ", 1) for line in lines[1:])
        if headers.get(b"transfer-encoding") == b"chunked":
            _, end, sent = rest.partition(b"0\r\n\r\n")
            require(bool(end), "a chunked response does not end")
            continue
        length = int(headers.get(b"content-length", b"0"))
        require(len(rest) >= length, "a response is cut off")
        sent = rest[length:]
