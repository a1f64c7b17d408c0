"""Live sweeps that measure the promising configurations, against those that measure all: the winner, and the time.

Each model sleeps, with a time and a load at random, and begins with one instance, which is too slow for it.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tritonnb as tnb
from benchmarks.recordings import Setup
from benchmarks.tables import table
from tritonnb.profile.sweep_result import SweepResult

#: Number of models.
COUNT = 10
#: The configurations that are tried.
_GRID: dict[str, Any] = {
    "max_queue_delay_microseconds": [0, 1000, 5000],
    "max_batch_size": [4, 8, 16],
    "count": [1, 2, 3],
}
#: Such a difference of the p99 of two configurations is none.
_EQUAL = 0.1


@dataclass(frozen=True)
class Compared:
    """Two sweeps of one model.

    Attributes
    ----------
    promising, all : SweepResult
    promising_s, all_s : float
    """

    promising: SweepResult
    all: SweepResult
    promising_s: float
    all_s: float

    @property
    def same(self) -> bool:
        """True if both chose the same configuration."""
        return bool(self.promising.best.config == self.all.best.config)

    @property
    def excess(self) -> float:
        """How much longer the p99 of the choice is than that of the best, as the sweep of all measured both."""
        measured = [self.all.running, *self.all.trials]
        chosen = next(trial for trial in measured if trial.config == self.promising.best.config)
        return chosen.percentile(99) / self.all.best.percentile(99) - 1


def sweeps(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Ten live sweeps of the promising configurations: as good a winner as with all in nine, in a fifth of the time."""
    choose = random.Random(0)
    rows: list[dict[str, Any]] = []
    for number in range(COUNT):
        setup = replace(Setup.at_random(choose), instances=1)
        setup.write(scratch / f"sweep_{number}" / "model")
        with tnb.Server(scratch / f"sweep_{number}", port=0) as server:
            compared = _compare(server, setup, seconds)
        rows.append(
            {
                "setup": str(setup),
                "best": compared.all.best.edits_text() or "running",
                "chosen": compared.promising.best.edits_text() or "running",
                "same": compared.same,
                "excess": compared.excess,
                "time": compared.promising_s / compared.all_s,
            }
        )
        print(rows[-1], flush=True)
    good = sum(is_good(row) for row in rows)
    print(f"as good in {good} of {COUNT}, in {statistics.median(row['time'] for row in rows):.0%} of the time")
    return {"rows": rows}


def describe(figures: dict[str, Any]) -> str:
    """Describe the sweeps, in Markdown."""
    rows = figures["rows"]
    cells = [
        (
            row["setup"],
            row["best"],
            "the same" if row["same"] else row["chosen"],
            f"{row['excess']:+.0%}",
            f"{row['time']:.0%}",
        )
        for row in rows
    ]
    return (
        f"The winner is the same, or its p99 differs by at most {_EQUAL:.0%} if both are measured, in "
        f"{sum(map(is_good, rows))} of {len(rows)} sweeps of {math.prod(map(len, _GRID.values()))} configurations, in "
        f"{statistics.median(row['time'] for row in rows):.0%} of the time (median).\n\n"
        + table(("model and load", "winner if all are measured", "if the promising ones are", "p99", "time"), cells)
    )


def is_good(row: dict[str, Any]) -> bool:
    """Return whether the winner is the same, or equally good."""
    return bool(row["same"] or row["excess"] <= _EQUAL)


def _compare(server: tnb.Server, setup: Setup, seconds: int) -> Compared:
    requests = round(setup.rate * seconds)
    results = []
    for live in (True, "all"):
        begin = time.perf_counter()
        sweep = tnb.sweep(server["model"], rate=setup.rate, requests=requests, live=live, **_GRID)
        results.append((sweep.wait(), time.perf_counter() - begin))
    (promising, promising_s), (every, all_s) = results
    return Compared(promising, every, promising_s, all_s)
