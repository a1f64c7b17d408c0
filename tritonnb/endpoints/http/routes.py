"""The paths of the HTTP endpoint: the API of ``--http-restricted-api`` that each belongs to, and its effect.

The web applications, the restrictions and the ingress of several replicas use the same table, so none of them can know
a path that another one does not. Complete paths are matched, without percent-decoding, as on Triton.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tritonnb.endpoints.effects import Effect
from tritonnb.endpoints.http.raw_path import routed_path


@dataclass(frozen=True, slots=True)
class Route:
    """One path, or several with the same handler.

    Attributes
    ----------
    name : str
    pattern : re.Pattern
        Of the complete path. Its groups are the arguments of the handler.
    api : str
        The name in ``--http-restricted-api``; empty if the path cannot be restricted.
    effect : Effect
        Of a request that may change something: GET, HEAD and OPTIONS change nothing.
    """

    name: str
    pattern: re.Pattern[str]
    api: str
    effect: Effect

    @classmethod
    def of(cls, name: str, path: str, api: str, effect: Effect) -> Route:
        """The route of a path, a regular expression."""
        return cls(name, re.compile(path, re.ASCII), api, effect)


_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>\d+))?"
_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]+))?"
_REGION = r"(?:/region/(?P<region>[^/]+))?"
_CHANGE, _INFER, _MEMORY, _MERGE, _READ = Effect.CHANGE, Effect.INFER, Effect.MEMORY, Effect.MERGE, Effect.READ

#: The routes of the v2 protocol; the first one that matches a path counts.
V2_ROUTES = tuple(
    Route.of(*columns)
    for columns in (
        ("live", "/v2/health/live", "health", _READ),
        ("ready", "/v2/health/ready", "health", _MERGE),
        ("server-metadata", "/v2", "metadata", _READ),
        ("openapi", r"/v2/openapi\.json", "", _READ),
        ("statistics", "/v2/models/stats", "statistics", _MERGE),
        ("model-metadata", _MODEL, "metadata", _READ),
        ("model-ready", f"{_MODEL}/ready", "health", _READ),
        ("model-config", f"{_MODEL}/config", "model-config", _READ),
        ("model-statistics", f"{_MODEL}/stats", "statistics", _MERGE),
        ("infer", f"{_MODEL}/infer", "inference", _INFER),
        ("generate", f"{_MODEL}/generate", "inference", _INFER),
        ("generate-stream", f"{_MODEL}/generate_stream", "inference", _INFER),
        ("index", f"{_REPOSITORY}/index", "model-repository", _MERGE),
        ("load", rf"{_REPOSITORY}/models/(?P<model>[^/]+)/load", "model-repository", _CHANGE),
        ("unload", rf"{_REPOSITORY}/models/(?P<model>[^/]+)/unload", "model-repository", _CHANGE),
        ("trace-setting", r"/v2/(?:models/(?P<model>[^/]+)/)?trace/setting", "trace", _CHANGE),
        ("logging", "/v2/logging", "logging", _CHANGE),
        ("system-status", f"/v2/systemsharedmemory{_REGION}/status", "shared-memory", _READ),
        ("cuda-status", f"/v2/cudasharedmemory{_REGION}/status", "shared-memory", _READ),
        ("system-register", f"/v2/systemsharedmemory{_REGION}/register", "shared-memory", _MEMORY),
        ("cuda-register", f"/v2/cudasharedmemory{_REGION}/register", "shared-memory", _MEMORY),
        ("unregister", rf"/v2/(?P<kind>system|cuda)sharedmemory{_REGION}/unregister", "shared-memory", _MEMORY),
    )
)
#: The routes of OpenAI's API.
OPENAI_ROUTES = tuple(
    Route.of(*columns)
    for columns in (
        ("openai-models", "/v1/models", "metadata", _MERGE),
        ("openai-model", "/v1/models/(?P<model>[^/]+)", "metadata", _READ),
        ("openai-completions", "/v1/completions", "inference", _INFER),
        ("openai-chat-completions", "/v1/chat/completions", "inference", _INFER),
        ("openai-embeddings", "/v1/embeddings", "inference", _INFER),
        ("openai-unknown", "/v1(?:/.*)?", "", _READ),
    )
)
ROUTES = V2_ROUTES + OPENAI_ROUTES
#: Matches every path of OpenAI's API.
OPENAI_PATHS = OPENAI_ROUTES[-1].pattern


def find_route(target: str, routes: Sequence[Route] = ROUTES) -> tuple[Route, dict[str, str]] | None:
    """The route of a request and the groups of its path that are present; None for a path that has no route.

    Parameters
    ----------
    target : str
        As the client sent it, with the query.
    routes : sequence of Route, optional

    Examples
    --------
    >>> route, groups = find_route("/v2/models/digits/versions/1/stats?x=1")
    >>> route.name, groups
    ('model-statistics', {'model': 'digits', 'version': '1'})
    """
    path = routed_path(target)
    for route in routes:
        match = route.pattern.fullmatch(path)
        if match is not None:
            return route, {name: value for name, value in match.groupdict().items() if value is not None}
    return None
