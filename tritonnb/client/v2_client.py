"""A server of the v2 protocol with Triton's extensions, over HTTP or gRPC.

Both classes have the same methods, whose results have the form of the HTTP endpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from urllib.parse import quote

from google.protobuf import json_format

from tritonnb.client.applied_config import split
from tritonnb.client.options import ConnectionOptions, grpc_errors
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.to_json import message_to_dict
from tritonnb.telemetry.statistics_entry import StatisticsEntry


class V2Client(Protocol):
    """What is asked of a server; all methods raise `TritonError`."""

    @property
    def access(self) -> ConnectionOptions:
        """Headers, TLS and time limit."""

    @property
    def url(self) -> str:
        """The URL of the server."""

    def metadata(self) -> Json:
        """Name, version and extensions."""

    def is_ready(self) -> bool:
        """Whether the server and all of its models are ready."""

    def index(self) -> list[dict[str, str]]:
        """Name, version, state and reason of each model in the repository."""

    def model_metadata(self, name: str, version: int = -1) -> Json:
        """Platform, versions, inputs and outputs of a model."""

    def config(self, name: str, version: int = -1) -> pb.ModelConfig:
        """The configuration of a model."""

    def previous_config(self, name: str) -> pb.ModelConfig | None:
        """The configuration that a model had before another was applied over the network; None if none was."""

    def statistics(self, name: str = "", version: int = -1) -> list[StatisticsEntry]:
        """The statistics of a model, or of all: one entry for each version."""

    def load(self, name: str, config: str | None = None) -> None:
        """Load a model, with a configuration in JSON in place of the one of the repository."""

    def unload(self, name: str) -> None:
        """Unload a model."""

    def trace_settings(self, model: str = "") -> Json:
        """The trace settings of a model, or of the server."""

    def update_trace_settings(self, changes: Mapping[str, Any], model: str = "") -> Json:
        """Change trace settings; None clears one. Returns the settings."""


class _Configurations(ABC):
    """The two configurations in the one that a server returns; see `tritonnb.client.applied_config`."""

    @abstractmethod
    def _returned_config(self, name: str, version: int = -1) -> pb.ModelConfig:
        """The response of the config endpoint."""

    def config(self, name: str, version: int = -1) -> pb.ModelConfig:
        """The configuration of a model."""
        return split(self._returned_config(name, version))[0]

    def previous_config(self, name: str) -> pb.ModelConfig | None:
        """The configuration that a model had before another was applied over the network; None if none was."""
        return split(self._returned_config(name))[1]


@dataclass(frozen=True)
class V2HttpClient(_Configurations):
    """A server over HTTP.

    Attributes
    ----------
    scheme, authority, prefix : str
        ``http`` or ``https``, ``HOST:PORT``, and the path before ``/v2``.
    access : ConnectionOptions
    """

    scheme: str
    authority: str
    prefix: str = ""
    access: ConnectionOptions = field(default_factory=ConnectionOptions)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"{self.scheme}://{self.authority}{self.prefix}"

    def metadata(self) -> Json:
        """Name, version and extensions.

        Raises
        ------
        InvalidArgumentError
            If something else than a server of the v2 protocol responds.
        """
        metadata = self._get("")
        if not (isinstance(metadata, dict) and {"name", "version"} <= metadata.keys()):
            raise InvalidArgumentError(
                f"{self.url} expected a server of the v2 protocol, got a response without its name and version: "
                "Triton's HTTP endpoint is at port 8000 by default, its metrics are at port 8002"
            )
        return metadata

    def is_ready(self) -> bool:
        """Whether the server and all of its models are ready."""
        try:
            self.access.fetch(f"{self.url}/v2/health/ready")
        except InvalidArgumentError:
            return False
        return True

    def index(self) -> list[dict[str, str]]:
        """Name, version, state and reason of each model in the repository."""
        index: list[dict[str, str]] = self._post("/repository/index", {})
        return index

    def model_metadata(self, name: str, version: int = -1) -> Json:
        """Platform, versions, inputs and outputs of a model."""
        metadata: Json = self._get(model_path(name, version))
        return metadata

    def _returned_config(self, name: str, version: int = -1) -> pb.ModelConfig:
        fields = self._get(f"{model_path(name, version)}/config")
        config: pb.ModelConfig = json_format.ParseDict(fields, pb.ModelConfig(), ignore_unknown_fields=True)
        return config

    def statistics(self, name: str = "", version: int = -1) -> list[StatisticsEntry]:
        """The statistics of a model, or of all: one entry for each version."""
        entries: list[StatisticsEntry] = self._get(f"{model_path(name, version) if name else '/models'}/stats")[
            "model_stats"
        ]
        return entries

    def load(self, name: str, config: str | None = None) -> None:
        """Load a model, with a configuration in JSON in place of the one of the repository."""
        body = {} if config is None else {"parameters": {"config": config}}
        self._post(f"/repository/models/{quote(name, safe='')}/load", body)

    def unload(self, name: str) -> None:
        """Unload a model."""
        self._post(f"/repository/models/{quote(name, safe='')}/unload", {})

    def trace_settings(self, model: str = "") -> Json:
        """The trace settings of a model, or of the server."""
        settings: Json = self._get(f"{model_path(model) if model else ''}/trace/setting")
        return settings

    def update_trace_settings(self, changes: Mapping[str, Any], model: str = "") -> Json:
        """Change trace settings; None clears one. Returns the settings."""
        settings: Json = self._post(f"{model_path(model) if model else ''}/trace/setting", changes)
        return settings

    def _get(self, path: str) -> Any:
        return self.access.fetch_json(f"{self.url}/v2{path}")

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.access.fetch_json(f"{self.url}/v2{path}", body)


@dataclass(frozen=True)
class V2GrpcClient(_Configurations):
    """A server over gRPC; attributes as `V2HttpClient`, with ``grpc`` or ``grpcs``."""

    scheme: str
    authority: str
    prefix: str = ""
    access: ConnectionOptions = field(default_factory=ConnectionOptions)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"{self.scheme}://{self.authority}"

    def metadata(self) -> Json:
        """Name, version and extensions."""
        return message_to_dict(self._call("ServerMetadata"))

    def is_ready(self) -> bool:
        """Whether the server and all of its models are ready."""
        return bool(self._call("ServerReady").ready)

    def index(self) -> list[dict[str, str]]:
        """Name, version, state and reason of each model in the repository."""
        rows = map(message_to_dict, self._call("RepositoryIndex").models)
        return [{name: str(value) for name, value in row.items() if value} for row in rows]

    def model_metadata(self, name: str, version: int = -1) -> Json:
        """Platform, versions, inputs and outputs of a model."""
        return message_to_dict(self._call("ModelMetadata", name=name, version=_version_text(version)))

    def _returned_config(self, name: str, version: int = -1) -> pb.ModelConfig:
        response = self._call("ModelConfig", name=name, version=_version_text(version))
        return pb.ModelConfig.FromString(response.config.SerializeToString())

    def statistics(self, name: str = "", version: int = -1) -> list[StatisticsEntry]:
        """The statistics of a model, or of all: one entry for each version."""
        response = self._call("ModelStatistics", name=name, version=_version_text(version))
        return [cast("StatisticsEntry", message_to_dict(model, unset=True)) for model in response.model_stats]

    def load(self, name: str, config: str | None = None) -> None:
        """Load a model, with a configuration in JSON in place of the one of the repository."""
        parameters = {} if config is None else {"config": {"string_param": config}}
        self._call("RepositoryModelLoad", model_name=name, parameters=parameters)

    def unload(self, name: str) -> None:
        """Unload a model."""
        self._call("RepositoryModelUnload", model_name=name)

    def trace_settings(self, model: str = "") -> Json:
        """The trace settings of a model, or of the server."""
        return self.update_trace_settings({}, model)

    def update_trace_settings(self, changes: Mapping[str, Any], model: str = "") -> Json:
        """Change trace settings; None clears one. Returns the settings."""
        settings = {name: {"value": _values(value)} for name, value in changes.items()}
        response = self._call("TraceSetting", settings=settings, model_name=model)
        return {
            name: list(setting.value) if name == "trace_level" else "".join(setting.value)
            for name, setting in response.settings.items()
        }

    def _call(self, method: str, **fields: Any) -> Any:
        from tritonclient.grpc import service_pb2

        request = getattr(service_pb2, f"{method}Request")(**fields)
        with self.stub() as stub:
            return getattr(stub, method)(request, timeout=self.access.timeout_s, metadata=self.access.metadata)

    @contextmanager
    def stub(self) -> Iterator[Any]:
        """A client for calls; it closes its channel, and its errors are `TritonError`."""
        from tritonclient.grpc import service_pb2_grpc

        errors = grpc_errors(self.url, self.access.timeout_s)
        with self.access.channel(self.scheme, self.authority) as channel, errors:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def make_client(scheme: str, authority: str, prefix: str, access: ConnectionOptions) -> V2Client:
    """The server at an address."""
    kind = V2GrpcClient if scheme.startswith("grpc") else V2HttpClient
    return kind(scheme, authority, prefix, access)


def model_path(name: str, version: int = -1) -> str:
    """The path of a model after ``/v2``."""
    return f"/models/{quote(name, safe='')}{'' if version == -1 else f'/versions/{version}'}"


def _version_text(version: int) -> str:
    return "" if version == -1 else str(version)


def _values(value: Any) -> list[str]:
    """The values of a trace setting; none clears it."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)
