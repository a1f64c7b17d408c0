"""``tritonnb serve --ray``: the model repository on a Ray cluster."""

from __future__ import annotations

import argparse
import logging
import socket
from collections.abc import Mapping
from typing import Any

from tritonnb.cli.signals import handle_stop_signals
from tritonnb.core.errors import TritonError
from tritonnb.endpoints.endpoint_set import PortTakenError
from tritonnb.scale.start import scale

logger = logging.getLogger("tritonnb")


def keywords(options: argparse.Namespace, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `scale`: all of those of `Server`, which it applies or refuses, and its own."""
    return {
        **arguments,
        # `Server` publishes metrics on port 8002 by default, a deployment on the HTTP port.
        "metrics_port": options.metrics_port,
        "allow_metrics": options.allow_metrics,
        "address": options.address,
        "every_node": options.every_node,
        "replicas": options.replicas or 1,
    }


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
    try:
        server = scale(**keywords(options, arguments))
        handle_stop_signals()  # Ray's own handler ends the process at once
    except PortTakenError as error:
        socket_text = f"Socket '{error.host}:{error.port}' already in use"
        logger.error("failed to start %s service: %s - %s", error.service, error.status.label, socket_text)
        return 1
    except TritonError as error:
        logger.error("error: creating server: %s - %s", error.status.label, error)
        return 1
    logger.info("Started HTTPService at %s:%d", arguments["host"], server.port)
    if server.grpc_port is not None:
        grpc_host = arguments["grpc_host"] or arguments["host"]
        logger.info("Started GRPCInferenceService at %s:%d", grpc_host, server.grpc_port)
    if options.allow_metrics:
        logger.info("Metrics of all replicas: %s/metrics", server.url)
    signals.recv(1)
    logger.info("Waiting for in-flight requests and sequences to complete.")
    server.stop()
    return 0
