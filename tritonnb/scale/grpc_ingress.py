"""``GRPCInferenceService`` in front of replicas; messages of inferences pass through as bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from tritonnb.core.errors import TritonError, UnsupportedError
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.effects import Effect
from tritonnb.endpoints.grpc.dispatch import SERVING
from tritonnb.endpoints.grpc.rpcs import EFFECTS, HEALTH, INFER, MESSAGES_OF, STREAM_INFER, Restrictions
from tritonnb.endpoints.request_rules import client_text, version_number
from tritonnb.engine.submission import as_triton_error
from tritonnb.scale.coordinator import DeploymentChange
from tritonnb.scale.dispatch import first_refusal
from tritonnb.scale.endpoint_settings import EndpointSettings, check_caller
from tritonnb.scale.groups import NO_SHARED_MEMORY, Groups
from tritonnb.scale.merge import merge_index, sum_statistics
from tritonnb.scale.replica import RpcReply
from tritonnb.scale.sequences import SequenceKey, grpc_sequence

#: The messages of a server that is ready.
_READY = {"ServerReady": pb.ServerReadyResponse(ready=True).SerializeToString(), HEALTH: SERVING}

_Merge = Callable[[str, bytes, Mapping[str, str]], Awaitable[RpcReply]]


class GrpcIngress:
    """The RPCs of a deployment; the effect of an RPC (`tritonnb.endpoints.grpc.rpcs`) decides what happens to it.

    Parameters
    ----------
    groups : Groups
    settings : EndpointSettings
        Who may call what.
    """

    def __init__(self, groups: Groups, settings: EndpointSettings) -> None:
        self._groups = groups
        self._host = settings.grpc_host
        self._restrictions = Restrictions(settings.grpc.restricted_protocol)
        #: By name of the RPC, for each with the effect MERGE.
        self.merges: Mapping[str, _Merge] = {
            "ServerReady": self._ready,
            HEALTH: self._ready,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
        }

    async def call(self, name: str, message: bytes, metadata: Mapping[str, str], peer: str) -> RpcReply:
        """Run an RPC with one response; ``peer`` is the caller as gRPC names it."""
        try:
            self._check(name, metadata, peer)
            return await self._call(name, message, metadata)
        except Exception as error:
            return RpcReply.from_error(error)

    async def stream(
        self, messages: AsyncIterator[bytes], metadata: Mapping[str, str], peer: str
    ) -> AsyncIterator[RpcReply]:
        """Run a ``ModelStreamInfer``, and yield its responses; an error ends the stream."""
        try:
            self._check(STREAM_INFER, metadata, peer)
        except TritonError as error:
            yield RpcReply.from_error(error)
            return
        stream = _Stream(self._groups, messages, metadata)
        async for reply in stream.replies():
            yield reply

    def _check(self, name: str, metadata: Mapping[str, str], peer: str) -> None:
        check_caller(self._host, peer)
        self._restrictions.check(name, metadata)

    async def _call(self, name: str, message: bytes, metadata: Mapping[str, str]) -> RpcReply:
        effect = EFFECTS[name]
        if effect is Effect.MERGE:
            return await self.merges[name](name, message, metadata)
        if effect is Effect.MEMORY:
            raise UnsupportedError(NO_SHARED_MEMORY)
        request = _parse(MESSAGES_OF[name].request, message)
        model = _model_of(name, request)
        if effect is Effect.CHANGE and not _only_reads(request):
            return await self._change(name, message, request, model)
        sequence = grpc_sequence(request) if effect is Effect.INFER and request is not None else None
        return _reply(await self._groups.dispatcher(model).call(sequence, "rpc", name, message, metadata))

    async def _change(self, name: str, message: bytes, request: Any, model: str) -> RpcReply:
        """Apply a change on the replicas that have the model, or on all."""
        if name in ("RepositoryModelLoad", "RepositoryModelUnload"):
            change = DeploymentChange(f"model {model}", "", name, message)
        else:
            change = DeploymentChange.of_settings("", name, message, model, request.settings)
        return _reply(await self._groups.change(model, change))

    async def _ready(self, name: str, message: bytes, metadata: Mapping[str, str]) -> RpcReply:
        replies = await self._groups.call_each("rpc", name, message, metadata)
        return _reply(next((reply for reply in replies if reply.message != _READY[name]), replies[0]))

    async def _statistics(self, name: str, message: bytes, metadata: Mapping[str, str]) -> RpcReply:
        request = _parse(pb.ModelStatisticsRequest, message) or pb.ModelStatisticsRequest()
        arguments = request.name, version_number(request.version)
        replies = await self._groups.call_all(request.name, "query", "statistics", *arguments)
        if (refusal := first_refusal(replies.values())) is not None:
            return _reply(refusal)
        total = sum_statistics(json.loads(reply.message) for reply in replies.values())
        response = json_format.ParseDict(total, pb.ModelStatisticsResponse(), ignore_unknown_fields=True)
        return RpcReply(response.SerializeToString())

    async def _index(self, name: str, message: bytes, metadata: Mapping[str, str]) -> RpcReply:
        request = _parse(pb.RepositoryIndexRequest, message) or pb.RepositoryIndexRequest()
        if request.repository_name:  # its answer is Triton's error
            return _reply(await self._groups.default.call(None, "rpc", name, message, metadata))
        rows: dict[str, list[dict[str, str]]] = {}
        for group in self._groups.of():
            for replica, reply in (await group.call_all("query", "index", request.ready)).items():
                if reply.status:
                    return _reply(reply)
                rows[replica] = [
                    row for row in json.loads(reply.message) if self._groups.dispatcher(row["name"]) is group
                ]
        models = {"models": merge_index(rows)}
        return RpcReply(json_format.ParseDict(models, pb.RepositoryIndexResponse()).SerializeToString())


class _Stream:
    """One ``ModelStreamInfer``: its requests go to the replicas of their sequences, and the responses come together.

    Requests of one sequence are sent one after the other, since two replies may overtake each other between processes.
    Responses of models that are not decoupled are sent in the order of the requests, as on Triton.
    """

    def __init__(self, groups: Groups, messages: AsyncIterator[bytes], metadata: Mapping[str, str]) -> None:
        self._groups = groups
        self._messages = messages
        self._metadata = metadata
        self._outgoing: asyncio.Queue[RpcReply | None] = asyncio.Queue()
        #: By number of the request: the responses that wait for those of earlier requests, and whether all are here.
        self._in_order: dict[int, tuple[list[RpcReply], bool]] = {}
        self._last_of: dict[SequenceKey, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def replies(self) -> AsyncIterator[RpcReply]:
        reading = asyncio.create_task(self._read())
        try:
            while (reply := await self._outgoing.get()) is not None:
                yield reply
        finally:
            reading.cancel()
            for task in self._tasks:
                task.cancel()

    async def _read(self) -> None:
        number = 0
        async for message in self._messages:
            request = _parse(pb.ModelInferRequest, message)
            if request is None:  # like the end of the client's stream
                break
            sequence = grpc_sequence(request)
            before = self._last_of.get(sequence.key) if sequence is not None else None
            self._in_order[number] = ([], False)
            task = asyncio.create_task(self._run(number, request, message, before))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if sequence is not None:
                self._last_of[sequence.key] = task
            number += 1
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._outgoing.put_nowait(None)

    async def _run(
        self, number: int, request: pb.ModelInferRequest, message: bytes, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        sequence = grpc_sequence(request)
        group = self._groups.dispatcher(request.model_name)
        try:
            async for reply in group.stream(sequence, "stream_rpc", message, self._metadata):
                self._responded(number, reply)
        except Exception as error:
            response = pb.ModelStreamInferResponse(error_message=client_text(as_triton_error(error)))
            response.infer_response.id = request.id
            self._responded(number, RpcReply(response.SerializeToString()))
        self._in_order[number] = (self._in_order.get(number, ([], False))[0], True)
        self._send()

    def _responded(self, number: int, reply: RpcReply) -> None:
        if reply.ordered:
            self._in_order[number][0].append(reply)
        else:
            self._outgoing.put_nowait(reply)
            self._in_order[number] = ([], True)  # later responses need not wait for it
        self._send()

    def _send(self) -> None:
        """Send the responses that are due."""
        for number, (replies, complete) in list(self._in_order.items()):
            while replies:
                self._outgoing.put_nowait(replies.pop(0))
            if not complete:
                return
            del self._in_order[number]


def _parse(kind: Any, message: bytes) -> Any:
    """Return a message, or None if it cannot be parsed."""
    try:
        return kind.FromString(message)
    except DecodeError:
        return None


def _model_of(rpc: str, request: Any) -> str:
    """Return the model that a request names; empty if it names none, or could not be parsed."""
    field = "name" if rpc.startswith("Model") and rpc not in (INFER, STREAM_INFER) else "model_name"
    return str(getattr(request, field, ""))


def _only_reads(request: Any) -> bool:
    """Return whether a request for settings changes none; one that cannot be parsed is refused by any replica."""
    return request is None or ("settings" in request.DESCRIPTOR.fields_by_name and not request.settings)


def _reply(reply: Any) -> RpcReply:
    assert isinstance(reply, RpcReply)
    return reply
