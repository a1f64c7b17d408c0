"""The RPCs of the endpoint, whatever carries them: their names, who may call them, and what runs them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.errors import InternalError, Status, TritonError
from tritonnb.endpoints.client_errors import log_failed
from tritonnb.endpoints.grpc.handlers import Service
from tritonnb.endpoints.grpc.inference import Inference, Take
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.request_cache import MessageTemplates
from tritonnb.endpoints.grpc.stream import Stream
from tritonnb.endpoints.header_forwarding import forward_pattern
from tritonnb.runtime.engine import Engine

logger = logging.getLogger(__name__)

INFER, STREAM_INFER, HEALTH = "ModelInfer", "ModelStreamInfer", "Check"
#: HealthCheckResponse with the status SERVING or NOT_SERVING.
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
_END_STREAM_ON_ERROR = "triton_grpc_error"
_RESTRICTED_PREFIX = "triton-grpc-protocol-"

#: What ``--grpc-restricted-protocol`` calls the RPCs.
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
    """One RPC: its name, and the classes of its messages."""

    name: str
    request: Any
    response: Any

    def read(self, message: bytes | bytearray) -> Any:
        """The request whose message this is.

        Raises
        ------
        InternalError
            If it is none.
        """
        try:
            return self.request.FromString(bytes(message))
        except DecodeError as error:
            raise InternalError("Unable to parse request") from error


def _rpcs() -> dict[str, Rpc]:
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    return {
        f"/{service.full_name}/{each.name}": Rpc(
            each.name, GetMessageClass(each.input_type), GetMessageClass(each.output_type)
        )
        for each in service.methods
    }


#: By path; the health service apart, whose messages are bytes here.
RPCS = _rpcs()
HEALTH_PATH = "/grpc.health.v1.Health/Check"
_INFER = RPCS["/inference.GRPCInferenceService/ModelInfer"]


class Rpcs:
    """Runs the RPCs of one endpoint."""

    def __init__(self, engine: Engine, options: GrpcOptions) -> None:
        self._engine = engine
        self._service = Service(engine)
        self._templates = MessageTemplates(engine)
        self._forwarded = forward_pattern(options.header_forward_pattern)
        self._restrictions = {
            rpc: (f"{_RESTRICTED_PREFIX}{key}".lower(), value)
            for protocol, key, value in options.restricted_protocol
            for rpc in PROTOCOLS[protocol]
        }

    @property
    def looks_at_metadata(self) -> bool:
        """Whether it matters to an inference what metadata its request has."""
        return self._forwarded is not None or INFER in self._restrictions

    async def call(self, name: str, given: Any, metadata: Mapping[str, str]) -> Any:
        """The response of an RPC that is no inference.

        Raises
        ------
        TritonError
            As Triton answers, also where the RPC is restricted.
        """
        self._admit(name, metadata)
        if name == HEALTH:
            return _SERVING if self._engine.is_ready() else _NOT_SERVING
        return await getattr(self._service, name)(given)

    def infer(self, given: Any, metadata: Mapping[str, str], take: Take) -> Inference:
        """Begin a ``ModelInfer``; its response comes through ``take``.

        Raises
        ------
        TritonError
            If the request is refused at once.
        """
        if self._restrictions:
            self._admit(INFER, metadata)
        try:
            return Inference.begin(
                self._engine, given, take, streaming=False, metadata=metadata, headers=self._headers(metadata)
            )
        except TritonError as error:
            log_failed(given.id, error)
            raise

    def infer_bytes(self, message: bytes | bytearray, metadata: Mapping[str, str], take: Take) -> Inference:
        """Begin a ``ModelInfer`` whose message is not parsed yet.

        Raises
        ------
        TritonError
            If the request is refused at once, or is none.
        """
        quick = not (self._engine.tracer.active or self.looks_at_metadata)
        if quick:
            known = Inference.repeat(self._templates, message, take)
            if known is not None:
                return known
        inference = self.infer(_INFER.read(message), metadata, take)
        if quick:
            inference.learn(self._templates, message)
        return inference

    def stream(self, messages: AsyncIterator[bytes | bytearray], metadata: Mapping[str, str]) -> Stream:
        """Begin a ``ModelStreamInfer``; a message that is no request ends it, as if the client had no more.

        Raises
        ------
        TritonError
            If the RPC is restricted.
        """
        self._admit(STREAM_INFER, metadata)
        errors_end_it = metadata.get(_END_STREAM_ON_ERROR) == "true"
        return Stream(self._engine, _requests(messages), metadata, self._headers(metadata), errors_end_it)

    def _admit(self, name: str, metadata: Mapping[str, str]) -> None:
        if name not in self._restrictions:
            return
        key, value = self._restrictions[name]
        if metadata.get(key) != value:
            raise TritonError(f"This protocol is restricted, expecting header '{key}'", Status.UNAVAILABLE)

    def _headers(self, metadata: Mapping[str, str]) -> dict[str, str]:
        if self._forwarded is None:
            return {}
        return {key: value for key, value in metadata.items() if self._forwarded.search(key)}


async def _requests(messages: AsyncIterator[bytes | bytearray]) -> AsyncIterator[Any]:
    with suppress(InternalError):
        async for message in messages:
            yield _INFER.read(message)


def as_triton_error(error: Exception) -> TritonError:
    """What a client is told of an error; one that is nobody's intention goes to the log."""
    if isinstance(error, TritonError):
        return error
    logger.error("an RPC failed unexpectedly", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")
