"""`connect`: open a connection to any Triton, and say what is found there."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from tritonnb.client.address import ModelAddress
from tritonnb.client.check import findings, warn_of
from tritonnb.client.connection import Remote
from tritonnb.client.options import TIMEOUT_S, ConnectionOptions
from tritonnb.client.v2_client import make_client
from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types

#: Seconds that a server may take to respond to another protocol than the requested one.
_PROBE_S = 2.0


@with_short_traceback
@with_checked_types
def connect(
    url: str,
    metrics_url: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    ssl: Any = None,
    timeout: float = TIMEOUT_S,
) -> Remote:
    """Connect to a server of the v2 protocol, such as Triton.

    A warning lists changes that earlier connections left on the server, because their process was killed or a change
    was to be kept, and known defects of the server's release that its configurations meet: see `Remote.check` and
    `Remote.restore`.

    Parameters
    ----------
    url : str
        ``http://HOST:PORT``, ``https://…``, ``grpc://HOST:PORT`` or ``grpcs://…``; without a scheme ``http``.
    metrics_url : str, optional
        URL of the metrics, such as ``http://HOST:8002/metrics``; for `Remote.metrics`.
    headers : mapping of str to str, optional
        Sent with every request, such as ``{"Authorization": "Bearer …"}``.
    ssl : ssl.SSLContext, grpc.ChannelCredentials or path, optional
        For ``https`` and ``grpcs``: a context (HTTP), credentials (gRPC), or a file with the certificates to trust.
    timeout : float, optional
        Seconds that the server may take to respond to a request that runs no model.

    Returns
    -------
    Remote

    Raises
    ------
    InvalidArgumentError
        If the URL is invalid, or the server refuses the credentials.
    UnavailableError
        If no server responds.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server, tnb.connect(server.url) as remote:
    ...     print("trace" in remote.extensions)
    True
    """
    scheme, authority, prefix = ModelAddress.split(url)
    access = ConnectionOptions(dict(headers or {}), ssl, timeout)
    try:
        remote = Remote(make_client(scheme, authority, prefix, access), metrics_url)
    except UnavailableError as error:
        meant = _responding_url(scheme, authority, prefix, access)
        if not meant:
            raise
        raise UnavailableError(f"{error.message.rstrip('.')}; a server responds at {meant}") from error
    with suppress(TritonError):  # the server may refuse these requests
        warn_of(remote.url, findings(remote.server, remote.extensions, version=remote.version))
    return remote


def _responding_url(scheme: str, authority: str, prefix: str, access: ConnectionOptions) -> str:
    """Return the URL with the other protocol, or with or without TLS, at which a server responds; empty if none does.

    Headers are not sent, because they may contain credentials.
    """
    address = urlsplit(f"//{authority}")
    try:
        socket.create_connection((address.hostname, address.port), _PROBE_S).close()
    except (OSError, ValueError):
        return ""
    probe = replace(access, headers={}, timeout_s=min(access.timeout_s, _PROBE_S))
    for other in ("http", "grpc", "https", "grpcs"):
        if other == scheme or (prefix and other.startswith("grpc")):
            continue
        server = make_client(other, authority, prefix, probe)
        with suppress(TritonError):
            server.metadata()
            return server.url
    return ""
