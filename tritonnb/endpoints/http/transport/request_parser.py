"""Parsing HTTP/1.1 requests from a stream of bytes, with httptools.

Triton accepts request lines that httptools does not: unknown methods, which the route refuses, and any bytes in the
target. Such a line is rewritten to a line that httptools accepts, and the original target is restored afterwards; hence
the parser gets a request only when its request line is complete. A request that cannot be parsed, a head beyond the
limit, and endless framing of a body are errors of the whole stream: the beginning of the next request is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import httptools
from tornado import httputil

from tritonnb.endpoints.caches import LONGEST_HEAD, MAX_HEADS, BoundedCache
from tritonnb.endpoints.http.transport.exchange import LightHeaders

_END: Final = b"\r\n\r\n"

#: The limit of a request line and headers, and of framing bytes without any part of a body.
_MAX_HEAD: Final = 65_536
#: Triton's limit on the chunks of a body.
_MAX_CHUNKS: Final = 65_536
#: Replaces methods that httptools does not know; no route has this one.
_UNROUTED_METHOD: Final = b"OPTIONS"
_ORIGIN: Final = re.compile(rb"^https?://[^/?#]*")
_LINE: Final = re.compile(rb"([A-Z]+) (/[^ \r\n]*)")


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
        self._known = self._heads.values

    def find(self, data: bytes, at: int, end: int) -> Head | None:
        """Return the head between two offsets of a request that is complete; None if it is not known."""
        head = self._known.get(data[at:end])
        # A cached head is only used if its whole body is there, so that the cached path has no state between two reads.
        return None if head is None or len(data) - end < head.length else head

    def store(self, data: bytes, head: Head) -> None:
        """Remember the head of a request that is ``data``, if ``Content-Length`` frames its body."""
        end = data.find(_END) + len(_END)
        if end <= LONGEST_HEAD and len(data) - end == head.length and self._heads.admits(data[:end]):
            self._heads.store(data[:end], head)


class MalformedRequestError(Exception):
    """The stream cannot be parsed."""


class DelegateError(Exception):
    """A request's delegate failed; the cause is the exception that it raised."""


class RequestReceiver:
    """The receiver of the parsed requests.

    A base class and no protocol, in which compiled code would look up each method by its name.
    """

    def head_received(self, head: Head) -> bool:
        """Start a request after its head; return False if it is refused."""
        raise NotImplementedError

    def body(self, chunk: bytes) -> None:
        """Called when a part of its body has arrived."""
        raise NotImplementedError

    def complete(self) -> None:
        """Called when the request is complete."""
        raise NotImplementedError

    def too_many_chunks(self) -> None:
        """Called when its body has too many chunks."""
        raise NotImplementedError


class RequestParser:
    """A parser for the requests of one connection.

    Parameters
    ----------
    receiver : RequestReceiver
    cache : HeadCache
        The heads that need not be parsed.

    Attributes
    ----------
    between : bool
        Whether no request is incomplete.
    heads : int
        The number of heads that were parsed so far.
    """

    def __init__(self, receiver: RequestReceiver, cache: HeadCache) -> None:
        self.between = True
        self.heads = 0
        self._receiver = receiver
        self._cache = cache
        self._head: Head  # of the last request
        self._known_size = 0  # bytes of the last known head
        self._left = 0  # bytes of its body that have not arrived, if `Content-Length` frames it
        self._is_storable = False  # whether the last head may be stored in the cache
        self._parser = self._new_parser()
        self._in_head = False
        self._line = bytearray()  # the part that has arrived
        self._target = b""  # that the parser was not shown
        self._framing = b""  # of a body that httptools does not expect
        self._size = 0  # bytes of this call
        self._framing_bytes = 0  # bytes since the last head or part of a body
        self._chunks = self._parts = self._repeated = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}

    @property
    def in_head(self) -> bool:
        """True if a head is incomplete."""
        return self._in_head or bool(self._line)

    @property
    def may_skip_body(self) -> bool:
        """True if the next bytes can only be the rest of a body of known length."""
        return not self.between and not self.in_head and self._is_storable and self._head.length > 0

    def skip_body(self) -> None:
        """Skip the rest of the body, which the receiver has read itself."""
        self._parser = self._new_parser()
        self.between = True
        self._framing_bytes = self._left = 0

    def feed(self, data: bytes, at: int = 0) -> int:
        """Parse one request or a part of it, so that the receiver decides when the next one is started.

        Parameters
        ----------
        data : bytes
            What has arrived.
        at : int, optional
            Where to begin.

        Returns
        -------
        int
            The offset of what remains.

        Raises
        ------
        MalformedRequestError
            If the bytes are not HTTP.
        DelegateError
            If the receiver of the requests fails.
        """
        heads, is_first = self.heads, self.between
        # Most heads of a client are of the same size, and a known head has no other end.
        guess = at + self._known_size
        # Compiled, a slice that begins behind the end of its bytes is an error.
        if is_first and at < guess <= len(data) and data[guess - len(_END) : guess] == _END:
            head = self._cache.find(data, at, guess)
            if head is not None:
                return self._pass_on(head, data, guess)
        # The end of a head, and of a chunked body. The next one ends a body that contains it, and two requests at most.
        end = data.find(_END, at) + len(_END)
        if end < len(_END):
            end = len(data)
        if is_first:
            head = self._cache.find(data, at, end) if end != guess else None
            if head is not None:
                self._known_size = end - at
                return self._pass_on(head, data, end)
        elif self._left:
            end = min(len(data), at + self._left)
        self._parse_all(data[at:end])
        if is_first and self.heads == heads + 1:
            if self._left and end < len(data):
                begin, end = end, min(len(data), end + self._left)
                self._parse_all(data[begin:end])
            if self.between and self._is_storable:
                self._cache.store(data[at:end], self._head)
        return end

    def _pass_on(self, head: Head, data: bytes, end: int) -> int:
        """Pass on a complete request with a body that begins at ``end``; return where it ends."""
        receiver = self._receiver
        stop = end + head.length
        body = data[end:stop]
        try:
            receiver.head_received(head)
            if body:
                receiver.body(body)
            receiver.complete()
        except Exception as error:
            raise _as_own_error(error) from error
        return stop

    def _parse_all(self, data: bytes) -> None:
        rest: bytes | None = data
        while rest is not None:
            if not (self.between or self._line):
                rest = self._parse(rest, False)
            # httptools cannot be asked for a request line again, so it is held back until it is complete and could be
            # rewritten.
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
        """Feed httptools; return the bytes that remain to be fed, None if there are none."""
        heads, before = self.heads, self.heads + self._parts
        self._size = len(data)
        remaining: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # No other protocol is supported, so the connection stays HTTP/1.1.
            remaining = data[upgrade.args[0] :]
            if self._framing:
                return self._into_body(remaining)
        except httptools.HttpParserInvalidMethodError:
            remaining = self._rewritten(data, from_line and heads == self.heads, method=_UNROUTED_METHOD)
        except httptools.HttpParserInvalidURLError:
            remaining = self._rewritten(data, from_line and heads == self.heads, target=b"/")
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__ or error
            raise _as_own_error(cause) from cause
        except httptools.HttpParserError as error:
            raise MalformedRequestError from error
        if remaining is not None:
            self._parser = self._new_parser()
            self.between, self._in_head = True, False
        elif not self.between:
            self._framing_bytes = self._framing_bytes + len(data) if before == self.heads + self._parts else 0
            if self._framing_bytes > _MAX_HEAD:
                raise MalformedRequestError
        return remaining

    def _rewritten(self, data: bytes, possible: bool, method: bytes = b"", target: bytes = b"") -> bytes:
        """Return the data with another method or target in its request line."""
        line = _LINE.match(data) if possible else None
        if line is None or target == line.group(2):
            raise MalformedRequestError
        if target:
            self._target = line.group(2)
        return b"%s %s%s" % (method or line.group(1), target or line.group(2), data[line.end() :])

    def _into_body(self, rest: bytes) -> bytes:
        """Make httptools read the body of an upgrade request, after which it expects none."""
        self._parser = self._new_parser()
        # Java's HttpClient and `curl --http2` offer h2c with every request, whose body httptools would not read.
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n\r\n" % self._framing)
        self._framing = b""
        return rest

    def _new_parser(self) -> Any:
        """Make a parser that accepts a chunked body although the head has a length, as Triton does."""
        parser = httptools.HttpRequestParser(self)
        # "Dangerous" because of request smuggling: hence the connection is closed after such a request, see
        # `ambiguous`.
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return parser

    # --- httptools ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called at the beginning of a request."""
        if self._framing:
            return
        self._url = b""
        self._headers = {}
        self._chunks = self._repeated = 0
        self._in_head, self.between = True, False

    def on_url(self, url: bytes) -> None:
        """Called with a part of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called with a header; the values of a repeated header are joined by commas."""
        if not self._in_head:
            return  # trailers of a chunked body are ignored
        key = name.lower()
        earlier = self._headers.get(key)
        if earlier is not None:
            # Joining is quadratic in the number of repetitions, so they count towards the limit on their own.
            self._repeated += len(name) + len(value)
            if self._repeated > _MAX_HEAD:
                raise MalformedRequestError
            value = earlier + b"," + value
        self._headers[key] = value

    def on_headers_complete(self) -> None:
        """Called when the head of a request has arrived."""
        if self._framing:
            return
        parser, headers = self._parser, self._headers
        self._in_head = False
        self.heads += 1
        # The exact size is only computed when the bytes of the read could exceed the limit.
        if self._framing_bytes + self._size > _MAX_HEAD and self._head_size() > _MAX_HEAD:
            raise MalformedRequestError
        self._framing_bytes = 0
        url, self._target = self._target or self._url, b""
        line = httputil.RequestStartLine(
            parser.get_method().decode("latin-1"),
            (url if url[:1] == b"/" else _ORIGIN.sub(b"", url)).decode("latin-1"),
            "HTTP/1.0" if parser.get_http_version() == "1.0" else "HTTP/1.1",
        )
        encoding = headers.get(b"transfer-encoding")
        if encoding is not None and not encoding.lower().endswith(b"chunked"):
            raise MalformedRequestError  # the end of its body is unknown
        # A request with both may be an attempt at request smuggling: nothing is read after it (RFC 9112, 6.3).
        ambiguous = encoding is not None and b"content-length" in headers
        # httptools has refused repeated, empty and signed lengths, which two servers might read differently.
        length = 0 if encoding is not None else int(headers.get(b"content-length", b"0"))
        is_upgrade = parser.should_upgrade()
        if is_upgrade and b"upgrade" in headers:
            if encoding is not None:
                self._framing = b"Transfer-Encoding: chunked"
            elif length:
                self._framing = b"Content-Length: %d" % length
        self._head = Head(
            line,
            LightHeaders(headers),
            keep_alive=parser.should_keep_alive() and not ambiguous,
            length=length,
            expects_continue=headers.get(b"expect", b"").lower() == b"100-continue",
        )
        # httptools reads the body of an upgrade (and of CONNECT) in another way.
        self._left = 0 if is_upgrade else length
        self._is_storable = self._receiver.head_received(self._head) and not is_upgrade

    def on_body(self, chunk: bytes) -> None:
        """Called when a part of a request's body has arrived."""
        self._parts += 1
        self._left -= min(self._left, len(chunk))
        self._receiver.body(chunk)

    def on_chunk_header(self) -> None:
        """Called at the beginning of a chunk."""
        self._chunks += 1
        self._parts += 1
        if self._chunks > _MAX_CHUNKS + 1:  # the empty chunk at the end does not count
            self._receiver.too_many_chunks()

    def on_message_complete(self) -> None:
        """Called when a request is complete."""
        if self._framing:
            return
        self.between = True
        self._framing_bytes = 0
        self._receiver.complete()

    def _head_size(self) -> int:
        fields = sum(len(name) + len(value) for name, value in self._headers.items())
        return len(self._target or self._url) + fields + self._repeated


def _as_own_error(error: BaseException) -> MalformedRequestError | DelegateError:
    """Return the error for an exception that was raised while a request was passed to its receiver."""
    is_malformed = isinstance(error, (MalformedRequestError, httputil.HTTPInputError))
    return MalformedRequestError() if is_malformed else DelegateError()
