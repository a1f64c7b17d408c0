"""The RPCs of the gRPC endpoint: their protocols of ``--grpc-restricted-protocol``, effects and messages.

A restricted RPC needs certain metadata, as in Triton's *Limit Endpoint Access*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tritonnb.core.errors import InternalError, Status, TritonError
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.effects import Effect
from tritonnb.endpoints.grpc.long_messages import read_long
from tritonnb.endpoints.long_work import LONG
from tritonnb.endpoints.request_rules import client_text

INFER, STREAM_INFER, HEALTH = "ModelInfer", "ModelStreamInfer", "Check"
_CHANGE, _INFER, _MEMORY, _MERGE, _READ = Effect.CHANGE, Effect.INFER, Effect.MEMORY, Effect.MERGE, Effect.READ

#: By protocol: the RPCs and their effects.
_EFFECTS: Mapping[str, Mapping[str, Effect]] = {
    "health": {"ServerLive": _READ, "ServerReady": _MERGE, "ModelReady": _READ, HEALTH: _MERGE},
    "metadata": {"ServerMetadata": _READ, "ModelMetadata": _READ},
    "inference": {INFER: _INFER, STREAM_INFER: _INFER},
    "shared-memory": {
        "SystemSharedMemoryStatus": _READ,
        "SystemSharedMemoryRegister": _MEMORY,
        "SystemSharedMemoryUnregister": _MEMORY,
        "CudaSharedMemoryStatus": _READ,
        "CudaSharedMemoryRegister": _MEMORY,
        "CudaSharedMemoryUnregister": _MEMORY,
    },
    "model-config": {"ModelConfig": _READ},
    "model-repository": {"RepositoryIndex": _MERGE, "RepositoryModelLoad": _CHANGE, "RepositoryModelUnload": _CHANGE},
    "statistics": {"ModelStatistics": _MERGE},
    # Reading and changing settings is one RPC on Triton, so the table has to assume the change.
    "trace": {"TraceSetting": _CHANGE},
    "logging": {"LogSettings": _CHANGE},
}
#: The names of ``--grpc-restricted-protocol``, with their RPCs.
PROTOCOLS: Mapping[str, tuple[str, ...]] = {protocol: tuple(rpcs) for protocol, rpcs in _EFFECTS.items()}
#: The effect of each RPC. A request for settings that changes none only reads.
EFFECTS: Mapping[str, Effect] = {name: effect for rpcs in _EFFECTS.values() for name, effect in rpcs.items()}


#: The longest message of a status, in bytes on the wire: grpcio's clients refuse metadata of more than 8 KiB, and
#: report that instead of the error. Triton sends it whole.
LONGEST_STATUS = 6 << 10


def status_text(error: TritonError) -> str:
    """Return the message of an error for the status of a call, cut where clients would refuse it."""
    text = client_text(error)
    size = 0
    for index, character in enumerate(text):
        # What is not printable ASCII is percent-encoded.
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode("utf-8", "replace"))
        if size > LONGEST_STATUS:
            return f"{text[:index]}... ({len(text)} characters)"
    return text


#: A message as it was received.
Serialized = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class RpcMessages:
    """The classes of an RPC's messages."""

    request: type[Message]
    response: type[Message]

    def read(self, message: Serialized) -> Message:
        """Parse a request.

        Raises
        ------
        TritonError
            If the message cannot be parsed, or is long and has too many fields.
        """
        try:
            if len(message) > LONG:
                return read_long(memoryview(message), self.request)
            return self.request.FromString(bytes(message))
        except DecodeError as error:
            raise InternalError("Unable to parse request") from error


_SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
#: By the name of the RPC. That of the health service is not listed: its messages are bytes here.
MESSAGES_OF: Mapping[str, RpcMessages] = {
    method.name: RpcMessages(GetMessageClass(method.input_type), GetMessageClass(method.output_type))
    for method in _SERVICE.methods
}
HEALTH_PATH = "/grpc.health.v1.Health/Check"
#: The full name of Triton's service.
SERVICE: str = _SERVICE.full_name
#: The name of each RPC, by its path.
RPC_NAMES: Mapping[str, str] = {**{f"/{SERVICE}/{name}": name for name in MESSAGES_OF}, HEALTH_PATH: HEALTH}
_PREFIX = "triton-grpc-protocol-"


class Restrictions:
    """The metadata that restricted RPCs require.

    Parameters
    ----------
    restricted : iterable of (protocol, key, value)
    """

    def __init__(self, restricted: Iterable[tuple[str, str, str]]) -> None:
        self._required = {
            rpc: (f"{_PREFIX}{key}".lower(), value)
            for protocol, key, value in restricted
            for rpc in PROTOCOLS[protocol]
        }

    def apply_to(self, rpc: str) -> bool:
        """Return whether an RPC is restricted."""
        return rpc in self._required

    def check(self, rpc: str, metadata: Mapping[str, str]) -> None:
        """Check a call.

        Raises
        ------
        TritonError
            If it is refused; with Triton's text.
        """
        required = self._required.get(rpc)
        # UNAVAILABLE is Triton's choice; PERMISSION_DENIED would be gRPC's. The value is a gate and not a secret: the
        # comparison is not constant in time, as on Triton.
        if required is not None and metadata.get(required[0]) != required[1]:
            raise TritonError(f"This protocol is restricted, expecting header '{required[0]}'", Status.UNAVAILABLE)
