"""The Tornado application: every route of the v2 protocol except inference.

Complete paths are matched, without percent-decoding, as on Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from tornado import routing, web

from tritonnb.endpoints.http import openapi
from tritonnb.endpoints.http.handlers import metadata, settings, shared_memory
from tritonnb.endpoints.http.handlers.generate import Generate
from tritonnb.endpoints.http.raw_path import RawPath
from tritonnb.runtime.engine import Engine

logger = logging.getLogger(__name__)

_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>\d+))?"
_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]+))?"


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
    routes: list[tuple[str, type[metadata.Handler], dict[str, Any]]] = [
        (r"/v2/health/live", metadata.Live, {}),
        (r"/v2/health/ready", metadata.Ready, {}),
        (r"/v2", metadata.ServerMetadata, {}),
        (r"/v2/openapi\.json", openapi.OpenApi, {}),
        (r"/v2/models/stats", metadata.Statistics, {}),
        (_MODEL, metadata.ModelMetadata, {}),
        (f"{_MODEL}/ready", metadata.ModelReady, {}),
        (f"{_MODEL}/config", metadata.ModelConfiguration, {}),
        (f"{_MODEL}/stats", metadata.Statistics, {}),
        (f"{_MODEL}/infer", metadata.Infer, {}),
        (f"{_MODEL}/generate", Generate, {"streaming": False}),
        (f"{_MODEL}/generate_stream", Generate, {"streaming": True}),
        (f"{_REPOSITORY}/index", metadata.RepositoryIndex, {}),
        (rf"{_REPOSITORY}/models/(?P<model>[^/]+)/load", metadata.RepositoryLoad, {}),
        (rf"{_REPOSITORY}/models/(?P<model>[^/]+)/unload", metadata.RepositoryUnload, {}),
        (r"/v2/(?:models/(?P<model>[^/]+)/)?trace/setting", settings.TraceSetting, {}),
        (r"/v2/logging", settings.Logging, {}),
        *((path, handler, {}) for path, handler in shared_memory.routes()),
    ]
    rules = [routing.Rule(RawPath(path), handler, {**arguments, **more}) for path, handler, more in routes]
    return web.Application(
        [*rules, *others],
        default_handler_class=metadata.Unknown,
        default_handler_args=arguments,
        log_function=_log,
    )


def _log(handler: web.RequestHandler) -> None:
    logger.debug("HTTP request: %s %s", handler.request.method, handler.request.path)
