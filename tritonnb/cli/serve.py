"""``tritonnb serve``: serve until a signal arrives, in this process or with ``--ray`` on a Ray cluster."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

from tritonnb.cli.flags import warnings
from tritonnb.cli.server_options import log_settings, server_options
from tritonnb.core.errors import TritonError
from tritonnb.endpoints.endpoint_set import PortTakenError
from tritonnb.engine.repository.table import ExitTimeoutError
from tritonnb.scale.start import ScaledServer, scale
from tritonnb.server.server import Server
from tritonnb.telemetry.log_settings import write_log

logger = logging.getLogger("tritonnb")


def run(options: argparse.Namespace) -> int:
    """Serve until a signal arrives, and return the exit status."""
    log = log_settings(options)
    write_log(log)
    signals = _stop_signals()
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        # On a crash, such as a segmentation fault in native code, the stack of each thread is written to stderr.
        faulthandler.enable(sys.__stderr__)
    for text in warnings(options):
        logger.warning("Warning: %s", text)
    try:
        arguments = {**server_options(options), "log": log}
    except TritonError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        server = scale(**ray_keywords(options, arguments)) if options.ray else Server(**arguments)
    except PortTakenError as error:
        socket_text = f"Socket '{error.host}:{error.port}' already in use"
        logger.error("failed to start %s service: %s - %s", error.service, error.status.label, socket_text)
        return 1
    except TritonError as error:
        logger.error("error: creating server: %s - %s", error.status.label, error)
        return 1
    if isinstance(server, ScaledServer):
        return _run_scaled(server, options, arguments, signals)
    return _run(server, signals)


def _run(server: Server, signals: socket.socket) -> int:
    _relax_garbage_collector()
    services = {
        "HTTPService": server.endpoints.http,
        "GRPCInferenceService": server.endpoints.grpc,
        "Metrics Service": server.endpoints.metrics,
        "OpenAI Service": server.endpoints.openai,
    }
    for name, endpoint in services.items():
        if endpoint is not None:
            logger.info("Started %s at %s:%d", name, endpoint.host, endpoint.port)
    signals.recv(1)
    logger.info("Waiting for in-flight requests to complete.")
    threading.Thread(target=_exit_at_second_signal, args=[signals], name="tritonnb signals", daemon=True).start()
    try:
        server.stop()
    except ExitTimeoutError:
        logger.error("Exit timeout expired. Exiting immediately.")
        return 1
    return 0


def _exit_at_second_signal(signals: socket.socket) -> None:
    """Exit immediately when a second signal arrives."""
    number = signals.recv(1)[0]
    logger.error("signal %d received while stopping: exiting immediately", number)
    os._exit(128 + number)  # as shells report it


def _relax_garbage_collector() -> None:
    """Collect rarely, and skip the objects of start-up: a full collection takes tens of milliseconds.

    Requests create no reference cycles, but at full load more objects are alive than the default thresholds expect.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


# --- Ray --------------------------------------------------------------------------------------------


def ray_keywords(options: argparse.Namespace, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `scale`: its own, and the arguments of `Server`, which it applies or refuses."""
    return {
        **arguments,
        # `Server` publishes metrics on port 8002 by default, a deployment on the HTTP port.
        "metrics_port": options.metrics_port,
        "allow_metrics": options.allow_metrics,
        "address": options.address,
        "every_node": options.every_node,
        "replicas": options.replicas or 1,
    }


def _run_scaled(
    server: ScaledServer, options: argparse.Namespace, arguments: Mapping[str, Any], signals: socket.socket
) -> int:
    _handle_stop_signals()  # Ray's own handler ends the process at once
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


# --- signals ----------------------------------------------------------------------------------------


def _stop_signals() -> socket.socket:
    """Return a socket that becomes readable when a signal to stop arrives.

    Python runs signal handlers on the main thread, which does not notice a signal that arrives just before it blocks,
    or on another thread. The byte is written to the socket at once, regardless of the threads.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach())
    _handle_stop_signals()
    return reading


def _handle_stop_signals() -> None:
    """Install Python's signal handlers, again if a library has installed its own."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
