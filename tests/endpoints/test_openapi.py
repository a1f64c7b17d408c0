"""The endpoint's description of itself: complete, consistent, and true."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tritonnb.endpoints.http import application
from tritonnb.endpoints.http.openapi import description
from tritonnb.server.server import Server

MODELS = Path(__file__).parents[1] / "models"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(MODELS, port=0, model_control_mode="explicit", load_models=["addsub"]) as server:
        yield server


def get(server: Server, path: str) -> Any:
    with urllib.request.urlopen(server.url + path) as answer:
        return json.loads(answer.read())


def schema_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    return {**schema, "components": document["components"]}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_reference_leads_somewhere():
    document = description()
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


def test_every_schema_is_one():
    for schema in description()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_path_is_a_route(server: Server):
    rules = server.engine and application.make_application(server.engine, 1).default_router.rules[0].target.rules
    patterns = [rule.matcher._pattern for rule in rules]
    for path in get(server, "/v2/openapi.json")["paths"]:
        concrete = re.sub(r"\{version\}", "1", re.sub(r"\{(model|region)\}", "x", path))
        served = any(each.fullmatch(concrete) for each in patterns)
        assert served, path


def test_answers_are_as_described(server: Server):
    document = get(server, "/v2/openapi.json")
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
