"""Responses of a real Triton over gRPC, compared with those of this server over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2 as pb

from tests.endpoints.newer_release import recordings
from tests.endpoints.recorded_models import MODELS, server_options
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.server.server import Server

CASES = recordings("grpc_transcripts.json")
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}


@pytest.fixture(scope="module", params=["fast", "grpcio", "isolated"])
def channel(request: pytest.FixtureRequest) -> Iterator[grpc.Channel]:
    isolated = request.param == "isolated"  # the models, behind the fast transport
    options = server_options(isolated)
    options |= {"grpc": GrpcOptions(transport="fast" if isolated else request.param), "grpc_port": 0}
    with Server(MODELS, port=0, **options) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            yield channel


def ask(channel: grpc.Channel, case: dict[str, Any]) -> dict[str, Any]:
    """The answer as it is recorded."""
    method = METHODS[case["rpc"]]
    request_class = GetMessageClass(method.input_type)
    path = f"/inference.GRPCInferenceService/{case['rpc']}"
    codec = request_class.SerializeToString, GetMessageClass(method.output_type).FromString
    metadata = list(case.get("metadata", {}).items())
    answer: dict[str, Any] = {"code": "OK", "text": ""}
    try:
        if "requests" in case:
            answer["responses"] = []
            requests = [json_format.ParseDict(message, request_class()) for message in case["requests"]]
            for response in channel.stream_stream(path, *codec)(iter(requests), metadata=metadata, timeout=20):
                answer["responses"].append(json_format.MessageToDict(response))
        else:
            request = json_format.ParseDict(case["request"], request_class())
            response = channel.unary_unary(path, *codec)(request, metadata=metadata, timeout=20)
            answer["response"] = json_format.MessageToDict(response)
    except grpc.RpcError as error:
        answer |= {"code": error.code().name, "text": error.details()}
    return answer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_response_equals_the_recorded_one(channel: grpc.Channel, case: dict[str, Any]) -> None:
    answer, recorded = ask(channel, case), case["answer"]
    if case.get("volatile_text"):  # a traceback, with paths
        for response in answer.get("responses", ()):
            assert response.pop("errorMessage")
    assert {name: answer[name] for name in recorded} == recorded
