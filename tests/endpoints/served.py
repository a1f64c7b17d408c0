"""An engine of one model that is answered by the test, behind an endpoint on the running loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.errors import NotFoundError, TritonError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.endpoints.http.endpoint import HttpEndpoint
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.engine.models.validation import RequestValidator
from tritonnb.engine.shared_memory import SharedMemory
from tritonnb.model_config.schema import ModelSpec
from tritonnb.telemetry.stream import EventStream
from tritonnb.telemetry.trace_settings import TraceOptions
from tritonnb.telemetry.tracing import Tracer

ECHO = """
name: "echo" max_batch_size: 8
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
"""


def spec_of(config: str) -> ModelSpec:
    """The specification that requests to a model are checked against."""
    return ModelSpec.from_config(text_format.Parse(config, pb.ModelConfig()))


class Echo:
    """A model that returns X as Y, at once or when the test says so."""

    name, version, decoupled = "echo", 1, False

    def __init__(self) -> None:
        self.spec = spec_of(ECHO)
        self.output_labels: dict[str, list[str]] = {}
        self.hold = False
        self.held: asyncio.Queue[InferRequest] = asyncio.Queue()
        self.cancelled: asyncio.Queue[InferRequest] = asyncio.Queue()
        self._validator = RequestValidator(self.spec)

    def check(self, request: InferRequest) -> None:
        self._validator.check(request)
        request.checked = True

    def submit(self, request: InferRequest, trace: Any = None) -> None:
        request.accepted_by = self
        if not request.checked:
            self.check(request)
        if self.hold:
            self.held.put_nowait(request)
        else:
            self.answer(request)

    def report_refusal(self, error: TritonError) -> None:
        pass

    def answer(self, request: InferRequest) -> None:
        tensor = request.inputs["X"]
        request.answer(InferResponse([Tensor("Y", tensor.datatype, tensor.array)]))

    def cancel(self, request: InferRequest) -> None:
        request.cancelled = True
        self.cancelled.put_nowait(request)


class OneModel:
    """As much of an engine as an endpoint asks for."""

    def __init__(self) -> None:
        self.table = self
        self.echo = Echo()
        self.shared_memory = SharedMemory()
        self.tracer = Tracer(EventStream(), TraceOptions())

    def models(self) -> list[Any]:
        return [self.echo]

    def model(self, name: str, version: int = -1) -> Any:
        if name != "echo":
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        return self.echo

    get = model

    @property
    def is_live(self) -> bool:
        return True


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next response: status, headers, body."""
        async with asyncio.timeout(30):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            return int(head[0].split()[1]), headers, await self._body(headers)

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.readexactly(int(headers.get("content-length", 0)))
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()
        return body

    async def closed(self) -> bool:
        """Return whether the server has closed the connection and sent nothing more."""
        async with asyncio.timeout(30):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


class Running:
    """An endpoint and what stands behind it."""

    def __init__(self, endpoint: HttpEndpoint, engine: OneModel) -> None:
        self.endpoint, self.echo = endpoint, engine.echo
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.endpoint.port)
        self._writers.append(writer)
        return Client(reader, writer)

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """The answer to a request on its own connection."""
        client = await self.connect()
        client.send(data)
        return await client.answer()

    def disconnect(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Running]:
    """An endpoint on a free port."""
    engine = OneModel()
    endpoint = HttpEndpoint(cast("Any", engine), host="127.0.0.1", options=HttpOptions(**options))
    await endpoint.start()
    server = Running(endpoint, engine)
    try:
        yield server
    finally:
        server.disconnect()
        await endpoint.stop(0)


def infer(*values: int, headers: str = "", path: str = "/v2/models/echo/infer", version: str = "1.1") -> bytes:
    """A request for the echo model."""
    data = ",".join(map(str, values))
    body = f'{{"inputs":[{{"name":"X","datatype":"INT32","shape":[1,{len(values)}],"data":[{data}]}}]}}'
    return (
        f"POST {path} HTTP/{version}\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def echoed(*values: int) -> bytes:
    """The answer of the echo model."""
    data = ",".join(map(str, values))
    return (
        '{"model_name":"echo","model_version":"1","outputs":[{"name":"Y","datatype":"INT32",'
        f'"shape":[1,{len(values)}],"data":[{data}]}}]}}'
    ).encode()


def on_a_loop(running: Callable[[], AbstractAsyncContextManager[Any]]) -> Callable[..., Callable[..., None]]:
    """A decorator that runs a test on a loop with what ``running`` provides; pytest sees no arguments of it."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            async def main() -> None:
                async with running() as server:
                    await test(server, **arguments)

            asyncio.run(main())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


with_server = on_a_loop(running)
