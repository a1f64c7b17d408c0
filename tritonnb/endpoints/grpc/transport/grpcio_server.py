"""gRPC through grpcio: `grpc.aio` on the server's own loop."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import NoReturn, TypeAlias

import grpc
from google.protobuf.message import Message
from grpc import aio

from tritonnb.core.errors import Status, TritonError
from tritonnb.endpoints.grpc.dispatch import RpcDispatcher
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.rpcs import HEALTH, HEALTH_PATH, INFER, RPCS, STREAM_INFER
from tritonnb.endpoints.grpc.stream import InferStream
from tritonnb.endpoints.request_rules import as_triton_error, client_text

_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
Context: TypeAlias = aio.ServicerContext


class GrpcioServer:
    """A transport over grpcio for the RPCs of an endpoint."""

    def __init__(self, rpcs: RpcDispatcher, options: GrpcOptions) -> None:
        self._rpcs = rpcs
        self._options = options
        self._streams: set[InferStream] = set()
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
        self._server = aio.server(options=self._options.channel_arguments())
        self._server.add_generic_rpc_handlers((_Handlers(self._handlers()),))
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
        """Accept no more requests; those in progress have ``drain`` seconds."""
        for stream in self._streams:
            stream.finish()
        await self._server.stop(drain)

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        handlers = {HEALTH_PATH: grpc.unary_unary_rpc_method_handler(self._unary(HEALTH, bytes))}
        for path, rpc in RPCS.items():
            codec = None, rpc.response.SerializeToString
            if rpc.name == STREAM_INFER:
                handlers[path] = grpc.stream_stream_rpc_method_handler(self._stream_infer, *codec)
            elif rpc.name == INFER:
                handlers[path] = grpc.unary_unary_rpc_method_handler(self._infer, *codec)
            else:
                handlers[path] = grpc.unary_unary_rpc_method_handler(self._unary(rpc.name, rpc.read), *codec)
        return handlers

    def _unary(self, name: str, read: Callable[[bytes], Message | bytes]) -> Callable[..., Awaitable[Message | bytes]]:
        async def handle(message: bytes, context: Context) -> Message | bytes:
            try:
                return await self._rpcs.call(name, read(message), _metadata(context))
            except Exception as error:
                await _abort(context, error)

        return handle

    async def _infer(self, message: bytes, context: Context) -> Message:
        try:
            inference, response = await self._rpcs.infer_one(message, _metadata(context))
            response_message = inference.response_message(response)
        except Exception as error:
            await _abort(context, error)
        if self._compression is not None:
            context.set_compression(self._compression)
        inference.sent(final=True)
        return response_message

    async def _stream_infer(self, messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[Message]:
        try:
            stream = self._rpcs.stream(messages, _metadata(context))
        except TritonError as error:
            await _abort(context, error)
        if self._compression is not None:
            context.set_compression(self._compression)
        self._streams.add(stream)
        try:
            async with aclosing(stream.responses()) as responses:
                async for message in responses:
                    yield message
        except TritonError as error:
            await _abort(context, error)
        finally:
            self._streams.discard(stream)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The handlers of all RPCs; an unknown RPC is UNIMPLEMENTED with an empty message, as on Triton."""

    def __init__(self, handlers: dict[str, grpc.RpcMethodHandler]) -> None:
        self._handlers = handlers
        self._unknown = grpc.unary_unary_rpc_method_handler(_unimplemented)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return self._handlers.get(handler_call_details.method, self._unknown)


def status_code(status: Status) -> grpc.StatusCode:
    """Return the status of gRPC for one of Triton, as grpcio has it."""
    return _STATUS_CODES[status.grpc]


def _metadata(context: Context) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


async def _unimplemented(message: bytes, context: Context) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
    raise AssertionError("abort raises an exception")


async def _abort(context: Context, error: Exception) -> NoReturn:
    """End an RPC with an error."""
    triton_error = as_triton_error(error)
    await context.abort(status_code(triton_error.status), client_text(triton_error))
    raise AssertionError("abort raises an exception")
