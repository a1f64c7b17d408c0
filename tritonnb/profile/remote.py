"""A model of a remote server: its address, configuration and statistics, over HTTP or gRPC."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from google.protobuf import json_format

from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.protobuf import model_config_pb2 as pb

# grpcio is imported where it is used: `import tritonnb` does not need it.
if TYPE_CHECKING:
    import grpc

#: The accepted URLs; without a scheme the protocol is HTTP or the one of ``over``.
_URL = re.compile(
    r"(?:(?P<scheme>\w+)://)?(?P<authority>[^/\s]+)(?P<prefix>(?:/[^\s]*?)??)"
    r"(?:/v2(?:/models/(?P<name>[^/\s]+)(?:/versions/(?P<version>\d+))?)?)?/?"
)
_FORMS = "expected HOST:PORT, http://HOST:PORT or grpc://HOST:PORT, with /v2/models/NAME or with the model's name"
_PROTOCOLS = {"http": "http", "https": "http", "grpc": "grpc", "grpcs": "grpc"}
#: How long a server may take to response what is asked of it before any traffic, in seconds.
_TIMEOUT_S = 30


@dataclass(frozen=True)
class RemoteModel:
    """A model of a server of the v2 protocol.

    Attributes
    ----------
    scheme : str
        ``http``, ``https``, ``grpc`` or ``grpcs``.
    authority : str
        ``HOST:PORT``.
    prefix : str
        The path before ``/v2``; empty for most servers.
    name : str
    version : int
        -1 lets the server choose.
    """

    scheme: str
    authority: str
    prefix: str
    name: str
    version: int = -1

    @classmethod
    def parse(cls, url: str, name: str | None = None, over: str | None = None) -> RemoteModel:
        """Read a URL, with or without a scheme and the path of a model.

        Parameters
        ----------
        url : str
        name : str, optional
            Name of the model, if the URL does not contain it and the server has several models.
        over : str, optional
            ``"http"`` or ``"grpc"``, for a URL without a scheme.

        Raises
        ------
        InvalidArgumentError
            If it is not such a URL, contradicts ``name`` or ``over``, or does not name one of several models.
        UnavailableError
            If no server responds at the URL.
        """
        parts = _URL.fullmatch(url)
        scheme = "" if parts is None else (parts["scheme"] or over or "http").lower()
        if parts is None or scheme not in _PROTOCOLS:
            raise InvalidArgumentError(f"URL '{url}': {_FORMS}")
        protocol = _PROTOCOLS[scheme]
        if over not in (None, protocol):
            raise InvalidArgumentError(
                f"over expected '{protocol}' for the URL '{url}', got '{over}': change one of them"
            )
        if protocol == "grpc" and parts["prefix"]:
            raise InvalidArgumentError(f"URL '{url}': {_FORMS}")
        named = unquote(parts["name"] or "")
        if named and name not in (None, named):
            raise InvalidArgumentError(f"name expected '{named}' for the URL '{url}', got '{name}': give one of them")
        model = cls(scheme, parts["authority"], parts["prefix"], named or name or "", int(parts["version"] or -1))
        return model if model.name else replace(model, name=model._only_name())

    @property
    def protocol(self) -> str:
        """``http`` or ``grpc``."""
        return _PROTOCOLS[self.scheme]

    @property
    def path(self) -> str:
        """Path of the model in an HTTP URL."""
        version = "" if self.version == -1 else f"/versions/{self.version}"
        return f"{self.prefix}/v2/models/{quote(self.name, safe='')}{version}"

    @property
    def url(self) -> str:
        """The URL of the model."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def sibling(self, name: str, version: int) -> RemoteModel:
        """Another model of the same server."""
        return replace(self, name=name, version=version)

    def config(self) -> pb.ModelConfig:
        """The model's configuration.

        Raises
        ------
        InvalidArgumentError
            If the server responds with an error, for example for an unknown model.
        UnavailableError
            If no server responds.
        """
        if self.protocol == "grpc":
            from tritonclient.grpc import service_pb2

            with self._stub() as stub:
                request = service_pb2.ModelConfigRequest(name=self.name, version=self._version())
                return stub.ModelConfig(request, timeout=_TIMEOUT_S).config
        return json_format.ParseDict(
            self._fetch_json(f"{self.path}/config"), pb.ModelConfig(), ignore_unknown_fields=True
        )

    def stats(self) -> dict[str, Any]:
        """The entry of the model in the statistics extension; errors as `config`."""
        if self.protocol == "grpc":
            from tritonclient.grpc import service_pb2

            with self._stub() as stub:
                request = service_pb2.ModelStatisticsRequest(name=self.name, version=self._version())
                response = json_format.MessageToDict(
                    stub.ModelStatistics(request, timeout=_TIMEOUT_S), preserving_proto_field_name=True
                )
        else:
            response = self._fetch_json(f"{self.path}/stats")
        entry: dict[str, Any] = response["model_stats"][-1]
        return entry

    def _version(self) -> str:
        return "" if self.version == -1 else str(self.version)

    def _only_name(self) -> str:
        """The name of the server's only model."""
        if self.protocol == "grpc":
            from tritonclient.grpc import service_pb2

            with self._stub() as stub:
                index = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True), timeout=_TIMEOUT_S)
                names = sorted({model.name for model in index.models})
        else:
            models = self._fetch_json(f"{self.prefix}/v2/repository/index", {"ready": True})
            names = sorted({model["name"] for model in models})
        if len(names) != 1:
            listed = ", ".join(map(repr, names)) or "none"
            server = f"{self.scheme}://{self.authority}{self.prefix}"
            raise InvalidArgumentError(
                f"URL of a model expected {server}/v2/models/NAME, got {server}: models ready there: {listed}"
            )
        return str(names[0])

    def _fetch_json(self, path: str, body: dict[str, object] | None = None) -> Any:
        """Send a GET, or a POST if there is a body, and decode the JSON of the response."""
        url = f"{self.scheme}://{self.authority}{path}"
        try:
            data = None if body is None else json.dumps(body).encode()
            with urllib.request.urlopen(urllib.request.Request(url, data), timeout=_TIMEOUT_S) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise InvalidArgumentError(f"{url}: {error_text(error.read()) or error}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UnavailableError(f"no HTTP server of the v2 protocol responds at {url}: {error}") from error

    def channel(self) -> grpc.Channel:
        """A new gRPC channel to the server."""
        import grpc

        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        if self.scheme == "grpcs":
            return grpc.secure_channel(self.authority, grpc.ssl_channel_credentials(), options)
        return grpc.insecure_channel(self.authority, options)

    @contextmanager
    def _stub(self) -> Iterator[Any]:
        import grpc
        from tritonclient.grpc import service_pb2_grpc

        with self.channel() as channel:
            try:
                yield service_pb2_grpc.GRPCInferenceServiceStub(channel)
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    where = f"{self.scheme}://{self.authority}"
                    raise UnavailableError(f"no gRPC server responds at {where}: {error.details()}") from error
                raise InvalidArgumentError(f"{self.url}: {error.details()}") from error


def error_text(content: bytes) -> str:
    """The error message of a v2 response; empty if the body has none."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, TypeError, KeyError):
        return ""
