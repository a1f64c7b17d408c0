"""The deployments of the Ray Serve application: coordinator, engines, ingress.

client → Ray's proxy → Ingress → Engine (a group of replicas for all models, or for one)
                          ↘ Coordinator ↙
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from tritonnb.core.errors import Status
from tritonnb.endpoints.grpc.rpcs import RPC_NAMES, STREAM_INFER
from tritonnb.endpoints.grpc.transport.grpcio_server import metadata_of, status_code
from tritonnb.scale.coordinator import Coordinator, DeploymentChange
from tritonnb.scale.dispatch import Dispatcher
from tritonnb.scale.endpoint_settings import EndpointSettings, EngineSettings
from tritonnb.scale.groups import Groups
from tritonnb.scale.grpc_ingress import GrpcIngress
from tritonnb.scale.http_ingress import HttpIngress, Receive, Scope, Send
from tritonnb.scale.ray.pool import NOT_MEANT, RayPool
from tritonnb.scale.replica import Replica, RpcReply
from tritonnb.telemetry.log_settings import write_log

logger = logging.getLogger(__name__)

_REPORT_S = 1.0


class CoordinatorDeployment:
    """The deployment with one replica that holds the shared state of the others."""

    def __init__(self) -> None:
        self._state = Coordinator()

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the state."""
        return getattr(self._state, method)(*arguments)


class EngineDeployment:
    """One replica: an engine with its models. The first argument of a call is its target replica."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, settings: EngineSettings, coordinator: DeploymentHandle
    ) -> None:
        context = serve.get_replica_context()
        self._id = context.replica_id.unique_id
        self._group = context.deployment
        self._node = str(ray.get_runtime_context().get_node_id())
        self._coordinator = coordinator
        options = settings.engine_options()
        if "log" in settings.options:
            write_log(options.log)
        self._replica = Replica(
            options,
            settings.endpoints,
            direct_host=str(ray.util.get_node_ip_address()) if settings.direct else "",
            name=self._id,
        )
        await self._replica.start()
        await self._report()
        self._reporting = asyncio.get_running_loop().create_task(self._keep_reporting())

    async def call(self, target: str, method: str, *arguments: Any) -> Any:
        """Call a method of the replica."""
        if target not in ("", self._id):
            return NOT_MEANT
        return await getattr(self._replica, method)(*arguments)

    async def stream(self, target: str, method: str, *arguments: Any) -> AsyncIterator[Any]:
        """Call a method of the replica that yields results."""
        if target not in ("", self._id):
            yield NOT_MEANT
            return
        async for result in getattr(self._replica, method)(*arguments):
            yield result

    async def __del__(self) -> None:
        """Unload the models (Ray calls and awaits this when the replica stops)."""
        self._reporting.cancel()
        await self._replica.stop()

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            try:
                await self._report()
            except Exception as error:  # the coordinator is being restarted
                logger.warning("replica %s could not report to the coordinator: %s", self._id, error)

    async def _report(self) -> None:
        report = self._replica.report(self._id, self._group, self._node)
        changes: Mapping[int, DeploymentChange] = await self._coordinator.ask.remote("report", report)
        await self._replica.apply_all(changes)


class IngressDeployment:
    """The deployment that Ray's proxies call: it sends HTTP requests and RPCs to the engines."""

    def __init__(
        self,
        engine: DeploymentHandle,
        placed: Mapping[str, DeploymentHandle],
        coordinator: DeploymentHandle,
        retries: int,
        settings: EndpointSettings,
    ) -> None:
        self._arguments = engine, placed, coordinator, retries, settings
        self._made: tuple[HttpIngress, GrpcIngress] | None = None

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request (ASGI)."""
        await self._ingresses()[0](scope, receive, send)

    async def rpc(self, name: str, message: bytes, context: Any) -> Serialized:
        """Answer an RPC with one response."""
        reply = await self._ingresses()[1].call(name, message, metadata_of(context), context.peer())
        _set_status(reply, context)
        return Serialized(reply.message)

    async def stream_rpc(self, request_stream: AsyncIterator[bytes], grpc_context: Any) -> AsyncIterator[Serialized]:
        """Answer a ``ModelStreamInfer`` (Ray's interface)."""
        async for reply in self._ingresses()[1].stream(request_stream, metadata_of(grpc_context), grpc_context.peer()):
            if reply.status:  # ends the stream; only an exception brings the status to Ray's proxy here
                _set_status(reply, grpc_context)
                raise RpcError(reply.error)
            yield Serialized(reply.message)

    def _ingresses(self) -> tuple[HttpIngress, GrpcIngress]:
        if self._made is None:  # on the loop that runs requests
            engine, placed, coordinator, retries, settings = self._arguments
            ask = coordinator.ask.remote
            groups = Groups(
                Dispatcher(RayPool(engine), ask, retries),
                {model: Dispatcher(RayPool(handle), ask, retries) for model, handle in placed.items()},
            )
            self._made = HttpIngress(groups, settings), GrpcIngress(groups, settings)
        return self._made


class Serialized:
    """A message that is serialized already: Ray calls `SerializeToString`."""

    def __init__(self, message: bytes) -> None:
        self._message = message

    def SerializeToString(self) -> bytes:  # noqa: N802 -- the name in protobuf
        """Return the bytes."""
        return self._message


class RpcError(Exception):
    """An error that ends a stream; its status and text are in the context."""


def _set_status(reply: RpcReply, context: Any) -> None:
    """Make an error the status of an RPC; Ray would log an exception with its traceback."""
    if reply.status:
        context.set_code(status_code(Status[reply.status]))
        context.set_details(reply.error)


def _add_rpcs() -> None:
    """Give the ingress a method for each RPC, with its name: Ray's proxy calls them so."""

    def unary(name: str) -> Any:
        async def handle(self: IngressDeployment, request: bytes, grpc_context: Any) -> Serialized:
            return await self.rpc(name, request, grpc_context)

        return handle

    for name in RPC_NAMES.values():
        setattr(IngressDeployment, name, IngressDeployment.stream_rpc if name == STREAM_INFER else unary(name))


_add_rpcs()


def http_application() -> Any:
    """Return the ASGI application of an ingress replica."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        await serve.get_replica_context().servable_object.http(scope, receive, send)

    return application


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
