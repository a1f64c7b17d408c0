"""gRPC through grpcio: `grpc.aio` on the server's own loop."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import NoReturn, TypeAlias

import grpc
from grpc import aio

from tritonnb.core.errors import Status, TritonError
from tritonnb.endpoints.grpc.dispatch import RpcDispatcher
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.rpcs import INFER, RPC_NAMES, STREAM_INFER, status_text
from tritonnb.endpoints.grpc.transport.http2 import ALL_STARTED, MAX_CALLS
from tritonnb.engine.submission import as_triton_error

_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
Context: TypeAlias = aio.ServicerContext


class GrpcioServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A transport over grpcio for the RPCs of an endpoint."""

    def __init__(self, rpcs: RpcDispatcher, options: GrpcOptions) -> None:
        self._rpcs = rpcs
        self._options = options
        self._handlers = {path: self._handler(name) for path, name in RPC_NAMES.items()}
        self._unknown = grpc.unary_unary_rpc_method_handler(_unimplemented)
        compressed = options.infer_response_compression_level != "none"
        self._compression = grpc.Compression.Gzip if compressed else None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; the system chooses one if it is 0.

        Raises
        ------
        OSError
            If the port is taken.
        InvalidArgumentError
            If a file for TLS cannot be read.
        """
        limit = ("grpc.max_concurrent_streams", MAX_CALLS)
        # Calls beyond this limit of all connections get RESOURCE_EXHAUSTED: grpcio cannot let them wait.
        self._server = aio.server(
            options=[*self._options.channel_arguments(), limit], maximum_concurrent_rpcs=ALL_STARTED
        )
        self._server.add_generic_rpc_handlers((self,))
        credentials = self._options.credentials()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(errno.EADDRINUSE, str(error)) from error
        await self._server.start()
        return port

    async def stop(self, drain: float) -> None:
        """Accept no more requests; requests in progress have ``drain`` seconds."""
        self._rpcs.finish_streams()
        await self._server.stop(drain)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of a call (grpcio's interface).

        An unknown RPC is UNIMPLEMENTED with an empty message, as on Triton.
        """
        return self._handlers.get(handler_call_details.method, self._unknown)

    def _handler(self, name: str) -> grpc.RpcMethodHandler:
        if name == STREAM_INFER:
            return grpc.stream_stream_rpc_method_handler(self._stream_infer)

        async def handle(message: bytes, context: Context) -> bytes:
            try:
                response = await self._rpcs.call(name, message, metadata_of(context))
            except Exception as error:
                await _abort(context, error)
            if name == INFER and self._compression is not None:
                context.set_compression(self._compression)
            return response

        return grpc.unary_unary_rpc_method_handler(handle)

    async def _stream_infer(self, messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        if self._compression is not None:
            context.set_compression(self._compression)
        try:
            async with aclosing(self._rpcs.stream(messages, metadata_of(context))) as responses:
                async for message in responses:
                    yield message
        except TritonError as error:
            await _abort(context, error)


def status_code(status: Status) -> grpc.StatusCode:
    """Return grpcio's code for a status of Triton."""
    return _STATUS_CODES[status.grpc]


def metadata_of(context: Context) -> dict[str, str]:
    """Return the metadata of a call, without binary values."""
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


async def _unimplemented(message: bytes, context: Context) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
    raise AssertionError("abort raises an exception")


async def _abort(context: Context, error: Exception) -> NoReturn:
    """End an RPC with an error."""
    triton_error = as_triton_error(error)
    await context.abort(status_code(triton_error.status), status_text(triton_error))
    raise AssertionError("abort raises an exception")
