"""Routes that match the path as the client sent it, without percent-decoding, as on Triton."""

from __future__ import annotations

import re
from typing import Any

from tornado import httputil, routing


def routed_path(target: str) -> str:
    """The path that is matched against routes: the target up to the query, decoded as UTF-8.

    A path that is not UTF-8 has no route.
    """
    path = target.partition("?")[0]
    if path.isascii():
        return path
    try:
        return path.encode("latin-1").decode()
    except UnicodeDecodeError:
        return ""


class RawPath(routing.Matcher):
    """Matches the undecoded path; Tornado's own matcher would percent-decode the captured groups."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def match(self, request: httputil.HTTPServerRequest) -> dict[str, Any] | None:
        """The arguments of the handler; None if the path has another route (Tornado's interface)."""
        match = self._pattern.fullmatch(routed_path(request.path))
        if match is None:
            return None
        return {"path_kwargs": {name: value for name, value in match.groupdict().items() if value is not None}}
