"""An engine whose requests arrive by function calls: one replica of a deployment.

It runs the endpoints of `tritonnb serve` without their sockets: the bytes of a request's body are those that the client
sent, and the bytes of the response are those that the client gets. The endpoints may also listen, for clients that
connect to a replica directly. Clients that record read the events that have happened since they last asked.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field

from tornado import httputil

from tritonnb.core.errors import TritonError
from tritonnb.core.packed_events import Packed, unpack
from tritonnb.endpoints.endpoint_set import Endpoints
from tritonnb.endpoints.grpc.dispatch import RpcDispatcher
from tritonnb.endpoints.grpc.rpcs import INFER, MESSAGES_OF
from tritonnb.endpoints.http.endpoint import HttpEndpoint
from tritonnb.endpoints.http.transport.exchange import Exchange, LightHeaders
from tritonnb.endpoints.metrics.families import Families, MetricsOptions
from tritonnb.endpoints.request_rules import client_text
from tritonnb.engine.engine import Engine
from tritonnb.engine.options import EngineOptions
from tritonnb.engine.submission import as_triton_error
from tritonnb.scale.coordinator import DeploymentChange, ReplicaReport
from tritonnb.scale.endpoint_settings import EndpointSettings
from tritonnb.scale.sequences import SequenceKey
from tritonnb.telemetry.stream import EventStream

#: The stages of a recording; empty in between.
BEGIN, END = "begin", "end"
#: A recording that has not been read for this many seconds was abandoned.
_ABANDONED_S = 30.0
#: Where the model is in every packed event.
_MODEL = 2

_DRAIN_POLL_S = 0.1


@dataclass(slots=True)
class _Open:
    """An open recording."""

    events: list[Packed] = field(default_factory=list)
    abandon: asyncio.TimerHandle | None = None


class EventRecorder:
    """A collector of events for recordings; used on the event loop of the engine.

    Parameters
    ----------
    stream : EventStream
    """

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._open: dict[str, _Open] = {}

    def read_events(self, recording: str, models: Collection[str], stage: str) -> str:
        """Return the events of a recording since the last call.

        Parameters
        ----------
        recording : str
            Chosen by the client.
        models : collection of str
        stage : str
            ``begin``: the first call for all replicas; ``end``: the last call; else empty. A replica that is called for
            the first time later has been added since the recording began: it returns its recent events.

        Returns
        -------
        str
            JSON: ``events``, and the times ``monotonic_ns``, which the events have, and ``wall_ns``.
        """
        entry = self._open.get(recording)
        if entry is None:
            entry = self._open[recording] = _Open([] if stage == BEGIN else list(self._stream.recent))
            self._stream.attach(entry.events.append)
        elif entry.abandon is not None:
            entry.abandon.cancel()
        taken = [unpack(packed) for packed in entry.events if packed[_MODEL] in models]
        entry.events.clear()
        if stage == END:
            self._forget(recording)
        else:
            entry.abandon = asyncio.get_running_loop().call_later(_ABANDONED_S, self._forget, recording)
        events = [{"event": type(event).__name__, **asdict(event)} for event in taken]
        return json.dumps({"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns(), "events": events})

    def _forget(self, recording: str) -> None:
        entry = self._open.pop(recording)
        self._stream.detach(entry.events.append)


@dataclass(frozen=True, slots=True)
class RpcReply:
    """The response to an RPC, or one message of a stream.

    Attributes
    ----------
    message : bytes
        The serialized response; empty for an error.
    error : str
    status : str
        The name of the `Status` of an error; empty if there is none.
    ordered : bool
        On a stream: whether it is sent in the order of the requests.
    """

    message: bytes
    error: str = ""
    status: str = ""
    ordered: bool = True

    @classmethod
    def from_error(cls, error: Exception) -> RpcReply:
        """Return the reply for an exception."""
        triton_error = as_triton_error(error)
        return cls(b"", client_text(triton_error), triton_error.status.name)


class Replica:
    """An engine, and the endpoints that its calls go through.

    Parameters
    ----------
    options : EngineOptions
    settings : EndpointSettings
        The ingress has checked who sends the calls; the endpoints that listen check their own requests.
    direct_host : str, optional
        The address of the node, on whose free ports the replica also listens itself; by default it does not.
    name : str, optional
        Appended to the names of trace files: replicas on one machine have the same settings.
    """

    def __init__(
        self, options: EngineOptions, settings: EndpointSettings, direct_host: str = "", name: str = ""
    ) -> None:
        self.engine = Engine(options)
        self.engine.tracer.file_suffix = f".{name}" if name else ""
        self._endpoints = Endpoints()
        self._settings = settings
        checked = settings.checked
        openai = checked.openai if checked.openai.allow else None
        self._http = HttpEndpoint(self.engine, host="", options=checked.http, openai=openai)
        self._rpcs = RpcDispatcher(self.engine, checked.grpc)
        self._families = Families(self.engine, checked.metrics or MetricsOptions())
        self._recorder = EventRecorder(self.engine.stream)
        self._direct_host = direct_host
        self._applying: dict[int, asyncio.Task[bytes | RpcReply]] = {}

    async def start(self) -> None:
        """Load the models.

        Raises
        ------
        TritonError
            As `Engine.start`.
        """
        if self._direct_host:
            await self._endpoints.start(self.engine, self._settings.listen(self._direct_host))
        await self.engine.start()

    async def stop(self) -> None:
        """Answer the accepted requests, and unload the models."""
        try:
            await self.engine.stop()
        finally:
            self._families.close()
            await self._endpoints.stop(0)

    # --- requests -----------------------------------------------------------------------------

    async def http(self, method: str, target: str, headers: Mapping[bytes, bytes], body: bytes) -> bytes:
        """Run an HTTP request, and return the complete response: status line, headers, and body."""
        return b"".join([part async for part in self.http_stream(method, target, headers, body)])

    async def http_stream(
        self, method: str, target: str, headers: Mapping[bytes, bytes], body: bytes
    ) -> AsyncIterator[bytes]:
        """Run an HTTP request, and yield the response in parts; the first begins with the status line and headers.

        A caller that closes the iterator cancels the request.
        """
        exchange = Exchange(writer := _ExchangeWriter(), http_1_0=True, keep_alive=False)
        exchange.delegate = delegate = self._http.start_request(exchange)
        line = httputil.RequestStartLine(method, target, "HTTP/1.0")
        delegate.headers_received(line, LightHeaders(dict(headers)))
        if body:
            delegate.data_received(body)
        exchange.received = True
        delegate.finish()
        try:
            while not exchange.done or not writer.parts.empty():
                yield await writer.parts.get()
        finally:
            if not exchange.done:
                delegate.on_connection_close()
                if exchange.on_close is not None:
                    exchange.on_close()

    async def rpc(self, name: str, message: bytes, metadata: Mapping[str, str]) -> RpcReply:
        """Run an RPC with one response."""
        try:
            return RpcReply(await self._rpcs.call(name, message, metadata))
        except Exception as error:
            return RpcReply.from_error(error)

    async def stream_rpc(self, message: bytes, metadata: Mapping[str, str]) -> AsyncIterator[RpcReply]:
        """Run one request of a ``ModelStreamInfer``, and yield its responses."""

        async def one() -> AsyncIterator[bytes]:
            yield message

        ordered = not self._is_decoupled(message)
        try:
            async with aclosing(self._rpcs.stream(one(), metadata)) as responses:
                async for response in responses:
                    yield RpcReply(response, ordered=ordered)
        except Exception as error:
            yield RpcReply.from_error(error)

    def _is_decoupled(self, message: bytes) -> bool:
        request = MESSAGES_OF[INFER].read(message)
        try:
            return self.engine.model(request.model_name).decoupled
        except TritonError:
            return False

    # --- state --------------------------------------------------------------------------------

    async def until_drained(self) -> None:
        """Wait until all sequences have ended; the call keeps a draining replica alive."""
        while self._live_sequences():
            await asyncio.sleep(_DRAIN_POLL_S)

    def _live_sequences(self) -> tuple[SequenceKey, ...]:
        served = self.engine.models()
        return tuple({SequenceKey(model.name, id): None for model in served for id in model.live_sequences()})

    def report(self, replica: str, group: str, node: str) -> ReplicaReport:
        """Return the state of the replica for the coordinator."""
        served = self.engine.models()
        http, grpc = self._endpoints.http, self._endpoints.grpc
        return ReplicaReport(
            replica,
            group,
            node,
            url=f"http://{http.host}:{http.port}" if http is not None else "",
            grpc_url=f"{grpc.host}:{grpc.port}" if grpc is not None else "",
            live=self._live_sequences(),
            in_flight=sum(model.in_flight for model in served),
            queued=sum(model.driver.queue_depth() for model in served),
            applied=tuple(self._applying),
        )

    async def query(self, name: str, *arguments: object) -> RpcReply:
        """Return the result of a query of the engine, such as ``statistics``, as JSON."""
        try:
            result = getattr(self.engine, name)(*arguments)
            if inspect.isawaitable(result):  # the index reads directories on another thread
                result = await result
            return RpcReply(json.dumps(result).encode())
        except TritonError as error:
            return RpcReply.from_error(error)

    async def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return (await self._families.text()).decode()

    async def events(self, recording: str, models: Sequence[str], stage: str) -> str:
        """Return the events of a recording since the last call; see `EventRecorder.read_events`."""
        return self._recorder.read_events(recording, models, stage)

    # --- changes ------------------------------------------------------------------------------

    async def apply(self, number: int, change: DeploymentChange) -> bytes | RpcReply:
        """Apply a change of all replicas; a change that comes twice, by two ways, is applied once.

        Returns
        -------
        bytes or RpcReply
            The response to the request.
        """
        if number not in self._applying:
            self._applying[number] = asyncio.get_running_loop().create_task(self._run(change))
        return await asyncio.shield(self._applying[number])

    async def apply_all(self, changes: Mapping[int, DeploymentChange]) -> None:
        """Apply the changes that other replicas have applied, in order."""
        for number in sorted(changes):
            await self.apply(number, changes[number])

    async def _run(self, change: DeploymentChange) -> bytes | RpcReply:
        if change.method:
            return await self.http(change.method, change.target, {}, change.body)
        return await self.rpc(change.target, change.body, {})


class _ExchangeWriter:
    """A writer that collects the output of an exchange."""

    def __init__(self) -> None:
        self.remote_ip = ""
        self.parts: asyncio.Queue[bytes] = asyncio.Queue()
        self._written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._written.set_result(None)

    def write(
        self, exchange: Exchange, data: bytes, tensors: list[bytes | memoryview] | None = None
    ) -> asyncio.Future[None]:
        self.parts.put_nowait(data if tensors is None else b"".join((data, *tensors)))
        return self._written
