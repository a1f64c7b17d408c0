"""``tritonnb serve --ray``: the model repository on a Ray cluster."""

from __future__ import annotations

import argparse
import logging
import socket
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tritonnb.core.errors import TritonError
from tritonnb.endpoints.listeners import PortTakenError
from tritonnb.runtime.options import EngineOptions
from tritonnb.scale.start import scale

logger = logging.getLogger("tritonnb")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for Ray to those of ``tritonnb serve``."""
    add = parser.add_argument
    add("--ray", action="store_true", help="serve with Ray Serve: every replica is a server of its own")
    add(
        "--address",
        metavar="ADDRESS",
        help="with --ray: the Ray cluster, such as auto or HOST:6379 (default: start one)",
    )
    add("--replicas", type=int, default=1, help="with --ray: the number of servers (default %(default)s)")
    add("--every-node", action="store_true", help="with --ray: listen on every node, not only on the head node")


def run(options: argparse.Namespace, arguments: Mapping[str, Any], signals: socket.socket) -> int:
    """Serve until a signal arrives, and return the exit status.

    Parameters
    ----------
    options : argparse.Namespace
    arguments : mapping
        The keyword arguments of `Server` that the flags set.
    signals : socket.socket
        Becomes readable when a signal to stop arrives.
    """
    names = {field.name for field in fields(EngineOptions)} - {"log"}
    engine = {name: value for name, value in arguments.items() if name in names}
    engine["backend_directory"] = _absolute(engine["backend_directory"])
    try:
        server = scale(
            arguments["model_repository"],
            address=options.address,
            host=arguments["host"],
            port=arguments["port"],
            grpc_port=arguments["grpc_port"],
            every_node=options.every_node,
            allow_foreign=options.http_allow_foreign,
            replicas=options.replicas,
            **engine,
        )
    except PortTakenError as error:
        socket_text = f"Socket '{error.host}:{error.port}' already in use"
        logger.error("failed to start %s service: %s - %s", error.service, error.status.label, socket_text)
        return 1
    except TritonError as error:
        logger.error("error: creating server: %s - %s", error.status.label, error)
        return 1
    logger.info("Started HTTPService at %s:%d", arguments["host"], server.port)
    if server.grpc_port is not None:
        logger.info("Started GRPCInferenceService at %s:%d", arguments["host"], server.grpc_port)
    logger.info("Metrics of all replicas: %s/metrics", server.url)
    signals.recv(1)
    logger.info("Waiting for in-flight requests and sequences to complete.")
    server.stop()
    return 0


def _absolute(path: Path | None) -> Path | None:
    """A path that means the same in the processes of the replicas."""
    return None if path is None else path.resolve()
