"""The metrics endpoint: ``GET /metrics``; any other path gets an empty response, as on Triton."""

from __future__ import annotations

from tornado import web

from tritonnb.endpoints.endpoint import Endpoint
from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.handlers.metadata import TEXT, Handler, error_body
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.transport.server import HttpServer
from tritonnb.endpoints.http.transport.tornado_bridge import start_in
from tritonnb.endpoints.metrics.exposition import CONTENT_TYPE
from tritonnb.endpoints.metrics.families import Families, MetricsOptions
from tritonnb.engine.engine import Engine

_MAX_BODY = 1 << 20


class MetricsEndpoint(Endpoint):
    """The HTTP endpoint of an engine's metrics, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    options : MetricsOptions
    http : HttpOptions
        For limits and allowed callers; the HTTP endpoint has the same.
    """

    def __init__(self, engine: Engine, *, host: str, options: MetricsOptions, http: HttpOptions) -> None:
        self.families = Families(engine, options)
        application = web.Application(
            default_handler_class=_Metrics,
            default_handler_args={
                "engine": engine,
                "families": self.families,
                # Hosts and origins are checked here as well: a web page could read the names of models from the
                # metrics.
                "admission": Admission(http, host, routes=()),
            },
            # Scrapes come every few seconds and would fill a debug log.
            log_function=lambda handler: None,
        )
        limit = min(_MAX_BODY, http.max_body_size)
        remedy = "a request for metrics needs no body"
        super().__init__(host, HttpServer(start_in(application), max_body_size=limit, body_remedy=remedy))

    async def stop(self, drain: float) -> None:
        """Accept no more requests, and wait up to ``drain`` seconds for requests in progress."""
        self.families.close()
        await super().stop(drain)


class _Metrics(Handler):
    """Every path of the metrics port."""

    content_type = TEXT

    def initialize(  # type: ignore[override]
        self, engine: Engine, families: Families, admission: Admission
    ) -> None:
        super().initialize(engine, max_input_size=0)
        self._families = families
        self._admission = admission

    def prepare(self) -> None:
        refusal = self._admission.refusal(self.request.path, self.request.headers.get)
        if refusal is not None:
            reason, content_type = refusal
            self.set_status(403)
            self.set_header("Content-Type", content_type)
            self.finish(error_body(reason))
        elif self.request.method != "GET":
            raise web.HTTPError(405)

    async def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE)
        # Any other path is an empty 200, surprisingly, and so it is on Triton.
        if self.request.path.rstrip("/") == "/metrics":
            self.finish(await self._families.text())
