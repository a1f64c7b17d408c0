"""``--http-restricted-api``: APIs whose requests must have a certain header.

Implements Triton's *Limit Endpoint Access*; the header is checked before the method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tritonnb.endpoints.http.routes import ROUTES, Route, find_route


class Restrictions:
    """The headers that restricted APIs require.

    Parameters
    ----------
    restricted : iterable of (api, header, value)
    routes : sequence of Route, optional
        The paths with the APIs that they belong to.
    """

    def __init__(self, restricted: Iterable[tuple[str, str, str]], routes: Sequence[Route] = ROUTES) -> None:
        self._required = {api: (header, value) for api, header, value in restricted}
        self._routes = routes

    def refusal(self, target: str, header: Callable[[str], str | None]) -> str | None:
        """The reason why a request is refused; None if it is accepted.

        Parameters
        ----------
        target : str
            The path as the client sent it, with or without the query.
        header : callable
            Returns the value of a header, or None.
        """
        if not self._required:
            return None
        found = find_route(target, self._routes)
        required = self._required.get(found[0].api) if found is not None else None
        if required is None or header(required[0]) == required[1]:
            return None
        return f"This API is restricted, expecting header '{required[0]}'"
