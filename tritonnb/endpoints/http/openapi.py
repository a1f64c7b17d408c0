"""The OpenAPI 3.1 description of the HTTP endpoint, at ``/v2/openapi.json``.

Triton has no such path. The document describes the requests and responses of this server, for use with any OpenAPI
tool.
"""

from __future__ import annotations

from tritonnb.core.datatypes import BY_NAME
from tritonnb.core.json_types import Json
from tritonnb.core.version import VERSION
from tritonnb.endpoints.http.handlers.metadata import Handler
from tritonnb.telemetry.log_settings import FORMATS

Schema = Json

_STRING: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_UNSIGNED: Schema = {"type": "integer", "minimum": 0}
_OBJECT: Schema = {"type": "object"}
_NUMBER_TEXT: Schema = {"type": ["string", "null"]}
_PARAMETERS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "integer", "boolean", "number"]},
}
_SHAPE: Schema = {"type": "array", "items": {"type": "integer", "minimum": -1}}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TENSOR = _object(("name", "datatype", "shape"), name=_STRING, datatype=_STRING, shape=_SHAPE)
_SCHEMAS: dict[str, Schema] = {
    "Error": _object(("error",), error=_STRING),
    "ServerMetadata": _object(
        ("name", "version", "extensions"), name=_STRING, version=_STRING, extensions=_array(_STRING)
    ),
    "ModelMetadata": _object(
        ("name", "versions", "platform", "inputs", "outputs"),
        name=_STRING, versions=_array(_STRING), platform=_STRING, inputs=_array(_TENSOR), outputs=_array(_TENSOR),
    ),
    "InferRequest": _object(
        ("inputs",),
        id=_STRING,
        parameters=_PARAMETERS,
        inputs=_array(
            _object(
                ("name", "datatype", "shape"),
                name=_STRING,
                datatype={"enum": list(BY_NAME)},
                shape=_array(_UNSIGNED),
                parameters=_object(
                    binary_data_size=_UNSIGNED, shared_memory_region=_STRING, shared_memory_offset=_UNSIGNED,
                    shared_memory_byte_size=_UNSIGNED,
                ),
                data={"type": "array"},
            )
        ),
        outputs=_array(
            _object(
                ("name",),
                name=_STRING,
                parameters=_object(
                    binary_data=_BOOLEAN, classification=_UNSIGNED, shared_memory_region=_STRING,
                    shared_memory_offset=_UNSIGNED, shared_memory_byte_size=_UNSIGNED,
                ),
            )
        ),
    ),
    "InferResponse": _object(
        ("model_name", "model_version", "outputs"),
        id=_STRING, model_name=_STRING, model_version=_STRING, parameters=_OBJECT, outputs=_array(_TENSOR),
    ),
    "Statistics": _object(("model_stats",), model_stats=_array(_OBJECT)),
    "RepositoryIndex": _array(
        _object(("name",), name=_STRING, version=_STRING, state=_STRING, reason=_STRING)
    ),
    "TraceSetting": _object(
        trace_level=_array(_STRING), trace_rate=_STRING, trace_count=_STRING, log_frequency=_STRING,
        trace_file=_STRING, trace_mode=_STRING,
    ),
    "LogSettings": _object(
        log_file=_STRING, log_info=_BOOLEAN, log_warning=_BOOLEAN, log_error=_BOOLEAN,
        log_verbose_level=_UNSIGNED, log_format={"enum": list(FORMATS)},
    ),
    "SystemRegion": _object(
        ("name", "key", "offset", "byte_size"), name=_STRING, key=_STRING, offset=_UNSIGNED, byte_size=_UNSIGNED
    ),
}  # fmt: skip
_TRACE_CHANGE = _object(
    trace_level={"type": ["array", "null"], "items": {"enum": ["OFF", "TIMESTAMPS", "TENSORS"]}},
    trace_rate=_NUMBER_TEXT,
    trace_count=_NUMBER_TEXT,
    log_frequency=_NUMBER_TEXT,
)
_REGISTER_SYSTEM = _object(("key", "byte_size"), key=_STRING, offset=_UNSIGNED, byte_size=_UNSIGNED)
_REGISTER_CUDA = _object(
    ("raw_handle", "device_id", "byte_size"),
    raw_handle=_object(("b64",), b64=_STRING), device_id=_UNSIGNED, byte_size=_UNSIGNED,
)  # fmt: skip


def _operation(
    summary: str, response: Schema | None = None, body: Schema | None = None, body_required: bool = True
) -> Schema:
    """Describe a method of a path; without ``response`` it succeeds with an empty body."""
    success: Schema = {"description": summary}
    if response is not None:
        success["content"] = {"application/json": {"schema": response}}
    failure = {"application/json": {"schema": _reference("Error")}, "text/plain": {"schema": _STRING}}
    operation: Schema = {
        "summary": summary,
        "responses": {"200": success, "default": {"description": "an error", "content": failure}},
    }
    if body is not None:
        operation["requestBody"] = {"required": body_required, "content": {"application/json": {"schema": body}}}
    return operation


def _model_operations(model: str) -> dict[str, Schema]:
    """The paths of a model, or of a version of it."""
    infer = _operation("Run an inference", _reference("InferResponse"), _reference("InferRequest"))
    infer["requestBody"]["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    infer["responses"]["200"]["content"]["application/octet-stream"] = {"schema": {}}
    stream = _operation("Run an inference, and give each response as an event", None, _OBJECT)
    stream["responses"]["200"]["content"] = {"text/event-stream": {}}
    return {
        model: {"get": _operation("Model metadata", _reference("ModelMetadata"))},
        f"{model}/ready": {"get": _operation("Whether the model is ready")},
        f"{model}/config": {"get": _operation("The model's configuration", _OBJECT)},
        f"{model}/stats": {"get": _operation("The model's statistics", _reference("Statistics"))},
        f"{model}/infer": {"post": infer},
        f"{model}/generate": {"post": _operation("Run an inference with plain JSON", _OBJECT, _OBJECT)},
        f"{model}/generate_stream": {"post": stream},
    }


def _shared_memory(kind: str, register: Schema, region: Schema) -> dict[str, Schema]:
    base, one = f"/v2/{kind}sharedmemory", f"/v2/{kind}sharedmemory/region/{{region}}"
    return {
        f"{base}/status": {"get": _operation("Every region", _array(region))},
        f"{one}/status": {"get": _operation("A region", _array(region))},
        f"{one}/register": {"post": _operation("Register a region", None, register)},
        f"{one}/unregister": {"post": _operation("Unregister a region")},
        f"{base}/unregister": {"post": _operation("Unregister every region")},
    }


def _paths() -> dict[str, Schema]:
    trace, log = _reference("TraceSetting"), _reference("LogSettings")
    trace_methods = {
        "get": _operation("Trace settings", trace),
        "post": _operation("Change trace settings", trace, _TRACE_CHANGE),
    }
    model = "/v2/models/{model}"
    load = _object(parameters={"type": "object", "additionalProperties": _STRING})
    unload = _object(parameters=_object(unload_dependents=_BOOLEAN))
    index = _operation("Every model and its state", _reference("RepositoryIndex"), _object(ready=_BOOLEAN), False)
    return {
        "/v2/health/live": {"get": _operation("Whether the server is live")},
        "/v2/health/ready": {"get": _operation("Whether the server and its models are ready")},
        "/v2": {"get": _operation("Server metadata", _reference("ServerMetadata"))},
        "/v2/models/stats": {"get": _operation("Statistics of every model", _reference("Statistics"))},
        **_model_operations(model),
        **_model_operations(f"{model}/versions/{{version}}"),
        f"{model}/trace/setting": trace_methods,
        "/v2/trace/setting": trace_methods,
        "/v2/logging": {
            "get": _operation("Log settings", log),
            "post": _operation("Change log settings", log, log),
        },
        "/v2/repository/index": {"post": index},
        "/v2/repository/models/{model}/load": {"post": _operation("Load a model", None, load, False)},
        "/v2/repository/models/{model}/unload": {"post": _operation("Unload a model", None, unload, False)},
        **_shared_memory("system", _REGISTER_SYSTEM, _reference("SystemRegion")),
        **_shared_memory("cuda", _REGISTER_CUDA, _OBJECT),
    }


def description() -> Json:
    """The OpenAPI document."""
    patterns = {"model": "^[^/]+$", "version": "^[0-9]{1,18}$", "region": "^[^/]+$"}
    paths = _paths()
    for path, methods in paths.items():
        named = [name for name in patterns if f"{{{name}}}" in path]
        if named:
            paths[path] = {
                **methods,
                "parameters": [
                    {"name": name, "in": "path", "required": True, "schema": {**_STRING, "pattern": patterns[name]}}
                    for name in named
                ],
            }
    return {
        "openapi": "3.1.0",
        "info": {"title": "tritonnb", "version": VERSION, "summary": "KServe v2 protocol with Triton's extensions"},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


class OpenApi(Handler):
    """``/v2/openapi.json``."""

    def get(self) -> None:
        """The document."""
        self.respond_json(description())
