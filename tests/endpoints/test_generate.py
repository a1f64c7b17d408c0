"""The generate extension's mapping between flat JSON and tensors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from tests.endpoints.served import Client, Running, running, spec_of
from tritonnb.core.datatypes import BYTES, FP32
from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError, UnavailableError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.endpoints.http.handlers.generate import read_generate_request, write_generate_response

TEXT = """
name: "text"
input { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "weights" data_type: TYPE_FP32 dims: [ -1, 2 ] optional: true }
input { name: "grid" data_type: TYPE_INT32 dims: [ -1, -1 ] optional: true }
output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""


def discard_response(request: InferRequest, response: InferResponse) -> None:
    """Responses do not matter here."""


def read(document: Any, config: str = TEXT, limit: int = 1 << 20) -> InferRequest:
    body = json.dumps(document, separators=(",", ":")).encode()
    return read_generate_request(spec_of(config), 1, body, limit)


def test_generate_request_members_are_inputs_parameters_or_the_id() -> None:
    request = read({"id": "7", "prompt": "hi", "temperature": 0.5, "parameters": {"weights": [1, 2], "stop": "x"}})
    assert request.id == "7"
    assert request.inputs.keys() == {"prompt", "weights"}
    assert request.parameters == {"id": "7", "temperature": 0.5, "stop": "x"}


@pytest.mark.parametrize(
    ("batching", "name", "value", "shape"),
    [
        ("", "prompt", "hi", (1,)),
        ("", "prompt", ["hi"], (1,)),
        ("", "weights", [1, 2, 3, 4], (2, 2)),
        ("", "weights", [], (0, 2)),
        ("", "grid", [1, 2, 3], (1, 3)),
        ("", "grid", 5, (1, 1)),
        ("max_batch_size: 4", "prompt", ["a", "b"], (2, 1)),
        ("max_batch_size: 4", "weights", [1, 2, 3, 4], (1, 2, 2)),
    ],
)
def test_elements_are_divided_among_the_dimensions(
    batching: str, name: str, value: Any, shape: tuple[int, ...]
) -> None:
    assert read({name: value}, batching + TEXT).inputs[name].shape == shape


def test_total_size_of_inputs_is_limited() -> None:
    document = {"prompt": "a", "weights": [1] * 200}
    read(document, limit=5 + 800)
    with pytest.raises(InvalidArgumentError) as raised:
        read(document, limit=5 + 799)
    assert raised.value.message == (
        "request size of 5 bytes with input 'weights' of size 800 bytes exceeds the maximum allowed input size of 804. "
        "Use --http-max-input-size to increase the limit."
    )
    nested: dict[str, Any] = {"prompt": "a", "parameters": {"weights": [1] * 200}}
    read(nested, limit=5 + 800)
    with pytest.raises(TritonError, match=r"^Converting keyword: 'parameters': request size of 5 bytes with"):
        read(nested, limit=5 + 799)
    with pytest.raises(TritonError, match=r"^request size of 800 bytes with input 'prompt'"):
        read({"parameters": nested["parameters"], "prompt": "a"}, limit=5 + 799)


def test_size_of_generate_request_is_limited() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        read({"prompt": "abc"}, limit=15)
    assert raised.value.message == (
        "request JSON size of 16 bytes exceeds the maximum allowed input size of 15 bytes. Use --http-max-input-size "
        "to increase the limit."
    )


@pytest.mark.parametrize(("name", "value"), [("prompt", ["a", "b"]), ("prompt", []), ("weights", [1, 2, 3])])
def test_indivisible_number_of_elements_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        read({name: value})
    assert raised.value.message == f"The schema can not convert input '{name}' to tensor with proper shape"


@pytest.mark.parametrize(
    ("document", "kind", "complaint"),
    [
        ([1], InternalError, "attempt to get members for non-object"),
        ({"id": 3}, InternalError, "Unable to parse 'id': attempt to access JSON non-string as string"),
        (
            {"parameters": 3},
            InternalError,
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        (
            {"other": None},
            InvalidArgumentError,
            "parameter 'other' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            {"prompt": [1, 2, 3]},  # said before their number is wrong
            InternalError,
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        ),
        (
            {"prompt": "a", "parameters": {"prompt": "b"}},
            TritonError,
            "Converting keyword: 'parameters': [request id: <id_unknown>] input 'prompt' already exists in request",
        ),
    ],
)
def test_unmapped_tensor_is_refused(document: Any, kind: type[TritonError], complaint: str) -> None:
    with pytest.raises(kind) as raised:
        read(document)
    assert raised.value.message == complaint


@pytest.mark.parametrize(
    "document", [b'{"prompt": "a", "n": 1, "prompt": "b"}', b'{"n": Inf, "prompt": "a", "prompt": "b"}']
)
def test_duplicate_input_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="input 'prompt' already exists in request"):
        read_generate_request(spec_of(TEXT), 1, document, 1 << 20)


def test_response_is_a_json_object_sorted_by_name() -> None:
    request = InferRequest("text", {}, discard_response, id="7", model_version=3)
    text = Tensor("text", BYTES, np.array([b"hi"], object))
    scores = Tensor("SCORES", FP32, np.array([[1, 0.5]], np.float32))
    response = InferResponse([text, scores], parameters={"finish": "stop", "cut": False, "cost": 1.0})
    assert write_generate_response(request, response) == (
        b'{"SCORES":[1.0,0.5],"cost":1.0,"cut":false,"finish":"stop","id":"7","model_name":"text","model_version":"3",'
        b'"text":"hi"}'
    )


async def held(server: Running, route: str) -> tuple[Client, InferRequest]:
    """A client, and its request, which the model holds."""
    server.echo.hold = True
    client = await server.connect()
    head = f"POST /v2/models/echo/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n"
    client.send(head.encode() + b'{"X":1}')
    return client, await server.echo.held.get()


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_disconnected_client_cancels_its_request(route: str) -> None:
    async def scenario() -> None:
        async with running() as server:
            async with asyncio.timeout(30):
                client, request = await held(server, route)
                client.writer.close()
                assert await server.echo.cancelled.get() is request

    asyncio.run(scenario())


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_error_of_the_model_has_its_own_status(route: str) -> None:
    async def scenario() -> None:
        async with running() as server:
            async with asyncio.timeout(30):
                client, request = await held(server, route)
                request.respond(request, InferResponse(error=UnavailableError("not now")))
                assert (await client.answer())[0] == 503

    asyncio.run(scenario())


def test_responses_are_streamed_immediately() -> None:
    async def scenario() -> None:
        async with running() as server:
            server.echo.hold = True
            client = await server.connect()
            head = b"POST /v2/models/echo/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n"
            client.send(head + b'{"X":1}')
            async with asyncio.timeout(30):
                request = await server.echo.held.get()
                tensor = Tensor("Y", request.inputs["X"].datatype, request.inputs["X"].array)
                request.respond(request, InferResponse([tensor], final=False))
                assert b"text/event-stream" in await client.reader.readuntil(b"\r\n\r\n")
                assert b'data: {"Y":1,"model_name":"echo"' in await client.reader.readuntil(b"\n\n")
                request.respond(request, InferResponse(empty=True))
                assert (await client.reader.readuntil(b"0\r\n\r\n")).endswith(b"0\r\n\r\n")

    asyncio.run(scenario())
