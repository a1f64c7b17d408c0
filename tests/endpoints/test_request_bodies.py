"""The JSON of requests other than inferences: its size, and the types of its members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.endpoints.replay import send
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.server.options import ServerKeywords
from tritonnb.server.server import Server

MODELS = Path(__file__).parents[1] / "models"
LIMIT = 100


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = HttpOptions(max_input_size=LIMIT)
    explicit: ServerKeywords = {
        "model_control_mode": "explicit",
        "load_models": ["textgen"],
        "allow_client_shm": True,
        "http": options,
    }
    with Server(MODELS, port=0, **explicit) as server:
        yield server


@pytest.fixture(scope="module")
def default_server() -> Iterator[Server]:
    with Server(MODELS, port=0, model_control_mode="explicit") as server:
        yield server


def post(server: Server, path: str, body: str) -> tuple[int, str]:
    status, _, answer = send(server.port, {"method": "POST", "path": path, "body_text": body})
    return status, answer.decode()


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/repository/models/textgen/load",
        "/v2/repository/models/nosuch/unload",
        "/v2/trace/setting",
        "/v2/logging",
        "/v2/systemsharedmemory/region/r/register",
        "/v2/cudasharedmemory/region/r/register",
        "/v2/models/textgen/generate",
        "/v2/models/textgen/infer",
    ],
)
def test_size_of_json_is_limited_on_every_route(server: Server, path: str) -> None:
    status, answer = post(server, path, "{" + " " * (LIMIT - 1) + "}")
    assert status == 400
    assert answer == (
        f'{{"error":"request JSON size of {LIMIT + 1} bytes exceeds the maximum allowed input size of {LIMIT} bytes. '
        'Use --http-max-input-size to increase the limit."}'
    )
    assert "maximum allowed" not in post(server, path, "{" + " " * (LIMIT - 2) + "}")[1]


def test_unload_request_accepts_members_of_any_type(server: Server) -> None:
    path = "/v2/repository/models/nosuch/unload"
    assert post(server, path, "{")[0] == 500
    for body in ("", "[]", '{"parameters":1}', '{"parameters":{"unload_dependents":"yes"}}'):
        assert post(server, path, body) == (200, "")


@pytest.mark.parametrize("value", ['"true"', "1", "null", "[true]", "{}"])
def test_ready_parameter_must_be_a_boolean(server: Server, value: str) -> None:
    answer = post(server, "/v2/repository/index", f'{{"ready":{value}}}')
    assert answer == (400, '{"error":"Invalid value for \'ready\': expected a boolean"}')


def test_deeply_nested_value_is_refused_for_its_type(default_server: Server) -> None:
    nested = "[" * 250_000 + "true" + "]" * 250_000
    answer = post(default_server, "/v2/repository/index", f'{{"ready":{nested}}}')
    assert answer == (400, '{"error":"Invalid value for \'ready\': expected a boolean"}')


@pytest.mark.parametrize("body", ["{}", '{"ready":false}', '{"ready":true}', "[]"])
def test_index_can_be_limited_to_ready_models(server: Server, body: str) -> None:
    status, answer = post(server, "/v2/repository/index", body)
    assert status == 200
    assert ('"addsub"' in answer) is ("true" not in body)


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=b"]
)
def test_body_is_json_whatever_its_content_type_says(default_server: Server, kind: str) -> None:
    body = '{"ready":true,"text":"' + "&a=1" * 2000 + '"}'
    request = {"method": "POST", "path": "/v2/repository/index", "body_text": body, "headers": {"Content-Type": kind}}
    assert send(default_server.port, request)[0] == 200


def test_query_is_ignored_however_long(default_server: Server) -> None:
    status, _, answer = send(default_server.port, {"method": "GET", "path": f"/v2?{'a=1&' * 2000}"})
    assert (status, b'"name"' in answer) == (200, True)


def test_request_that_no_handler_can_read_gets_a_response() -> None:
    with Server(port=0, http=HttpOptions(allow_foreign=True)) as server:
        request = {"method": "GET", "path": "/v2", "headers": {"Host": "a b"}}
        status, _, answer = send(server.port, request)
    assert (status, b"ost header" in answer) == (400, True)
