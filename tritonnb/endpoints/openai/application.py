"""The routes of the OpenAI-compatible API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tornado import routing

from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.raw_path import RawPath
from tritonnb.endpoints.http.routes import OPENAI_ROUTES
from tritonnb.endpoints.openai import handlers
from tritonnb.endpoints.openai.access import Access
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.runtime.engine import Engine

#: By name of the route.
_HANDLERS: Mapping[str, type[handlers.OpenAiHandler]] = {
    "openai-models": handlers.Models,
    "openai-model": handlers.Model,
    "openai-completions": handlers.Completions,
    "openai-chat-completions": handlers.ChatCompletions,
    "openai-embeddings": handlers.Embeddings,
    "openai-unknown": handlers.Unknown,
}


def rules(engine: Engine, max_input_size: int, admission: Admission, options: OpenAiOptions) -> list[routing.Rule]:
    """The rules of a Tornado application.

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
        "access": Access(admission, options.api_key),
        "default_max_tokens": options.default_max_tokens,
        "created": int(time.time()),
    }
    return [routing.Rule(RawPath(route.pattern), _HANDLERS[route.name], arguments) for route in OPENAI_ROUTES]
