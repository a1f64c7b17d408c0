"""The reference pages that are generated from the code: API, configuration, command line, metrics, HTTP, gRPC.

Everything comes from where the program itself takes it: the parser of the command line, a running server's OpenAPI
description and metrics, the protobuf service, the field help of the configuration editor.
"""

from __future__ import annotations

import argparse
import inspect
import json
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import service_pb2

import tritonnb as tnb
from docs.sitegen.error_messages import error_messages_page
from docs.sitegen.public_names import public_objects, returned_classes, undocumented
from tritonnb.cli.main import make_parser
from tritonnb.endpoints.grpc.rpcs import PROTOCOLS
from tritonnb.endpoints.openai.fields import ROUTES, RequestFields
from tritonnb.model_config.fields import MESSAGES
from tritonnb.notebook.field_help import schema
from tritonnb.scheduling.reasons import RULES

ROOT = Path(__file__).parents[2]


def write_pages(directory: Path) -> None:
    """Write every generated page."""
    directory.mkdir(parents=True, exist_ok=True)
    pages = {
        "api.rst": api_page(),
        "configuration.md": configuration_page(),
        "command-line.md": command_line_page(),
        "grpc.md": grpc_page(),
        "batch-rules.md": batch_rules_page(),
        "error-messages.md": error_messages_page(),
        "openai.md": openai_page(),
        **live_pages(),
    }
    for name, text in pages.items():
        (directory / name).write_text(text, encoding="utf-8")


# --- Python -----------------------------------------------------------------------------------


def api_page() -> str:
    """Return every public name: functions and classes with a page each, the datatypes in a table.

    Raises
    ------
    ValueError
        If a public function, class, method or property has no docstring.
    """
    items = public_objects()
    functions = [name for name, item in items.items() if inspect.isfunction(item)]
    classes = [name for name, item in items.items() if inspect.isclass(item)]
    values = [name for name in items if name not in {*functions, *classes, "errors", "__version__"}]
    if undocumented():
        raise ValueError(f"public names: expected a docstring for each, got none for {undocumented()}")
    exceptions = [name for name in tnb.errors.__all__ if name not in items]
    returned = [f"{item.__module__}.{item.__qualname__}" for item in returned_classes()]
    return "\n".join(
        (
            *_heading("Python API"),
            "The names in ``tritonnb.__all__`` are public: ``import tritonnb as tnb``. Everything else may change in",
            "any release.",
            "",
            *_autosummary("Functions", (f"tritonnb.{name}" for name in functions)),
            *_autosummary("Classes", (f"tritonnb.{name}" for name in classes)),
            *_autosummary("Exceptions", (f"tritonnb.errors.{name}" for name in exceptions)),
            *_heading("Returned objects", "-"),
            "Functions and methods above return objects of these classes. Their methods and attributes are public;",
            "the modules in which they are defined are not.",
            "",
            *_autosummary("", returned),
            *_heading("Datatypes of function models", "-"),
            ", ".join(f"``tritonnb.{name}``" for name in values) + ": annotations of the inputs and outputs of a",
            "function that is served as a model. ``tnb.FP32[1]`` is a tensor whose shape, without the batch dimension,",
            "is ``[1]``. See :doc:`/how-to/serve-a-function`.",
            "",
        )
    )


def _heading(title: str, line: str = "=") -> tuple[str, str, str]:
    return title, line * len(title), ""


def _autosummary(title: str, names: Iterable[str]) -> list[str]:
    heading = _heading(title, "-") if title else ()
    return [*heading, ".. autosummary::", "   :toctree: api", "", *(f"   {name}" for name in names), ""]


# --- configuration ----------------------------------------------------------------------------


def configuration_page() -> str:
    """Return a table for each message of ``config.pbtxt``, the model configuration first."""
    parts = [
        "# Model configuration\n",
        "The fields of `config.pbtxt`, as Triton's protobuf schema defines them. Fields without a description are read",
        "and checked as on Triton. A field that this server cannot honour is refused with an error when the model is",
        "loaded; [deviations](../deviations.md) lists the differences.\n",
    ]
    for message, fields in schema().items():
        parts += [f"({_anchor(message)})=", f"## {message}\n"]
        rows = [
            (f"`{name}`", _type_cell(field), _default(message, name), _help(field)) for name, field in fields.items()
        ]
        parts += _table(("field", "type", "default", "meaning"), rows)
    return "\n".join(parts)


def _anchor(message: str) -> str:
    return f"message-{message.lower().replace('.', '-')}"


def _type_cell(field: dict[str, Any]) -> str:
    if "message" not in field:
        return str(field["type"])
    prefix = "repeated " if str(field["type"]).startswith("repeated ") else ""
    return f"{prefix}[{field['message']}](#{_anchor(field['message'])})"


def _help(field: dict[str, Any]) -> str:
    values = ", ".join(f"`{value}`" for value in field.get("values", ()))
    return " ".join(filter(None, (field["help"], f"One of {values}." if values else "")))


def _default(message: str, name: str) -> str:
    """Return the value of a field that is left out: protobuf's own, since Triton's schema declares no other."""
    field = MESSAGES[f"inference.{message}"].fields_by_name[name]
    if field.message_type is not None or field.is_repeated:
        return ""
    if field.enum_type is not None:
        return f"`{field.enum_type.values_by_number[field.default_value].name}`"
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return f"`{str(field.default_value).lower()}`"
    return f"`{field.default_value}`" if field.default_value != "" else '`""`'


def batch_rules_page() -> str:
    """Return the rules by which a scheduler decides."""
    return "\n".join(
        (
            "# Rules of the schedulers\n",
            "Every batch and every refused request names the rule that decided: `batch.reason.rule`, and in words",
            "`batch.why`.\n",
            *_table(("rule", "meaning"), [(f"`{rule}`", text) for rule, text in RULES.items()]),
        )
    )


# --- command line -----------------------------------------------------------------------------


def command_line_page() -> str:
    """Return the subcommands of ``tritonnb``, with a table of the flags of each."""
    parser = make_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    summaries = {action.dest: action.help for action in commands._choices_actions}
    parts = ["# Command line\n", f"{parser.description} `tritonnb --version` prints the version.\n"]
    for name, command in commands.choices.items():
        parts += [f"## tritonnb {name}\n", f"{_sentence(summaries[name])}\n", f"```text\n{_usage(command)}\n```\n"]
        rows = [_flag_row(command, action) for action in command._actions if action.dest != "help"]
        if rows:
            parts += _table(("argument", "value", "meaning"), rows)
    return "\n".join(parts)


def _usage(parser: argparse.ArgumentParser) -> str:
    return parser.format_usage().removeprefix("usage: ").strip()


def _sentence(text: str | None) -> str:
    return f"{(text or '')[:1].upper()}{(text or '')[1:]}."


def _flag_row(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
    metavar = action.metavar or (action.dest.upper() if action.option_strings else "")
    takes_value = action.nargs != 0
    help_text = parser._get_formatter()._expand_help(action) if action.help else ""
    return names, f"`{metavar}`" if takes_value and metavar else "", help_text


# --- endpoints --------------------------------------------------------------------------------


def live_pages() -> dict[str, str]:
    """Return the pages that a running server describes itself: HTTP and metrics."""
    server = tnb.serve(
        ROOT / "model_repository",
        port=0,
        metrics_port=0,
        metrics=tnb.MetricsOptions(summary_latencies=True, histogram_latencies=True),
        model_control_mode="explicit",
        load_models=["add_sub"],
        cache_config={"local": {"size": "1048576"}},
    )
    try:
        description = json.loads(_read(f"{server.url}/v2/openapi.json"))
        metrics_url = f"http://127.0.0.1:{server.metrics_port}/metrics"
        return {"http.md": http_page(description), "metrics.md": metrics_page(_read(metrics_url))}
    finally:
        server.stop()


def _read(url: str) -> str:
    with urllib.request.urlopen(url) as response:
        return str(response.read().decode())


def http_page(description: dict[str, Any]) -> str:
    """Return the operations of an OpenAPI description, and its schemas."""
    parts = [
        "# HTTP API\n",
        "The KServe v2 protocol with Triton's extensions, over HTTP/1.1. A running server describes itself at",
        "`/v2/openapi.json` (OpenAPI 3.1), from which this page is made. A request that fails is answered with an",
        "[error](#schema-error).\n",
        "## Operations\n",
    ]
    rows = [
        (f"`{method.upper()}`", f"`{path}`", operation.get("summary", ""), _schemas_of(operation))
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
        if method in ("get", "post", "put", "delete", "head")
    ]
    parts += _table(("method", "path", "purpose", "schemas"), rows)
    parts.append("## Schemas\n")
    for name, body in description["components"]["schemas"].items():
        parts += [f"(schema-{name.lower()})=", f"### {name}\n", f"```json\n{json.dumps(body, indent=2)}\n```\n"]
    return "\n".join(parts)


def _schemas_of(operation: dict[str, Any]) -> str:
    """Return links to the schemas of the request and of a successful response."""
    described = [operation.get("requestBody"), operation["responses"]["200"]]
    names = dict.fromkeys(reference.rpartition("/")[2] for reference in _references(described))
    return ", ".join(f"[{name}](#schema-{name.lower()})" for name in names)


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for child in node.values():
            yield from _references(child)
    elif isinstance(node, list):
        for child in node:
            yield from _references(child)


def metrics_page(exposition: str) -> str:
    """Return the families in a Prometheus exposition."""
    helps, kinds = {}, {}
    for line in exposition.splitlines():
        if line.startswith("# HELP "):
            name, _, text = line.removeprefix("# HELP ").partition(" ")
            helps[name] = text
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            kinds[name] = kind
    return "\n".join(
        (
            "# Metrics\n",
            "Prometheus text at `/metrics` on the metrics port (`tnb.serve(..., metrics_port=8002)`,",
            "`tritonnb serve --metrics-port=8002`), with Triton's names. The summaries and histograms are off unless",
            "`--metrics-config summary_latencies=true` or `histogram_latencies=true` asks for them. On a machine with",
            "an NVIDIA GPU there are `nv_gpu_*` and `nv_energy_consumption` too. Models add their own families",
            "through `pb_utils.MetricFamily`.\n",
            *_table(("family", "kind", "meaning"), [(f"`{name}`", kinds[name], helps[name]) for name in kinds]),
        )
    )


def grpc_page() -> str:
    """Return the RPCs of Triton's service, with the protocols that restrict them."""
    protocol_of = {rpc: protocol for protocol, rpcs in PROTOCOLS.items() for rpc in rpcs}
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    rows = [
        (
            f"`{method.name}`",
            f"`{method.input_type.name}`{_stream(method.client_streaming)}",
            f"`{method.output_type.name}`{_stream(method.server_streaming)}",
            f"`{protocol_of[method.name]}`",
        )
        for method in service.methods
    ]
    rows.append(("`Check`", "`HealthCheckRequest`", "`HealthCheckResponse`", f"`{protocol_of['Check']}`"))
    return "\n".join(
        (
            "# gRPC API\n",
            f"The service `{service.full_name}`, and `Check` of `grpc.health.v1.Health`, on the gRPC port",
            "(`tnb.serve(..., grpc_port=8001)`, `tritonnb serve --grpc-port=8001`). The last column is the",
            "name by which `--grpc-restricted-protocol` restricts an RPC.\n",
            *_table(("RPC", "request", "response", "protocol"), rows),
        )
    )


# --- OpenAI's API -----------------------------------------------------------------------------


def openai_page() -> str:
    """Return a table for each route of OpenAI's API: which fields are read, ignored and refused."""
    parts = [
        "# OpenAI API\n",
        "What the endpoint under `/v1` does with each field of OpenAI's API: the fields are those of the `openai`",
        "package, and its types validate the responses in the tests of this project.",
        "[Serve an OpenAI-compatible API](../how-to/serve-an-openai-api.md) says how to use it.\n",
        "- A field that is `null` counts as absent. A field that neither OpenAI nor this page names is refused: status",
        "  400, code `unknown_parameter`.",
        "- *Refused* fields have status 400, code `unsupported_parameter`, unless they have a value that asks for",
        "  nothing.",
        "- Errors have OpenAI's form: `error` with `message`, `type`, `param` and `code`. The status is 400 for an",
        "  invalid request, 401 for a missing or wrong key, 403 for a restricted API or a foreign origin, 404 for an",
        "  unknown model or path, 405 for a wrong method, 413 for a body that is too large, and that of the model's",
        "  error otherwise.",
        "- `GET /v1/models` lists the models that the API can use, as `openai.types.Model`; `GET /v1/models/NAME`",
        "  returns one.\n",
    ]
    for path, fields in ROUTES.items():
        parts += [f"## POST {path}\n", f"Response: `{fields.response}`.{_chunks(fields)}\n"]
        parts += _table(("field", "", "what it does"), _openai_rows(fields))
    return "\n".join(parts)


def _chunks(fields: RequestFields) -> str:
    return f" With `stream`, each event is a `{fields.chunk}`." if fields.chunk else ""


def _openai_rows(fields: RequestFields) -> Iterator[tuple[str, str, str]]:
    for name, text in fields.read.items():
        note = " (not a field of OpenAI's)" if name in fields.extensions else ""
        yield f"`{name}`", "read", f"{text}{note}"
    for name in sorted(fields.ignored):
        yield f"`{name}`", "ignored", "has no effect on the response"
    for name, values in fields.unsupported.items():
        accepted = " or ".join(f"`{json.dumps(value)}`" for value in values)
        yield f"`{name}`", "refused", f"accepted as {accepted} only" if accepted else "with any value"


def _stream(streaming: bool) -> str:
    return " (stream)" if streaming else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines), ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
