"""Find the model for a function of `tritonnb.profile`: from a handle, a server and a name, or a URL."""

from __future__ import annotations

from tritonnb.client.address import Addressed, ModelAddress
from tritonnb.client.model import Model
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.profile.http_target import HttpStreamTarget, HttpTarget
from tritonnb.profile.targets import InProcessTarget, Target
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server

#: A model, or a server and the name of a model: of this process, of a connection, or at a URL.
AnyModel = Model | Server | Addressed | ModelAddress | str


def find_model(model: AnyModel, name: str | None = None, over: str | None = None) -> ModelHandle | ModelAddress:
    """Find a model.

    Parameters
    ----------
    model : ModelHandle, Server, ModelAddress or str
        ``server["NAME"]``, a server, or a URL: ``HOST:PORT``, ``http://HOST:PORT`` or ``grpc://HOST:PORT``, each also
        with ``/v2/models/NAME`` and ``/versions/VERSION``.
    name : str, optional
        Name of the model, if ``model`` does not determine it.
    over : str, optional
        ``"process"``, ``"http"`` or ``"grpc"``; see `load`.

    Raises
    ------
    InvalidArgumentError
        If it is none of these, or does not determine one model.
    UnavailableError
        If the list of models is needed from a server that does not respond.
    """
    if over not in (None, "process", "http", "grpc"):
        raise InvalidArgumentError(f"over expected 'process', 'http' or 'grpc', got {over!r}")
    if isinstance(model, ModelAddress):
        return model
    if isinstance(model, Addressed):
        return model.address_of(name)
    if isinstance(model, str):
        if over == "process":
            raise InvalidArgumentError(f"over='process' expected a model of this process, got the URL '{model}'")
        return ModelAddress.parse(model, name, over)
    if isinstance(model, Server):
        return _find_on_server(model, name)
    if not isinstance(model, ModelHandle):
        raise InvalidArgumentError(
            f"model expected server['NAME'] or http://HOST:PORT/v2/models/NAME, got {type(model).__name__}"
        )
    if name not in (None, model.name):
        raise InvalidArgumentError(
            f"name expected '{model.name}', the name of the given model, got '{name}': give one of them"
        )
    return model


def open_target(model: ModelHandle | ModelAddress, over: str | None) -> Target:
    """Create the target of a load: one that streams if the model is decoupled.

    Raises
    ------
    InvalidArgumentError
        If the server does not know the model.
    UnavailableError
        If no server responds at the URL.
    UnsupportedError
        If the protocol cannot stream the requests that the model needs.
    """
    if not isinstance(model, ModelAddress):
        if over in (None, "process"):
            return InProcessTarget(model)
        model = remote_model(model, over)
    config = model.config()
    decoupled = config.model_transaction_policy.decoupled
    if model.protocol != "grpc":
        return (HttpStreamTarget if decoupled else HttpTarget)(model, config)
    from tritonnb.profile.grpc_target import GrpcStreamTarget, GrpcTarget  # imports grpcio

    return (GrpcStreamTarget if decoupled else GrpcTarget)(model, config)


def remote_model(model: ModelHandle, over: str | None) -> ModelAddress:
    """The address of a model of this process at the HTTP or gRPC endpoint of its server."""
    server = model.server
    authority = server.url.rpartition("://")[2]
    if over == "grpc":
        if server.grpc_port is None:
            raise UnavailableError(
                "over='grpc' expected a server with a gRPC endpoint, got one without: start it with grpc_port=0"
            )
        authority = f"127.0.0.1:{server.grpc_port}"
    elif not server.url:
        raise UnavailableError(
            "over='http' expected a server with an HTTP endpoint, got one without: start it with http_port=0"
        )
    return ModelAddress(over or "http", authority, "", model.name, model.version)


def config_of(model: ModelHandle | ModelAddress) -> pb.ModelConfig:
    """The configuration of the running model."""
    return model.config() if isinstance(model, ModelAddress) else model.served.config


def _find_on_server(server: Server, name: str | None) -> ModelHandle:
    names = sorted(server)
    if name is None and len(names) != 1:
        listed = ", ".join(map(repr, names)) or "none"
        raise InvalidArgumentError(f"model expected server['NAME'] with one of the models {listed}, got a server")
    return server[name or names[0]]
