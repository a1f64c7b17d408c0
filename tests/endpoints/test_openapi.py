"""The OpenAPI description of the HTTP endpoint: complete, consistent, and correct."""

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
    with urllib.request.urlopen(server.url + path) as response:
        return json.loads(response.read())


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


def test_every_reference_has_a_target() -> None:
    document = description()
    defined = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= defined


def test_every_schema_is_valid() -> None:
    for schema in description()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


#: The optional parts of the paths of two routes that are not described: Triton refuses or ignores a repository's name.
NOT_DESCRIBED = {"repository"}


def route_patterns() -> list[re.Pattern[str]]:
    engine: Any = None
    rules: Any = application.make_application(engine, 1).default_router
    return [rule.matcher._pattern for rule in rules.rules[0].target.rules]


def concrete(path: str) -> str:
    return re.sub(r"\{version\}", "1", re.sub(r"\{(model|region)\}", "x", path))


def variants(pattern: str) -> Iterator[str]:
    """The paths that a route's pattern matches, with each optional part present and absent."""
    optional = re.search(r"\(\?:([^()]*(?:\([^()]*\)[^()]*)*)\)\?", pattern)
    if optional is not None:
        before, after = pattern[: optional.start()], pattern[optional.end() :]
        yield from variants(before + after)
        if not any(f"?P<{name}>" in optional[1] for name in NOT_DESCRIBED):
            yield from variants(before + optional[1] + after)
        return
    choice = re.search(r"\(\?P<kind>(\w+)\|(\w+)\)", pattern)
    if choice is not None:
        for kind in choice.groups():
            yield from variants(pattern.replace(choice.group(), kind))
        return
    yield re.sub(r"\(\?P<version>[^)]*\)", "1", re.sub(r"\(\?P<(model|region)>[^)]*\)", "x", pattern)).replace(
        "\\.", "."
    )


def test_every_path_is_a_route() -> None:
    patterns = route_patterns()
    for path in description()["paths"]:
        assert any(pattern.fullmatch(concrete(path)) for pattern in patterns), path


def test_every_route_is_described() -> None:
    described = {concrete(path) for path in description()["paths"]}
    routes = {path for pattern in route_patterns() for path in variants(pattern.pattern)}
    assert all(any(pattern.fullmatch(path) for pattern in route_patterns()) for path in routes)
    # A region cannot be registered without its name: that route exists only to answer with Triton's error text.
    error_routes = {"/v2/systemsharedmemory/register", "/v2/cudasharedmemory/register"}
    assert routes - error_routes - described == {"/v2/openapi.json"}


def test_responses_match_their_schemas(server: Server) -> None:
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
