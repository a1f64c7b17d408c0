"""Who may call: a web page must not be able to drive a notebook's server.

A browser sends the name it was told in ``Host`` and the page's own in ``Origin``. Both must be names of
this machine; otherwise a page could reach the server across origins or by DNS rebinding.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

_LOCAL = ("localhost", "127.0.0.1", "::1")
_ANY = ("", "0.0.0.0", "::")
_NO_HOST = re.compile(r"[^\w.:\[\]%-]", re.ASCII)


class Guard:
    """Decides by the ``Host`` and ``Origin`` headers.

    Parameters
    ----------
    bound : str
        The address the server listens on. One that is not of this machine alone lets numeric
        addresses and this machine's name pass as ``Host``.
    allowed : iterable of str
        More host names by which the server may be called, and whose pages may call it.
    """

    def __init__(self, bound: str, allowed: Iterable[str] = ()) -> None:
        self._names = {*_LOCAL, bound.lower(), *(each.lower() for each in allowed)}
        self._numeric = bound not in _LOCAL
        if bound in _ANY:
            self._names.add(socket.gethostname().lower())
        self._good: set[str] = set()  # Host headers seen to be good: nearly always one

    def refusal(self, host: str | None, origin: str | None) -> str | None:
        """Why a request is refused, or None."""
        if host is not None and host not in self._good:
            if _NO_HOST.search(host) or not self._is_ours(_hostname("//" + host)):
                return f"host '{host}' is not allowed: this server answers to names of its own machine only"
            if len(self._good) < 64:
                self._good.add(host)
        if origin is not None and not self._is_ours(_hostname(origin)):
            return f"origin '{origin}' is not allowed: this server answers to pages of its own machine only"
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
