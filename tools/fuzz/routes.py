"""The routes of HTTP that read JSON, besides inference: generate, OpenAI's API, settings, repository, regions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar
from unittest.mock import patch

import numpy as np

from tests.endpoints.http1_peer import Loop
from tests.endpoints.in_memory import Endpoints, Identity
from tools.fuzz.http import MODELS, check_responses
from tools.fuzz.targets import Try
from tools.fuzz.unexpected import UnexpectedErrors, require
from tritonnb.core.datatypes import BYTES, FP32
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.openai.options import OpenAiOptions

T = TypeVar("T")
_LIMIT = 1 << 20
_CHAT = (
    'name: "chat" input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } '
    'input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true } '
    'output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }'
)
_VECTORS = (
    'name: "vectors" input { name: "text" data_type: TYPE_STRING dims: [ 1 ] } '
    'output { name: "vector" data_type: TYPE_FP32 dims: [ 2 ] }'
)
#: What the first byte of an input selects.
PATHS = (
    *(b"/v2/models/echo/generate", b"/v2/models/strings/generate", b"/v2/models/types/generate_stream"),
    *(b"/v1/completions", b"/v1/chat/completions", b"/v1/embeddings"),
    *(b"/v2/trace/setting", b"/v2/models/echo/trace/setting", b"/v2/logging", b"/v2/repository/index"),
    *(b"/v2/repository/models/m/load", b"/v2/repository/models/m/unload"),
    *(b"/v2/systemsharedmemory/region/r/register", b"/v2/cudasharedmemory/region/r/register"),
)


class _Texts(Identity):
    """A model of OpenAI's API: it returns the text, or the vector of every text."""

    context = SimpleNamespace(directory=Path("/nowhere"), version=1)

    def answer(self, request: InferRequest) -> None:
        """Respond to a request."""
        (name,) = self.spec.outputs
        if self.spec.outputs[name].datatype is BYTES:
            output = Tensor(name, BYTES, request.inputs["text_input"].array)
        else:
            output = Tensor(name, FP32, np.array([1, 2], np.float32))
        request.answer(InferResponse([output]))


async def _at_once(function: Callable[[], T]) -> T:
    return function()


@contextmanager
def bodies() -> Iterator[Try]:
    """Send a body to the route that the first byte selects."""

    def run(data: bytes) -> None:
        path, body = PATHS[(data[0] if data else 0) % len(PATHS)], data[1:]
        connection = endpoints.connect_http()
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path, len(body))
        connection.feed(head + body)
        sent, state = connection.wire.sent, connection.wire.state
        connection.lose()
        loop.pass_time(10)  # timers of the connection
        errors.check()
        require(not endpoints.leftovers, "a connection is still registered")
        require(state == "open" and sent.startswith(b"HTTP/1.1 "), f"the connection is {state}, and has sent {sent!r}")
        check_responses(sent)
        if path.startswith(b"/v1/") and b"text/event-stream" not in sent:
            json.loads(sent.partition(b"\r\n\r\n")[2])

    loop = Loop()
    with UnexpectedErrors() as errors, patch("tritonnb.endpoints.openai.handlers.run_in_thread", _at_once):
        errors.watch(loop)
        options = HttpOptions(max_input_size=_LIMIT, max_body_size=_LIMIT)
        endpoints = Endpoints(loop, options, openai=OpenAiOptions(allow=True))
        for config in MODELS:
            endpoints.models.load(config)
        for config in (_CHAT, _VECTORS):
            endpoints.models.load(config, make=_Texts)
        yield run
        loop.close()
