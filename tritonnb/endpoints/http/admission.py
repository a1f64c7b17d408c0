"""The admission of requests to an HTTP endpoint: the checks of hosts, origins and restricted APIs.

A browser sends the host name of the URL in ``Host`` and the host name of the page in ``Origin``. Both must be names of
this machine; otherwise a web page could reach a notebook's server across origins or by DNS rebinding. The requests of
an API that ``--http-restricted-api`` restricts must have a certain header, which is checked before the method, as in
Triton's *Limit Endpoint Access*.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from tritonnb.endpoints.caches import BoundedCache
from tritonnb.endpoints.http.handlers.metadata import JSON, TEXT
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.routes import ROUTES, Route, find_route

_LOCAL = ("localhost", "127.0.0.1", "::1")
_ANY = ("", "0.0.0.0", "::")
_MAX_ACCEPTED = 64
_REMEDY = "HttpOptions.allowed_hosts adds others, and `tritonnb serve --http-allow-foreign=true` accepts all"
_INVALID_IN_HOST = re.compile(r"[^\w.:\[\]%-]", re.ASCII)


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_numeric(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Admission:
    """The checks that every request to an endpoint passes, whichever way it comes.

    Unless the endpoint listens on a loopback address, numeric addresses are accepted as names of this machine; if it
    listens on every address, so is its host name.

    Parameters
    ----------
    options : HttpOptions
    host : str or None
        The address that the endpoint listens on; None, if that is not known, to accept all hosts and origins.
    routes : sequence of Route, optional
        The paths with the APIs that they belong to.

    Attributes
    ----------
    added_apis : dict of re.Pattern to str
        The APIs of the paths that users have added, in the order of trial.
    """

    def __init__(self, options: HttpOptions, host: str | None, routes: Sequence[Route] = ROUTES) -> None:
        bound = host or ""
        self._accepts_foreign = host is None or options.allow_foreign
        self._names = {*_LOCAL, bound.lower(), *(name.lower() for name in options.allowed_hosts)}
        # A server that other machines reach may not know all its addresses (containers, NAT), and DNS rebinding needs a
        # name.
        self._numeric = bound not in _LOCAL
        if bound in _ANY:
            self._names.add(socket.gethostname().lower())
        self._accepted = BoundedCache[str, bool](_MAX_ACCEPTED)  # Host headers, nearly always one
        self._required = {api: (header, value) for api, header, value in options.restricted_api}
        self._routes = routes
        self.added_apis: dict[re.Pattern[str], str] = {}

    def refusal(self, target: str, header: Callable[[str], str | None]) -> tuple[str, str] | None:
        """Return why a request is refused with status 403, and the response's content type; None to accept it.

        Parameters
        ----------
        target : str
            The path as the client sent it, with or without the query.
        header : callable
            Returns the value of a header, or None.
        """
        if not self._accepts_foreign:
            foreign = self._foreign(header("Host"), header("Origin"))
            if foreign is not None:
                return foreign, JSON
        required = self._required.get(self._api(target)) if self._required else None
        if required is None or header(required[0]) == required[1]:
            return None
        # Triton's text, which names the header but not its value.
        return f"This API is restricted, expecting header '{required[0]}'", TEXT

    def _api(self, target: str) -> str:
        """Return the name of the API that a path belongs to; empty if there is none."""
        route = find_route(target, self._routes)
        if route is not None:
            return route[0].api
        path = target.partition("?")[0]  # Tornado matches it as it was sent
        return next((api for pattern, api in self.added_apis.items() if pattern.match(path)), "")

    def _foreign(self, host: str | None, origin: str | None) -> str | None:
        """Return the reason if a host or an origin is not this machine."""
        # A request without Host passes: browsers always send it, and the check is about browsers.
        if host is not None and not self._accepted.get(host):
            # `urlsplit` accepts a user name or a path in a host: `evil@localhost` would be a name of ours.
            if _INVALID_IN_HOST.search(host) or not self._is_ours(_hostname("//" + host)):
                return f"host '{host}' is not allowed: expected a name of this machine; {_REMEDY}"
            if self._accepted.admits(host):
                self._accepted.store(host, True)
        # The port is not compared: a notebook's page is on another port than its server, and has to reach it.
        if origin is not None and not self._is_own_page(_hostname(origin), host):
            return f"origin '{origin}' is not allowed: expected a page of this machine; {_REMEDY}"
        return None

    def _is_ours(self, name: str | None) -> bool:
        return name is not None and (name in self._names or (self._numeric and _is_numeric(name)))

    def _is_own_page(self, name: str | None, host: str | None) -> bool:
        # Unlike a Host, a numeric Origin proves nothing: any page may come from a numeric address. It is a page of this
        # machine if the request went to the same address.
        return name is not None and (name in self._names or (host is not None and name == _hostname("//" + host)))
