"""A model of a server that is reached over HTTP or gRPC: its address, configuration and statistics."""

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

# grpcio is imported where it is used: `import tritonnb` does without it.
if TYPE_CHECKING:
    import grpc

#: What a URL may look like; without a scheme it is HTTP unless something else is asked for.
_URL = re.compile(
    r"(?:(?P<scheme>\w+)://)?(?P<authority>[^/\s]+)(?P<prefix>(?:/[^\s]*?)??)"
    r"(?:/v2(?:/models/(?P<name>[^/\s]+)(?:/versions/(?P<version>\d+))?)?)?/?"
)
_FORMS = "expected HOST:PORT, http://HOST:PORT or grpc://HOST:PORT, with /v2/models/NAME or with the model's name"
_PROTOCOLS = {"http": "http", "https": "http", "grpc": "grpc", "grpcs": "grpc"}
#: How long a server may take to answer what is asked of it before any traffic, in seconds.
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
        -1 for the one that the server chooses.
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
            The model, where the URL does not name it; a server with one model needs no name.
        over : str, optional
            ``"http"`` or ``"grpc"``, where the URL has no scheme.

        Raises
        ------
        InvalidArgumentError
            If it is not such a URL, contradicts ``name`` or ``over``, or does not say which of several models is meant.
        UnavailableError
            If no server answers there.
        """
        parts = _URL.fullmatch(url)
        scheme = "" if parts is None else (parts["scheme"] or over or "http").lower()
        if parts is None or scheme not in _PROTOCOLS:
            raise InvalidArgumentError(f"cannot read the URL '{url}': {_FORMS}")
        protocol = _PROTOCOLS[scheme]
        if over not in (None, protocol):
            raise InvalidArgumentError(f"over='{over}' contradicts '{url}': expected over='{protocol}', or another URL")
        if protocol == "grpc" and parts["prefix"]:
            raise InvalidArgumentError(f"cannot read the URL '{url}': {_FORMS}")
        named = unquote(parts["name"] or "")
        if named and name not in (None, named):
            raise InvalidArgumentError(f"'{url}' names model '{named}', and not '{name}': give one of them")
        model = cls(scheme, parts["authority"], parts["prefix"], named or name or "", int(parts["version"] or -1))
        return model if model.name else replace(model, name=model._only_name())

    @property
    def protocol(self) -> str:
        """``http`` or ``grpc``."""
        return _PROTOCOLS[self.scheme]

    @property
    def path(self) -> str:
        """The model's path of an HTTP URL."""
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
            If the server refuses, such as for a model that it does not know.
        UnavailableError
            If no server answers.
        """
        if self.protocol == "grpc":
            from tritonclient.grpc import service_pb2

            with self._stub() as stub:
                request = service_pb2.ModelConfigRequest(name=self.name, version=self._version())
                return stub.ModelConfig(request, timeout=_TIMEOUT_S).config
        return json_format.ParseDict(self._ask(f"{self.path}/config"), pb.ModelConfig(), ignore_unknown_fields=True)

    def stats(self) -> dict[str, Any]:
        """The entry of the model in the statistics extension; errors as `config`."""
        if self.protocol == "grpc":
            from tritonclient.grpc import service_pb2

            with self._stub() as stub:
                request = service_pb2.ModelStatisticsRequest(name=self.name, version=self._version())
                answer = json_format.MessageToDict(
                    stub.ModelStatistics(request, timeout=_TIMEOUT_S), preserving_proto_field_name=True
                )
        else:
            answer = self._ask(f"{self.path}/stats")
        entry: dict[str, Any] = answer["model_stats"][-1]
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
            models = self._ask(f"{self.prefix}/v2/repository/index", {"ready": True})
            names = sorted({model["name"] for model in models})
        if len(names) != 1:
            listed = ", ".join(map(repr, names)) or "none"
            server = f"{self.scheme}://{self.authority}{self.prefix}"
            raise InvalidArgumentError(
                f"{server} does not say which model is meant: expected {server}/v2/models/NAME; ready there: {listed}"
            )
        return str(names[0])

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of an HTTP response: of a GET, or of a POST if there is a body."""
        url = f"{self.scheme}://{self.authority}{path}"
        try:
            data = None if body is None else json.dumps(body).encode()
            with urllib.request.urlopen(urllib.request.Request(url, data), timeout=_TIMEOUT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise InvalidArgumentError(f"{url}: {error_text(error.read()) or error}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UnavailableError(f"no HTTP server of the v2 protocol answers at {url}: {error}") from error

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
                    raise UnavailableError(f"no gRPC server answers at {where}: {error.details()}") from error
                raise InvalidArgumentError(f"{self.url}: {error.details()}") from error


def error_text(content: bytes) -> str:
    """The error of a v2 response; empty where the body has none."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, TypeError, KeyError):
        return ""
