"""Connections to a server of the v2 protocol: headers, TLS, time limits, and the errors for its failures."""

from __future__ import annotations

import http.client
import json
import os
import ssl as tls
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonnb.core.errors import (
    InvalidArgumentError,
    Status,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from tritonnb.core.grpcio import require_grpcio
from tritonnb.core.paths import fixed_path

# grpcio is imported where it is used: `import tritonnb` does not need it.
if TYPE_CHECKING:
    import grpc

#: Seconds that a server may take to respond to a request that runs no model.
TIMEOUT_S = 30.0
#: Statuses of HTTP and codes of gRPC of servers and proxies that refuse callers.
_REFUSED = {401: "authentication failed", 403: "access denied", 407: "the proxy requires authentication"}
_REFUSED_CODES = {"UNAUTHENTICATED": "authentication failed", "PERMISSION_DENIED": "access denied"}
#: Texts of grpcio about a connection that failed.
_NO_CONNECTION = ("failed to connect", "DNS", "resol", "Socket closed", "onnection ", "http1.x")
_HEADERS = "pass the credentials as headers="


@dataclass(frozen=True)
class ConnectionOptions:
    """Headers, TLS and time limit of a connection.

    Attributes
    ----------
    headers : mapping of str to str
        Sent with every request, over gRPC as metadata.
    ssl : ssl.SSLContext, grpc.ChannelCredentials, path or None
        For ``https`` and ``grpcs``: a context (HTTP), credentials (gRPC), or a file with the certificates of the
        authorities to trust (both).
    timeout_s : float
        Seconds to wait for a response that runs no model.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    ssl: Any = None
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if isinstance(self.ssl, str | os.PathLike):
            # The file is read for each connection, also after the working directory has changed.
            object.__setattr__(self, "ssl", fixed_path(self.ssl))

    def ssl_context(self) -> tls.SSLContext:
        """Return the context of ``https`` connections.

        Raises
        ------
        InvalidArgumentError
            If ``ssl`` is neither a context nor a readable file.
        """
        if isinstance(self.ssl, tls.SSLContext):
            return self.ssl
        try:
            return tls.create_default_context(cafile=self.ssl)
        except (OSError, TypeError) as error:
            raise InvalidArgumentError(
                f"ssl expected an SSLContext or a file of certificates for https, got {self.ssl!r}: {error}"
            ) from None

    def channel(self, scheme: str, authority: str) -> grpc.Channel:
        """Return a new gRPC channel.

        Raises
        ------
        InvalidArgumentError
            If ``ssl`` is neither credentials nor a readable file.
        UnsupportedError
            If grpcio is not installed.
        """
        require_grpcio(f"a client of {scheme}://{authority}")
        import grpc

        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        if scheme != "grpcs":
            return grpc.insecure_channel(authority, options)
        credentials = self.ssl
        if credentials is None or isinstance(credentials, str | os.PathLike):
            try:
                roots = None if credentials is None else Path(credentials).read_bytes()
            except OSError as error:
                raise InvalidArgumentError(
                    f"ssl expected a file of certificates, got {credentials!r}: {error}"
                ) from None
            credentials = grpc.ssl_channel_credentials(roots)
        if not isinstance(credentials, grpc.ChannelCredentials):
            got = type(credentials).__name__
            raise InvalidArgumentError(f"ssl expected grpc.ChannelCredentials or a file of certificates, got {got}")
        return grpc.secure_channel(authority, credentials, options)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers as gRPC metadata, with names in lower case."""
        return tuple((name.lower(), value) for name, value in self.headers.items())

    def fetch(
        self,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Send a GET, or a POST if there is a body; return the body and the headers of the response.

        Raises
        ------
        TritonError
            If the server responds with an error, with its text.
        UnavailableError
            If no server responds in time.
        """
        request = urllib.request.Request(url, body, {**self.headers, **(headers or {})})
        context = self.ssl_context() if url.startswith("https:") else None
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            with urllib.request.urlopen(request, timeout=limit_s, context=context) as response:
                return response.read(), response.headers
        except urllib.error.HTTPError as error:
            raise _http_error(url, error.code, error.read()) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise UnavailableError(f"no response from {url} within {limit_s:g} s") from None
            text = str(reason) if str(reason).isprintable() else "its response is not HTTP/1.1"
            raise UnavailableError(f"no HTTP server of the v2 protocol responds at {url}: {text}") from error

    def fetch_json(self, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request as `fetch` does, with a JSON body; return the decoded response, None if it is empty."""
        content, _ = self.fetch(url, None if body is None else json.dumps(body).encode())
        if not content:
            return None
        try:
            return json.loads(content)
        except ValueError as error:
            raise UnavailableError(f"no HTTP server of the v2 protocol responds at {url}: {error}") from error


def is_from_no_server(call: grpc.Call) -> bool:
    """Return whether a gRPC call has failed because no server was reached.

    A server with a full queue responds with the same status: only the text tells who made it.
    """
    details = call.details() or ""
    return call.code().name == "UNAVAILABLE" and (not details or any(text in details for text in _NO_CONNECTION))


@contextmanager
def grpc_errors(where: str, timeout_s: float) -> Iterator[None]:
    """Turn the errors of gRPC calls to a server into errors of this package.

    Parameters
    ----------
    where : str
        The server, or its model, in the text of errors.
    timeout_s : float
        The time limit of the calls.
    """
    import grpc

    try:
        yield
    except grpc.RpcError as error:
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise UnavailableError(f"no response from {where} within {timeout_s:g} s") from error
        if code is grpc.StatusCode.UNAVAILABLE:
            failure = f"no gRPC server responds at {where}" if is_from_no_server(error) else where
            raise UnavailableError(f"{failure}: {error.details() or ''}") from error
        if code.name in _REFUSED_CODES:
            raise InvalidArgumentError(
                f"{where}: {_REFUSED_CODES[code.name]} ({error.details()}): {_HEADERS}"
            ) from error
        message = f"{where}: {error.details()}"
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise UnsupportedError(message) from error
        status = Status.NOT_FOUND if code is grpc.StatusCode.NOT_FOUND else None
        raise InvalidArgumentError(message, status) from error


def error_text(content: bytes) -> str:
    """Return the error message of a v2 response; empty if the body has none."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, TypeError, KeyError):
        return ""


def _http_error(url: str, status: int, content: bytes) -> TritonError:
    text = error_text(content)
    if status in _REFUSED:
        details = f" ({text})" if text else ""
        return InvalidArgumentError(f"{url}: {_REFUSED[status]}, HTTP status {status}{details}: {_HEADERS}")
    message = f"{url}: {text or f'HTTP status {status}'}"
    if status == 404:
        return InvalidArgumentError(message, Status.NOT_FOUND)
    return {501: UnsupportedError, 503: UnavailableError}.get(status, InvalidArgumentError)(message)
