"""HTTP/1.1 requests cut out of a stream of bytes, by httptools.

Triton takes request lines that httptools does not: methods that nobody knows, for the route to refuse, and targets of
any bytes. Such a line is put in words that the parser takes, and what it said is remembered; so a request is shown to
the parser once its line is there whole. What cannot be parsed, a head beyond the limit, and framing around a body
that does not end are errors of the stream: it cannot be known where the next request begins.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from tornado import httputil

from tritonnb.endpoints.http.transport.exchange import LightHeaders
from tritonnb.endpoints.http.transport.head_cache import Head

try:
    import httptools
except ImportError:  # no wheel for this platform
    httptools = None  # type: ignore[assignment]

#: Whether requests can be parsed here.
AVAILABLE = httptools is not None

#: Bytes of a request line and headers, and of what may frame a body without any of it.
_MAX_HEAD = 65_536
#: Triton's limit on the parts of a chunked body.
_MAX_CHUNKS = 65_536
#: What stands for methods that the parser does not know: no route has it.
_NO_ROUTES_METHOD = b"OPTIONS"
_ORIGIN = re.compile(rb"^https?://[^/?#]*")
_LINE = re.compile(rb"([A-Z]+) (/[^ \r\n]*)")


class MalformedRequestError(Exception):
    """What comes is not understood."""


class DelegateError(Exception):
    """Who takes the requests failed; the cause is what it raised."""


class Requests(Protocol):
    """Who takes the requests."""

    def begin(self, head: Head, keep_alive: bool) -> None:
        """The head of a request is here."""

    def body(self, chunk: bytes) -> None:
        """A part of its body."""

    def complete(self) -> None:
        """It is here whole."""

    def too_many_chunks(self) -> None:
        """It has more parts than may be."""


class RequestParser:
    """Parses the requests of one connection.

    Attributes
    ----------
    between : bool
        No part of a request is here that is not complete.
    heads : int
        How many have been here whole.
    head : Head
        The last of them.
    """

    def __init__(self, requests: Requests) -> None:
        self.between = True
        self.heads = 0
        self.head: Head
        self._requests = requests
        self._parser = self._new_parser()
        self._in_head = False
        self._line = bytearray()  # as far as it is here
        self._target = b""  # that the parser was not shown
        self._framing = b""  # of a body that httptools does not expect
        self._size = 0  # bytes of this call
        self._unanswered = 0  # bytes since the last that meant something
        self._chunks = self._parts = self._repeated = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}

    def feed(self, data: bytes) -> None:
        """Take bytes of one request, of a part of one, or of several.

        Raises
        ------
        MalformedRequestError
            If the bytes are no HTTP.
        DelegateError
            If whoever takes the request fails.
        """
        rest: bytes | None = data
        while rest is not None:
            if not (self.between or self._line):
                rest = self._parse(rest, False)
            elif b"\n" in rest or not (self._line or rest)[:1].isupper():  # which no request line begins with
                if self._line:
                    rest = bytes(self._line) + rest
                    self._line.clear()
                rest = self._parse(rest, True)
            else:
                self._line += rest
                self.between = not self._line
                if len(self._line) > _MAX_HEAD:
                    raise MalformedRequestError
                rest = None

    def _parse(self, data: bytes, from_line: bool) -> bytes | None:
        """Show the parser some bytes; those that it has to be shown afterwards, if there are any."""
        heads, before = self.heads, self.heads + self._parts
        self._size = len(data)
        again: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # No other protocol is spoken here, so the connection goes on as it was.
            again = data[upgrade.args[0] :]
            if self._framing:
                return self._into_body(again)
        except httptools.HttpParserInvalidMethodError:
            again = self._reworded(data, from_line and heads == self.heads, method=_NO_ROUTES_METHOD)
        except httptools.HttpParserInvalidURLError:
            again = self._reworded(data, from_line and heads == self.heads, target=b"/")
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, (MalformedRequestError, httputil.HTTPInputError)):
                raise MalformedRequestError from error
            raise DelegateError from (error.__context__ or error)
        except httptools.HttpParserError as error:
            raise MalformedRequestError from error
        if again is not None:
            self._parser = self._new_parser()
            self.between, self._in_head = True, False
        elif not self.between:
            self._unanswered = self._unanswered + len(data) if before == self.heads + self._parts else 0
            if self._unanswered > _MAX_HEAD:
                raise MalformedRequestError
        return again

    def _reworded(self, data: bytes, possible: bool, method: bytes = b"", target: bytes = b"") -> bytes:
        """A request line with another method or target in it, and what follows."""
        said = _LINE.match(data) if possible else None
        if said is None or target == said.group(2):
            raise MalformedRequestError
        if target:
            self._target = said.group(2)
        return b"%s %s%s" % (method or said.group(1), target or said.group(2), data[said.end() :])

    def _into_body(self, rest: bytes) -> bytes:
        """Have a request's body read: after a head that offers another protocol httptools does not expect one."""
        self._parser = self._new_parser()
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n\r\n" % self._framing)
        self._framing = b""
        return rest

    def _new_parser(self) -> Any:
        """A parser that takes a chunked body also where a length is announced, as Triton does."""
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return parser

    # --- httptools ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._framing:
            return
        self._url = b""
        self._headers = {}
        self._chunks = self._repeated = 0
        self._in_head, self.between = True, False

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; one that is repeated is a list."""
        if not self._in_head:
            return  # what follows a chunked body changes nothing that was said before it
        key = name.lower()
        known = self._headers.get(key)
        if known is not None:
            self._repeated += len(name) + len(value)
            if self._repeated > _MAX_HEAD:
                raise MalformedRequestError
            value = known + b"," + value
        self._headers[key] = value

    def on_headers_complete(self) -> None:
        """The head of a request is here."""
        if self._framing:
            return
        parser, headers = self._parser, self._headers
        self._in_head = False
        self.heads += 1
        if self._unanswered + self._size > _MAX_HEAD and self._head_size() > _MAX_HEAD:
            raise MalformedRequestError
        self._unanswered = 0
        url, self._target = self._target or self._url, b""
        line = httputil.RequestStartLine(
            parser.get_method().decode("latin-1"),
            (url if url[:1] == b"/" else _ORIGIN.sub(b"", url)).decode("latin-1"),
            "HTTP/1.0" if parser.get_http_version() == "1.0" else "HTTP/1.1",
        )
        self.head = Head(line, LightHeaders(headers))
        encoding = headers.get(b"transfer-encoding")
        if encoding is not None and not encoding.lower().endswith(b"chunked"):
            raise MalformedRequestError  # where would its body end?
        # Who sends both may mean to smuggle a request past a proxy: nothing is read after this one (RFC 9112, 6.3).
        ambiguous = encoding is not None and b"content-length" in headers
        if b"upgrade" in headers and parser.should_upgrade():
            if encoding is not None:
                self._framing = b"Transfer-Encoding: chunked"
            elif headers.get(b"content-length", b"0").strip(b"0"):
                self._framing = b"Content-Length: " + headers[b"content-length"]
        self._requests.begin(self.head, parser.should_keep_alive() and not ambiguous)

    def on_body(self, chunk: bytes) -> None:
        """A part of a request's body."""
        self._parts += 1
        self._requests.body(chunk)

    def on_chunk_header(self) -> None:
        """A part of a chunked body begins."""
        self._chunks += 1
        self._parts += 1
        if self._chunks > _MAX_CHUNKS + 1:  # the empty one that ends it does not count
            self._requests.too_many_chunks()

    def on_message_complete(self) -> None:
        """A request is here whole."""
        if self._framing:
            return
        self.between = True
        self._unanswered = 0
        self._requests.complete()

    def _head_size(self) -> int:
        fields = sum(len(name) + len(value) for name, value in self._headers.items())
        return len(self._target or self._url) + fields + self._repeated
