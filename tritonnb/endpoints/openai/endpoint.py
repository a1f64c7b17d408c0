"""The OpenAI-compatible endpoint on a port of its own; on the HTTP port, the HTTP endpoint has its routes."""

from __future__ import annotations

from tornado import web

from tritonnb.endpoints.endpoint import Endpoint, Transport
from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.transport.application import ApplicationDelegate
from tritonnb.endpoints.http.transport.server import HttpServer
from tritonnb.endpoints.openai.application import rules
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.runtime.engine import Engine


class OpenAiEndpoint(Endpoint):
    """Serves an engine's models over OpenAI's API, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    port : int
        0 for any free port; the attribute `port` has its number after `start`.
    options : OpenAiOptions
    http : HttpOptions
        For limits, allowed callers and restricted APIs, which are those of the HTTP endpoint.
    """

    def __init__(self, engine: Engine, *, host: str, port: int, options: OpenAiOptions, http: HttpOptions) -> None:
        super().__init__(host, port)
        self._options = http
        routes = rules(engine, http.max_input_size, Admission.of(http, host), options)
        self._application = web.Application(routes, log_function=lambda handler: None)

    def make_transport(self) -> Transport:
        """Make the HTTP server."""
        options = self._options
        max_body_size = min(options.max_input_size, options.max_body_size)
        return HttpServer(ApplicationDelegate(self._application), max_body_size=max_body_size)
