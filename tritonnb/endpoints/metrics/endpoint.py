"""The metrics endpoint: ``GET /metrics``; any other path gets an empty response, as on Triton."""

from __future__ import annotations

from tornado import httputil, web

from tritonnb.endpoints.endpoint import Endpoint, Transport
from tritonnb.endpoints.http.handlers.metadata import TEXT, Handler
from tritonnb.endpoints.http.transport.server import TornadoServer
from tritonnb.endpoints.metrics.exposition import CONTENT_TYPE, write_metrics
from tritonnb.endpoints.metrics.families import Families, MetricsOptions
from tritonnb.runtime.engine import Engine

_MAX_BODY = 1 << 20


class MetricsEndpoint(Endpoint):
    """Serves an engine's metrics over HTTP, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    port : int
        0 for any free port; the attribute `port` has its number after `start`.
    options : MetricsOptions
    """

    def __init__(self, engine: Engine, *, host: str, port: int, options: MetricsOptions) -> None:
        super().__init__(host, port)
        self.families = Families(engine, options)
        self._application = web.Application(
            default_handler_class=_Metrics,
            default_handler_args={"engine": engine, "families": self.families},
            log_function=lambda handler: None,
        )

    def make_transport(self) -> Transport:
        """Make Tornado's HTTP server, which is fast enough for scrapes."""
        delegate: httputil.HTTPServerConnectionDelegate = self._application
        return TornadoServer(delegate, max_body_size=_MAX_BODY, idle_timeout=3600.0)

    async def stop(self, drain: float) -> None:
        """Accept no more requests, and wait up to ``drain`` seconds for those in progress."""
        self.families.close()
        await super().stop(drain)


class _Metrics(Handler):
    """Every path of the metrics port."""

    content_type = TEXT

    def initialize(self, engine: Engine, families: Families) -> None:  # type: ignore[override]
        super().initialize(engine, max_input_size=0)
        self._families = families

    def prepare(self) -> None:
        if self.request.method != "GET":
            raise web.HTTPError(405)

    def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE)
        if self.request.path.rstrip("/") == "/metrics":
            self.finish(write_metrics(self._families.collect()))
