"""The Tornado application: every route of the v2 protocol except inference."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tornado import routing, web

from tritonnb.endpoints.http.handlers import metadata, settings, shared_memory
from tritonnb.endpoints.http.handlers.generate import GenerateHandler
from tritonnb.endpoints.http.openapi import description
from tritonnb.endpoints.http.routes import V2_ROUTES, RawPath
from tritonnb.runtime.engine import Engine

logger = logging.getLogger(__name__)


class OpenApiHandler(metadata.Handler):
    """``/v2/openapi.json``."""

    def get(self) -> None:
        """Return the description of all routes."""
        self.respond_json(description({name: handler for name, (handler, _) in _HANDLERS.items()}))


#: By name of the route: the handler, and its arguments.
_HANDLERS: Mapping[str, tuple[type[metadata.Handler], Mapping[str, Any]]] = {
    "live": (metadata.LiveHandler, {}),
    "ready": (metadata.ReadyHandler, {}),
    "server-metadata": (metadata.ServerMetadataHandler, {}),
    "openapi": (OpenApiHandler, {}),
    "statistics": (metadata.StatisticsHandler, {}),
    "model-metadata": (metadata.ModelMetadataHandler, {}),
    "model-ready": (metadata.ModelReadyHandler, {}),
    "model-config": (metadata.ModelConfigurationHandler, {}),
    "model-statistics": (metadata.StatisticsHandler, {}),
    "infer": (metadata.InferHandler, {}),
    "generate": (GenerateHandler, {"streaming": False}),
    "generate-stream": (GenerateHandler, {"streaming": True}),
    "index": (metadata.RepositoryIndexHandler, {}),
    "load": (metadata.RepositoryLoadHandler, {}),
    "unload": (metadata.RepositoryUnloadHandler, {}),
    "trace-setting": (settings.TraceSettingHandler, {}),
    "logging": (settings.LoggingHandler, {}),
    "system-status": (shared_memory.SystemStatusHandler, {}),
    "cuda-status": (shared_memory.CudaStatusHandler, {}),
    "system-register": (shared_memory.SystemRegisterHandler, {}),
    "cuda-register": (shared_memory.CudaRegisterHandler, {}),
    "unregister": (shared_memory.UnregisterHandler, {}),
}


def make_application(engine: Engine, max_input_size: int, others: Sequence[routing.Rule] = ()) -> web.Application:
    """Make the application for everything except inference.

    Parameters
    ----------
    engine : Engine
    max_input_size : int
        ``--http-max-input-size``, in bytes.
    others : sequence of tornado.routing.Rule, optional
        The routes of another API on the same port.
    """
    arguments = {"engine": engine, "max_input_size": max_input_size}
    handlers = ((route.pattern, *_HANDLERS[route.name]) for route in V2_ROUTES)
    rules = [routing.Rule(RawPath(pattern), handler, {**arguments, **more}) for pattern, handler, more in handlers]
    return web.Application(
        [*rules, *others],
        default_handler_class=metadata.UnknownPathHandler,
        default_handler_args=arguments,
        log_function=_log,
    )


def _log(handler: web.RequestHandler) -> None:
    logger.debug("HTTP request: %s %s", handler.request.method, handler.request.path)
