"""``--http-restricted-api``: routes that are answered only to requests with a certain header.

Implements Triton's *Limit Endpoint Access*; the check comes before that of the method.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_MODEL = r"/v2/models/[^/]+(?:/versions/\d+)?"
#: What the APIs are called, and their paths; of several that match the first counts.
_APIS = {
    "health": re.compile(rf"/v2/health/.*|{_MODEL}/ready"),
    "inference": re.compile(rf"{_MODEL}/(?:infer|generate|generate_stream)"),
    "model-config": re.compile(rf"{_MODEL}/config"),
    "statistics": re.compile(rf"{_MODEL}/stats|/v2/models/stats"),
    "metadata": re.compile(rf"/v2|{_MODEL}"),
    "model-repository": re.compile(r"/v2/repository(?:/.*)?"),
    "shared-memory": re.compile(r"/v2/(?:system|cuda)sharedmemory(?:/.*)?"),
    "trace": re.compile(r"/v2/(?:models/[^/]+/)?trace/setting"),
    "logging": re.compile(r"/v2/logging"),
}


class Restrictions:
    """What which API wants.

    Parameters
    ----------
    restricted : iterable of (api, header, value)
    """

    def __init__(self, restricted: Iterable[tuple[str, str, str]]) -> None:
        self._wanted = {api: (header, value) for api, header, value in restricted}

    def refusal(self, path: str, header: Callable[[str], str | None]) -> str | None:
        """Why a request is refused, or None.

        Parameters
        ----------
        path : str
        header : callable
            Gives the value of a header.
        """
        if not self._wanted:
            return None
        plain = path.partition("?")[0]
        for api, pattern in _APIS.items():
            if pattern.fullmatch(plain):
                wanted = self._wanted.get(api)
                if wanted is not None and header(wanted[0]) != wanted[1]:
                    return f"This API is restricted, expecting header '{wanted[0]}'"
                return None
        return None
