"""Limits and checks of callers hold at every port that speaks HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.transport import server as transport
from tritonnb.endpoints.long_work import LONG
from tritonnb.server.options import ServerKeywords
from tritonnb.server.server import Server

PORTS = ("port", "openai_port", "metrics_port")
PATHS = {"port": "/v2/health/live", "openai_port": "/v1/models", "metrics_port": "/metrics"}
LIMIT = 1000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(transport, "HEAD_TIMEOUT", 0.2)
    monkeypatch.setattr(transport, "_SWEEP", 0.05)
    options: ServerKeywords = {
        "openai_port": 0,
        "metrics_port": 0,
        "http": HttpOptions(max_body_size=LIMIT, allowed_hosts=("lab.example",)),
    }
    with Server(port=0, **options) as server:
        yield server


def ask(server: Server, port: str, request: bytes) -> bytes:
    """Return the bytes that the server sends before it closes the connection."""
    with socket.create_connection(("127.0.0.1", getattr(server, port)), timeout=30) as client:
        client.sendall(request)
        received = b""
        while part := client.recv(65_536):
            received += part
    return received


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Host: localhost", b"200 OK"),
        ("Host: lab.example", b"200 OK"),
        ("Host: evil.example", b"403 Forbidden"),
        ("Host: localhost\r\nOrigin: http://evil.example", b"403 Forbidden"),
    ],
)
def test_requests_from_other_hosts_and_origins_are_refused(
    server: Server, port: str, headers: str, status: bytes
) -> None:
    request = f"GET {PATHS[port]} HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n"
    assert ask(server, port, request.encode()).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("port", PORTS)
def test_body_beyond_the_limit_is_refused(server: Server, port: str) -> None:
    head = f"POST {PATHS[port]} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LIMIT + 1}\r\n\r\n"
    answer = ask(server, port, head.encode())
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"request body: expected at most %d bytes, got %d: " % (LIMIT, LIMIT + 1) in answer


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 20_000]
)
def test_slow_or_oversized_head_closes_the_connection(server: Server, port: str, head: bytes) -> None:
    assert ask(server, port, head) == b""


@pytest.mark.parametrize("port", ["port", "openai_port"])
def test_body_that_is_read_on_another_thread_is_answered(port: str) -> None:
    with Server(port=0, openai_port=0) as server:
        body = json.dumps({"model": "none", "input": "a" * (LONG + 1)}).encode()
        head = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        answer = ask(server, port, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert answer.startswith(b"HTTP/1.1 404 ")
