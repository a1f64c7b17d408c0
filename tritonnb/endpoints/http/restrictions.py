"""``--http-restricted-api``: APIs whose requests must have a certain header.

Implements Triton's *Limit Endpoint Access*; the header is checked before the method.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_MODEL = r"/v2/models/[^/]+(?:/versions/\d+)?"
#: The names of the APIs and their paths; the first match counts.
_APIS = {
    "health": re.compile(rf"/v2/health/.*|{_MODEL}/ready"),
    "inference": re.compile(
        rf"{_MODEL}/(?:infer|generate|generate_stream)|/v1/(?:completions|chat/completions|embeddings)"
    ),
    "model-config": re.compile(rf"{_MODEL}/config"),
    "statistics": re.compile(rf"{_MODEL}/stats|/v2/models/stats"),
    "metadata": re.compile(rf"/v2|{_MODEL}|/v1/models(?:/.*)?"),
    "model-repository": re.compile(r"/v2/repository(?:/.*)?"),
    "shared-memory": re.compile(r"/v2/(?:system|cuda)sharedmemory(?:/.*)?"),
    "trace": re.compile(r"/v2/(?:models/[^/]+/)?trace/setting"),
    "logging": re.compile(r"/v2/logging"),
}


class Restrictions:
    """The headers that restricted APIs require.

    Parameters
    ----------
    restricted : iterable of (api, header, value)
    """

    def __init__(self, restricted: Iterable[tuple[str, str, str]]) -> None:
        self._required = {api: (header, value) for api, header, value in restricted}

    def refusal(self, path: str, header: Callable[[str], str | None]) -> str | None:
        """The reason why a request is refused; None if it is accepted.

        Parameters
        ----------
        path : str
        header : callable
            Returns the value of a header, or None.
        """
        if not self._required:
            return None
        plain = path.partition("?")[0]
        for api, pattern in _APIS.items():
            if pattern.fullmatch(plain):
                required = self._required.get(api)
                if required is not None and header(required[0]) != required[1]:
                    return f"This API is restricted, expecting header '{required[0]}'"
                return None
        return None
