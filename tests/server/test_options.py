"""The keyword options of `Server`, `serve` and inference methods: typed, and shown by completion."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import tritonnb as tnb
from tritonnb.client.array_requests import REQUEST_OPTIONS
from tritonnb.endpoints.endpoint_set import ListenOptions
from tritonnb.engine.options import EngineOptions
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.options import EngineKeywords, KeywordsWithPort


def test_every_engine_option_is_a_keyword_of_the_same_type() -> None:
    hints = get_type_hints(EngineOptions)
    expected = {field.name: hints[field.name] for field in dataclasses.fields(EngineOptions)}
    del expected["model_repositories"]
    assert get_type_hints(EngineKeywords) == expected


def test_serve_accepts_the_keywords_of_server_except_replaces() -> None:
    server = inspect.signature(tnb.Server).parameters
    assert set(inspect.signature(tnb.serve).parameters) == set(server) - {"replaces"}
    assert server["host"].default == "127.0.0.1"
    assert server["model_control_mode"].default == "none"


def test_remaining_server_keywords_are_endpoint_options() -> None:
    own_keywords = get_type_hints(KeywordsWithPort).keys() - get_type_hints(EngineKeywords).keys()
    assert own_keywords == {field.name for field in dataclasses.fields(ListenOptions)}


@pytest.mark.parametrize("method", ["__call__", "infer", "infer_async", "infer_all"])
def test_inference_methods_show_the_request_options(method: str) -> None:
    parameters = inspect.signature(getattr(ModelHandle, method)).parameters
    assert REQUEST_OPTIONS.keys() < parameters.keys()
    assert parameters["tensors"].kind is inspect.Parameter.VAR_KEYWORD


#: Values of types and ranges that most options do not have.
WRONG: list[Any] = [
    None, "x", "", -1, 1.5, float("nan"), True, [1], {"a": 1}, object(), b"x", "\ud83d", 2**70, ("a", 1)
]  # fmt: skip
SERVER: Any = tnb.Server
GROUPS: dict[str, Any] = {
    "http": tnb.HttpOptions,
    "grpc": tnb.GrpcOptions,
    "metrics": tnb.MetricsOptions,
    "openai": tnb.OpenAiOptions,
}


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_option_of_a_wrong_type_is_refused_where_it_is_written(tmp_path: Path, group: str) -> None:
    names = [field.name for field in dataclasses.fields(GROUPS[group])] if group else get_type_hints(KeywordsWithPort)
    ports: dict[str, Any] = {"port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": 0}
    messages = {}
    for name, value in itertools.product(names, WRONG):
        try:
            chosen: dict[str, Any] = {group: GROUPS[group](**{name: value})} if group else {name: value}
            with tnb.Server(tmp_path, **{**ports, **chosen}):
                pass
        except tnb.TritonError as error:
            messages[name, repr(value)] = str(error)
    assert len(messages) > len(names)
    others = ("cannot listen on", "cannot read the files for TLS")
    unnamed = {case: text for case, text in messages.items() if not any(part in text for part in (case[0], *others))}
    assert unnamed == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: GROUPS["http"](allowed_hosts="lab"),
            "HttpOptions.allowed_hosts: expected a list of strings, got 'lab'",
        ),
        (
            lambda: GROUPS["http"](restricted_api=[("health", "key")]),
            "HttpOptions.restricted_api: expected a list of tuples of 3 strings, got [('health', 'key')]",
        ),
        (lambda: GROUPS["grpc"](keepalive_time="1"), "GrpcOptions.keepalive_time: expected an integer, got '1'"),
        (lambda: SERVER(port="8000"), "port: expected an integer or None, got '8000'"),
        (lambda: SERVER(port=0, load_models=None), "load_models: expected a list of strings, got None"),
        (
            lambda: SERVER(port=0, rate_limit="execution_count", rate_limit_resources=["r:1"]),
            "rate_limit_resources: expected a list of Resource(...), got ['r:1']",
        ),
        (lambda: SERVER(port=0, exit_timeout=float("nan")), "exit_timeout: expected a number, got nan"),
        (
            lambda: SERVER(port=0, model_control_mode="explicit", load_models=["m", "*"]),
            "Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        (
            lambda: SERVER(port=0, grpc_port=0, grpc=GROUPS["grpc"](use_ssl_mutual=True, server_key="k")),
            "gRPC endpoint: cannot read the files for TLS: expected --grpc-server-cert, --grpc-root-cert "
            "(GrpcOptions.server_cert, GrpcOptions.root_cert), got none",
        ),
    ],
)
def test_message_about_an_option_names_it(make: Any, message: str) -> None:
    with pytest.raises(tnb.TritonError) as refused:
        make()
    assert str(refused.value) == message


def test_wildcard_may_be_repeated(tmp_path: Path) -> None:
    with tnb.Server(tmp_path, port=0, model_control_mode="explicit", load_models=["*", "*"]) as server:
        assert list(server) == []
