"""Parsed heads of HTTP requests: a client usually sends the same head again, byte for byte.

The cache is used only for a request that arrives complete and alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from tornado import httputil

from tritonnb.endpoints.http.transport.exchange import LightHeaders
from tritonnb.endpoints.request_cache import LONGEST_HEAD, store_bounded

_MAX_ENTRIES = 256
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
    """The known heads of a server's requests."""

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[Head, int]] = {}  # with the length of the body

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body of a complete request; None if its head is not known."""
        end = data.find(_END) + len(_END)
        cached = self._heads.get(data[:end])
        if cached is None or len(data) - end != cached[1]:
            return None
        return cached[0], data[end:]

    def store(self, data: bytes, head: Head) -> None:
        """Remember the head of a request that was alone in ``data`` and kept its connection open."""
        headers = head.headers
        if any(headers.get(name) is not None for name in ("Transfer-Encoding", "Expect", "Upgrade")):
            return
        end, length = data.find(_END) + len(_END), int(headers.get("Content-Length") or 0)
        if end > LONGEST_HEAD or len(data) - end != length or head.line.version != "HTTP/1.1":
            return
        store_bounded(self._heads, data[:end], (head, length), _MAX_ENTRIES)
