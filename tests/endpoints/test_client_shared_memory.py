"""Shared memory of clients: off unless the server was started with ``--allow-client-shm=true``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2 as pb

from tests.endpoints.replay import send
from tritonnb.server.server import Server

MODELS = Path(__file__).parents[1] / "models"
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(MODELS, port=0, grpc_port=0, model_control_mode="explicit") as server:
        yield server


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield channel


def call(channel: grpc.Channel, rpc: str, **fields: Any) -> Message:
    method = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name[rpc]
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    path = f"/inference.GRPCInferenceService/{rpc}"
    answer: Message = channel.unary_unary(path, request.SerializeToString, response.FromString)(
        request(**fields), timeout=20
    )
    return answer


@pytest.mark.parametrize("kind", ["system", "cuda"])
@pytest.mark.parametrize("action", ["register", "unregister"])
@pytest.mark.parametrize("region", ["", "/region/r"])
def test_shared_memory_is_refused_over_http_before_the_request_is_read(
    server: Server, kind: str, action: str, region: str
) -> None:
    path = f"/v2/{kind}sharedmemory{region}/{action}"
    status, headers, body = send(server.port, {"method": "POST", "path": path, "body_text": "{"})
    assert (status, headers["content-type"]) == (501, "application/json")
    assert body.decode() == f'{{"error":"{DISABLED}"}}'


@pytest.mark.parametrize("rpc", ["Register", "Unregister"])
@pytest.mark.parametrize("kind", ["System", "Cuda"])
def test_shared_memory_is_refused_over_grpc_by_default(channel: grpc.Channel, kind: str, rpc: str) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, f"{kind}SharedMemory{rpc}", name="r")
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, DISABLED)


def test_shared_memory_status_is_available_by_default(server: Server, channel: grpc.Channel) -> None:
    status, _, body = send(server.port, {"method": "GET", "path": "/v2/systemsharedmemory/status"})
    assert (status, body) == (200, b"[]")
    assert not call(channel, "CudaSharedMemoryStatus").regions
