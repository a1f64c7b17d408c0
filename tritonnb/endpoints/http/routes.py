"""The paths of the HTTP endpoint: the API of ``--http-restricted-api`` that each belongs to, and its effect.

The web applications, the restrictions and the ingress of several replicas use this table, so all of them know the same
paths. Complete paths are matched, without percent-decoding, as on Triton.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tornado import httputil, routing

from tritonnb.endpoints.effects import Effect


def routed_path(target: str) -> str:
    """Return the path that is matched against routes: the target up to the query, decoded as UTF-8.

    A path that is not UTF-8 has no route.
    """
    # Triton ignores the query, and does not decode percent escapes: `add%73ub` is another name than `addsub`.
    path = target.partition("?")[0]
    if path.isascii():
        return path
    try:
        # The parser hands over bytes as Latin-1; clients write names in UTF-8.
        return path.encode("latin-1").decode()
    except UnicodeDecodeError:
        return ""


@dataclass(frozen=True, slots=True)
class Route:
    """One path, or several with the same handler.

    Attributes
    ----------
    name : str
    path : str
        Brackets contain an optional part, braces the name of a parameter: ``/v2/models/{model}[/versions/{version}]``.
    api : str
        The name in ``--http-restricted-api``; empty if the path cannot be restricted.
    effect : Effect
        Of a request that may change something: GET, HEAD and OPTIONS change nothing.
    pattern : re.Pattern
        Of the complete path. Its groups, the parameters, are the arguments of the handler.
    """

    name: str
    path: str
    api: str
    effect: Effect
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        pattern = re.escape(self.path).replace(r"\[", "(?:").replace(r"\]", ")?")
        for name, value in PARAMETERS.items():
            pattern = pattern.replace(rf"\{{{name}\}}", f"(?P<{name}>{value})")
        object.__setattr__(self, "pattern", re.compile(pattern))

    def paths(self) -> list[str]:
        """Return the paths with each optional part absent and present."""
        parts = re.split(r"\[(.*?)\]", self.path)
        choices = [("", part) if number % 2 else (part,) for number, part in enumerate(parts)]
        return ["".join(chosen) for chosen in itertools.product(*choices)]


#: Patterns of the parameters in paths.
PARAMETERS = dict.fromkeys(("model", "repository", "region"), "[^/]+")
# A version that is not a number matches no route and is a 404 on Triton, not an error about versions.
PARAMETERS |= {"version": "[0-9]+", "kind": "system|cuda", "rest": ".*"}
PARAMETERS |= {"without_v1": "chat/completions|completions|embeddings|models|models/[^/]+"}
_MODEL = "/v2/models/{model}[/versions/{version}]"
_REPOSITORY = "/v2/repository[/{repository}]"
_REGION = "[/region/{region}]"
_CHANGE, _INFER, _MEMORY, _MERGE, _READ = Effect.CHANGE, Effect.INFER, Effect.MEMORY, Effect.MERGE, Effect.READ

#: The routes of the v2 protocol; the first route that matches a path counts.
V2_ROUTES = tuple(
    Route(*columns)
    for columns in (
        ("live", "/v2/health/live", "health", _READ),
        ("ready", "/v2/health/ready", "health", _MERGE),
        ("server-metadata", "/v2", "metadata", _READ),
        ("openapi", "/v2/openapi.json", "", _READ),
        ("statistics", "/v2/models/stats", "statistics", _MERGE),
        ("model-metadata", _MODEL, "metadata", _READ),
        ("model-ready", f"{_MODEL}/ready", "health", _READ),
        ("model-config", f"{_MODEL}/config", "model-config", _READ),
        ("model-statistics", f"{_MODEL}/stats", "statistics", _MERGE),
        ("infer", f"{_MODEL}/infer", "inference", _INFER),
        ("generate", f"{_MODEL}/generate", "inference", _INFER),
        ("generate-stream", f"{_MODEL}/generate_stream", "inference", _INFER),
        ("index", f"{_REPOSITORY}/index", "model-repository", _MERGE),
        ("load", f"{_REPOSITORY}/models/{{model}}/load", "model-repository", _CHANGE),
        ("unload", f"{_REPOSITORY}/models/{{model}}/unload", "model-repository", _CHANGE),
        ("trace-setting", "/v2[/models/{model}]/trace/setting", "trace", _CHANGE),
        ("logging", "/v2/logging", "logging", _CHANGE),
        ("system-status", f"/v2/systemsharedmemory{_REGION}/status", "shared-memory", _READ),
        ("cuda-status", f"/v2/cudasharedmemory{_REGION}/status", "shared-memory", _READ),
        ("system-register", f"/v2/systemsharedmemory{_REGION}/register", "shared-memory", _MEMORY),
        ("cuda-register", f"/v2/cudasharedmemory{_REGION}/register", "shared-memory", _MEMORY),
        ("unregister", f"/v2/{{kind}}sharedmemory{_REGION}/unregister", "shared-memory", _MEMORY),
    )
)
#: The routes of OpenAI's API.
OPENAI_ROUTES = tuple(
    Route(*columns)
    for columns in (
        ("openai-models", "/v1/models", "metadata", _MERGE),
        ("openai-model", "/v1/models/{model}", "metadata", _READ),
        ("openai-completions", "/v1/completions", "inference", _INFER),
        ("openai-chat-completions", "/v1/chat/completions", "inference", _INFER),
        ("openai-embeddings", "/v1/embeddings", "inference", _INFER),
        ("openai-unknown", "/v1[/{rest}]", "", _READ),
        ("openai-without-v1", "/{without_v1}", "", _READ),
    )
)
ROUTES = V2_ROUTES + OPENAI_ROUTES
#: Matches every path of OpenAI's API, and its paths without ``/v1``.
OPENAI_PATHS = re.compile("|".join(route.pattern.pattern for route in OPENAI_ROUTES[-2:]))


def find_route(target: str, routes: Sequence[Route] = ROUTES) -> tuple[Route, dict[str, str]] | None:
    """Return the route of a request and the groups of its path that are present; None for a path that has no route.

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


class RouteMatcher(routing.Matcher):
    """A matcher for undecoded paths; Tornado's own matcher would percent-decode the captured groups."""

    def __init__(self, route: Route) -> None:
        self._routes = (route,)

    def match(self, request: httputil.HTTPServerRequest) -> dict[str, Any] | None:
        """Return the arguments of the handler; None if the path has another route (Tornado's interface)."""
        match = find_route(request.path, self._routes)
        return None if match is None else {"path_kwargs": match[1]}
