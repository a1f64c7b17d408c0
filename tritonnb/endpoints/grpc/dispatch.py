"""The RPCs of the endpoint, independent of the transport: their restrictions and calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.messages import InferResponse
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.back_pressure import StreamingCalls, Turns
from tritonnb.endpoints.grpc.handlers import RpcHandlers
from tritonnb.endpoints.grpc.inference import Inference, OnResponse
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.plain_request import read_plain
from tritonnb.endpoints.grpc.rpcs import HEALTH, INFER, MESSAGES_OF, STREAM_INFER, Restrictions, Serialized
from tritonnb.endpoints.grpc.stream import InferStream
from tritonnb.endpoints.long_work import LONG, LongWork
from tritonnb.endpoints.request_rules import compile_forward_pattern, log_failed
from tritonnb.engine.engine import Engine

#: HealthCheckResponse with the status SERVING or NOT_SERVING.
SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
#: More models of an answer take more than some milliseconds to write.
_MANY_ENTRIES = 100
_END_STREAM_ON_ERROR = "triton_grpc_error"


class RpcDispatcher:
    """The dispatcher of one endpoint's RPCs; their messages are serialized."""

    def __init__(self, engine: Engine, options: GrpcOptions) -> None:
        self._engine = engine
        self._long_work = LongWork()
        self._handlers = RpcHandlers(engine)
        self._forward_pattern = compile_forward_pattern(options.header_forward_pattern)
        self._restrictions = Restrictions(options.restricted_protocol)
        self._streams: set[InferStream] = set()
        self._calls = StreamingCalls()
        self.turns: Turns | None = None  # of the streams
        #: Whether the metadata of a call can change its inference.
        self.needs_metadata = self._forward_pattern is not None or self._restrictions.apply_to(INFER)

    async def call(self, name: str, message: Serialized, metadata: Mapping[str, str]) -> bytes:
        """Run an RPC with one response, and return the response; cancelling the task cancels an inference.

        Raises
        ------
        TritonError
            If the request cannot be parsed, or the RPC fails or is restricted; with Triton's text.
        """
        if name == INFER:
            return await self._infer_one(message, metadata)
        request = message if name == HEALTH else await self._parsed(name, message)
        self._restrictions.check(name, metadata)
        # The message of the health service names a service, which Triton ignores, so its bytes are not even read.
        if name == HEALTH:
            return SERVING if await self._engine.is_ready() else _NOT_SERVING
        response = await getattr(self._handlers, name)(request)
        if not isinstance(response, Message):
            # The installed messages may be older than a column of the statistics.
            ignores_unknown = name == "ModelStatistics"
            empty = MESSAGES_OF[name].response()
            # From JSON, so that HTTP and gRPC return the same dictionaries of the engine; none of these RPCs is
            # frequent.
            write = partial(json_format.ParseDict, response or {}, empty, ignore_unknown_fields=ignores_unknown)
            entries = sum(len(value) for value in (response or {}).values() if isinstance(value, list))
            response = write() if entries <= _MANY_ENTRIES else await self._long_work.run(write)
        serialized: bytes = response.SerializeToString()
        return serialized

    def infer(self, serialized: Serialized, metadata: Mapping[str, str], on_response: OnResponse) -> Inference:
        """Begin a ``ModelInfer``; ``on_response`` is called with its response.

        Raises
        ------
        TritonError
            If the message cannot be parsed.
        """
        headers = None
        if self.needs_metadata:
            self._restrictions.check(INFER, metadata)
            headers = self._forwarded_headers(metadata)
        # The quick reader only ever says yes or "not plain"; every refusal, and so every error text, comes from
        # protobuf's reader.
        message = read_plain(serialized)
        if message is None and len(serialized) > LONG:
            return Inference.submit_parsed(
                self._engine,
                asyncio.ensure_future(self._parsed(INFER, serialized)),
                on_response,
                long_work=self._long_work,
                metadata=metadata,
                headers=headers,
            )
        try:
            message = message or MESSAGES_OF[INFER].read(serialized)
        except TritonError as error:
            log_failed("", error)
            raise
        return Inference.submit(
            self._engine,
            message,
            on_response,
            long_work=self._long_work,
            streaming=False,
            metadata=metadata,
            headers=headers,
        )

    async def _parsed(self, name: str, message: Serialized) -> Any:
        """Return the message of an RPC, parsed on another thread if it is long."""
        read = partial(MESSAGES_OF[name].read, message)
        return read() if len(message) <= LONG else await self._long_work.run(read)

    async def _infer_one(self, serialized: Serialized, metadata: Mapping[str, str]) -> bytes:
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def on_response(inference: Inference, response: InferResponse) -> None:
            if future.done():  # the caller was cancelled
                inference.sent(final=True)
            else:
                future.set_result(response)

        inference = self.infer(serialized, metadata, on_response)
        try:
            response = await future
        except asyncio.CancelledError:
            # grpcio cancels the task of a call when its client cancels or its deadline has passed.
            inference.cancel()
            raise
        try:
            return b"".join(inference.response_parts(response))
        finally:
            inference.sent(final=True)

    async def stream(
        self, messages: AsyncIterator[Serialized], metadata: Mapping[str, str]
    ) -> AsyncGenerator[bytes, None]:
        """Run a ``ModelStreamInfer``, and yield its responses.

        A message that cannot be parsed ends it, like the end of the client's stream.

        Raises
        ------
        TritonError
            If the RPC is restricted, or an error ends the stream.
        """
        self._restrictions.check(STREAM_INFER, metadata)
        headers = self._forwarded_headers(metadata)
        submit = partial(
            Inference.submit,
            self._engine,
            long_work=self._long_work,
            streaming=True,
            metadata=metadata,
            headers=headers,
        )
        if self.turns is None:
            self.turns = Turns(asyncio.get_running_loop())
        ends_on_error = metadata.get(_END_STREAM_ON_ERROR) == "true"
        stream = InferStream(self._requests(messages), submit, ends_on_error, self.turns, self._calls)
        self._streams.add(stream)
        try:
            async with aclosing(stream.responses()) as responses:
                async for response in responses:
                    yield response.SerializeToString()
        finally:
            self._streams.discard(stream)

    async def _requests(self, messages: AsyncIterator[Serialized]) -> AsyncIterator[pb.ModelInferRequest]:
        # Triton lets a stream finish what was asked before a message that cannot be parsed, as if the client had ended
        # it there.
        with suppress(InternalError):
            async for message in messages:
                yield await self._parsed(INFER, message)

    def finish_streams(self) -> None:
        """Let the streams in progress end after the responses to the requests that they have read."""
        for stream in self._streams:
            stream.finish()

    def _forwarded_headers(self, metadata: Mapping[str, str]) -> dict[str, str]:
        if self._forward_pattern is None:
            return {}
        return {key: value for key, value in metadata.items() if self._forward_pattern.search(key)}
