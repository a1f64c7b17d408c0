"""Live sweeps that measure the promising configurations, against those that measure all: the winner, and the time.

Each model sleeps, with a time and a load at random, and begins with one instance, which is too slow for it.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import tritonnb as tnb
from benchmarks.recordings import Setup
from benchmarks.tables import table
from tritonnb.lab.load.trial import apply_config
from tritonnb.server.model_handle import ModelHandle

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


def sweeps(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Ten live sweeps of the promising configurations; the goal: as good a winner in nine, in a fifth of the time."""
    choose = random.Random(0)
    rows: list[dict[str, Any]] = []
    for number in range(COUNT):
        setup = replace(Setup.at_random(choose), instances=1)
        setup.write(scratch / f"sweep_{number}" / "model")
        with tnb.Server(scratch / f"sweep_{number}", port=0) as server:
            rows.append({"setup": str(setup), **_compared(server["model"], setup.rate, seconds, rounds)})
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
            "the same" if row["chosen"] == row["best"] else row["chosen"],
            f"{row['excess']:+.0%}",
            f"{row['time']:.0%}",
        )
        for row in rows
    ]
    return (
        f"The winner is the same, or its p99 is longer by at most {_EQUAL:.0%} if both are measured in turn, in "
        f"{sum(map(is_good, rows))} of {len(rows)} sweeps of {math.prod(map(len, _GRID.values()))} configurations, in "
        f"{statistics.median(row['time'] for row in rows):.0%} of the time (median).\n\n"
        + table(("model and load", "winner if all are measured", "if the promising ones are", "p99", "time"), cells)
    )


def is_good(row: dict[str, Any]) -> bool:
    """Return whether the winner is the same, or equally good."""
    return bool(row["excess"] <= _EQUAL)


def _compared(model: ModelHandle, rate: float, seconds: int, rounds: int) -> dict[str, Any]:
    """Run both sweeps of a model; compare their winners by loads in turn."""
    requests = round(rate * seconds)
    results, times = [], []
    for live in (True, "all"):
        begin = time.perf_counter()
        results.append(tnb.sweep(model, rate=rate, requests=requests, live=live, **_GRID).wait())
        times.append(time.perf_counter() - begin)
    chosen, best = (result.best for result in results)
    ratios = []
    for number in range(rounds if chosen.config != best.config else 0):
        p99_ms = []
        for trial in (chosen, best):
            apply_config(model, trial.config)
            p99_ms.append(
                tnb.load(model, rate=rate, arrivals="poisson", requests=requests, seed=number).wait().percentile(99)
            )
        ratios.append(p99_ms[0] / p99_ms[1])
    return {
        "best": best.edits_text(),
        "chosen": chosen.edits_text(),
        "excess": statistics.median(ratios) - 1 if ratios else 0.0,
        "time": times[0] / times[1],
    }
