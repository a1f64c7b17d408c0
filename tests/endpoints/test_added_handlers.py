"""A user's own handlers of Tornado on the HTTP port: they answer, and pass the checks of all other requests."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import pytest
from tornado import web
from tornado.websocket import WebSocketHandler

import tritonnb as tnb
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.server.server import Server


class Double(web.RequestHandler):
    """Answers with the output of a model, at once or in parts."""

    def initialize(self, server: Server, times: int = 1) -> None:
        self.server, self.times = server, times

    async def get(self, number: str) -> None:
        outputs = await self.server["double"].infer_async(X=[[float(number)]])
        for _ in range(self.times):
            self.write(f"{outputs['OUTPUT'].item():g} ")
            if self.times > 1:
                await self.flush()

    head = get

    def post(self, number: str) -> None:
        self.write(self.request.body * int(number))


@pytest.fixture
def server() -> Iterator[Server]:
    options = HttpOptions(restricted_api=(("inference", "key", "secret"),), max_body_size=1000)
    with Server(port=0, http=options) as server:

        @server.model(max_batch_size=8)
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        yield server


class Client:
    """One connection, on which each response is read by its framing."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        self._connection.request(method, path, body or None, {"key": "secret", **headers})
        response = self._connection.getresponse()
        return response.status, response.read()


def test_handler_of_tornado_answers_with_a_model(server: Server) -> None:
    server.add_handlers([(r"/double/(\d+)", Double, {"server": server})])
    server.add_handlers([(r"/parts/(\d+)", Double, {"server": server, "times": 3})])
    client = Client(server)
    for _ in range(2):  # on one connection: a response with a wrong framing would disturb the next
        assert client.ask("GET", "/double/21?verbose=1") == (200, b"42 ")
        assert client.ask("GET", "/parts/21") == (200, b"42 42 42 ")
        assert client.ask("HEAD", "/double/21") == (200, b"")
        assert client.ask("HEAD", "/parts/21") == (200, b"")
        assert client.ask("POST", "/double/2", b"ab") == (200, b"abab")
        assert client.ask("PUT", "/double/2", b"ab")[0] == 405
        assert client.ask("GET", "/double/x") == (404, b'{"error":"Not Found"}')
        assert client.ask("GET", "/v2/health/live")[0] == 200


class Named(web.RequestHandler):
    """Answers with a text."""

    def initialize(self, text: str) -> None:
        self._text = text

    def get(self) -> None:
        self.write(self._text)


def test_handler_that_is_added_again_replaces_the_first(server: Server) -> None:
    client = Client(server)
    for text in ("one", "two"):
        server.add_handlers([("/name", Named, {"text": text}), ("/other", Named, {"text": "other"})])
        assert client.ask("GET", "/name") == (200, text.encode())
    assert client.ask("GET", "/other") == (200, b"other")


REFUSED = [
    ({"key": "wrong"}, b"This API is restricted, expecting header 'key'"),
    ({"Origin": "http://evil.example"}, b"origin 'http://evil.example' is not allowed"),
    ({"Host": "evil.example"}, b"host 'evil.example' is not allowed"),
]


@pytest.mark.parametrize(("headers", "reason"), REFUSED)
@pytest.mark.parametrize("path", ["/name", "/v1/\xff", "/v2/\xff", "/any?/v2", "//v2/health/live", "/%76%31/models"])
def test_handler_is_behind_the_same_checks(server: Server, headers: dict[str, str], reason: bytes, path: str) -> None:
    server.add_handlers([("/name", Named, {"text": "secret"}), ("/.*", Named, {"text": "secret"})])
    client = Client(server)
    client._connection._encode_request = lambda request: request.encode("latin-1")  # type: ignore[attr-defined]
    status, body = client.ask("GET", path, b"", **headers)
    assert (status, reason in body) == (403, True)


def test_each_path_has_its_own_api(server: Server) -> None:
    server.add_handlers([("/name/open", Named, {"text": "open"})], api="")
    server.add_handlers([("/name/.*", Named, {"text": "closed"})])
    assert Client(server).ask("GET", "/name/open", key="") == (200, b"open")
    assert Client(server).ask("GET", "/name/opened", key="")[0] == 403
    server.add_handlers([("/name/open", Named, {"text": "closed"})])
    assert Client(server).ask("GET", "/name/open", key="")[0] == 403


def test_body_for_a_handler_is_limited(server: Server) -> None:
    server.add_handlers([(r"/double/(\d+)", Double, {"server": server})])
    assert Client(server).ask("POST", "/double/1", b"a" * 1001)[0] == 413


class Socket(WebSocketHandler):
    pass


@web.stream_request_body
class Upload(web.RequestHandler):
    def data_received(self, chunk: bytes) -> None:
        """Called before an asynchronous `prepare` is done, if it were accepted."""


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (("/v2/health/live", Named), "is none of the server's own"),
        (("/v2/.*", Named), "is none of the server's own"),
        (("/v1/chat", Named), "is none of the server's own"),
        (("chat", Named), "begins with '/'"),
        (("/chat", len), "expected a class derived from tornado.web.RequestHandler, got <built-in function len>"),
        (("/chat", Socket), "expected a handler of HTTP, got a WebSocketHandler"),
        (("/chat", Upload), "expected a handler of whole bodies, got stream_request_body"),
    ],
)
def test_handler_that_could_not_answer_is_refused(server: Server, handler: tuple[Any, ...], text: str) -> None:
    with pytest.raises(tnb.TritonError, match=text):
        server.add_handlers([("/name", Named, {"text": "one"}), handler])
    assert Client(server).ask("GET", "/name")[0] == 404  # all of them or none


def test_adding_handlers_needs_an_http_port_and_an_api(server: Server) -> None:
    with pytest.raises(tnb.TritonError, match=r"expected '' or an API \(health, inference, .*\), got 'models'"):
        server.add_handlers([], api="models")
    with Server(allow_http=False) as other, pytest.raises(tnb.TritonError, match="expected an HTTP endpoint"):
        other.add_handlers([])
