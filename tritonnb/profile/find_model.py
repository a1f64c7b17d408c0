"""The model that a function of `tritonnb.profile` is called for: a handle, a server and a name, or a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.profile.over_http import OverHttp
from tritonnb.profile.remote import RemoteModel
from tritonnb.profile.targets import InProcess, Target

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle
    from tritonnb.server.server import Server


def find_model(
    model: ModelHandle | Server | RemoteModel | str, name: str | None = None, over: str | None = None
) -> ModelHandle | RemoteModel:
    """The model that is meant.

    Parameters
    ----------
    model : ModelHandle, Server, RemoteModel or str
        ``server["NAME"]``, a server, or a URL: ``HOST:PORT``, ``http://HOST:PORT`` or ``grpc://HOST:PORT``, each also
        with ``/v2/models/NAME`` and ``/versions/VERSION``.
    name : str, optional
        The model, where ``model`` does not name it.
    over : str, optional
        ``"process"``, ``"http"`` or ``"grpc"``; see `load`.

    Raises
    ------
    InvalidArgumentError
        If it is none of these, or does not say which model is meant.
    UnavailableError
        If a server must be asked which models it has, and does not answer.
    """
    if over not in (None, "process", "http", "grpc"):
        raise InvalidArgumentError(f"over cannot be '{over}': expected 'process', 'http' or 'grpc'")
    if isinstance(model, RemoteModel):
        return model
    if isinstance(model, str):
        if over == "process":
            raise InvalidArgumentError(f"over='process' contradicts '{model}': expected a model of this process")
        return RemoteModel.parse(model, name, over)
    if hasattr(model, "engine"):
        return _of_server(cast("Server", model), name)
    if not hasattr(model, "served"):
        raise InvalidArgumentError(
            f"expected a model, as server['NAME'] or http://HOST:PORT/v2/models/NAME, got {type(model).__name__}"
        )
    if name not in (None, model.name):
        raise InvalidArgumentError(f"this is model '{model.name}', and not '{name}': give one of them")
    return model


def open_target(model: ModelHandle | RemoteModel, over: str | None) -> Target:
    """Where the requests of a load go; errors as those of the targets."""
    if not isinstance(model, RemoteModel):
        if over in (None, "process"):
            return InProcess(model)
        model = remote_model(model, over)
    if model.protocol != "grpc":
        return OverHttp(model)
    from tritonnb.profile.over_grpc import OverGrpc  # imports grpcio

    return OverGrpc(model)


def remote_model(model: ModelHandle, over: str | None) -> RemoteModel:
    """A model of this process, as clients of its server's HTTP or gRPC endpoint see it."""
    server = model.server
    authority = server.url.rpartition("://")[2]
    if over == "grpc":
        if server.grpc_port is None:
            raise UnavailableError("the server has no gRPC endpoint: start it with grpc_port=0")
        authority = f"127.0.0.1:{server.grpc_port}"
    elif not server.url:
        raise UnavailableError("the server has no HTTP endpoint")
    return RemoteModel(over or "http", authority, "", model.name, model.version)


def config_of(model: ModelHandle | RemoteModel) -> pb.ModelConfig:
    """The configuration that the model runs with."""
    return model.config() if isinstance(model, RemoteModel) else model.served.config


def _of_server(server: Server, name: str | None) -> ModelHandle:
    names = sorted(server)
    if name is None and len(names) != 1:
        listed = ", ".join(map(repr, names)) or "none"
        raise InvalidArgumentError(f"a server does not say which model is meant: expected server['NAME'], of {listed}")
    return server[name or names[0]]
