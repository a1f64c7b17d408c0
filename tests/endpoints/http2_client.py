"""A client that speaks HTTP/2 frame by frame, and a server for it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest
from hpack import Decoder, Encoder
from tritonclient.grpc import service_pb2 as pb

from tests.endpoints.served import OneModel, on_a_loop
from tritonnb.endpoints.grpc.dispatch import RpcDispatcher
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.transport.fast_server import Http2Server
from tritonnb.endpoints.grpc.transport.framing import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    SETTINGS,
    frame,
)  # fmt: skip
from tritonnb.endpoints.grpc.transport.http2 import PREFACE

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
HELLO = PREFACE + frame(SETTINGS, 0, 0, b"")


def message(*values: int, id: str = "") -> bytes:
    """A request for the echo model, as gRPC frames it."""
    request = pb.ModelInferRequest(model_name="echo", id=id)
    request.inputs.add(name="X", datatype="INT32", shape=[1, len(values)])
    request.raw_input_contents.append(np.array(values, "<i4").tobytes())
    data: bytes = request.SerializeToString()
    return struct.pack(">BI", 0, len(data)) + data


class Client:
    """A client that exchanges frames over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.encoder, self.decoder = Encoder(), Decoder()
        self.bodies: dict[int, bytes] = {}

    def headers(self, stream: int, *, path: str = INFER, flags: int = END_HEADERS, **more: str) -> bytes:
        return frame(HEADERS, flags, stream, self.block(path, **more))

    def block(self, path: str = INFER, **more: str) -> bytes:
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
        fields |= {"content-type": "application/grpc", "te": "trailers"}
        fields |= {name.replace("_", "-"): value for name, value in more.items()}
        return self.encoder.encode(list(fields.items()))

    def request(self, stream: int, *values: int, **more: str) -> bytes:
        return frame(HEADERS, END_HEADERS, stream, self.block(**more)) + frame(
            DATA, END_STREAM, stream, message(*values)
        )

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def next(self) -> tuple[int, int, int, bytes]:
        """The next frame: kind, flags, stream, payload."""
        async with asyncio.timeout(30):
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    async def until(self, kind: int, flags: int = 0) -> tuple[int, bytes]:
        """The next frame of a kind that has some flags; bodies on the way are kept."""
        while True:
            kind_received, flags_received, stream, payload = await self.next()
            if kind_received == DATA:
                self.bodies[stream] = self.bodies.get(stream, b"") + payload
            if kind_received == HEADERS and (kind, flags) != (HEADERS, 0):
                fields = dict(self.decoder.decode(payload)) if flags_received & END_HEADERS else {}
                if kind_received == kind and flags_received & flags == flags:
                    return stream, repr(fields).encode()
                continue
            if kind_received == kind and flags_received & flags == flags:
                return stream, payload

    async def answer(self) -> tuple[int, list[int]]:
        """The next complete answer: its stream, and the values echoed."""
        stream, fields = await self.until(HEADERS, END_STREAM)
        assert b"'grpc-status': '0'" in fields, fields
        return stream, values(self.bodies[stream])

    async def closed(self, code: int) -> None:
        """The server says goodbye with a code, and closes."""
        _, payload = await self.until(GOAWAY)
        assert struct.unpack(">II", payload[:8])[1] == code
        async with asyncio.timeout(30):
            with suppress(ConnectionResetError):
                assert await self.reader.read() == b""


def values(body: bytes) -> list[int]:
    response = pb.ModelInferResponse.FromString(body[5:])
    numbers: list[int] = np.frombuffer(response.raw_output_contents[0], "<i4").tolist()
    return numbers


class Running:
    """A server and the model behind it."""

    def __init__(self, server: Http2Server, engine: OneModel, port: int) -> None:
        self.server, self.echo, self._port = server, engine.echo, port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, *hello: bytes) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        writer.write(b"".join(hello or (HELLO,)))
        return Client(reader, writer)

    def disconnect(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def running(options: GrpcOptions | None = None) -> AsyncIterator[Running]:
    engine: Any = OneModel()
    options = options or GrpcOptions()
    server = Http2Server(RpcDispatcher(engine, options), options)
    running_server = Running(server, engine, await server.start("127.0.0.1", 0))
    try:
        yield running_server
    finally:
        running_server.disconnect()
        await server.stop(0)


with_server = on_a_loop(running)


def cases(*names: str, of: list[Any]) -> Callable[..., Any]:
    """Parametrize a test that `with_server` runs."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        inner = with_server(test)
        scope: dict[str, Any] = {"inner": inner}
        listed = ", ".join(names)
        passed = ", ".join(f"{name}={name}" for name in names)
        exec(f"def {test.__name__}({listed}):\n    inner({passed})\n", scope)
        parametrized: Callable[..., None] = pytest.mark.parametrize(names if len(names) > 1 else names[0], of)(
            scope[test.__name__]
        )
        return parametrized

    return decorate
