"""The HTTP/REST endpoint: inference requests are handled here directly, all others by a Tornado application.

Nearly every request of a server is an inference request, so its route bypasses the web framework: the body goes
directly to the request reader, and the response is sent with one write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tornado import routing, web
from tornado.websocket import WebSocketHandler

from tritonnb.core.errors import InvalidArgumentError, UnsupportedError
from tritonnb.endpoints.back_pressure import StreamingCalls
from tritonnb.endpoints.endpoint import Endpoint
from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.handlers import metadata, settings, shared_memory
from tritonnb.endpoints.http.handlers.generate import GenerateHandler, GenerateStreamHandler
from tritonnb.endpoints.http.inference import InferenceServices, handler_factory
from tritonnb.endpoints.http.openapi import description
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.request_reader import RequestReader
from tritonnb.endpoints.http.routes import ROUTES, V2_ROUTES, RouteMatcher, find_route
from tritonnb.endpoints.http.transport.server import HttpServer
from tritonnb.endpoints.http.transport.tornado_bridge import start_in
from tritonnb.endpoints.long_work import LongWork
from tritonnb.endpoints.openai.endpoint import rules
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.endpoints.request_rules import compile_forward_pattern
from tritonnb.engine.engine import Engine

logger = logging.getLogger(__name__)


class OpenApiHandler(metadata.Handler):
    """``/v2/openapi.json``."""

    def get(self) -> None:
        """Return the description of all routes."""
        self.respond_json(description(_HANDLERS))


#: By name of the route.
_HANDLERS: Mapping[str, type[metadata.Handler]] = {
    "live": metadata.LiveHandler,
    "ready": metadata.ReadyHandler,
    "server-metadata": metadata.ServerMetadataHandler,
    "openapi": OpenApiHandler,
    "statistics": metadata.StatisticsHandler,
    "model-metadata": metadata.ModelMetadataHandler,
    "model-ready": metadata.ModelReadyHandler,
    "model-config": metadata.ModelConfigurationHandler,
    "model-statistics": metadata.StatisticsHandler,
    "infer": metadata.InferHandler,
    "generate": GenerateHandler,
    "generate-stream": GenerateStreamHandler,
    "index": metadata.RepositoryIndexHandler,
    "load": metadata.RepositoryLoadHandler,
    "unload": metadata.RepositoryUnloadHandler,
    "trace-setting": settings.TraceSettingHandler,
    "logging": settings.LoggingHandler,
    "system-status": shared_memory.SystemStatusHandler,
    "cuda-status": shared_memory.CudaStatusHandler,
    "system-register": shared_memory.SystemRegisterHandler,
    "cuda-register": shared_memory.CudaRegisterHandler,
    "unregister": shared_memory.UnregisterHandler,
}


class HttpEndpoint(Endpoint):
    """The HTTP endpoint of an engine, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    options : HttpOptions
    openai : OpenAiOptions, optional
        Also serve OpenAI's API, under ``/v1``.
    """

    def __init__(self, engine: Engine, *, host: str, options: HttpOptions, openai: OpenAiOptions | None = None) -> None:
        self.start_request = handler_factory(self)
        transport = HttpServer(
            self.start_request,
            max_body_size=options.max_body_size,
            reuse_port=options.reuse_port,
            max_unread_size=options.max_unread_size,
        )
        super().__init__(host, transport)
        self.admission = Admission(options, host)
        self.forward_pattern = compile_forward_pattern(options.header_forward_pattern)
        self.has_openai = openai is not None
        self._long_work = LongWork()
        self._application = self._make_application(engine, options.max_input_size, openai)
        self.start_in_application = start_in(self._application)
        reader = RequestReader(engine.shared_memory, options.max_input_size)
        self.services = InferenceServices(
            engine.table, engine.tracer, reader, options.max_input_size, options.max_body_size, self._long_work
        )

    @property
    def url(self) -> str:
        """The URL of the endpoint for programs on this machine."""
        # Programs on this machine cannot connect to "every address", at least not on every system.
        host = "127.0.0.1" if self.host in ("", "0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def add_handlers(self, handlers: Sequence[Any], api: str) -> None:
        """Let handlers of Tornado answer more paths, as `Server.add_handlers` describes."""
        apis = sorted({route.api for route in ROUTES if route.api})
        if api not in ("", *apis):
            raise InvalidArgumentError(f"add_handlers: expected '' or an API ({', '.join(apis)}), got '{api}'")
        added = [self._handler_rule(*handler) for handler in handlers]
        router = self._application.wildcard_router
        for rule in added:
            # A cell that is run again replaces its handler.
            router.rules[:] = [other for other in router.rules if getattr(other, "regex", None) != rule.regex]
            self.admission.added_apis.pop(rule.regex, None)  # so that both have the same order
            self.admission.added_apis[rule.regex] = api
            router.add_rules([rule])

    def _handler_rule(self, path: str, handler: Any, *arguments: Any) -> routing.URLSpec:
        if not (isinstance(handler, type) and issubclass(handler, web.RequestHandler)):
            raise InvalidArgumentError(
                f"add_handlers: '{path}': expected a class derived from tornado.web.RequestHandler, got {handler!r}"
            )
        if issubclass(handler, WebSocketHandler):
            raise UnsupportedError(f"add_handlers: '{path}': expected a handler of HTTP, got a WebSocketHandler")
        # The transport waits neither for an asynchronous `prepare` nor for `data_received`.
        if getattr(handler, "_stream_request_body", False):
            raise UnsupportedError(
                f"add_handlers: '{path}': expected a handler of whole bodies, got stream_request_body"
            )
        taken = find_route(path, ROUTES if self.has_openai else V2_ROUTES)
        if not path.startswith("/") or taken is not None or path.startswith("/v2/"):
            raise InvalidArgumentError(
                f"add_handlers: '{path}': expected a path that begins with '/' and is none of the server's own"
            )
        return routing.URLSpec(path, handler, *arguments)

    def _make_application(self, engine: Engine, max_input_size: int, openai: OpenAiOptions | None) -> web.Application:
        """Make the application for everything except inference."""
        arguments = {"engine": engine, "max_input_size": max_input_size}
        # Tornado tries the rules in order, so that `/v2/models/stats` is the statistics and not a model of this name,
        # as on Triton.
        v2 = [routing.Rule(RouteMatcher(route), _HANDLERS[route.name], arguments) for route in V2_ROUTES]
        others = [] if openai is None else rules(engine, max_input_size, self.admission, openai)
        return web.Application(
            [*v2, *others],
            default_handler_class=metadata.UnknownPathHandler,
            default_handler_args=arguments,
            log_function=_log,
            long_work=self._long_work,
            streaming_calls=StreamingCalls(),
        )


def _log(handler: web.RequestHandler) -> None:
    logger.debug("HTTP request: %s %s", handler.request.method, handler.request.path)
