"""Recorded exchanges with a real Triton: sending the request again, and comparing the answers.

Statuses, recorded headers, and bodies must be the same; JSON bodies as values, binary tensors byte by
byte. What may differ is marked in the recording: ``volatile`` JSON pointers, ``other_statuses``.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LENGTH = "inference-header-content-length"


def send(port: int, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """Send a recorded request; status, headers with lower-case names, and body."""
    body = body_of(request)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest(request["method"], request["path"], skip_accept_encoding=True)
        headers = request.get("headers", {})
        for name, value in headers.items():
            connection.putheader(name, value)
        framed = {"content-length", "transfer-encoding"} & {name.lower() for name in headers}
        if not framed and (body or request["method"] in ("POST", "PUT")):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@contextmanager
def shared_object(exchange: dict[str, Any]) -> Iterator[list[str]]:
    """The shared memory object that an exchange starts from; gives how it differs from what it should be after."""
    region = exchange.get("shared_memory", {})
    path = Path("/dev/shm") / region.get("key", "").lstrip("/")
    if "before" in region:
        path.write_bytes(base64.b64decode(region["before"]))
    different: list[str] = []
    yield different
    if "after" in region and path.read_bytes() != base64.b64decode(region["after"]):
        different.append(f"shared memory {path.read_bytes()!r}")


def differences(exchange: dict[str, Any], status: int, headers: dict[str, str], body: bytes) -> list[str]:
    """List the differences between an answer and the recorded one."""
    recorded = exchange["response"]
    expected = recorded.get("headers", {})
    if status not in (recorded["status"], *recorded.get("other_statuses", ())):
        return [f"status {status}, recorded {recorded['status']}: {body[:300]!r}"]
    different = [
        f"header {name}: {headers.get(name)!r}, recorded {value!r}"
        for name, value in expected.items()
        if (name not in headers) or (name != LENGTH and headers[name].lower() != value.lower())
    ]
    different += [
        f"header {name} is not recorded" for name in (LENGTH, "content-encoding") if name in headers.keys() - expected
    ]
    if different:
        return different
    old, new = _plain(expected, body_of(recorded)), _plain(headers, body)
    if LENGTH in expected:
        old_length, new_length = int(expected[LENGTH]), int(headers[LENGTH])
        if old[old_length:] != new[new_length:]:
            return [f"binary tensors {new[new_length:]!r}, recorded {old[old_length:]!r}"]
        old, new = old[:old_length], new[:new_length]
    return _compare(_value(old), _value(new), exchange.get("volatile", ()), "")


def _compare(old: Any, new: Any, volatile: list[str], where: str) -> list[str]:
    free = any(_matches(pointer, where) for pointer in volatile)
    numbers = isinstance(old, (int, float)) and not isinstance(old, bool)
    if free and numbers and isinstance(new, (int, float)):
        return []
    if type(old) is not type(new):
        return [f"{where or '/'}: {new!r}, recorded {old!r}"]
    if free:
        return []
    if isinstance(old, dict):
        different = [f"{where}/{key}: only on one side" for key in old.keys() ^ new.keys()]
        return different + [
            line for key in old.keys() & new.keys() for line in _compare(old[key], new[key], volatile, f"{where}/{key}")
        ]
    if isinstance(old, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for index, (a, b) in pairs for line in _compare(a, b, volatile, f"{where}/{index}")]
    both_nan = old != old and new != new
    return [] if old == new or both_nan else [f"{where or '/'}: {new!r}, recorded {old!r}"]


def _matches(pointer: str, where: str) -> bool:
    pattern, path = pointer.split("/"), where.split("/")
    return len(pattern) == len(path) and all(a in ("*", b) for a, b in zip(pattern, path, strict=True))


def body_of(message: dict[str, Any]) -> bytes:
    if "body_base64" in message:
        return base64.b64decode(message["body_base64"])
    return str(message.get("body_text", "")).encode()


def _plain(headers: dict[str, str], body: bytes) -> bytes:
    encoding = headers.get("content-encoding")
    if encoding == "gzip":
        return gzip.decompress(body)
    return zlib.decompress(body) if encoding == "deflate" else body


def _value(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8", "surrogateescape"))
    except ValueError:
        return body
