"""Servers that refuse, do not respond, or speak another protocol: one clear sentence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import tritonnb as tnb
from tritonnb.core.errors import UnavailableError

# --- servers that refuse --------------------------------------------------------------------------


class Refusing(BaseHTTPRequestHandler):
    """A handler that responds to every request as its path or headers say."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, body = 200, b'{"name":"other","version":"1","extensions":[]}'
        if self.path.startswith("/auth") and self.headers.get("Authorization") != "Bearer secret":
            status, body = 401, b""
        elif self.path.startswith("/slow"):
            time.sleep(1.5)
        elif self.path.startswith("/html"):
            body = b"<html>not a server</html>"
        elif self.path.startswith("/missing") or self.path.endswith("/v2/replicas"):  # it is not a deployment
            status, body = 404, b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("path", "timeout", "message"),
    [
        ("auth", 60, "authentication failed, HTTP status 401: pass the credentials as headers="),
        ("slow", 0.3, "no response from .*/slow/v2 within 0.3 s"),
        ("html", 60, "no HTTP server of the v2 protocol responds at"),
        ("missing", 60, "HTTP status 404"),
    ],
)
def test_refused_request_is_one_sentence(refusing: str, path: str, timeout: float, message: str) -> None:
    with pytest.raises(tnb.TritonError, match=message):
        tnb.connect(f"{refusing}/{path}", timeout=timeout)


def test_headers_are_sent_with_every_request(refusing: str) -> None:
    remote = tnb.connect(f"{refusing}/auth", headers={"Authorization": "Bearer secret"})
    assert remote.metadata()["name"] == "other"
    for use in (lambda: remote.record("m"), remote.trace_settings):
        with pytest.raises(tnb.TritonError, match="does not have the extension 'trace'"):
            use()


@pytest.mark.parametrize(("path", "is_named"), [("", True), ("auth", False)])
def test_credentials_are_not_sent_without_tls_to_find_the_right_url(refusing: str, path: str, is_named: bool) -> None:
    url = f"{refusing.replace('http:', 'https:')}/{path}"
    with pytest.raises(tnb.TritonError) as error:
        tnb.connect(url, headers={"Authorization": "Bearer secret"}, timeout=5)
    assert (f"a server responds at {refusing}" in str(error.value)) == is_named


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "grpc://127.0.0.1:9"])
def test_unreachable_server_is_one_sentence(url: str) -> None:
    with pytest.raises(tnb.TritonError, match=f"no (HTTP|gRPC) server .*{url}"):
        tnb.connect(url, timeout=5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("http://127.0.0.1:{grpc}", r"its response is not HTTP/1\.1; a server responds at grpc://127\.0\.0\.1:{grpc}$"),
        ("127.0.0.1:{grpc}", r"its response is not HTTP/1\.1; a server responds at grpc://127\.0\.0\.1:{grpc}$"),
        ("grpc://127.0.0.1:{http}", r"; a server responds at http://127\.0\.0\.1:{http}$"),
        ("https://127.0.0.1:{http}", r"; a server responds at http://127\.0\.0\.1:{http}$"),
        ("grpcs://127.0.0.1:{grpc}", r"; a server responds at grpc://127\.0\.0\.1:{grpc}$"),
        ("http://127.0.0.1:{metrics}", "expected a server of the v2 protocol, got a response without its name and"),
    ],
)
def test_port_of_another_endpoint_is_recognised(given: str, message: str) -> None:
    with tnb.Server(port=0, grpc_port=0, metrics_port=0) as server:
        ports = {"http": server.port, "grpc": server.grpc_port, "metrics": server.metrics_port}
        with pytest.raises(tnb.TritonError, match=message.format(**ports)) as error:
            tnb.connect(given.format(**ports), headers={"Authorization": "Bearer secret"}, timeout=5)
        assert str(error.value).isprintable()


@pytest.mark.parametrize("url", ["ftp://host", "http://host:1/v2/models/m", ""])
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(tnb.TritonError, match="URL of a server expected http://HOST:PORT"):
        tnb.connect(url)


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_refusal_of_a_busy_model_is_not_taken_for_an_absent_server(over: str) -> None:
    with tnb.Server(port=0, grpc_port=0) as server:

        @server.model(max_batch_size=0)
        def busy(X: tnb.FP32[1]) -> tnb.FP32[1]:
            raise UnavailableError("Request timeout expired")

        url = server.url if over == "http" else f"grpc://127.0.0.1:{server.grpc_port}"
        with tnb.connect(url) as remote, pytest.raises(UnavailableError) as raised:
            remote["busy"](X=[1.0])
    assert "Request timeout expired" in str(raised.value)
    assert "responds" not in str(raised.value)
