"""The command line: ``serve`` with the flags of tritonserver, ``lab``, ``models``, ``trace`` and others."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tritonnb.cli import explain, export, lab, serve, trace, worksheets
from tritonnb.cli.doctor import doctor
from tritonnb.cli.flags import FlagParser, add_flags
from tritonnb.core.errors import TritonError
from tritonnb.core.version import VERSION

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
    """Make the parser of the command line, which the documentation also uses."""
    parser = FlagParser(prog="tritonnb", description="An NVIDIA-Triton-compatible inference server.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    add_flags(commands.add_parser("serve", help="serve model repositories"))
    lab.add_arguments(commands.add_parser("lab", help="copy the lessons into a directory, and open JupyterLab"))
    commands.add_parser("lessons", help="list the lessons")
    models = commands.add_parser("models", help="write the example models into a repository")
    models.add_argument(
        "directory",
        type=Path,
        help="a model repository, which is created if it does not exist; existing files are kept",
    )
    models.add_argument("models", nargs="*", metavar="MODEL", help="the models to write (default: all)")
    models.add_argument(
        "--compile", action="store_true", help="also create the models that are compiled for this machine (digits_pt2)"
    )
    trace_help = "convert trace files to a timeline for https://ui.perfetto.dev or a web page, or explain them"
    trace.add_arguments(commands.add_parser("trace", help=trace_help))
    explain_help = "explain what limits a model, from its configuration and figures that were measured elsewhere"
    explain.add_arguments(commands.add_parser("explain", help=explain_help))
    describe = commands.add_parser("doctor", help="describe this environment")
    describe.add_argument("--backend-directory", type=Path, help="list the C++ backends in this directory")
    worksheets.add_arguments(commands.add_parser("worksheets", help="write exercises to print, with their solutions"))
    export_help = "write the files that serve a model repository on Ray, Kubernetes or KServe"
    export.add_arguments(commands.add_parser("export", help=export_help))
    return parser


def _run(arguments: Sequence[str] | None) -> int:
    options = make_parser().parse_args(arguments)
    if options.command == "serve":
        if arguments is None:  # else they are of the program that calls this
            del sys.argv[1:]  # as in Triton's stub: a model may parse it, such as by `unittest.main`
        return serve.run(options)
    try:
        if options.command == "lab":
            return lab.run(options)
        if options.command == "lessons":
            return lab.print_lessons()
        if options.command == "models":
            return _models(options.directory, options.models or None, options.compile)
        if options.command == "trace":
            return trace.run(options)
        if options.command == "explain":
            return explain.run(options)
        if options.command == "worksheets":
            return worksheets.run(options)
        if options.command == "export":
            return export.run(options)
    except BrokenPipeError:
        raise
    except (OSError, TritonError) as error:
        print(error, file=sys.stderr)
        return 1
    print(doctor() if options.backend_directory is None else doctor(options.backend_directory))
    return 0


def _models(directory: Path, models: Sequence[str] | None, compile: bool) -> int:
    from tritonnb.model_zoo import materialize

    try:
        print(materialize(directory, models, compile=compile))
    except (ImportError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
