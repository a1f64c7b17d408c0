"""Heads of HTTP requests that have been seen before.

A client that asks one thing again and again sends the same head each time, byte for byte. Once a head
was parsed, a request that comes whole and begins with the same bytes need not be.
"""

from __future__ import annotations

from dataclasses import dataclass

from tornado import httputil

from tritonnb.endpoints.http.transport.exchange import LightHeaders

_MOST_HEADS = 256
_LONGEST_HEAD = 4096
_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Head:
    """A request line and headers, parsed.

    Attributes
    ----------
    line : tornado.httputil.RequestStartLine
    headers : LightHeaders
    """

    line: httputil.RequestStartLine
    headers: LightHeaders


class HeadCache:
    """The heads that a server remembers."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Head, int]] = {}

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body of one request that came whole, if its head is known."""
        end = data.find(_END) + len(_END)
        known = self._known.get(data[:end])
        if known is None or len(data) - end != known[1]:
            return None
        return known[0], data[end:]

    def learn(self, data: bytes, head: Head) -> None:
        """Remember the head of a request that was alone in ``data`` and kept its connection open."""
        headers = head.headers
        if any(headers.get(name) is not None for name in ("Transfer-Encoding", "Expect", "Upgrade")):
            return
        end, length = data.find(_END) + len(_END), int(headers.get("Content-Length") or 0)
        if end > _LONGEST_HEAD or len(data) - end != length or head.line.version != "HTTP/1.1":
            return
        if len(self._known) >= _MOST_HEADS:
            self._known.clear()
        self._known[data[:end]] = head, length
