"""Restricted APIs and forwarded headers of the HTTP endpoint."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.server.options import ServerKeywords
from tritonnb.server.server import Server

MODELS = Path(__file__).parents[1] / "models"
BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = HttpOptions(
        restricted_api=(("inference", "key", "secret"), ("logging", "key", "secret")),
        header_forward_pattern="X-|^timeout$",
    )
    explicit: ServerKeywords = {"model_control_mode": "explicit", "load_models": ["parameters"], "http": options}
    with Server(MODELS, port=0, **explicit) as server:
        yield server


def ask(server: Server, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request(method, path, body or None, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    received = answer.status, answer.headers["Content-Type"], answer.read()
    connection.close()
    return received


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/models/parameters/infer"),
        ("POST", "/v2/models/nosuch/versions/1/generate?x=1"),
        ("GET", "/v2/logging"),
        ("PUT", "/v2/logging"),
    ],
)
def test_restricted_api_checks_its_header_first(server: Server, method: str, path: str) -> None:
    refused = (403, "text/plain", b'{"error":"This API is restricted, expecting header \'key\'"}')
    assert ask(server, method, path) == refused
    assert ask(server, method, path, key="wrong") == refused


@pytest.mark.parametrize("path", ["/v2/models/parameters?x/infer", "/v2/models/parameters?/versions/1/infer"])
def test_path_of_a_restricted_api_ends_at_the_question_mark(server: Server, path: str) -> None:
    metadata = (405, "application/json", b'{"error":"Method Not Allowed"}')
    assert ask(server, "POST", path) == metadata


def test_restricted_api_answers_with_the_header(server: Server) -> None:
    assert ask(server, "GET", "/v2/logging", KEY="secret")[0] == 200
    for _ in range(2):  # a head that was seen before is judged as the first time
        assert ask(server, "POST", "/v2/models/parameters/infer", BODY, key="secret")[0] == 200
    assert ask(server, "GET", "/v2/models/parameters")[0] == 200


def test_headers_that_match_become_parameters_of_each_request(server: Server) -> None:
    for value in ("1", "2", "2"):
        _, _, body = ask(server, "POST", "/v2/models/parameters/infer", BODY, key="secret", X_One=value, other="3")
        seen = json.loads(json.loads(body)["outputs"][0]["data"][0])
        assert seen["parameters"] == {"x-one": value}


@pytest.mark.parametrize("name", ["timeout", "Timeout"])
def test_request_with_a_reserved_header_is_refused(server: Server, name: str) -> None:
    for _ in range(2):  # a head that was seen before is judged as the first time
        answer = ask(server, "POST", "/v2/models/parameters/infer", BODY, key="secret", **{name: "5"})
        text = "Header 'timeout' is reserved for Triton usage and cannot be forwarded."
        assert answer == (400, "application/json", f'{{"error":"{text}"}}'.encode())


@pytest.mark.parametrize(
    ("api", "path"),
    [
        ("health", "/v2/health/ready"),
        ("health", "/v2/models/m/ready"),
        ("metadata", "/v2"),
        ("metadata", "/v2/models/m/versions/1"),
        ("model-config", "/v2/models/m/config"),
        ("statistics", "/v2/models/stats"),
        ("statistics", "/v2/models/m/versions/1/stats"),
        ("model-repository", "/v2/repository/models/m/load"),
        ("shared-memory", "/v2/systemsharedmemory/region/r/status"),
        ("trace", "/v2/trace/setting"),
        ("trace", "/v2/models/m/trace/setting"),
    ],
)
def test_every_route_belongs_to_one_restricted_api(api: str, path: str) -> None:
    assert (
        Admission(HttpOptions(restricted_api=((api, "key", "v"),)), None).refusal(path, lambda name: None) is not None
    )
    others = {"health", "metadata", "inference", "model-config", "statistics", "model-repository", "trace"} - {api}
    restricted = HttpOptions(restricted_api=tuple((other, "key", "v") for other in others))
    assert Admission(restricted, None).refusal(path, lambda name: None) is None
