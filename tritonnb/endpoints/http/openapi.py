"""The OpenAPI 3.1 description of the HTTP endpoint, at ``/v2/openapi.json``.

Triton has no such path. Paths come from the routes, methods and summaries from the handlers, and schemas from the
server's typed dictionaries. Only the contents of the other requests and responses are stated here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from tornado import web

from tritonnb.core.datatypes import BY_NAME
from tritonnb.core.json_types import IndexEntry, Json, ModelMetadata, ServerMetadata, TensorMetadata
from tritonnb.core.version import VERSION
from tritonnb.endpoints.http.routes import PARAMETERS, V2_ROUTES, Route
from tritonnb.telemetry.log_settings import FORMATS
from tritonnb.telemetry.statistics_entry import StatisticsResponse

_TYPES = {str: "string", int: "integer", bool: "boolean", dict: "object"}
_UNSIGNED: Json = {"type": "integer", "minimum": 0}
_NUMBER_TEXT: Json = {"type": ["string", "null"]}
_BINARY = "application/octet-stream"
_INFER = "Run an inference"  # the only method that is not in a handler


def _schema(form: Any) -> Json:
    """Return the schema of a type, or of the typed dictionary or object with a name; a schema is unchanged."""
    if isinstance(form, dict):
        return form
    if isinstance(form, str) or is_typeddict(form):
        return {"$ref": f"#/components/schemas/{getattr(form, '__name__', form)}"}
    if get_origin(form) is list or isinstance(form, list):
        return {"type": "array", "items": _schema(*(get_args(form) or form))}
    if get_origin(form) is dict:
        return {"type": "object", "additionalProperties": _schema(get_args(form)[1])}
    return {"type": _TYPES[form]}


def _object(required: str = "", **members: Any) -> Json:
    """Return the schema of an object; ``required`` are names of members, separated by spaces."""
    properties = {name: _schema(member) for name, member in members.items()}
    return {"type": "object", "properties": properties, **({"required": required.split()} if required else {})}


_PLACE: Json = {"shared_memory_region": str, "shared_memory_offset": _UNSIGNED, "shared_memory_byte_size": _UNSIGNED}
#: The objects without a typed dictionary.
_OBJECTS: Mapping[str, Json] = {
    "Error": _object("error", error=str),
    "InferRequest": _object(
        "inputs",
        id=str,
        parameters={"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean", "number"]}},
        inputs=["InferInput"],
        outputs=["InferRequestedOutput"],
    ),
    "InferInput": _object(
        "name datatype shape",
        name=str,
        datatype={"enum": list(BY_NAME)},
        shape={"type": "array", "items": _UNSIGNED},
        parameters=_object(binary_data_size=_UNSIGNED, **_PLACE),
        data={"type": "array"},
    ),
    "InferRequestedOutput": _object(
        "name", name=str, parameters=_object(binary_data=bool, classification=_UNSIGNED, **_PLACE)
    ),
    "InferResponse": _object(
        "model_name model_version outputs",
        id=str, model_name=str, model_version=str, parameters=dict, outputs=list[TensorMetadata],
    ),
    "TraceSetting": _object(
        trace_level=list[str], trace_rate=str, trace_count=str, log_frequency=str, trace_file=str, trace_mode=str
    ),
    "TraceChange": _object(
        trace_level={"type": ["array", "null"], "items": {"enum": ["OFF", "TIMESTAMPS", "TENSORS"]}},
        trace_rate=_NUMBER_TEXT, trace_count=_NUMBER_TEXT, log_frequency=_NUMBER_TEXT,
    ),
    "LogSettings": _object(
        log_file=str, log_info=bool, log_warning=bool, log_error=bool, log_verbose_level=_UNSIGNED,
        log_format={"enum": list(FORMATS)},
    ),
    "SystemRegion": _object("name key offset byte_size", name=str, key=str, offset=_UNSIGNED, byte_size=_UNSIGNED),
}  # fmt: skip
#: The JSON of requests and of responses, by route and method.
_BODIES: Mapping[tuple[str, str], tuple[Any, Any]] = {
    ("server-metadata", "get"): (None, ServerMetadata),
    ("openapi", "get"): (None, dict),
    ("statistics", "get"): (None, StatisticsResponse),
    ("model-metadata", "get"): (None, ModelMetadata),
    ("model-config", "get"): (None, dict),
    ("model-statistics", "get"): (None, StatisticsResponse),
    ("infer", "post"): ("InferRequest", "InferResponse"),
    ("generate", "post"): (dict, dict),
    ("generate-stream", "post"): (dict, None),
    ("index", "post"): (_object(ready=bool), list[IndexEntry]),
    ("load", "post"): (_object(parameters=dict[str, str]), None),
    ("unload", "post"): (_object(parameters=_object(unload_dependents=bool)), None),
    ("trace-setting", "get"): (None, "TraceSetting"),
    ("trace-setting", "post"): ("TraceChange", "TraceSetting"),
    ("logging", "get"): (None, "LogSettings"),
    ("logging", "post"): ("LogSettings", "LogSettings"),
    ("system-status", "get"): (None, ["SystemRegion"]),
    ("cuda-status", "get"): (None, [dict]),
    ("system-register", "post"): (_object("key byte_size", key=str, offset=_UNSIGNED, byte_size=_UNSIGNED), None),
    ("cuda-register", "post"): (
        _object(
            "raw_handle device_id byte_size",
            raw_handle=_object("b64", b64=str), device_id=_UNSIGNED, byte_size=_UNSIGNED,
        ),
        None,
    ),
}  # fmt: skip
#: Routes that accept requests without a body.
_OPTIONAL = {"index", "load", "unload"}
#: Other content types of requests and of responses, by route.
_CONTENT: Mapping[str, tuple[Json, Json]] = {
    "infer": ({_BINARY: {"schema": {"type": "string", "format": "binary"}}}, {_BINARY: {"schema": {}}}),
    "generate-stream": ({}, {"text/event-stream": {}}),
}
_FAILURE: Json = {
    "description": "an error",
    "content": {"application/json": {"schema": _schema("Error")}, "text/plain": {"schema": _schema(str)}},
}


def description(handlers: Mapping[str, type[web.RequestHandler]]) -> Json:
    """Return the OpenAPI document.

    Parameters
    ----------
    handlers : mapping
        The handler of each route, by name.
    """
    objects = dict(_OBJECTS)
    for _, response in _BODIES.values():
        objects |= _typed(response)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tritonnb", "version": VERSION, "summary": "KServe v2 protocol with Triton's extensions"},
        # Triton refuses or ignores the name of a repository.
        "paths": {
            path: {**_operations(route, handlers[route.name]), "parameters": _parameters(path)}
            for route in V2_ROUTES
            for path in route.paths()
            if "{repository}" not in path
        },
        "components": {"schemas": objects},
    }


def _typed(form: Any) -> Json:
    """Return the schemas of the typed dictionaries in a type, by name."""
    if not is_typeddict(form):
        return {name: schema for argument in get_args(form) for name, schema in _typed(argument).items()}
    members = get_type_hints(form)
    required = " ".join(name for name in members if name in form.__required_keys__)
    inner = {name: schema for member in members.values() for name, schema in _typed(member).items()}
    return {form.__name__: _object(required, **members), **inner}


def _parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": f"^(?:{pattern})$"}}
        for name, pattern in PARAMETERS.items()
        if f"{{{name}}}" in path
    ]


def _operations(route: Route, handler: type[web.RequestHandler]) -> Json:
    """Return the methods of a handler, and the methods with a body that is described."""
    own = {method: getattr(handler, method) for method in ("get", "post")}
    return {
        method: _operation(route.name, method, (inspect.getdoc(function) or _INFER).partition("\n")[0].rstrip("."))
        for method, function in own.items()
        if function is not getattr(web.RequestHandler, method) or (route.name, method) in _BODIES
    }


def _operation(route: str, method: str, summary: str) -> Json:
    request, response = _BODIES.get((route, method), (None, None))
    accepted, returned = _CONTENT.get(route, ({}, {}))
    success: Json = {"description": summary}
    if response is not None:
        returned = {"application/json": {"schema": _schema(response)}, **returned}
    if returned:
        success["content"] = returned
    operation: Json = {"summary": summary, "responses": {"200": success, "default": _FAILURE}}
    if request is not None:
        content = {"application/json": {"schema": _schema(request)}, **accepted}
        operation["requestBody"] = {"required": route not in _OPTIONAL, "content": content}
    return operation
