"""The Tornado application: every route of the v2 protocol except inference.

Complete paths are matched, without percent-decoding, as on Triton.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from tornado import httputil, routing, web

from tritonnb.endpoints.http import openapi
from tritonnb.endpoints.http.handlers import metadata, settings, shared_memory
from tritonnb.endpoints.http.handlers.generate import Generate
from tritonnb.runtime.engine import Engine

logger = logging.getLogger(__name__)

_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>\d+))?"
_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]+))?"


def make_application(engine: Engine, max_input_size: int) -> web.Application:
    """Make the application for everything except inference.

    Parameters
    ----------
    engine : Engine
    max_input_size : int
        ``--http-max-input-size``, in bytes.
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
    rules = [routing.Rule(_RawPath(path), handler, {**arguments, **more}) for path, handler, more in routes]
    return web.Application(
        rules,
        default_handler_class=metadata.Unknown,
        default_handler_args=arguments,
        log_function=_log,
    )


def routed_path(target: str) -> str:
    """The path that is matched against routes: the target if it is ASCII, else its path decoded as UTF-8.

    A path that is not UTF-8 has no route.
    """
    if target.isascii():
        return target
    try:
        return target.partition("?")[0].encode("latin-1").decode()
    except UnicodeDecodeError:
        return ""


def _log(handler: web.RequestHandler) -> None:
    logger.debug("HTTP request: %s %s", handler.request.method, handler.request.path)


class _RawPath(routing.Matcher):
    """Matches the undecoded path; Tornado's own matcher would percent-decode the captured groups."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern, re.ASCII)

    def match(self, request: httputil.HTTPServerRequest) -> dict[str, Any] | None:
        match = self._pattern.fullmatch(routed_path(request.path))
        if match is None:
            return None
        return {"path_kwargs": {name: value for name, value in match.groupdict().items() if value is not None}}
