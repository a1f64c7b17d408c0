"""The RPCs of the endpoint, independent of the transport: their names, restrictions, and calls."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.errors import InternalError, Status, TritonError
from tritonnb.endpoints.grpc.handlers import Handlers
from tritonnb.endpoints.grpc.inference import Inference, OnResponse
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.request_cache import GrpcRequestCache
from tritonnb.endpoints.grpc.stream import Stream
from tritonnb.endpoints.requests import compile_forward_pattern, log_failed
from tritonnb.runtime.engine import Engine

logger = logging.getLogger(__name__)

INFER, STREAM_INFER, HEALTH = "ModelInfer", "ModelStreamInfer", "Check"
#: HealthCheckResponse with the status SERVING or NOT_SERVING.
SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
_END_STREAM_ON_ERROR = "triton_grpc_error"
_RESTRICTED_PREFIX = "triton-grpc-protocol-"

#: The names of ``--grpc-restricted-protocol``, with their RPCs.
PROTOCOLS = {
    "health": ("ServerLive", "ServerReady", "ModelReady", HEALTH),
    "metadata": ("ServerMetadata", "ModelMetadata"),
    "inference": (INFER, STREAM_INFER),
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


@dataclass(frozen=True, slots=True)
class Rpc:
    """One RPC: its name and the classes of its messages."""

    name: str
    request: type[Message]
    response: type[Message]

    def read(self, message: bytes | bytearray) -> Message:
        """Parse a request.

        Raises
        ------
        InternalError
            If the message cannot be parsed.
        """
        try:
            return self.request.FromString(bytes(message))
        except DecodeError as error:
            raise InternalError("Unable to parse request") from error


def _rpcs() -> dict[str, Rpc]:
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    return {
        f"/{service.full_name}/{method.name}": Rpc(
            method.name, GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        )
        for method in service.methods
    }


#: By path. The health service is not listed: its messages are bytes here.
RPCS = _rpcs()
HEALTH_PATH = "/grpc.health.v1.Health/Check"
_INFER = RPCS["/inference.GRPCInferenceService/ModelInfer"]


class Rpcs:
    """Runs the RPCs of one endpoint."""

    def __init__(self, engine: Engine, options: GrpcOptions) -> None:
        self._engine = engine
        self._handlers = Handlers(engine)
        self._request_cache = GrpcRequestCache(engine)
        self._forward_pattern = compile_forward_pattern(options.header_forward_pattern)
        self._restrictions = {
            rpc: (f"{_RESTRICTED_PREFIX}{key}".lower(), value)
            for protocol, key, value in options.restricted_protocol
            for rpc in PROTOCOLS[protocol]
        }

    @property
    def needs_metadata(self) -> bool:
        """Whether the metadata of a call can change its inference."""
        return self._forward_pattern is not None or INFER in self._restrictions

    async def call(
        self, name: str, request: Message | bytes | bytearray, metadata: Mapping[str, str]
    ) -> Message | bytes:
        """Run an RPC that is not an inference, and return its response.

        Raises
        ------
        TritonError
            If the RPC fails or is restricted; with Triton's text.
        """
        self._check_restriction(name, metadata)
        if name == HEALTH:
            return SERVING if await self._engine.is_ready() else _NOT_SERVING
        response: Message = await getattr(self._handlers, name)(request)
        return response

    def infer(self, message: pb.ModelInferRequest, metadata: Mapping[str, str], on_response: OnResponse) -> Inference:
        """Begin a ``ModelInfer``; ``on_response`` is called with its response.

        Raises
        ------
        TritonError
            If the request is refused at once.
        """
        if self._restrictions:
            self._check_restriction(INFER, metadata)
        try:
            return Inference.begin(
                self._engine,
                message,
                on_response,
                streaming=False,
                metadata=metadata,
                headers=self._forwarded_headers(metadata),
            )
        except TritonError as error:
            log_failed(message.id, error)
            raise

    def infer_bytes(
        self, serialized: bytes | bytearray, metadata: Mapping[str, str], on_response: OnResponse
    ) -> Inference:
        """Begin a ``ModelInfer`` whose message is not parsed yet.

        Raises
        ------
        TritonError
            If the request is refused at once, or cannot be parsed.
        """
        use_cache = not (self._engine.tracer.active or self.needs_metadata)
        if use_cache:
            cached = Inference.begin_cached(self._request_cache, serialized, on_response)
            if cached is not None:
                return cached
        inference = self.infer(_INFER.read(serialized), metadata, on_response)
        if use_cache:
            inference.store(self._request_cache, serialized)
        return inference

    def stream(self, messages: AsyncIterator[bytes | bytearray], metadata: Mapping[str, str]) -> Stream:
        """Begin a ``ModelStreamInfer``; a message that cannot be parsed ends it, like the end of the client's stream.

        Raises
        ------
        TritonError
            If the RPC is restricted.
        """
        self._check_restriction(STREAM_INFER, metadata)
        ends_on_error = metadata.get(_END_STREAM_ON_ERROR) == "true"
        return Stream(self._engine, _requests(messages), metadata, self._forwarded_headers(metadata), ends_on_error)

    def _check_restriction(self, name: str, metadata: Mapping[str, str]) -> None:
        if name not in self._restrictions:
            return
        key, value = self._restrictions[name]
        if metadata.get(key) != value:
            raise TritonError(f"This protocol is restricted, expecting header '{key}'", Status.UNAVAILABLE)

    def _forwarded_headers(self, metadata: Mapping[str, str]) -> dict[str, str]:
        if self._forward_pattern is None:
            return {}
        return {key: value for key, value in metadata.items() if self._forward_pattern.search(key)}


async def _requests(messages: AsyncIterator[bytes | bytearray]) -> AsyncIterator[pb.ModelInferRequest]:
    with suppress(InternalError):
        async for message in messages:
            yield _INFER.read(message)


def as_triton_error(error: Exception) -> TritonError:
    """The error for the client; an unexpected one is logged."""
    if isinstance(error, TritonError):
        return error
    logger.error("an RPC failed unexpectedly", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")
