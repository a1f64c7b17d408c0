"""Checks of the ``Host`` and ``Origin`` headers: a web page must not be able to use a notebook's server.

A browser sends the host name of the URL in ``Host`` and that of the page in ``Origin``. Both must be names of this
machine; otherwise a page could reach the server across origins or by DNS rebinding.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from tritonnb.endpoints.bounded_cache import BoundedCache

_LOCAL = ("localhost", "127.0.0.1", "::1")
_ANY = ("", "0.0.0.0", "::")
_MAX_ACCEPTED = 64
_REMEDY = "HttpOptions.allowed_hosts adds others"
_INVALID_IN_HOST = re.compile(r"[^\w.:\[\]%-]", re.ASCII)


class HostOriginCheck:
    """Accepts or refuses requests by their ``Host`` and ``Origin`` headers.

    Parameters
    ----------
    bound : str
        The address the server listens on. Unless it is a loopback address, numeric addresses are accepted; if it is
        every address, so is this machine's name.
    allowed : iterable of str
        More host names to accept in both headers.
    """

    def __init__(self, bound: str, allowed: Iterable[str] = ()) -> None:
        self._names = {*_LOCAL, bound.lower(), *(name.lower() for name in allowed)}
        self._numeric = bound not in _LOCAL
        if bound in _ANY:
            self._names.add(socket.gethostname().lower())
        self._accepted = BoundedCache[str, bool](_MAX_ACCEPTED)  # Host headers, nearly always one

    def refusal(self, host: str | None, origin: str | None) -> str | None:
        """The reason why a request is refused; None if it is accepted."""
        if host is not None and not self._accepted.get(host):
            if _INVALID_IN_HOST.search(host) or not self._is_ours(_hostname("//" + host)):
                return f"host '{host}' is not allowed: expected a name of this machine; {_REMEDY}"
            if self._accepted.admits(host):
                self._accepted.store(host, True)
        if origin is not None and not self._is_ours(_hostname(origin)):
            return f"origin '{origin}' is not allowed: expected a page of this machine; {_REMEDY}"
        return None

    def _is_ours(self, name: str | None) -> bool:
        return name is not None and (name in self._names or (self._numeric and _is_numeric(name)))


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
