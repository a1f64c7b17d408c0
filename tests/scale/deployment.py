"""A deployment of replicas in this process, whose ingress is called without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.scale.asgi import send
from tests.scale.local import LocalPool, ask_of
from tritonnb.engine.options import EngineOptions
from tritonnb.scale.coordinator import Coordinator
from tritonnb.scale.dispatch import Dispatcher
from tritonnb.scale.endpoint_settings import EndpointSettings
from tritonnb.scale.groups import Groups
from tritonnb.scale.grpc_ingress import GrpcIngress
from tritonnb.scale.http_ingress import HttpIngress
from tritonnb.scale.replica import Replica, RpcReply
from tritonnb.telemetry.trace_settings import TraceOptions

MODELS = Path(__file__).parents[1] / "models"
#: A caller on this machine, as gRPC names it.
LOCAL = "ipv4:127.0.0.1:50000"


class Deployment:
    """Replicas in this process and an ingress, on an event loop that runs while a coroutine does."""

    def __init__(self, settings: EndpointSettings | None = None) -> None:
        self.settings = settings = settings or EndpointSettings()
        self.runner = asyncio.Runner()
        self.pool = LocalPool()
        self.coordinator = Coordinator()
        ask = ask_of(self.coordinator)
        groups = Groups(Dispatcher(self.pool, ask), {})
        self.http, self.grpc = HttpIngress(groups, settings), GrpcIngress(groups, settings)

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def add(self, name: str, models: Sequence[str] = ("echo_fp32",)) -> Replica:
        return self.run(self._add(name, list(models)))

    async def _add(self, name: str, names: list[str]) -> Replica:
        trace = TraceOptions("trace.json")
        options = EngineOptions((MODELS,), model_control_mode="explicit", load_models=names, trace=trace)
        replica = Replica(options, self.settings, name=name)
        await replica.start()
        await replica.apply_all(self.coordinator.report(replica.report(name, "engine", "node")))
        self.pool.running[name] = replica
        return replica

    def ask(self, method: str, path: str, document: object = None) -> Any:
        """The JSON of a response; its status must be 200."""
        request = {"method": method, "path": path, "body_text": "" if document is None else json.dumps(document)}
        status, _, content = self.run(send(self.http, request))
        assert status == 200, content
        return json.loads(content or b"null")

    def send(self, method: str, path: str, body: str = "", **headers: str | list[str]) -> tuple[int, str]:
        """The status and the body of a response."""
        request = {"method": method, "path": path, "body_text": body, "headers": headers}
        status, _, content = self.run(send(self.http, request))
        return status, content.decode()

    def rpc(self, name: str, request: Any = None, peer: str = LOCAL, **metadata: str) -> RpcReply:
        """The reply to an RPC."""
        message = b"" if request is None else request.SerializeToString()
        return self.run(self.grpc.call(name, message, metadata, peer))

    def close(self) -> None:
        for replica in self.pool.running.values():
            self.run(replica.stop())
        self.runner.close()
