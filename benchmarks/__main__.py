"""``python -m benchmarks [WHAT …]``: measure, print ratios, keep the figures in ``benchmarks/results``."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu import gpu
from benchmarks.grpc import grpc
from benchmarks.http import ensemble, image, small
from benchmarks.inprocess import inprocess
from benchmarks.kernel import kernel
from benchmarks.memory import memory
from benchmarks.models import models
from benchmarks.sequences import accumulator, streams
from benchmarks.watch import watch
from tritonnb.cli.doctor import doctor

WHAT = {
    "http": small,
    "image": image,
    "ensemble": ensemble,
    "inprocess": inprocess,
    "models": models,
    "accumulator": accumulator,
    "streams": streams,
    "grpc": grpc,
    "memory": memory,
    "kernel": kernel,
    "watch": watch,
    "gpu": gpu,
}


def main() -> None:
    """Run what was asked for, or everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=[*WHAT, []], help="everything if left out")
    parser.add_argument("--seconds", type=int, default=5, help="of each measurement")
    parser.add_argument("--reference", help="the environment with the real Triton; made if it is not there")
    parser.add_argument("--rounds", type=int, default=3, help="the servers take turns this often")
    options = parser.parse_args()
    if options.reference:
        os.environ["TRITONNB_REFERENCE"] = options.reference
    target = Path(__file__).parent / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    target.parent.mkdir(exist_ok=True)
    print(doctor())
    results: dict[str, Any] = {"when": time.strftime("%Y-%m-%d %H:%M"), "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.what or WHAT:
            print(f"\n{name}: {WHAT[name].__doc__}", flush=True)
            results[name] = WHAT[name](Path(scratch), options.seconds, options.rounds)
            target.write_text(json.dumps(results, indent=1))  # what follows may fail
    print(f"\nkept in {target}")


if __name__ == "__main__":
    main()
