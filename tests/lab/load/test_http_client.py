"""The load's own HTTP client, against servers that answer well and badly."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from tritonnb.lab.load.http_target import HttpClient

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
RESET = b"reset"
LAST = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 4\r\n\r\ngone"


class Server:
    """A server that answers the requests of a connection with texts, in order; None closes it, RESET aborts it."""

    def __init__(self, *answers: bytes | None) -> None:
        self.responses = list(answers)
        self.connections = 0
        self.begun = asyncio.Event()
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.begun.set()
        while self.responses:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            self.requests.append(head + await reader.readexactly(3))
            answer = self.responses.pop(0)
            if answer is None:
                break
            if answer is RESET:
                # Closing it with no time to send what is left resets the connection.
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                break
            writer.write(answer)
        writer.close()


def run_client(server: Server, ask: Callable[[HttpClient], Awaitable[object]]) -> object:
    async def run() -> object:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        client = HttpClient(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v2")
        try:
            return await ask(client)
        finally:
            client.close()
            listening.close()

    return asyncio.run(run())


async def post(client: HttpClient) -> tuple[int, bytes]:
    return await client.post(client.head("/infer", 3, {"X": "1"}), b"abc")


def test_connections_are_reused() -> None:
    server = Server(GOOD, CHUNKED, GOOD)

    async def three_times(client: HttpClient) -> list[tuple[int, bytes]]:
        return [await post(client) for _ in range(3)]

    assert run_client(server, three_times) == [(200, b"ok")] * 3
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /infer HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.requests[0].endswith(b"Content-Length: 3\r\nX: 1\r\n\r\nabc")


def test_concurrent_requests_use_separate_connections() -> None:
    server = Server(GOOD, GOOD, GOOD)

    async def at_once(client: HttpClient) -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(post(client) for _ in range(3)))

    assert run_client(server, at_once) == [(200, b"ok")] * 3
    assert server.connections == 3


def test_connection_closed_by_the_server_is_not_reused() -> None:
    server = Server(LAST, GOOD)

    async def twice(client: HttpClient) -> list[tuple[int, bytes]]:
        return [await post(client) for _ in range(2)]

    assert run_client(server, twice) == [(404, b"gone"), (200, b"ok")]
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (None, "^the server closed the connection$"),
        (RESET, "^the server closed the connection: .*reset"),
        (b"SSH-2.0-OpenSSH\r\n", "expected an HTTP response"),
    ],
)
def test_invalid_response_is_an_error(answer: bytes | None, complaint: str) -> None:
    with pytest.raises(ConnectionError, match=complaint):
        run_client(Server(answer), post)


def test_error_for_failed_connection_names_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionError, match=f"^no HTTP server of the v2 protocol responds at 127.0.0.1:{port}: "):
        asyncio.run(post(HttpClient(f"http://127.0.0.1:{port}")))


def test_cancelled_request_closes_its_connection() -> None:
    server = Server(GOOD)

    async def give_up(client: HttpClient) -> None:
        task = asyncio.ensure_future(client.post(client.head("/infer", 3, {}), b""))  # the body never comes
        await server.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await post(client) == (200, b"ok")

    run_client(server, give_up)
    assert server.connections == 2
