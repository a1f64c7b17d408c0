"""Options of a deployment have their effects at the ingress, and at the direct ports of a replica."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.scale.deployment import Deployment
from tritonnb.backends.functions import FunctionBackend, function_config
from tritonnb.core.datatypes import BYTES
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.http.options import RAISE_BODY_SIZE, HttpOptions, too_large
from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.engine.repository.directories import ModelSource
from tritonnb.scale.endpoint_settings import APPLIED, EndpointSettings
from tritonnb.scale.replica import RpcReply

TEXT_OUTPUT = {"text_output": BYTES[1]}
MODELS_USED = ("echo_fp32", "parameters", "textgen")
INFER = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]})


@contextmanager
def serving(**groups: Any) -> Iterator[Deployment]:
    """One replica behind an ingress with these options."""
    settings = EndpointSettings("127.0.0.1", "127.0.0.1", **groups)
    deployment = Deployment(settings)
    deployment.add("r1", MODELS_USED)
    yield deployment
    deployment.close()


def infer(deployment: Deployment, **headers: str | list[str]) -> tuple[int, str]:
    return deployment.send("POST", "/v2/models/parameters/infer", INFER, **headers)


def infer_grpc(deployment: Deployment, **metadata: str) -> RpcReply:
    request = pb.ModelInferRequest(model_name="parameters")
    tensor = request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    tensor.contents.int_contents.append(1)
    return deployment.rpc("ModelInfer", request, **metadata)


def complete(deployment: Deployment, **headers: str) -> tuple[int, str]:
    body = json.dumps({"model": "textgen", "prompt": "a"})
    return deployment.send("POST", "/v1/completions", body, **headers)


def metric(deployment: Deployment, name: str) -> bool:
    status, text = deployment.send("GET", "/metrics")
    assert status == 200
    return f"{name}{{" in text


def check_max_input_size() -> None:
    with serving(http=HttpOptions(max_input_size=20)) as deployment:
        status, text = infer(deployment)
        assert (status, "exceeds the maximum allowed" in text) == (400, True), text


def check_max_body_size() -> None:
    with serving(http=HttpOptions(max_body_size=20)) as deployment:
        assert infer(deployment) == (
            413,
            json.dumps({"error": too_large(20, 0, RAISE_BODY_SIZE)}, separators=(",", ":")),
        )
        assert deployment.send("GET", "/v2/health/live")[0] == 200


def check_allow_foreign() -> None:
    with serving() as closed, serving(http=HttpOptions(allow_foreign=True)) as opened:
        assert infer(closed, Host="evil.example")[0] == 403
        assert infer(opened, Host="evil.example")[0] == 200


def check_allowed_hosts() -> None:
    with serving(http=HttpOptions(allowed_hosts=("hub.example",))) as deployment:
        assert infer(deployment, Host="hub.example")[0] == 200
        assert infer(deployment, Host="evil.example")[0] == 403


def check_restricted_api() -> None:
    restricted = (("inference", "key", "secret"), ("model-repository", "key", "other"))
    with serving(http=HttpOptions(restricted_api=restricted)) as deployment:
        assert infer(deployment)[0] == 403
        assert infer(deployment, key="secret")[0] == 200
        for _ in range(2):
            assert deployment.send("POST", "/v2/repository/models/echo_fp32/load", "{}")[0] == 403
            assert deployment.send("POST", "/v2/repository/models/echo_fp32/load", "{}", key="other")[0] == 200
        status, text = complete(deployment)
        assert (status, json.loads(text)["error"]["type"]) == (403, "invalid_request_error")
        assert complete(deployment, key="secret")[0] == 200


def check_http_header_forward_pattern() -> None:
    with serving(http=HttpOptions(header_forward_pattern="x-.*")) as deployment:
        _, text = infer(deployment, **{"X-One": ["1", "2"], "Other": ["2"]})
        assert json.loads(json.loads(text)["outputs"][0]["data"][0])["parameters"] == {"x-one": "1,2"}


def check_grpc_header_forward_pattern() -> None:
    with serving(grpc=GrpcOptions(header_forward_pattern="x-.*")) as deployment:
        reply = infer_grpc(deployment, **{"x-one": "1", "other": "2"})
        response = pb.ModelInferResponse.FromString(reply.message)
        assert b'"parameters": {"x-one": "1"}' in response.raw_output_contents[0]


def check_restricted_protocol() -> None:
    restricted = (("inference", "key", "secret"), ("model-repository", "key", "other"))
    with serving(grpc=GrpcOptions(restricted_protocol=restricted)) as deployment:
        assert infer_grpc(deployment).status == "UNAVAILABLE"
        assert not infer_grpc(deployment, **{"triton-grpc-protocol-key": "secret"}).status
        load = pb.RepositoryModelLoadRequest(model_name="echo_fp32")
        assert deployment.rpc("RepositoryModelLoad", load).status == "UNAVAILABLE"
        assert not deployment.rpc("RepositoryModelLoad", load, **{"triton-grpc-protocol-key": "other"}).status


def check_metrics(family: str, without: MetricsOptions, with_it: MetricsOptions) -> Callable[[], None]:
    def check() -> None:
        for options, present in ((without, False), (with_it, True)):
            with serving(metrics=options) as deployment:
                infer(deployment)
                assert metric(deployment, family) is present

    return check


def check_gpu() -> None:
    """The machine may have none."""
    for options in (MetricsOptions(), MetricsOptions(gpu=False)):
        with serving(metrics=options) as deployment:
            assert (deployment.pool.running["r1"]._families._gpus is not None) is options.gpu


def check_quantiles() -> None:
    options = MetricsOptions(summary_latencies=True, quantiles=(0.25,))
    with serving(metrics=options) as deployment:
        infer(deployment)
        assert 'quantile="0.25"' in deployment.send("GET", "/metrics")[1]


def check_openai_allow() -> None:
    with serving(openai=OpenAiOptions(allow=False)) as closed, serving() as opened:
        assert complete(closed) == (404, '{"error":"Not Found"}')
        assert json.loads(complete(opened)[1])["object"] == "text_completion"
        assert [entry["id"] for entry in json.loads(opened.send("GET", "/v1/models")[1])["data"]] == ["textgen"]
        assert opened.send("GET", "/v1/models/textgen")[0] == 200


def check_openai_api_key() -> None:
    with serving(openai=OpenAiOptions(api_key="secret")) as deployment:
        assert complete(deployment)[0] == 401
        assert complete(deployment, Authorization="Bearer wrong")[0] == 401
        assert complete(deployment, Authorization="Bearer secret")[0] == 200
        assert deployment.send("GET", "/v1/models")[0] == 401


def check_default_max_tokens() -> None:
    def textgen(text_input: BYTES[1], sampling_parameters: BYTES[1]) -> TEXT_OUTPUT:
        return {"text_output": sampling_parameters}

    source = ModelSource("textgen", Path(), function_config(textgen, {}), (1,), FunctionBackend(textgen))
    with serving(openai=OpenAiOptions(default_max_tokens=7)) as deployment:
        deployment.run(deployment.pool.running["r1"].engine.load_source(source))
        assert json.loads(complete(deployment)[1])["choices"][0]["text"] == '{"max_tokens": 7}'


CHECKS: dict[str, Callable[[], None]] = {
    "http.max_input_size": check_max_input_size,
    "http.max_body_size": check_max_body_size,
    "http.allow_foreign": check_allow_foreign,
    "http.allowed_hosts": check_allowed_hosts,
    "http.restricted_api": check_restricted_api,
    "http.header_forward_pattern": check_http_header_forward_pattern,
    "grpc.header_forward_pattern": check_grpc_header_forward_pattern,
    "grpc.restricted_protocol": check_restricted_protocol,
    "metrics.cpu": check_metrics("nv_cpu_utilization", MetricsOptions(cpu=False), MetricsOptions()),
    "metrics.gpu": check_gpu,
    "metrics.counter_latencies": check_metrics(
        "nv_inference_queue_duration_us", MetricsOptions(counter_latencies=False), MetricsOptions()
    ),
    "metrics.summary_latencies": check_metrics(
        "nv_inference_queue_summary_us", MetricsOptions(), MetricsOptions(summary_latencies=True)
    ),
    "metrics.histogram_latencies": check_metrics(
        "nv_inference_first_response_histogram_ms_bucket", MetricsOptions(), MetricsOptions(histogram_latencies=True)
    ),
    "metrics.quantiles": check_quantiles,
    "openai.allow": check_openai_allow,
    "openai.api_key": check_openai_api_key,
    "openai.default_max_tokens": check_default_max_tokens,
}


@pytest.mark.parametrize("option", sorted(APPLIED))
def test_option_that_is_stated_as_applied_has_its_effect(option: str) -> None:
    CHECKS[option]()


def test_metrics_path_is_unknown_without_metrics() -> None:
    with serving(metrics=None) as deployment:
        assert deployment.send("GET", "/metrics") == (404, '{"error":"Not Found"}')


def test_generation_is_streamed_through_the_ingress() -> None:
    with serving() as deployment:
        body = json.dumps({"model": "textgen", "prompt": "a", "stream": True})
        status, text = deployment.send("POST", "/v1/completions", body)
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")


def test_direct_ports_of_a_replica_have_the_same_restrictions() -> None:
    settings = EndpointSettings(
        "127.0.0.1",
        http=HttpOptions(restricted_api=(("inference", "key", "secret"),)),
        grpc=GrpcOptions(restricted_protocol=(("inference", "key", "secret"),)),
        openai=OpenAiOptions(api_key="secret"),
    )
    listen = settings.listen("192.0.2.7")
    assert (listen.http, listen.grpc, listen.openai) == (settings.http, settings.grpc, settings.openai)
    assert settings.checked.http.restricted_api == settings.checked.grpc.restricted_protocol == ()


@pytest.mark.parametrize(
    ("host", "grpc_host", "listening"),
    [
        ("127.0.0.1", "127.0.0.1", ("127.0.0.1", "127.0.0.1")),
        ("localhost", "0.0.0.0", ("localhost", "192.0.2.7")),
        ("0.0.0.0", "::1", ("192.0.2.7", "::1")),
        ("192.0.2.7", "", ("192.0.2.7", "192.0.2.7")),
        (None, None, ("192.0.2.7", "192.0.2.7")),
    ],
)
def test_direct_ports_of_a_replica_are_on_the_loopback_interface_if_those_of_the_deployment_are(
    host: str | None, grpc_host: str | None, listening: tuple[str, str]
) -> None:
    listen = EndpointSettings(host, grpc_host).listen("192.0.2.7")
    assert (listen.host, listen.grpc_host) == listening
