"""The routes ``generate`` and ``generate_stream``: one response, or each response as it arrives."""

from __future__ import annotations

import asyncio
import time

from tornado.iostream import StreamClosedError

from tritonnb.core.errors import InvalidArgumentError, TritonError, UnknownError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.endpoints.http.generate import read_generate_request, write_generate_response
from tritonnb.endpoints.http.handlers.metadata import Handler, error_body
from tritonnb.endpoints.request_rules import version_number
from tritonnb.runtime.engine import Engine
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.telemetry.tracing import Trace

_EVENTS = "text/event-stream; charset=utf-8"
_NOT_ONE_RESPONSE = UnknownError(
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)


class Generate(Handler):
    """``/v2/models/M[/versions/V]/generate`` and ``.../generate_stream``."""

    def initialize(  # type: ignore[override]
        self, engine: Engine, max_input_size: int, streaming: bool
    ) -> None:
        """Store the arguments of the route (Tornado's interface)."""
        super().initialize(engine, max_input_size)
        self._streaming = streaming
        self._responses: asyncio.Queue[InferResponse | None] = asyncio.Queue()
        self._served: ServedModel | None = None
        self._request: InferRequest | None = None
        self._trace: Trace | None = None

    async def post(self, model: str, version: str | None = None) -> None:
        """Run an inference; the status is that of the first response."""
        self._served = self.engine.model(model, version_number(version))
        if self.request.headers.get("Content-Encoding", "identity") != "identity":
            raise InvalidArgumentError("Unsupported content-encoding, only 'identity' is supported.")
        if self.engine.tracer.active:
            self._trace = self.engine.tracer.sample(model, self.request.headers)
        request = self._request = read_generate_request(
            self._served.spec, self._served.version, self.request.body, self.max_input_size, self._on_response
        )
        self._served.submit(request, self._trace)
        try:
            await (self._stream(request) if self._streaming else self._respond_once(request))
        except StreamClosedError:  # the client has disconnected, which may not have been reported yet
            self.on_connection_close()

    def on_connection_close(self) -> None:
        """The client has disconnected (Tornado's interface)."""
        if self._request is not None:
            self._request.cancel()
        self._responses.put_nowait(None)

    def on_finish(self) -> None:
        """The response is complete (Tornado's interface)."""
        self._request = None  # a refused request and this handler would form a reference cycle
        if self._trace is not None:
            self._trace.stamp("HTTP_SEND_END", time.monotonic_ns())
            self._trace.finish()

    def _on_response(self, request: InferRequest, response: InferResponse) -> None:
        if not response.empty:
            self._responses.put_nowait(response)
        if response.final:
            self._request = None
            self._responses.put_nowait(None)

    async def _respond_once(self, request: InferRequest) -> None:
        responses: list[InferResponse] = []
        while (response := await self._responses.get()) is not None:
            responses.append(response)
        if responses and responses[0].error is not None:
            raise responses[0].error.fresh()
        if len(responses) != 1:
            self.write(error_body(_NOT_ONE_RESPONSE.message))
        else:
            self.write(write_generate_response(request, responses[0]))
        await self.flush()  # chunked, as on Triton

    async def _stream(self, request: InferRequest) -> None:
        response = await self._responses.get()
        if response is not None and response.error is not None:
            self.set_status(response.error.status.http)
        self.set_header("Content-Type", _EVENTS)
        while response is not None:
            self.write(b"data: %s\n\n" % _event(request, response))
            await self.flush()
            response = await self._responses.get()
        await self.flush()  # sends the head if there was no response


def _event(request: InferRequest, response: InferResponse) -> bytes:
    if response.error is not None:
        return error_body(response.error.message)
    try:
        return write_generate_response(request, response)
    except TritonError as error:
        return error_body(error.message)
