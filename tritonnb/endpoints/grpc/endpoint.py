"""The gRPC port: `grpc.aio` on the server's own loop, with NVIDIA's generated service and the health service."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.errors import InvalidArgumentError, Status, TritonError
from tritonnb.core.messages import InferResponse
from tritonnb.endpoints.client_errors import client_text
from tritonnb.endpoints.grpc.inference import Inference
from tritonnb.endpoints.grpc.service import Service
from tritonnb.endpoints.grpc.stream import Stream
from tritonnb.runtime.engine import Engine

logger = logging.getLogger(__name__)

SERVICE = "inference.GRPCInferenceService"
HEALTH = "/grpc.health.v1.Health/Check"
#: HealthCheckResponse with the status SERVING or NOT_SERVING.
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
_LARGEST_MESSAGE = 2**31 - 1
_END_STREAM_ON_ERROR = "triton_grpc_error"
_RESTRICTED_PREFIX = "triton-grpc-protocol-"

CODES = {
    Status.UNKNOWN: grpc.StatusCode.UNKNOWN,
    Status.INTERNAL: grpc.StatusCode.INTERNAL,
    Status.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Status.INVALID_ARG: grpc.StatusCode.INVALID_ARGUMENT,
    Status.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Status.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    Status.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Status.CANCELLED: grpc.StatusCode.CANCELLED,
}

#: What ``--grpc-restricted-protocol`` calls the RPCs.
PROTOCOLS = {
    "health": ("ServerLive", "ServerReady", "ModelReady", "Check"),
    "metadata": ("ServerMetadata", "ModelMetadata"),
    "inference": ("ModelInfer", "ModelStreamInfer"),
    "shared-memory": (
        "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
    ),
    "model-config": ("ModelConfig",),
    "model-repository": ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    "statistics": ("ModelStatistics",),
    "trace": ("TraceSetting",),
    "logging": ("LogSettings",),
}  # fmt: skip
COMPRESSION_LEVELS = ("none", "low", "medium", "high")


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """How the endpoint behaves; each is the flag ``--grpc-<name>`` of tritonserver.

    Attributes
    ----------
    use_ssl, use_ssl_mutual : bool
        TLS, and TLS with certificates of the clients.
    server_cert, server_key, root_cert : str
        Paths of PEM files.
    infer_response_compression_level : str
        ``none``, ``low``, ``medium`` or ``high``.
    keepalive_time, keepalive_timeout : int
        Milliseconds.
    keepalive_permit_without_calls : bool
    http2_max_pings_without_data, http2_max_ping_strikes : int
    http2_min_recv_ping_interval_without_data : int
        Milliseconds.
    max_connection_age, max_connection_age_grace : int
        Milliseconds; 0 for no limit.
    header_forward_pattern : str
        Metadata whose whole key matches becomes request parameters.
    restricted_protocol : tuple of (protocol, key, value)
        RPCs of a protocol are answered only to requests with this metadata.
    """

    use_ssl: bool = False
    use_ssl_mutual: bool = False
    server_cert: str = ""
    server_key: str = ""
    root_cert: str = ""
    infer_response_compression_level: str = "none"
    keepalive_time: int = 7_200_000
    keepalive_timeout: int = 20_000
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: int = 2
    http2_min_recv_ping_interval_without_data: int = 300_000
    http2_max_ping_strikes: int = 2
    max_connection_age: int = 0
    max_connection_age_grace: int = 0
    header_forward_pattern: str = ""
    restricted_protocol: tuple[tuple[str, str, str], ...] = ()

    def channel_arguments(self) -> list[tuple[str, Any]]:
        """The options as gRPC names them."""
        arguments: list[tuple[str, Any]] = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", _LARGEST_MESSAGE),
            ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
            ("grpc.keepalive_time_ms", self.keepalive_time),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout),
            ("grpc.keepalive_permit_without_calls", int(self.keepalive_permit_without_calls)),
            ("grpc.http2.max_pings_without_data", self.http2_max_pings_without_data),
            ("grpc.http2.min_ping_interval_without_data_ms", self.http2_min_recv_ping_interval_without_data),
            ("grpc.http2.max_ping_strikes", self.http2_max_ping_strikes),
        ]
        if self.max_connection_age:
            arguments.append(("grpc.max_connection_age_ms", self.max_connection_age))
        if self.max_connection_age_grace:
            arguments.append(("grpc.max_connection_age_grace_ms", self.max_connection_age_grace))
        return arguments

    def credentials(self) -> grpc.ServerCredentials | None:
        """What TLS needs; None without it.

        Raises
        ------
        InvalidArgumentError
            If a file cannot be read.
        """
        if not (self.use_ssl or self.use_ssl_mutual):
            return None
        try:
            pair = Path(self.server_key).read_bytes(), Path(self.server_cert).read_bytes()
            roots = Path(self.root_cert).read_bytes() if self.use_ssl_mutual else None
        except OSError as error:
            raise InvalidArgumentError(f"cannot read the files for TLS: {error}") from error
        return grpc.ssl_server_credentials([pair], roots, self.use_ssl_mutual)


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
        self.engine = engine
        self.host = host
        self.port = port
        self._options = options
        self._service = Service(engine)
        self._streams: set[Stream] = set()
        self._forwarded = re.compile(options.header_forward_pattern) if options.header_forward_pattern else None
        self._restrictions = {
            rpc: (f"{_RESTRICTED_PREFIX}{key}".lower(), value)
            for protocol, key, value in options.restricted_protocol
            for rpc in PROTOCOLS[protocol]
        }
        compressed = options.infer_response_compression_level != "none"
        self._compression = grpc.Compression.Gzip if compressed else None

    async def start(self) -> None:
        """Listen.

        Raises
        ------
        OSError
            If the port is taken.
        InvalidArgumentError
            If the files for TLS cannot be read.
        """
        self._server = aio.server(options=self._options.channel_arguments())
        self._server.add_generic_rpc_handlers((_Handlers(self._handlers()),))
        credentials = self._options.credentials()
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(errno.EADDRINUSE, str(error)) from error
        await self._server.start()

    async def stop(self, drain: float) -> None:
        """Accept no more requests; those in progress have ``drain`` seconds."""
        for stream in self._streams:
            stream.finish()
        await self._server.stop(drain)

    # --- RPCs -----------------------------------------------------------------------------------

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        handlers = {HEALTH: grpc.unary_unary_rpc_method_handler(self._unary("Check", self._health))}
        for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            codec = {
                "request_deserializer": GetMessageClass(method.input_type).FromString,
                "response_serializer": GetMessageClass(method.output_type).SerializeToString,
            }
            path = f"/{SERVICE}/{method.name}"
            if method.name == "ModelStreamInfer":
                handlers[path] = grpc.stream_stream_rpc_method_handler(self._stream_infer, **codec)
            elif method.name == "ModelInfer":
                handlers[path] = grpc.unary_unary_rpc_method_handler(self._infer, **codec)
            else:
                rpc = self._unary(method.name, getattr(self._service, method.name))
                handlers[path] = grpc.unary_unary_rpc_method_handler(rpc, **codec)
        return handlers

    def _unary(self, name: str, method: Callable[[Any], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def handle(given: Any, context: aio.ServicerContext[Any, Any]) -> Any:
            try:
                self._admit(name, context)
                return await method(given)
            except Exception as error:
                await _abort(context, error)

        return handle

    async def _health(self, given: bytes) -> bytes:
        return _SERVING if self.engine.is_ready() else _NOT_SERVING

    async def _infer(self, given: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def take(inference: Inference, response: InferResponse) -> None:
            if not future.done():
                future.set_result(response)

        try:
            self._admit("ModelInfer", context)
            headers = self._headers(context)
            inference = Inference(self.engine, given, take, streaming=False, headers=headers)
            try:
                response = await future
            except asyncio.CancelledError:
                inference.cancel()
                raise
            if response.error is not None:
                inference.sent(final=True)
                raise response.error
            message = inference.message(response)
        except Exception as error:
            await _abort(context, error)
        if self._compression is not None:
            context.set_compression(self._compression)
        inference.sent(final=True)
        return message

    async def _stream_infer(self, requests: AsyncIterator[Any], context: aio.ServicerContext[Any, Any]) -> Any:
        try:
            self._admit("ModelStreamInfer", context)
        except TritonError as error:
            await _abort(context, error)
        metadata = dict(context.invocation_metadata() or ())
        stream = Stream(self.engine, requests, self._headers(context), metadata.get(_END_STREAM_ON_ERROR) == "true")
        if self._compression is not None:
            context.set_compression(self._compression)
        self._streams.add(stream)
        try:
            async for message in stream.responses():
                yield message
        except TritonError as error:
            await _abort(context, error)
        finally:
            self._streams.discard(stream)

    # --- metadata -------------------------------------------------------------------------------

    def _admit(self, rpc: str, context: aio.ServicerContext[Any, Any]) -> None:
        if rpc not in self._restrictions:
            return
        key, value = self._restrictions[rpc]
        if dict(context.invocation_metadata() or ()).get(key) != value:
            raise TritonError(f"This protocol is restricted, expecting header '{key}'", Status.UNAVAILABLE)

    def _headers(self, context: aio.ServicerContext[Any, Any]) -> dict[str, str]:
        if self._forwarded is None:
            return {}
        pairs = context.invocation_metadata() or ()
        return {key: str(value) for key, value in pairs if self._forwarded.fullmatch(key)}


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of an RPC; an unknown one is UNIMPLEMENTED without a text, as Triton has it."""

    def __init__(self, handlers: dict[str, grpc.RpcMethodHandler]) -> None:
        self._handlers = handlers
        self._unknown = grpc.unary_unary_rpc_method_handler(_unimplemented)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return self._handlers.get(handler_call_details.method, self._unknown)


async def _unimplemented(given: bytes, context: aio.ServicerContext[Any, Any]) -> Any:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "")


async def _abort(context: aio.ServicerContext[Any, Any], error: Exception) -> None:
    """End an RPC with an error."""
    if isinstance(error, TritonError):
        await context.abort(CODES[error.status], client_text(error))
    logger.error("an RPC failed unexpectedly", exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
