"""A server of the v2 protocol with Triton's extensions, over HTTP or gRPC.

Both classes have the same methods; results have the form of the HTTP endpoint.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from google.protobuf import json_format

from tritonnb.client.applied_config import split
from tritonnb.client.array_requests import Outputs
from tritonnb.client.infer_requests import HEADER_LENGTH, grpc_message, http_body
from tritonnb.client.options import ConnectionOptions, grpc_errors
from tritonnb.core.datatypes import BY_NAME, BYTES, decode_bytes
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.json_types import Json
from tritonnb.core.messages import InferRequest
from tritonnb.core.paths import working_directory
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.model_config.to_json import message_to_dict
from tritonnb.telemetry.statistics_entry import StatisticsEntry


@dataclass(frozen=True)
class V2Client(ABC):
    """A server; all methods raise `TritonError`.

    Attributes
    ----------
    scheme, authority, prefix : str
        ``http``, ``https``, ``grpc`` or ``grpcs``; ``HOST:PORT``; and the path before ``/v2``.
    access : ConnectionOptions
        Headers, TLS and time limit.
    directory : pathlib.Path
        The working directory when the client was made: of relative paths that a server of this machine reports.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> from tritonnb.client.array_requests import make_request
    >>> from tritonnb.model_config.schema import ModelSpec
    >>> with tnb.Server("model_repository", port=0, model_control_mode="explicit") as server:
    ...     client = tnb.connect(server.url).server
    ...     client.load("identity_fp32")
    ...     print(client.is_ready(), client.metadata()["name"], client.ready_models())
    ...     print([row for row in client.index() if "state" in row])
    ...     config = client.config("identity_fp32")
    ...     print(client.model_metadata("identity_fp32")["versions"], client.previous_config("identity_fp32"))
    ...     request = make_request(ModelSpec.from_config(config), -1, {"INPUT0": [[1.0]]})
    ...     print(client.infer("identity_fp32", -1, request, limit_s=10)["OUTPUT0"])
    ...     print(client.statistics("identity_fp32")[0]["inference_count"])
    ...     _ = client.update_trace_settings({"trace_rate": "5"}, "identity_fp32")
    ...     print(client.trace_settings("identity_fp32")["trace_rate"])
    ...     client.unload("identity_fp32")
    True triton ['identity_fp32']
    [{'name': 'identity_fp32', 'version': '1', 'state': 'READY'}]
    ['1'] None
    [[1.]]
    1
    5
    """

    scheme: str
    authority: str
    prefix: str = ""
    access: ConnectionOptions = field(default_factory=ConnectionOptions)
    directory: Path = field(default_factory=working_directory, repr=False, compare=False)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"{self.scheme}://{self.authority}{self.prefix}"

    @abstractmethod
    def _call(self, rpc: str, path: str, body: Json | None = None, **fields: Any) -> Any:
        """Call the server by path and body over HTTP, or by RPC and fields over gRPC; the response as JSON."""

    def metadata(self) -> Json:
        """Return the server's name, version and extensions.

        Raises
        ------
        InvalidArgumentError
            If something else than a server of the v2 protocol responds.
        """
        metadata = self._call("ServerMetadata", "")
        if not (isinstance(metadata, dict) and {"name", "version"} <= metadata.keys()):
            raise InvalidArgumentError(
                f"{self.url} expected a server of the v2 protocol, got a response without its name and version: "
                "Triton's HTTP endpoint is at port 8000 by default, its metrics are at port 8002"
            )
        return metadata

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether the server and all of its models are ready."""

    def index(self) -> list[dict[str, str]]:
        """Return the name, version, state and reason of each model in the repository."""
        response = self._call("RepositoryIndex", "/repository/index", {})
        rows = response["models"] if isinstance(response, dict) else response
        return [{name: str(value) for name, value in row.items() if value} for row in rows]

    def ready_models(self) -> list[str]:
        """Return the names of the models that are ready."""
        return list(dict.fromkeys(row["name"] for row in self.index() if row.get("state") == "READY"))

    def model_metadata(self, name: str, version: int = -1) -> Json:
        """Return the platform, versions, inputs and outputs of a model.

        Parameters
        ----------
        name : str
        version : int, optional
            By default -1: the server chooses.
        """
        metadata: Json = self._call("ModelMetadata", model_path(name, version), **_fields(name, version))
        return metadata

    def config(self, name: str, version: int = -1) -> pb.ModelConfig:
        """Return the configuration of a model.

        Parameters
        ----------
        name : str
        version : int, optional
            By default -1: the server chooses.
        """
        return split(self._returned_config(name, version))[0]

    def previous_config(self, name: str) -> pb.ModelConfig | None:
        """Return the configuration that a model had before another was applied over the network; None if none was."""
        return split(self._returned_config(name))[1]

    @abstractmethod
    def _returned_config(self, name: str, version: int = -1) -> pb.ModelConfig:
        """Return both configurations, as the server returns them; see `tritonnb.client.applied_config`."""

    def statistics(self, name: str = "", version: int = -1) -> list[StatisticsEntry]:
        """Return the statistics of a model, or of all: one entry for each version.

        Parameters
        ----------
        name : str, optional
        version : int, optional
            By default all versions.
        """
        path = model_path(name, version) if name else "/models"
        entries: list[StatisticsEntry] = self._call("ModelStatistics", f"{path}/stats", **_fields(name, version))[
            "model_stats"
        ]
        return entries

    def load(self, name: str, config: str | None = None) -> None:
        """Load a model, with a configuration in JSON in place of the repository's configuration.

        Parameters
        ----------
        name : str
        config : str, optional
            JSON.
        """
        body = {} if config is None else {"parameters": {"config": config}}
        parameters = {} if config is None else {"config": {"string_param": config}}
        path = f"/repository/models/{quote(name, safe='')}/load"
        self._call("RepositoryModelLoad", path, body, model_name=name, parameters=parameters)

    def unload(self, name: str) -> None:
        """Unload a model."""
        self._call("RepositoryModelUnload", f"/repository/models/{quote(name, safe='')}/unload", {}, model_name=name)

    def trace_settings(self, model: str = "") -> Json:
        """Return the trace settings of a model, or of the server.

        Parameters
        ----------
        model : str, optional
        """
        return self.update_trace_settings({}, model)

    @abstractmethod
    def update_trace_settings(self, changes: Mapping[str, Any], model: str = "") -> Json:
        """Change trace settings and return them; None clears a setting.

        Parameters
        ----------
        changes : mapping of str to str, list of str or None
        model : str, optional

        Returns
        -------
        dict
            All settings.
        """

    @abstractmethod
    def infer(self, name: str, version: int, request: InferRequest, limit_s: float) -> Outputs:
        """Run one inference with inputs of the model's datatypes, within a time limit in seconds.

        Parameters
        ----------
        name : str
        version : int
            -1 lets the server choose.
        request : InferRequest
        limit_s : float

        Returns
        -------
        dict of str to numpy.ndarray
        """


class V2HttpClient(V2Client):
    """A server over HTTP."""

    def _call(self, rpc: str, path: str, body: Json | None = None, **fields: Any) -> Any:
        return self.access.fetch_json(f"{self.url}/v2{path}", body)

    def is_ready(self) -> bool:
        """Return whether the server and all of its models are ready."""
        try:
            self.access.fetch(f"{self.url}/v2/health/ready")
        except InvalidArgumentError:
            return False
        return True

    def _returned_config(self, name: str, version: int = -1) -> pb.ModelConfig:
        fields = self._call("ModelConfig", f"{model_path(name, version)}/config")
        config: pb.ModelConfig = json_format.ParseDict(fields, pb.ModelConfig(), ignore_unknown_fields=True)
        return config

    def update_trace_settings(self, changes: Mapping[str, Any], model: str = "") -> Json:
        """Change trace settings and return them; None clears a setting."""
        path = f"{model_path(model) if model else ''}/trace/setting"
        settings: Json = self._call("TraceSetting", path, dict(changes) or None)
        return settings

    def infer(self, name: str, version: int, request: InferRequest, limit_s: float) -> Outputs:
        """Run one inference with inputs of the model's datatypes, within a time limit in seconds."""
        members: Json = {"id": request.id} if request.id else {}
        if request.requested_outputs is not None:
            binary = {"binary_data": True}
            members["outputs"] = [{"name": output, "parameters": binary} for output in request.requested_outputs]
        json_length, body = http_body(request.inputs.values(), _parameters(request), **members)
        url = f"{self.url}/v2{model_path(name, version)}/infer"
        content, headers = self.access.fetch(url, body, {HEADER_LENGTH: str(json_length)}, limit_s)
        at = length = int(headers.get(HEADER_LENGTH, len(content)))
        outputs: Outputs = {}
        for output in json.loads(content[:length])["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            data = output["data"] if size is None else content[at : at + size]
            at += size or 0
            outputs[output["name"]] = _array(output["datatype"], output["shape"], data)
        return outputs


class V2GrpcClient(V2Client):
    """A server over gRPC."""

    def _call(self, rpc: str, path: str, body: Json | None = None, **fields: Any) -> Any:
        return message_to_dict(self._message(rpc, **fields), unset=True)

    def _message(self, rpc: str, **fields: Any) -> Any:
        from tritonnb.core.protobuf import service_pb2

        with self._stub(self.url, self.access.timeout_s) as call:
            return call(rpc, getattr(service_pb2, f"{rpc}Request")(**fields))

    @contextmanager
    def _stub(self, where: str, limit_s: float) -> Iterator[Any]:
        """Provide a function that calls an RPC on a new channel, and raises `TritonError`."""
        with self.access.channel(self.scheme, self.authority) as channel, grpc_errors(where, limit_s):
            from tritonclient.grpc import service_pb2_grpc

            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            yield lambda rpc, message: getattr(stub, rpc)(message, timeout=limit_s, metadata=self.access.metadata)

    def is_ready(self) -> bool:
        """Return whether the server and all of its models are ready."""
        return bool(self._message("ServerReady").ready)

    def _returned_config(self, name: str, version: int = -1) -> pb.ModelConfig:
        response = self._message("ModelConfig", **_fields(name, version))
        return pb.ModelConfig.FromString(response.config.SerializeToString())

    def update_trace_settings(self, changes: Mapping[str, Any], model: str = "") -> Json:
        """Change trace settings and return them; None clears a setting."""
        settings = {name: {"value": _values(value)} for name, value in changes.items()}
        response = self._message("TraceSetting", settings=settings, model_name=model)
        return {
            name: list(setting.value) if name == "trace_level" else "".join(setting.value)
            for name, setting in response.settings.items()
        }

    def infer(self, name: str, version: int, request: InferRequest, limit_s: float) -> Outputs:
        """Run one inference with inputs of the model's datatypes, within a time limit in seconds."""
        message = grpc_message(name, version, request.inputs.values(), _parameters(request))
        message.id = request.id
        for output in request.requested_outputs or ():
            message.outputs.add(name=output)
        with self._stub(f"{self.url}/v2{model_path(name, version)}", limit_s) as call:
            response = call("ModelInfer", message)
        return {
            output.name: _array(output.datatype, list(output.shape), content)
            for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
        }


def make_client(scheme: str, authority: str, prefix: str, access: ConnectionOptions) -> V2Client:
    """Return the server at an address."""
    if scheme.startswith("grpc"):
        return V2GrpcClient(scheme, authority, "", access)
    return V2HttpClient(scheme, authority, prefix, access)


def model_path(name: str, version: int = -1) -> str:
    """Return the path of a model after ``/v2``."""
    return f"/models/{quote(name, safe='')}{'' if version == -1 else f'/versions/{version}'}"


def _fields(name: str, version: int) -> Json:
    """Return the fields of a message that name a model."""
    return {"name": name, "version": "" if version == -1 else str(version)}


def _values(value: Any) -> list[str]:
    """Return the values of a trace setting; none clears it."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def _parameters(request: InferRequest) -> Json:
    parameters: Json = dict(request.parameters)
    if request.correlation_id:
        parameters["sequence_id"] = request.correlation_id
        parameters["sequence_start"] = bool(request.flags & SEQUENCE_START)
        parameters["sequence_end"] = bool(request.flags & SEQUENCE_END)
    if request.priority:
        parameters["priority"] = request.priority
    if request.timeout_us:
        parameters["timeout"] = request.timeout_us
    return parameters


def _array(datatype_name: str, shape: list[int], data: Any) -> npt.NDArray[Any]:
    """Return the tensor in the binary or in the JSON form."""
    datatype = BY_NAME.get(datatype_name)
    if datatype is None:
        raise InvalidArgumentError(f"response expected a datatype of the v2 protocol, got '{datatype_name}'")
    if isinstance(data, list):
        strings = [item.encode() if isinstance(item, str) else item for item in data]
        return np.array(strings, datatype.numpy).reshape(shape)
    if datatype is BYTES:
        return decode_bytes(data).reshape(shape)
    return datatype.to_values(np.frombuffer(data, datatype.numpy).reshape(shape)).copy()
