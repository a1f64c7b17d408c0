"""The responses of a real Triton, compared with those of two replicas behind an ingress, in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2 as pb

from tests.endpoints.newer_release import recordings
from tests.endpoints.replay import differences
from tests.scale.asgi import send
from tests.scale.deployment import LOCAL, MODELS, Deployment
from tests.scale.local import LocalPool, ask_of
from tests.scale.not_alike import GRPC_NOT_ALIKE, NOT_ALIKE
from tritonnb.core.errors import Status
from tritonnb.endpoints.grpc.transport.grpcio_server import status_code
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.engine.engine import Engine
from tritonnb.scale.coordinator import ReplicaReport
from tritonnb.scale.dispatch import Dispatcher
from tritonnb.scale.endpoint_settings import EndpointSettings
from tritonnb.scale.groups import Groups
from tritonnb.scale.http_ingress import HttpIngress
from tritonnb.scale.replica import Replica, RpcReply

METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    deployment = Deployment(EndpointSettings(openai=OpenAiOptions(allow=False)))  # Triton has no paths under /v1
    for name in ("r1", "r2"):
        deployment.add(name, [model.name for model in MODELS.iterdir() if model.name not in ("probe", "wont_load")])
    yield deployment
    deployment.close()


@pytest.fixture
def small() -> Iterator[Deployment]:
    """Two replicas of one model."""
    deployment = Deployment()
    for name in ("r1", "r2"):
        deployment.add(name)
    yield deployment
    deployment.close()


EXCHANGES = recordings("transcripts.json") + recordings("variations.json")


def test_http_responses_are_the_recorded_ones(deployment: Deployment) -> None:
    differing = {
        (exchange["area"], exchange["id"]): different
        for exchange in EXCHANGES
        if (different := differences(exchange, *deployment.run(send(deployment.http, exchange["request"]))))
    }
    unexpected = {key: different for key, different in differing.items() if key[1] not in NOT_ALIKE.get(key[0], ())}
    assert unexpected == {}
    assert {key[1] for key in differing} == set().union(*NOT_ALIKE.values())


GRPC_CASES = recordings("grpc_transcripts.json")


def answer(deployment: Deployment, case: dict[str, Any]) -> dict[str, Any]:
    """The answer as it is recorded."""
    method, metadata = METHODS[case["rpc"]], case.get("metadata", {})
    request_class, response_class = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

    def serialized(message: dict[str, Any]) -> bytes:
        return json_format.ParseDict(message, request_class()).SerializeToString()

    async def replies() -> list[RpcReply]:
        if "requests" not in case:
            return [await deployment.grpc.call(case["rpc"], serialized(case["request"]), metadata, LOCAL)]
        requests = messages(map(serialized, case["requests"]))
        return [reply async for reply in deployment.grpc.stream(requests, metadata, LOCAL)]

    answered: dict[str, Any] = {"code": "OK", "text": ""}
    read = []
    for reply in deployment.run(replies()):
        if reply.status:
            answered |= {"code": status_code(Status[reply.status]).name, "text": reply.error}
        else:
            read.append(json_format.MessageToDict(response_class.FromString(reply.message)))
    if "requests" in case:
        return answered | {"responses": read}
    return answered | ({"response": read[0]} if read else {})


async def messages(serialized: Any) -> AsyncIterator[bytes]:
    for message in serialized:
        yield message


def test_request_of_a_stream_gets_a_response_even_if_its_replica_fails_unexpectedly(
    small: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Replica, message: bytes, metadata: object) -> AsyncIterator[RpcReply]:
        raise RuntimeError("unexpected")
        yield RpcReply(message)

    monkeypatch.setattr(Replica, "stream_rpc", fails)
    requests = [pb.ModelInferRequest(model_name="echo_fp32", id=id).SerializeToString() for id in ("a", "b")]

    async def replies() -> list[bytes]:
        return [reply.message async for reply in small.grpc.stream(messages(requests), {}, LOCAL)]

    responses = [pb.ModelStreamInferResponse.FromString(message) for message in small.run(replies())]
    assert {response.infer_response.id for response in responses} == {"a", "b"}
    assert all("unexpected" in response.error_message for response in responses)


def test_grpc_responses_are_the_recorded_ones(deployment: Deployment) -> None:
    differing = {}
    for case in GRPC_CASES:
        answered, recorded = answer(deployment, case), case["answer"]
        if case.get("volatile_text"):  # a traceback, with paths
            for response in answered.get("responses", ()):
                assert response.pop("errorMessage")
        if {name: answered.get(name) for name in recorded} != recorded:
            differing[case["id"]] = answered
    assert {name: answered for name, answered in differing.items() if name not in GRPC_NOT_ALIKE} == {}
    assert {name: differing[name]["code"] for name in GRPC_NOT_ALIKE} == dict.fromkeys(GRPC_NOT_ALIKE, "UNIMPLEMENTED")


def inference(value: float = 1.0) -> dict[str, Any]:
    """A request to the model `echo_fp32`."""
    return {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [value, value]}]}


def test_statistics_are_summed_and_those_of_one_replica_can_be_read(small: Deployment) -> None:
    for _ in range(6):
        small.ask("POST", "/v2/models/echo_fp32/infer", inference())
    counts = [
        small.ask("GET", f"/v2/models/echo_fp32/stats?replica={name}")["model_stats"][0]["inference_count"]
        for name in ("r1", "r2")
    ]
    assert counts == [3, 3]
    assert small.ask("GET", "/v2/models/echo_fp32/stats")["model_stats"][0]["inference_count"] == 6
    grpc_request = pb.ModelStatisticsRequest(name="echo_fp32").SerializeToString()
    reply = small.run(small.grpc.call("ModelStatistics", grpc_request, {}, LOCAL))
    assert pb.ModelStatisticsResponse.FromString(reply.message).model_stats[0].inference_count == 6


def test_statistics_field_missing_in_the_grpc_message_is_omitted(
    small: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = Engine.statistics

    def extended(engine: Engine, name: str = "", version: int = -1) -> Any:
        return {"model_stats": [{**entry, "column": 1} for entry in statistics(engine, name, version)["model_stats"]]}

    monkeypatch.setattr(Engine, "statistics", extended)
    small.ask("POST", "/v2/models/echo_fp32/infer", inference())
    assert small.ask("GET", "/v2/models/echo_fp32/stats")["model_stats"][0]["column"] == 2
    request = pb.ModelStatisticsRequest(name="echo_fp32")
    alone = [
        small.run(replica.rpc("ModelStatistics", request.SerializeToString(), {}))
        for replica in small.pool.running.values()
    ]
    replies = [small.rpc("ModelStatistics", request), *alone]
    assert [reply.error for reply in replies] == ["", "", ""]
    entries = [pb.ModelStatisticsResponse.FromString(reply.message).model_stats[0] for reply in replies]
    assert sorted(entry.inference_count for entry in entries) == [0, 1, 1]


def test_load_and_unload_act_on_all_replicas_and_on_later_ones(small: Deployment) -> None:
    small.ask("POST", "/v2/repository/models/echo_fp32/unload")
    small.ask("POST", "/v2/repository/models/echo_text/load")
    small.add("r3")
    for replica in small.pool.running.values():
        assert [model.name for model in replica.engine.models()] == ["echo_text"]
    states = {row["name"]: row.get("state") for row in small.ask("POST", "/v2/repository/index")}
    assert (states["echo_fp32"], states["echo_text"]) == ("UNAVAILABLE", "READY")


def test_change_refused_by_every_replica_is_an_error_and_not_kept(small: Deployment) -> None:
    status, _, body = small.run(send(small.http, {"method": "POST", "path": "/v2/repository/models/nope/load"}))
    assert (status, b"failed to load 'nope'" in body) == (500, True)
    small.add("r3")
    assert small.coordinator.report(small.pool.running["r3"].report("r9", "engine", "node")) == {}


def test_setting_is_kept_once_for_later_replicas_and_reading_it_changes_nothing(small: Deployment) -> None:
    for rate in (5, 6, 7):
        small.ask("POST", "/v2/trace/setting", {"trace_rate": str(rate)})
    small.ask("POST", "/v2/models/echo_fp32/trace/setting", {"trace_rate": "9"})
    read = pb.TraceSettingRequest().SerializeToString()
    assert not small.run(small.grpc.call("TraceSetting", read, {}, LOCAL)).status
    new = small.add("r3")
    assert len(small.coordinator.report(ReplicaReport("another", "engine"))) == 2
    rates = {model: new.engine.tracer.settings.for_model(model).options.rate for model in ("echo_fp32", "echo_text")}
    assert rates == {"echo_fp32": 9, "echo_text": 7}


def test_replicas_on_one_machine_write_separate_trace_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    deployment = Deployment()
    for name in ("r1", "r2"):
        deployment.add(name)
    deployment.ask("POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    for _ in range(4):
        deployment.ask("POST", "/v2/models/echo_fp32/infer", inference())
    deployment.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.json.r1", "trace.json.r2"]
    traced = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert [sum("model_name" in entry for entry in entries) for entries in traced] == [2, 2]


def test_metrics_name_the_replica(small: Deployment) -> None:
    small.ask("POST", "/v2/models/echo_fp32/infer", inference())
    status, headers, body = small.run(send(small.http, {"method": "GET", "path": "/metrics"}))
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
    lines = [line for line in body.decode().splitlines() if line.startswith("nv_inference_count{")]
    assert sorted(line.partition(",")[0] for line in lines) == [
        f'nv_inference_count{{replica="{name}"' for name in ("r1", "r2")
    ]


def test_replicas_are_listed_with_their_sequences(small: Deployment) -> None:
    small.ask("POST", "/v2/repository/models/accumulate/load")
    parameters = {"sequence_id": 5, "sequence_start": True}
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}
    small.ask("POST", "/v2/models/accumulate/infer", {"inputs": [tensor], "parameters": parameters})
    for name, replica in small.pool.running.items():
        small.coordinator.report(replica.report(name, "engine", "node"))
    listed = small.ask("GET", "/v2/replicas")
    assert [row["state"] for row in listed] == ["RUNNING", "RUNNING"]
    assert [row["sequences"] for row in listed if row["sequences"]] == [[{"model": "accumulate", "sequence_id": 5}]]


def test_model_with_dedicated_replicas_is_served_by_them() -> None:
    deployment = Deployment()
    own = LocalPool("engine-echo_text")
    ask = ask_of(deployment.coordinator)
    groups = Groups(Dispatcher(deployment.pool, ask), {"echo_text": Dispatcher(own, ask)})
    deployment.http = HttpIngress(groups, deployment.settings)
    deployment.add("r1", ["echo_fp32"])
    deployment.add("r2", ["echo_text"])
    own.running["r2"] = deployment.pool.running.pop("r2")
    try:
        for model in ("echo_fp32", "echo_text"):
            assert deployment.ask("GET", f"/v2/models/{model}")["name"] == model
        ready = [row["name"] for row in deployment.ask("POST", "/v2/repository/index", {"ready": True})]
        assert ready == ["echo_fp32", "echo_text"]
        names = [entry["name"] for entry in deployment.ask("GET", "/v2/models/stats")["model_stats"]]
        assert sorted(names) == ["echo_fp32", "echo_text"]
    finally:
        deployment.pool.running |= own.running
        deployment.close()


@pytest.mark.parametrize(("header", "value"), [("Host", "evil.example"), ("Origin", "http://evil.example")])
def test_requests_of_foreign_web_pages_are_refused(header: str, value: str) -> None:
    deployment = Deployment(EndpointSettings("127.0.0.1"))
    for path in ("/v2/replicas", "/v1/models"):
        request = {"method": "GET", "path": path, "headers": {"Host": "localhost:8000", header: value}}
        status, _, body = deployment.run(send(deployment.http, request))
        assert (status, b"is not allowed" in body) == (403, True)
    assert deployment.send("GET", "/v2/replicas", Host="localhost:8000")[0] == 200
    deployment.close()
