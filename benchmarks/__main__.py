"""``python -m benchmarks [NAME …]``: run benchmarks, print ratios, write the figures to ``benchmarks/results``."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from benchmarks.chats import chats
from benchmarks.costs import costs
from benchmarks.footprint import footprint
from benchmarks.gpu import gpu
from benchmarks.grpc import grpc
from benchmarks.http import ensemble, http
from benchmarks.inprocess import inprocess
from benchmarks.instructions import instructions
from benchmarks.isolation import isolation
from benchmarks.kernel import kernel
from benchmarks.memory import memory
from benchmarks.models import models
from benchmarks.peers import peers
from benchmarks.pipelines import pipelines
from benchmarks.predictions import predictions
from benchmarks.pythons import pythons
from benchmarks.ratios import ratios
from benchmarks.recordings import recordings
from benchmarks.report import commit, machine, write_report
from benchmarks.sequences import accumulator, streams
from benchmarks.simulator import simulator
from benchmarks.stages import stages
from benchmarks.sweeps import sweeps
from benchmarks.tricks import tricks
from benchmarks.watch import watch
from tritonnb.cli.doctor import doctor
from tritonnb.compiled import STATE

BENCHMARKS = {
    "instructions": instructions,
    "ratios": ratios,
    "http": http,
    "ensemble": ensemble,
    "inprocess": inprocess,
    "models": models,
    "accumulator": accumulator,
    "streams": streams,
    "chats": chats,
    "grpc": grpc,
    "memory": memory,
    "kernel": kernel,
    "isolation": isolation,
    "stages": stages,
    "watch": watch,
    "footprint": footprint,
    "peers": peers,
    "tricks": tricks,
    "simulator": simulator,
    "recordings": recordings,
    "predictions": predictions,
    "pipelines": pipelines,
    "sweeps": sweeps,
    "costs": costs,
    "pythons": pythons,
    "gpu": gpu,
}


def main() -> None:
    """Run the benchmarks that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME", help="all if omitted")
    parser.add_argument("--seconds", type=int, default=5, help="duration of each measurement")
    parser.add_argument("--reference", help="virtual environment with the real Triton, created if it does not exist")
    parser.add_argument("--report", action="store_true", help="write docs/performance.md from all results at the end")
    parser.add_argument("--rounds", type=int, default=3, help="how often each server is measured, in turn")
    options = parser.parse_args()
    if options.reference:
        os.environ["TRITONNB_REFERENCE"] = options.reference
    target = Path(__file__).parent / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    target.parent.mkdir(exist_ok=True)
    print(doctor())
    stolen: dict[str, float] = {}
    results: dict[str, object] = {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "options": f"--seconds {options.seconds} --rounds {options.rounds}",
        "machine": machine(),
        "state": STATE,
        "stolen": stolen,
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.names or BENCHMARKS:
            print(f"\n{name}: {BENCHMARKS[name].__doc__}", flush=True)
            before = _processor_ticks()
            results[name] = BENCHMARKS[name](Path(scratch), options.seconds, options.rounds)
            stolen[name] = _stolen_share(before, _processor_ticks())
            target.write_text(json.dumps(results, indent=1))  # the next benchmark may fail
    print(f"\nwritten to {target}")
    if options.report:
        print(f"written to {write_report()}")


def _processor_ticks() -> list[int]:
    """The processor time of this machine since its start, by kind: the eighth is what its host gave to others."""
    return [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def _stolen_share(before: list[int], after: list[int]) -> float:
    """The share of a period (0 to 1) in which a processor of this machine had work and its host ran something else."""
    spent = [end - begin for begin, end in zip(before, after, strict=True)]
    return spent[7] / sum(spent)


if __name__ == "__main__":
    main()
