"""The server below the endpoint, with delegates of the tests: what it promises of an exchange."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tornado import httputil, web

from tests.endpoints.served import Client
from tests.endpoints.test_connection import REQUEST
from tritonnb.endpoints.http.transport.server import HttpServer, StartRequest
from tritonnb.endpoints.http.transport.tornado_bridge import start_in


class Message(httputil.HTTPMessageDelegate):
    """A delegate that collects a request, then does what the test wants with it."""

    def __init__(self, exchange: Any, act: Callable[[Message], None]) -> None:
        self.exchange, self._act = exchange, act
        self.body = b""

    def headers_received(self, start_line: Any, headers: Any) -> None:
        self.line, self.headers = start_line, headers

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

    def finish(self) -> None:
        self._act(self)


def acting(act: Callable[[Message], None]) -> StartRequest:
    """Return a function that makes a message for each request, on which `act` is called."""
    return lambda exchange: Message(exchange, act)


class Served:
    """A server that listens."""

    def __init__(self, server: HttpServer, port: int) -> None:
        self.server, self.port = server, port
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return Client(reader, writer)


@asynccontextmanager
async def serving(start_request: StartRequest, idle_timeout: float = 60) -> AsyncIterator[Served]:
    """A server on a free port."""
    server = HttpServer(start_request, max_body_size=1 << 26, idle_timeout=idle_timeout)
    served = Served(server, await server.start("127.0.0.1", 0))
    try:
        yield served
    finally:
        for writer in served.writers:
            writer.close()
        await server.stop(0)


def respond(message: Message) -> None:
    """Answer a request with its own body."""
    message.exchange.respond(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(message.body), message.body))


def test_serialized_response_is_sent_unchanged() -> None:
    async def scenario() -> None:
        async with serving(acting(respond)) as served:
            client = await served.connect()
            client.send(REQUEST)
            assert await client.answer() == (200, {"content-length": "3"}, b"abc")

    asyncio.run(scenario())


def test_request_received_byte_by_byte_is_read_identically() -> None:
    async def scenario() -> None:
        async with serving(acting(respond)) as served:
            client = await served.connect()
            client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in REQUEST * 2:
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            assert [(await client.answer())[2] for _ in range(2)] == [b"abc", b"abc"]

    asyncio.run(scenario())


def test_request_repr_has_id_and_model() -> None:
    async def scenario() -> None:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        async with serving(acting(messages.put_nowait)) as served:
            client = await served.connect()
            client.send(REQUEST.replace(b"Host: h", b"Host: h\r\nX-One: 1\r\nX-One: 2"))
            async with asyncio.timeout(30):
                message = await messages.get()
            assert (message.line.method, message.line.path, message.line.version) == ("POST", "/one", "HTTP/1.1")
            assert [message.headers.get(name) for name in ("host", "HOST", "x-one", "Y")] == ["h", "h", "1,2", None]
            assert message.headers.get("Y", "none") == "none"
            assert message.exchange.remote_ip == "127.0.0.1"
            respond(message)
            await client.answer()

    asyncio.run(scenario())


def test_handler_is_notified_when_its_client_disconnects() -> None:
    async def scenario() -> None:
        begun, gone = asyncio.Event(), asyncio.Event()

        def act(message: Message) -> None:
            message.exchange.set_close_callback(gone.set)
            begun.set()

        async with serving(acting(act)) as served:
            client = await served.connect()
            client.send(REQUEST)
            async with asyncio.timeout(30):
                await begun.wait()
                client.writer.close()
                await gone.wait()

    asyncio.run(scenario())


class Echo(web.RequestHandler):
    """Ordinary handlers of Tornado: one answer, or one in parts."""

    async def get(self) -> None:
        for _ in range(3):
            self.write("part ")
            await self.flush()

    def post(self) -> None:
        self.write(self.request.body)


def test_transport_serves_a_tornado_application() -> None:
    async def scenario() -> None:
        async with serving(start_in(web.Application([("/one", Echo)]))) as served:
            client = await served.connect()
            client.send(REQUEST + b"GET /one HTTP/1.1\r\nHost: h\r\n\r\n" + REQUEST.replace(b"/one", b"/nowhere"))
            assert (await client.answer())[2] == b"abc"
            _, headers, body = await client.answer()
            assert (headers["transfer-encoding"], body) == ("chunked", b"part part part ")
            assert (await client.answer())[0] == 404

    asyncio.run(scenario())


def test_writer_waits_for_a_client_that_does_not_read() -> None:
    part = b"a" * 1_000_000

    async def scenario() -> None:
        waiting = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        async def answer(message: Message) -> None:
            await message.exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (40 * len(part)))
            for _ in range(40):
                written = message.exchange.write(part)
                if not written.done():
                    waiting.set()
                await written
            message.exchange.write(b"", last=True)

        def act(message: Message) -> None:
            tasks.append(asyncio.create_task(answer(message)))

        async with serving(acting(act)) as served:
            client = await served.connect()
            client.send(REQUEST)
            async with asyncio.timeout(30):
                await waiting.wait()
                assert not tasks[0].done()
                assert len((await client.answer())[2]) == 40 * len(part)
                await tasks[0]

    asyncio.run(scenario())


def test_stopping_closes_idle_connections() -> None:
    async def scenario() -> None:
        async with serving(acting(respond)) as served:
            client = await served.connect()
            client.send(REQUEST)
            await client.answer()
            await served.server.stop(10)
            assert await client.closed()

    asyncio.run(scenario())


def test_stopping_abandons_responses_after_the_timeout() -> None:
    async def scenario() -> None:
        begun = asyncio.Event()
        async with serving(acting(lambda message: begun.set())) as served:
            client = await served.connect()
            client.send(REQUEST)
            async with asyncio.timeout(30):
                await begun.wait()
                await served.server.stop(0.05)
            assert await client.closed()

    asyncio.run(scenario())


def test_silent_connection_is_closed_after_the_idle_timeout() -> None:
    async def scenario() -> None:
        async with serving(acting(respond), idle_timeout=0.05) as served:
            client = await served.connect()
            assert await client.closed()

    asyncio.run(scenario())


def test_port_in_use_is_an_error() -> None:
    async def scenario() -> None:
        async with serving(acting(respond)) as served:
            second = HttpServer(acting(respond), max_body_size=1)
            with pytest.raises(OSError, match="in use"):
                await second.start("127.0.0.1", served.port)

    asyncio.run(scenario())
