"""The routes of the OpenAI-compatible API."""

from __future__ import annotations

import re
import time
from typing import Any

from tornado import routing

from tritonnb.endpoints.http.raw_path import RawPath
from tritonnb.endpoints.openai import handlers
from tritonnb.endpoints.openai.access import Access
from tritonnb.runtime.engine import Engine

#: The paths of this API.
PATHS = re.compile(r"/v1(?:/.*)?", re.DOTALL)

_ROUTES: tuple[tuple[str, type[handlers.OpenAiHandler]], ...] = (
    (r"/v1/models", handlers.Models),
    (r"/v1/models/(?P<model>[^/]+)", handlers.Model),
    (r"/v1/completions", handlers.Completions),
    (r"/v1/chat/completions", handlers.ChatCompletions),
    (r"/v1/embeddings", handlers.Embeddings),
    (r"/v1(?:/.*)?", handlers.Unknown),
)


def rules(engine: Engine, max_input_size: int, access: Access) -> list[routing.Rule]:
    """The rules of a Tornado application.

    Parameters
    ----------
    engine : Engine
    max_input_size : int
        The limit for a request, in bytes.
    access : Access
    """
    arguments: dict[str, Any] = {
        "engine": engine,
        "max_input_size": max_input_size,
        "access": access,
        "created": int(time.time()),
    }
    return [routing.Rule(RawPath(path), handler, arguments) for path, handler in _ROUTES]
