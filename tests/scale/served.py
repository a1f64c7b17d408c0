"""A deployment of replicas in this process, behind an ingress that listens on a port."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest, ResponseStartLine
from tornado.netutil import bind_sockets

from tests.scale.asgi import send
from tests.scale.local import LocalPool, ask_of
from tritonnb.engine.execution.loop import BackgroundLoop
from tritonnb.engine.options import EngineOptions
from tritonnb.scale.coordinator import Coordinator
from tritonnb.scale.dispatch import Dispatcher
from tritonnb.scale.endpoint_settings import EndpointSettings
from tritonnb.scale.groups import Groups
from tritonnb.scale.http_ingress import HttpIngress
from tritonnb.scale.replica import Replica


class Served:
    """Replicas that can be added and lost while clients use the port."""

    def __init__(self, repository: Path, models: Sequence[str], settings: EndpointSettings) -> None:
        self._settings = settings
        self._options = EngineOptions((repository,), model_control_mode="explicit", load_models=list(models))
        self._loop = BackgroundLoop("tests replicas")
        self._pool, self._coordinator = LocalPool(), Coordinator()
        self._all: dict[str, Replica] = {}
        self.url = ""

    def start(self, *names: str) -> None:
        self._loop.run(self._listen())
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        self._loop.run(self._add(name))

    def lose(self, name: str) -> None:
        self._loop.run(self._lose(name))

    def close(self) -> None:
        self._loop.run(self._close())
        self._loop.stop()

    async def _listen(self) -> None:
        ask = ask_of(self._coordinator)
        ingress = HttpIngress(Groups(Dispatcher(self._pool, ask), {}), self._settings)

        async def answer(request: HTTPServerRequest) -> None:
            await self._report()
            assert request.connection is not None
            recorded: dict[str, Any] = {
                "method": request.method, "path": request.uri, "headers": dict(request.headers.get_all()),
                "body_base64": base64.b64encode(request.body),
            }  # fmt: skip
            status, headers, body = await send(ingress, recorded)
            lines = type(request.headers)({**headers, "content-length": str(len(body))})
            await request.connection.write_headers(ResponseStartLine("HTTP/1.1", status, ""), lines, body)
            request.connection.finish()

        self._server = HTTPServer(lambda request: asyncio.ensure_future(answer(request)))
        sockets = bind_sockets(0, "127.0.0.1")
        self._server.add_sockets(sockets)
        self.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"

    async def _add(self, name: str) -> None:
        self._all[name] = Replica(self._options, self._settings, name=name)
        await self._all[name].start()
        self._pool.running[name] = self._all[name]

    async def _lose(self, name: str) -> None:
        self._pool.remove(name)

    async def _report(self) -> None:
        for name, replica in self._pool.running.items():
            self._coordinator.report(replica.report(name, "engine", f"node of {name}"))

    async def _close(self) -> None:
        self._server.stop()
        for replica in self._all.values():
            await replica.stop()


@contextmanager
def served(
    repository: Path, models: Sequence[str], *names: str, settings: EndpointSettings | None = None
) -> Iterator[Served]:
    """Serve models of a repository on replicas with these names."""
    deployment = Served(repository, models, settings or EndpointSettings())
    deployment.start(*names)
    try:
        yield deployment
    finally:
        deployment.close()
