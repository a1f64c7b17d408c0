"""The OpenAI-compatible endpoint on a port of its own; on the HTTP port, the HTTP endpoint has its routes."""

from __future__ import annotations

from tornado import httputil, web

from tritonnb.endpoints.endpoint import Endpoint, Transport
from tritonnb.endpoints.http.host_origin_check import HostOriginCheck
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.restrictions import Restrictions
from tritonnb.endpoints.http.transport.server import TornadoServer
from tritonnb.endpoints.openai.access import Access
from tritonnb.endpoints.openai.application import rules
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.runtime.engine import Engine

_IDLE_TIMEOUT_S = 3600.0


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
        check = None if http.allow_foreign else HostOriginCheck(host, http.allowed_hosts)
        access = Access(check, Restrictions(http.restricted_api), options.api_key)
        self._max_input_size = http.max_input_size
        self._application = web.Application(
            rules(engine, http.max_input_size, access), log_function=lambda handler: None
        )

    def make_transport(self) -> Transport:
        """Make Tornado's HTTP server: a generation takes much longer than its HTTP request."""
        delegate: httputil.HTTPServerConnectionDelegate = self._application
        return TornadoServer(delegate, max_body_size=self._max_input_size, idle_timeout=_IDLE_TIMEOUT_S)
