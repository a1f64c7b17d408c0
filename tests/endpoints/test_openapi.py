"""The OpenAPI description of the HTTP endpoint: complete, consistent, and correct."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lazy_import import LazyModule
from tritonnb.endpoints.http.routes import V2_ROUTES, find_route
from tritonnb.server.server import Server

if TYPE_CHECKING:
    import jsonschema
else:
    jsonschema = LazyModule("jsonschema")

MODELS = Path(__file__).parents[1] / "models"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(MODELS, port=0, model_control_mode="explicit", load_models=["addsub"]) as server:
        yield server


def get(server: Server, path: str) -> Any:
    with urllib.request.urlopen(server.url + path) as response:
        return json.loads(response.read())


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return get(server, "/v2/openapi.json")


def schema_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    return {**schema, "components": document["components"]}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from references(entry)


def test_every_reference_has_a_target(document: dict[str, Any]) -> None:
    defined = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) == defined


def test_every_schema_is_valid(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_route_is_described(document: dict[str, Any]) -> None:
    examples = {"model": "x", "version": "1", "region": "x", "kind": "system"}
    routes = [find_route(path.format(**examples), V2_ROUTES) for path in document["paths"]]
    assert {route.name for route, _ in filter(None, routes)} == {route.name for route in V2_ROUTES}
    assert None not in routes
    assert all(methods.keys() & {"get", "post"} for methods in document["paths"].values())


def test_route_matches_with_and_without_optional_parts(document: dict[str, Any]) -> None:
    paths = ["/v2/trace/setting", "/v2/models/{model}/trace/setting"]
    assert [path for path in document["paths"] if path.endswith("/trace/setting")] == paths
    (parameter,) = document["paths"][paths[1]]["parameters"]
    assert (parameter["name"], parameter["schema"]["pattern"]) == ("model", "^(?:[^/]+)$")


def test_openapi_has_the_methods_and_summaries_of_the_handlers(document: dict[str, Any]) -> None:
    assert document["paths"]["/v2/logging"]["post"]["summary"].startswith("Change settings")
    infer = document["paths"]["/v2/models/{model}/versions/{version}/infer"]["post"]
    assert infer["summary"] == "Run an inference"
    assert set(infer["requestBody"]["content"]) == {"application/json", "application/octet-stream"}
    assert infer["requestBody"]["required"]
    assert not document["paths"]["/v2/repository/index"]["post"]["requestBody"]["required"]


def test_typed_dictionaries_are_described_with_those_in_them(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["IndexEntry"]["required"] == ["name"]
    assert schemas["StatisticsEntry"]["properties"]["response_stats"] == {
        "type": "object",
        "additionalProperties": {"$ref": "#/components/schemas/ResponseEntry"},
    }
    assert schemas["DurationEntry"]["properties"] == {"count": {"type": "integer"}, "ns": {"type": "integer"}}


def test_responses_match_their_schemas(server: Server, document: dict[str, Any]) -> None:
    examples = {
        "/v2": "/v2",
        "/v2/models/{model}": "/v2/models/addsub",
        "/v2/models/{model}/versions/{version}": "/v2/models/addsub/versions/1",
        "/v2/models/{model}/stats": "/v2/models/addsub/stats",
        "/v2/models/stats": "/v2/models/stats",
        "/v2/trace/setting": "/v2/trace/setting",
        "/v2/logging": "/v2/logging",
        "/v2/systemsharedmemory/status": "/v2/systemsharedmemory/status",
    }
    for path, example in examples.items():
        jsonschema.validate(get(server, example), schema_of(document, path))
