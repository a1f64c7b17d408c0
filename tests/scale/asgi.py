"""Sending a recorded request to an ASGI application, as `tests.endpoints.replay.send` sends it to a port."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from tests.endpoints.replay import body_of
from tritonnb.scale.http_ingress import HttpIngress


async def send(application: HttpIngress, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers with lower-case names, and the body; a list has the values of a repeated header."""
    path, _, query = request["path"].partition("?")
    headers = [
        (name.lower().encode(), value.encode())
        for name, values in request.get("headers", {}).items()
        for value in (values if isinstance(values, list) else [values])
    ]
    scope = {
        "type": "http",
        "method": request["method"],
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
    }
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body_of(request)}

    async def collect(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await application(scope, receive, collect)
    start, *parts = sent
    answered = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return start["status"], answered, b"".join(part["body"] for part in parts)
