"""The callers of Ray's gRPC proxies, which listen on every interface, whatever the address of the HTTP proxies is."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

from tritonnb.core.errors import InvalidArgumentError, UnavailableError

_EVERY_INTERFACE = ("", "0.0.0.0", "::")


def check_grpc_host(host: str) -> None:
    """Check an address on which gRPC is to be served: the loopback interface, or every interface.

    Raises
    ------
    InvalidArgumentError
        If it is the address of another interface, on which the proxies cannot listen alone.
    """
    if host not in _EVERY_INTERFACE and not is_loopback(host):
        raise InvalidArgumentError(
            f"grpc_host (--grpc-address): Ray's gRPC proxies listen on every interface, expected 127.0.0.1 (calls from "
            f"other machines are refused) or 0.0.0.0, got '{host}'"
        )


def check_caller(host: str | None, peer: str) -> None:
    """Check who calls: a server on the loopback interface is called from its machine only.

    Parameters
    ----------
    host : str or None
        The address on which gRPC is served; None if it is not known.
    peer : str
        The caller as gRPC names it: ``ipv4:127.0.0.1:5000``, ``ipv6:[::1]:5000``, ``unix:...``.

    Raises
    ------
    UnavailableError
        If the caller is on another machine.

    Examples
    --------
    >>> check_caller("127.0.0.1", "ipv6:%5B::1%5D:5000")
    >>> check_caller("0.0.0.0", "ipv4:192.0.2.7:5000")
    """
    if host is None or not is_loopback(host):
        return
    scheme, _, address = unquote(peer).partition(":")
    caller = address.rpartition(":")[0].strip("[]")
    if scheme != "unix" and not is_loopback(caller):
        raise UnavailableError(
            f"gRPC is served on {host} only, got a call from '{caller or peer}': start the server with "
            "--grpc-address=0.0.0.0, or grpc_host='0.0.0.0', to accept calls from other machines"
        )


def is_loopback(host: str) -> bool:
    """Whether an address is one of the loopback interface."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
