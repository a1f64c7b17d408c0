"""A server with language and embedding models, and the ``openai`` package as its client."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.endpoints.tiny_gpt import write_repository
from tests.lazy_import import LazyModule
from tritonnb.core.datatypes import BYTES, FP32
from tritonnb.server.server import Server

if TYPE_CHECKING:
    import openai
    from pydantic import BaseModel
else:
    openai = LazyModule("openai")


MODEL = "tiny_gpt"
TEXT_OUTPUT = {"text_output": BYTES[1]}
CHAT = [{"role": "user", "content": "what is json?"}]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = write_repository(tmp_path_factory.mktemp("models"))
    with Server(repository, port=0, grpc_port=0) as server:

        @server.model(max_batch_size=8)
        def letters(TEXT: BYTES[1]) -> FP32[3]:
            texts: Any = TEXT
            return np.array([[text.count(letter) for letter in b"abc"] for (text,) in texts], np.float32)

        @server.model
        def plain(text_input: BYTES[1], sampling_parameters: BYTES[1]) -> TEXT_OUTPUT:
            return {"text_output": sampling_parameters}

        yield server


@pytest.fixture(scope="package")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def post(url: str, body: object, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def body_of(answer: tuple[int, Any], kind: type[BaseModel]) -> Any:
    """A response that conforms to a type of the ``openai`` package, unknown fields included."""
    status, raw = answer
    assert status == 200, raw
    value = kind.model_validate_json(raw, strict=True)
    assert not value.model_extra
    return value


def steps_until_idle(server: Server, client: openai.OpenAI) -> int:
    """Wait until no request is in flight; return the number of executions of the model."""
    deadline = time.monotonic() + 60
    while server[MODEL].served.in_flight:
        assert time.monotonic() < deadline
        client.models.list()  # a round trip
    return server[MODEL].stats()["execution_count"]
