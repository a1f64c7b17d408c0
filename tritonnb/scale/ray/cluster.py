"""Connecting to a Ray cluster, and starting Serve on it, with errors that name the remedy."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from tritonnb.core.errors import InternalError, InvalidArgumentError, UnavailableError
from tritonnb.endpoints.endpoint_set import DEFAULT_PORTS, PortTakenError

if TYPE_CHECKING:
    from ray.serve import Application

#: Seconds that a cluster may take to accept a connection. Ray itself tries for some minutes.
_CONNECT_S = 10.0
_POLL_S = 0.1


def connect_ray(address: str | None) -> bool:
    """Connect this process to a Ray cluster; without an address here or in ``RAY_ADDRESS``, start one on this machine.

    Returns
    -------
    bool
        Whether this call connected; False if the process was connected already.

    Raises
    ------
    InvalidArgumentError
        If the address is invalid.
    UnavailableError
        If no cluster responds at the address.
    """
    import ray

    if ray.is_initialized():
        return False
    # Without "local", Ray would connect to a cluster of another program, or to the address of an old cluster.
    target = address or os.environ.get("RAY_ADDRESS") or "local"
    check_address(target)
    try:
        ray.init(address=target, log_to_driver=False, configure_logging=False)
    except (Exception, SystemExit) as error:  # SystemExit: after minutes, if something else listens there
        reason = str(error).strip().partition("\n")[0]
        if target == "local":
            raise UnavailableError(f"a Ray cluster could not be started on this machine: {reason}") from None
        raise _no_cluster("on this machine" if target == "auto" else f"at {target}", reason) from None
    return True


def check_address(address: str) -> None:
    """Check that something listens at the address of a cluster; ``auto``, for example, is not such an address.

    Raises
    ------
    InvalidArgumentError
        If the address has no port.
    UnavailableError
        If nothing accepts a connection there.
    """
    scheme, _, authority = address.rpartition("://")
    if scheme not in ("", "ray") or authority in ("auto", "local"):
        return
    host, _, port = authority.partition("/")[0].rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidArgumentError(
            f"address of the Ray cluster: expected 'auto', HOST:PORT or ray://HOST:PORT, got '{address}'"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(f"at {address}", str(error)) from None


def _no_cluster(where: str, reason: str) -> UnavailableError:
    return UnavailableError(f"no Ray cluster responds {where}: start one with 'ray start --head' ({reason})")


def start_serve(host: str, port: int | None, grpc_port: int | None, every_node: bool) -> tuple[int, int | None]:
    """Start Serve's proxies, and return the ports.

    Raises
    ------
    PortTakenError
        If a port is in use.
    UnavailableError
        If Serve runs on the cluster already: its ports are fixed then.
    """
    from ray import serve
    from ray.serve.config import HTTPOptions, gRPCOptions

    from tritonnb.scale.ray.grpc_service import SERVICER_FUNCTIONS

    if serve.status().proxies:
        raise UnavailableError(
            "Ray Serve is running on this cluster already, and its ports cannot be changed: end it with "
            "'serve shutdown', or add the application to it with serve.run(tritonnb.scale.ray.app(...))"
        )
    http = free_port("HTTP", host, port)
    grpc = None if grpc_port is None else free_port("GRPC", host, grpc_port)
    serve.start(
        proxy_location="EveryNode" if every_node else "HeadOnly",
        http_options=HTTPOptions(host=host, port=http),
        grpc_options=None if grpc is None else gRPCOptions(port=grpc, grpc_servicer_functions=SERVICER_FUNCTIONS),
    )
    return http, grpc


def run(application: Application, name: str) -> None:
    """Deploy an application, and wait until it runs.

    Raises
    ------
    InternalError
        If a deployment of it fails; with the last line of its message.
    """
    from ray import serve

    try:
        serve.run(application, name=name, route_prefix="/")
    except RuntimeError as error:
        status: Any = serve.status().applications.get(name)
        messages = [] if status is None else [deployment.message for deployment in status.deployments.values()]
        reason = next(filter(None, messages), str(error)).strip().rpartition("\n")[2].strip()
        raise InternalError(f"the application '{name}' could not be deployed: {reason}") from None


def stop_serve(name: str, exit_timeout: float) -> None:
    """Stop an application when its requests are answered, and Serve with it.

    `serve.shutdown` alone ends the proxies at once, and with them the requests in progress.

    Parameters
    ----------
    name : str
    exit_timeout : float
        Requests are waited for up to these seconds.
    """
    from ray import serve

    serve.delete(name, _blocking=False)
    deadline = time.monotonic() + exit_timeout
    while name in serve.status().applications and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    serve.shutdown()


def free_port(service: str, host: str, port: int | None) -> int:
    """Return the port, if nothing listens on it; without one, the first free one from 8000 on; for 0 any free one."""
    for candidate in DEFAULT_PORTS if port is None else [port]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise UnavailableError(f"cannot listen on {host}:{candidate}: {error.strerror}") from None
                continue
            return int(probe.getsockname()[1])
    raise PortTakenError(service, host, DEFAULT_PORTS[0] if port is None else port)
