"""Metadata, configuration and statistics have the same form and all fields over HTTP and gRPC."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

import tritonnb as tnb
from tritonnb.client.v2_client import V2GrpcClient, V2HttpClient
from tritonnb.core.datatypes import DATATYPES, DataType
from tritonnb.model_config.fields import is_map
from tritonnb.server.server import Server
from tritonnb.telemetry.statistics_entry import StatisticsEntry

MODELS = Path(__file__).parents[1] / "models"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with statistics of each kind: of a decoupled model that has run, and of a model that uses memory."""
    models = ["echo_fp32", "textstream", "addsub"]
    with Server(MODELS, port=0, grpc_port=0, model_control_mode="explicit", load_models=models) as server:
        body = json.dumps({"text_input": "one fail three"}).encode()
        url = f"{server.url}/v2/models/textstream/generate_stream"
        urllib.request.urlopen(urllib.request.Request(url, body)).read()
        server.engine.model("echo_fp32").statistics.memory_usage = {("GPU", 0): 4096, ("CPU", 0): 512}
        yield server


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("metadata", ()),
        ("index", ()),
        ("model_metadata", ("addsub",)),
        ("model_metadata", ("addsub", 1)),
        ("config", ("addsub",)),
        ("statistics", ()),
        ("statistics", ("textstream",)),
        ("trace_settings", ()),
    ],
)
def test_results_over_grpc_equal_those_over_http(server: Server, method: str, arguments: tuple[Any, ...]) -> None:
    grpc_endpoint = server.endpoints.grpc
    assert grpc_endpoint is not None
    http = V2HttpClient("http", f"127.0.0.1:{server.port}")
    over_grpc = V2GrpcClient("grpc", f"127.0.0.1:{grpc_endpoint.port}")
    assert getattr(over_grpc, method)(*arguments) == getattr(http, method)(*arguments)


@pytest.mark.parametrize("url", ["http://127.0.0.1:{0.port}", "grpc://127.0.0.1:{0.grpc_port}"])
@pytest.mark.parametrize("datatype", [*DATATYPES], ids=lambda datatype: datatype.name)
def test_results_over_the_network_equal_those_in_process(url: str, datatype: DataType) -> None:
    with Server(port=0, grpc_port=0) as server:

        def echo(X: Any) -> Any:
            return X

        echo.__annotations__ = {"X": datatype[-1], "return": datatype[-1]}
        server.model(echo)
        values = ["a", "b\0"] if datatype.variable_size else [True, False]
        expected = server["echo"](X=values)["OUTPUT"]
        result = tnb.connect(url.format(server))["echo"](X=values)["OUTPUT"]
    assert (result.dtype, result.tolist(), result.flags.writeable) == (expected.dtype, expected.tolist(), True)


def fill(message: Message, numbers: Iterator[int]) -> None:
    """Set every field to another value."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if is_map(field):
            for _ in range(2):
                fill(value[str(next(numbers))], numbers)
        elif field.is_repeated:
            for _ in range(2):
                fill(value.add(), numbers)
        elif field.message_type is not None:
            value.SetInParent()
            fill(value, numbers)
        else:
            kind = str if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else int
            setattr(message, field.name, kind(next(numbers)))


def test_no_field_of_the_statistics_is_lost_over_grpc() -> None:
    sent = pb.ModelStatisticsResponse()
    fill(sent, itertools.count(1))
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: sent,
        request_deserializer=pb.ModelStatisticsRequest.FromString,
        response_serializer=pb.ModelStatisticsResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelStatistics": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        entries = V2GrpcClient("grpc", f"127.0.0.1:{port}").statistics()
    finally:
        server.stop(None)
    assert json_format.ParseDict({"model_stats": entries}, pb.ModelStatisticsResponse()) == sent
    assert isinstance(entries[0]["inference_count"], int)  # JSON of protobuf has strings for 64-bit integers


def form(descriptor: Descriptor) -> object:
    """The form that the messages have as JSON: the fields by name."""
    fields: dict[str, object] = {}
    for field in descriptor.fields:
        if is_map(field):
            fields[field.name] = {"of": form(field.message_type.fields_by_name["value"].message_type)}
        elif field.message_type is not None:
            fields[field.name] = [form(field.message_type)] if field.is_repeated else form(field.message_type)
        else:
            fields[field.name] = "str" if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else "int"
    return fields


def typed_form(kind: Any) -> object:
    """The form that a type says."""
    if is_typeddict(kind):
        return {name: typed_form(hint) for name, hint in get_type_hints(kind).items()}
    if get_origin(kind) is dict:
        return {"of": typed_form(get_args(kind)[1])}
    if get_origin(kind) is list:
        return [typed_form(get_args(kind)[0])]
    return kind.__name__


def test_type_of_the_statistics_has_the_fields_of_the_message() -> None:
    assert typed_form(StatisticsEntry) == form(pb.ModelStatistics.DESCRIPTOR)
