"""The gRPC port, on one of two transports."""

from __future__ import annotations

from tritonnb.endpoints.grpc.fast_server import FastServer
from tritonnb.endpoints.grpc.grpcio_server import GrpcioServer
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.rpcs import Rpcs
from tritonnb.runtime.engine import Engine


class GrpcEndpoint:
    """Serves an engine over gRPC, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    port : int
        0 for any free one; `port` says which.
    options : GrpcOptions
    """

    def __init__(self, engine: Engine, *, host: str, port: int, options: GrpcOptions) -> None:
        self.host = host
        self.port = port
        if options.transport not in ("auto", "fast", "grpcio"):
            raise ValueError(f"transport must be 'auto', 'fast' or 'grpcio', not {options.transport!r}")
        use_fast = options.transport == "fast" or (options.transport == "auto" and not options.needs_grpcio)
        self._server: FastServer | GrpcioServer = (FastServer if use_fast else GrpcioServer)(
            Rpcs(engine, options), options
        )

    async def start(self) -> None:
        """Listen.

        Raises
        ------
        OSError
            If the port is taken.
        InvalidArgumentError
            If the files for TLS cannot be read.
        """
        self.port = await self._server.start(self.host, self.port)

    async def stop(self, drain: float) -> None:
        """Accept no more requests; those in progress have ``drain`` seconds."""
        await self._server.stop(drain)
