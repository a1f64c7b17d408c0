"""Routes that match the path as the client sent it, without percent-decoding, as on Triton."""

from __future__ import annotations

import re
from typing import Any

from tornado import httputil, routing


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


class RawPath(routing.Matcher):
    """Matches the undecoded path; Tornado's own matcher would percent-decode the captured groups."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern, re.ASCII)

    def match(self, request: httputil.HTTPServerRequest) -> dict[str, Any] | None:
        """The arguments of the handler; None if the path has another route (Tornado's interface)."""
        match = self._pattern.fullmatch(routed_path(request.path))
        if match is None:
            return None
        return {"path_kwargs": {name: value for name, value in match.groupdict().items() if value is not None}}
