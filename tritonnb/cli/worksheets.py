"""``tritonnb worksheets``: exercises on paper, with their solutions, from a range of seeds."""

from __future__ import annotations

import argparse
from pathlib import Path

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.teaching.exercises import worksheet
from tritonnb.lab.teaching.paper import paper
from tritonnb.lab.teaching.rules import LEVELS

_MOST_SHEETS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add("file", type=Path, help="the page (HTML) to write, which any browser prints")
    add("--batcher", choices=("dynamic", "direct", "oldest"), default="dynamic", help="(default: dynamic)")
    add("--level", type=int, choices=LEVELS, default=1, help="the rules that were taught (default: 1)")
    add("--requests", type=int, default=6, help="requests of each sheet, 3 to 26 (default: 6)")
    add("--seeds", default="1-10", help="one seed or a range; the same seed gives the same sheet (default: 1-10)")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status.

    Raises
    ------
    InvalidArgumentError
        If the seeds are no range, or the number of requests is out of range.
    """
    first, _, last = options.seeds.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)):
        raise InvalidArgumentError(f"--seeds expected a number or a range such as 1-10, got {options.seeds!r}")
    seeds = range(int(first), int(last or first) + 1)
    if len(seeds) > _MOST_SHEETS:
        raise InvalidArgumentError(f"--seeds expected at most {_MOST_SHEETS} seeds, got {len(seeds)}")
    settings = {"requests": options.requests, "level": options.level}
    sheets = {
        f"Batches, sheet {seed} ({options.batcher}, level {options.level})": worksheet(
            options.batcher, seed=seed, **settings
        )
        for seed in seeds
    }
    options.file.write_text(paper(sheets, f"Batches, {options.batcher}, level {options.level}"), "utf-8")
    print(f"{options.file}: {len(sheets)} sheets, with solutions at the end")
    return 0
