"""The gRPC endpoint, on one of two transports."""

from __future__ import annotations

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.grpcio import require_grpcio
from tritonnb.endpoints.endpoint import Endpoint
from tritonnb.endpoints.grpc.dispatch import RpcDispatcher
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.transport.fast_server import Http2Server
from tritonnb.engine.engine import Engine


def grpc_endpoint(engine: Engine, *, host: str, options: GrpcOptions) -> Endpoint:
    """Make the gRPC endpoint of an engine, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    options : GrpcOptions

    Raises
    ------
    InvalidArgumentError
        If the transport does not exist, or does not support an option.
    UnsupportedError
        If it needs grpcio, which is not installed.
    """
    if options.transport not in ("auto", "fast", "grpcio"):
        raise InvalidArgumentError(
            f"GrpcOptions.transport: expected 'auto', 'fast' or 'grpcio', got {options.transport!r}"
        )
    if options.transport == "fast" and options.grpcio_options:
        names = " and ".join(options.grpcio_options)
        raise InvalidArgumentError(f"GrpcOptions.transport: expected 'auto' or 'grpcio' with {names}, got 'fast'")
    # A quiet fallback for "auto", but an error for "fast": who asks for the fast transport must not get the slow one
    # because of an option.
    dispatcher = RpcDispatcher(engine, options)
    if options.transport != "grpcio" and not options.grpcio_options:
        return Endpoint(host, Http2Server(dispatcher, options))
    require_grpcio("gRPC with " + (" and ".join(options.grpcio_options) or "the transport 'grpcio'"))
    from tritonnb.endpoints.grpc.transport.grpcio_server import GrpcioServer

    return Endpoint(host, GrpcioServer(dispatcher, options))
