"""The command line: ``serve`` with the flags of tritonserver, ``lab``, ``models``, ``trace`` and others."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tritonnb.cli import export, lab, scaled, trace
from tritonnb.cli.doctor import doctor
from tritonnb.cli.flag_parser import FlagParser
from tritonnb.cli.flags import add_flags, warnings
from tritonnb.cli.server_options import log_settings, server_options
from tritonnb.cli.signals import stop_signals
from tritonnb.core.errors import TritonError
from tritonnb.core.version import VERSION
from tritonnb.endpoints.endpoint_set import PortTakenError
from tritonnb.runtime.repository.unloading import ExitTimeoutError
from tritonnb.server.server import Server
from tritonnb.telemetry.log_settings import write_log

logger = logging.getLogger("tritonnb")


#: The exit status that shells report for a process that SIGPIPE ended.
_SIGPIPE_STATUS = 128 + 13


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status."""
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as in ``tritonnb doctor | head -1``
        # Discard the rest of the buffer; otherwise the interpreter reports an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGPIPE_STATUS


def make_parser() -> FlagParser:
    """Make the parser of the command line, which the documentation uses, too."""
    parser = FlagParser(prog="tritonnb", description="An NVIDIA-Triton-compatible inference server.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve model repositories")
    add_flags(serve)
    lab.add_arguments(commands.add_parser("lab", help="copy the lessons into a directory, and open JupyterLab"))
    commands.add_parser("lessons", help="list the lessons")
    models = commands.add_parser("models", help="write the example models into a repository")
    models.add_argument(
        "directory",
        nargs="?",
        default="model_repository",
        type=Path,
        help="a model repository; existing files are kept (default %(default)s)",
    )
    models.add_argument("models", nargs="*", metavar="MODEL", help="the models to write (default: all)")
    models.add_argument(
        "--compile", action="store_true", help="also create the models that are compiled for this machine (digits_pt2)"
    )
    trace_help = "convert trace files to a timeline for https://ui.perfetto.dev or a web page, or explain them"
    trace.add_arguments(commands.add_parser("trace", help=trace_help))
    describe = commands.add_parser("doctor", help="describe this environment")
    describe.add_argument("--backend-directory", type=Path, help="list the C++ backends in this directory")
    export_help = "write the files that serve a model repository on Ray, Kubernetes or KServe"
    export.add_arguments(commands.add_parser("export", help=export_help))
    return parser


def _run(arguments: Sequence[str] | None) -> int:
    options = make_parser().parse_args(arguments)
    if options.command == "serve":
        return _serve(options)
    try:
        if options.command == "lab":
            return lab.run(options)
        if options.command == "lessons":
            return lab.print_lessons()
        if options.command == "models":
            return _models(options.directory, options.models or None, options.compile)
        if options.command == "trace":
            return trace.run(options)
        if options.command == "export":
            return export.run(options)
    except BrokenPipeError:
        raise
    except (OSError, TritonError) as error:
        print(error, file=sys.stderr)
        return 1
    print(doctor() if options.backend_directory is None else doctor(options.backend_directory))
    return 0


def _serve(options: argparse.Namespace) -> int:
    log = log_settings(options)
    write_log(log)
    signals = stop_signals()
    _show_crashes()
    for text in warnings(options):
        logger.warning("Warning: %s", text)
    try:
        arguments = {**server_options(options), "log": log}
    except TritonError as error:
        print(error, file=sys.stderr)
        return 1
    if options.ray:
        return scaled.run(options, arguments, signals)
    try:
        server = Server(**arguments)
    except PortTakenError as error:
        socket_text = f"Socket '{error.host}:{error.port}' already in use"
        logger.error("failed to start %s service: %s - %s", error.service, error.status.label, socket_text)
        return 1
    except TritonError as error:
        logger.error("error: creating server: %s - %s", error.status.label, error)
        return 1
    _relax_garbage_collector()
    if server.endpoints.http is not None:
        logger.info("Started HTTPService at %s:%d", options.http_address, server.port)
    if server.endpoints.grpc is not None:
        grpc = server.endpoints.grpc
        logger.info("Started GRPCInferenceService at %s:%d", grpc.host, grpc.port)
    if server.endpoints.metrics is not None:
        metrics = server.endpoints.metrics
        logger.info("Started Metrics Service at %s:%d", metrics.host, metrics.port)
    if server.endpoints.openai is not None:
        openai = server.endpoints.openai
        logger.info("Started OpenAI Service at %s:%d", openai.host, openai.port)
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


def _show_crashes() -> None:
    """On a crash, such as a segmentation fault in native code, write the stack of each thread to stderr."""
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)


def _relax_garbage_collector() -> None:
    """Collect rarely, and skip the objects of start-up: a full collection takes tens of milliseconds.

    Requests create no reference cycles, but at full load more objects are alive than the default thresholds expect.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def _models(directory: Path, models: Sequence[str] | None, compile: bool) -> int:
    from tritonnb.model_zoo import materialize

    try:
        print(materialize(directory, models, compile=compile))
    except (ImportError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
