"""Parsed heads of HTTP requests: a client usually sends the same head again, byte for byte.

The cache replaces the parser only: what is done with a head, limits and refusals included, is the same for a parsed
and a cached one. It is used for a request that arrives complete and alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from tornado import httputil

from tritonnb.endpoints.bounded_cache import BoundedCache
from tritonnb.endpoints.http.transport.exchange import LightHeaders
from tritonnb.endpoints.request_cache import LONGEST_HEAD, MAX_HEADS

_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Head:
    """A request line and headers, parsed.

    Attributes
    ----------
    line : tornado.httputil.RequestStartLine
    headers : LightHeaders
    keep_alive : bool
        Whether the connection stays open after the response.
    length : int
        ``Content-Length``: the announced size of the body in bytes; 0 if it is chunked, or there is none.
    expects_continue : bool
        Whether the client waits for ``100 Continue`` before it sends the body.
    """

    line: httputil.RequestStartLine
    headers: LightHeaders
    keep_alive: bool
    length: int
    expects_continue: bool


class HeadCache:
    """The known heads of a server's requests.

    Parameters
    ----------
    limit : int, optional
        The number of heads that are stored.
    """

    def __init__(self, limit: int = MAX_HEADS) -> None:
        self._heads: BoundedCache[bytes, Head] = BoundedCache(limit)

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body of a complete request; None if its head is not known."""
        end = data.find(_END) + len(_END)
        head = self._heads.get(data[:end])
        if head is None or len(data) - end != head.length:
            return None
        return head, data[end:]

    def store(self, data: bytes, head: Head) -> None:
        """Remember the head of a request that was alone in ``data``, if ``Content-Length`` frames its body."""
        end = data.find(_END) + len(_END)
        if end <= LONGEST_HEAD and len(data) - end == head.length and self._heads.admits(data[:end]):
            self._heads.store(data[:end], head)
