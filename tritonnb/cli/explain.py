"""``tritonnb explain``: answers from configurations, figures of load generators, statistics, metrics, traces, logs."""

from __future__ import annotations

import argparse
from pathlib import Path

from tritonnb.lab.explain.explain import explain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        type=Path,
        help="any of: config.pbtxt, output of perf_analyzer or GenAI-Perf, one or two statistics (JSON) or scrapes of "
        "the metrics, traces, a verbose log, server metadata",
    )
    add("--seconds", type=float, help="time between two statistics or scrapes (default: estimated)")
    add("--markdown", action="store_true", help="print Markdown, to paste into an issue")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status: 1 if a file could not be read.

    Raises
    ------
    InvalidArgumentError
        If ``--seconds`` is not positive.
    """
    answer = explain(*options.files, seconds=options.seconds)
    print(answer.markdown() if options.markdown else answer, end="")
    return 1 if answer.refused else 0
