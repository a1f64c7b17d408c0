"""The OpenAI-compatible API: its routes, on the HTTP port or on a dedicated port."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tornado import routing, web

from tritonnb.endpoints.back_pressure import StreamingCalls
from tritonnb.endpoints.endpoint import Endpoint
from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.options import RAISE_BODY_SIZE, RAISE_INPUT_SIZE, HttpOptions
from tritonnb.endpoints.http.routes import OPENAI_ROUTES, RouteMatcher
from tritonnb.endpoints.http.transport.server import HttpServer
from tritonnb.endpoints.http.transport.tornado_bridge import start_in
from tritonnb.endpoints.long_work import LongWork
from tritonnb.endpoints.openai import handlers
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.engine.engine import Engine

#: By name of the route.
_HANDLERS: Mapping[str, type[handlers.OpenAiHandler]] = {
    "openai-models": handlers.ModelListHandler,
    "openai-model": handlers.ModelHandler,
    "openai-completions": handlers.CompletionsHandler,
    "openai-chat-completions": handlers.ChatCompletionsHandler,
    "openai-embeddings": handlers.EmbeddingsHandler,
    "openai-unknown": handlers.UnknownRouteHandler,
    "openai-without-v1": handlers.UnknownRouteHandler,
}


def rules(engine: Engine, max_input_size: int, admission: Admission, options: OpenAiOptions) -> list[routing.Rule]:
    """Return the rules of a Tornado application.

    Parameters
    ----------
    engine : Engine
    max_input_size : int
        The limit for a request, in bytes.
    admission : Admission
    options : OpenAiOptions
    """
    arguments: dict[str, Any] = {
        "engine": engine,
        "max_input_size": max_input_size,
        "access": handlers.AccessRules(admission, options.api_key),
        "default_max_tokens": options.default_max_tokens,
        # OpenAI's models have a date of creation. Ours have none that clients could use, so all have the start of the
        # server.
        "created": int(time.time()),
    }
    return [routing.Rule(RouteMatcher(route), _HANDLERS[route.name], arguments) for route in OPENAI_ROUTES]


def openai_endpoint(engine: Engine, *, host: str, options: OpenAiOptions, http: HttpOptions) -> Endpoint:
    """Make the OpenAI-compatible endpoint of an engine, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    options : OpenAiOptions
    http : HttpOptions
        For limits, allowed callers and restricted APIs; the HTTP endpoint has the same.
    """
    routes = rules(engine, http.max_input_size, Admission(http, host), options)
    application = web.Application(
        routes, log_function=lambda handler: None, long_work=LongWork(), streaming_calls=StreamingCalls()
    )
    # Requests of this API are JSON only, so that the limit for JSON is the limit for the body.
    limit, remedy = min((http.max_input_size, RAISE_INPUT_SIZE), (http.max_body_size, RAISE_BODY_SIZE))
    return Endpoint(host, HttpServer(start_in(application), max_body_size=limit, body_remedy=remedy))
