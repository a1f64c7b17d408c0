"""HTTP requests and responses of an ASGI server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from tritonnb.core.errors import UnavailableError
from tritonnb.endpoints.http.routes import routed_path

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Headers of a connection, which are not passed on.
_OF_CONNECTION = (b"connection", b"transfer-encoding", b"keep-alive")


class HttpRequest:
    """One request, complete.

    Attributes
    ----------
    method, target : str
        The target is the path as it was sent, with the query.
    headers : dict of bytes to bytes
        By name in lower case; the values of a repeated one are joined by commas, as on a single server.
    body : bytes
    """

    def __init__(self, scope: Scope, body: bytes) -> None:
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        root: str = scope.get("root_path", "")
        query: bytes = scope.get("query_string", b"")
        text = path.decode("latin-1").removeprefix(root) or "/"
        self.method: str = scope["method"]
        self.target = f"{text}?{query.decode('latin-1')}" if query else text
        self.headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name not in _OF_CONNECTION:
                earlier = self.headers.get(bytes(name))
                self.headers[bytes(name)] = bytes(value) if earlier is None else earlier + b"," + bytes(value)
        self.body = body

    @property
    def path(self) -> str:
        """The path that is matched, without the query."""
        return routed_path(self.target)

    def header(self, name: str) -> str | None:
        """Return the value of a header, or None."""
        value = self.headers.get(name.lower().encode("latin-1", "replace"))
        return None if value is None else value.decode("latin-1")

    @property
    def arguments(self) -> tuple[str, str, dict[bytes, bytes], bytes]:
        """The arguments of `Replica.http`."""
        return self.method, self.target, self.headers, self.body


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """Return the body; None if it exceeds the limit."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise UnavailableError("the client has closed the connection")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            return None
        if not message.get("more_body"):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def send_response(send: Send, response: bytes) -> None:
    """Send a complete response: status line, headers, and body."""
    await _start(send, head := response.partition(b"\r\n\r\n"))
    await send({"type": "http.response.body", "body": head[2]})


async def send_parts(send: Send, parts: AsyncIterator[bytes]) -> None:
    """Send a response whose first part begins with the status line and headers."""
    begun = False
    async for part in parts:
        if not begun:
            begun = True
            await _start(send, head := part.partition(b"\r\n\r\n"))
            part = head[2]
        if part:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _start(send: Send, head: tuple[bytes, bytes, bytes]) -> None:
    line, *lines = head[0].split(b"\r\n")
    headers = [tuple(text.split(b": ", 1)) for text in lines]
    await send(
        {
            "type": "http.response.start",
            "status": int(line.split(b" ", 2)[1]),
            "headers": [(name.lower(), value) for name, value in headers if name.lower() not in _OF_CONNECTION],
        }
    )
