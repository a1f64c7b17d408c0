"""The gRPC endpoint, on one of two transports."""

from __future__ import annotations

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.endpoint import Endpoint, Transport
from tritonnb.endpoints.grpc.dispatch import RpcDispatcher
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.transport.fast_server import Http2Server
from tritonnb.endpoints.grpc.transport.grpcio_server import GrpcioServer
from tritonnb.runtime.engine import Engine


class GrpcEndpoint(Endpoint):
    """The gRPC endpoint of an engine, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    options : GrpcOptions
    """

    def __init__(self, engine: Engine, *, host: str, options: GrpcOptions) -> None:
        super().__init__(host)
        if options.transport not in ("auto", "fast", "grpcio"):
            raise InvalidArgumentError(
                f"GrpcOptions.transport: expected 'auto', 'fast' or 'grpcio', got {options.transport!r}"
            )
        if options.transport == "fast" and options.needs_grpcio:
            names = " and ".join(options.grpcio_options)
            raise InvalidArgumentError(f"GrpcOptions.transport: expected 'auto' or 'grpcio' with {names}, got 'fast'")
        self._rpcs = RpcDispatcher(engine, options)
        self._options = options

    def make_transport(self) -> Transport:
        """Make the gRPC server that the options name."""
        options = self._options
        use_fast = options.transport == "fast" or (options.transport == "auto" and not options.needs_grpcio)
        return (Http2Server if use_fast else GrpcioServer)(self._rpcs, options)
