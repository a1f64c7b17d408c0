"""Requests per second of the simulator, by kind of scheduling and by what is kept of a run.

The arrivals are made before the time is taken. A run is repeated, and the fastest counts: other work of the machine
only adds time. A request of iterative scheduling has four steps. The ensemble has three models, one after another.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tritonnb as tnb
from benchmarks.simulator_in_pyodide import BATCHER, DIRECT, SERVICE
from docs.sitegen.playground import ROOT, fetch_runtime, write_archive
from tritonnb.compiled import STATE
from tritonnb.recording.arrivals import Arrival

#: Requests per second of virtual time: about 80 % of what one instance can execute.
RATE = 2000
ITERATIVE = "max_batch_size: 8 sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 8 } }"
TOKENS = 4
STEPS = ("pre", "net", "post")
TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
CHAIN = {name: BATCHER.replace('"m"', f'"{name}"') + TENSORS for name in STEPS}
CHAIN["chain"] = (
    f'platform: "ensemble" max_batch_size: 8 {TENSORS} ensemble_scheduling {{'
    + " ".join(
        f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "X" value: "{source}" }} '
        f'output_map {{ key: "Y" value: "{result}" }} }}'
        for name, source, result in zip(STEPS, ("X", "a", "b"), ("a", "b", "Y"), strict=True)
    )
    + "}"
)


def simulator(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """The simulator: requests per second for dynamic, sequence, ensemble and iterative scheduling."""
    single = tnb.poisson(RATE, seconds * 10, seed=0)
    streams = tnb.sequences([10] * (seconds * 400), every_ms=8, stagger_ms=10)
    generations = [arrival.with_steps(TOKENS) for arrival in tnb.poisson(RATE / TOKENS, seconds * 10, seed=0)]
    kinds: dict[str, tuple[list[Arrival], Callable[[list[Arrival], Any], object]]] = {
        "dynamic": (single, lambda arrivals, keep: tnb.simulate(BATCHER, arrivals, SERVICE, keep=keep)),
        "sequence": (streams, lambda arrivals, keep: tnb.simulate(DIRECT, arrivals, SERVICE, keep=keep)),
        "ensemble": (
            single,
            lambda arrivals, keep: tnb.simulate(CHAIN, arrivals, dict.fromkeys(STEPS, SERVICE), keep=keep),
        ),
        "iterative": (generations, lambda arrivals, keep: tnb.simulate(ITERATIVE, arrivals, SERVICE, keep=keep)),
    }
    figures: dict[str, object] = {"python": f"{sys.version.split()[0]}, {STATE}"}
    for kind, (arrivals, run) in kinds.items():
        for keep in ("everything", "latencies", "summary"):
            rate = max(len(arrivals) / _seconds(lambda: run(arrivals, keep)) for _ in range(rounds))  # noqa: B023
            figures[f"{kind}, {keep}"] = rate
            print(f"{kind:10} keep={keep:11} {rate:9,.0f} requests/s", flush=True)
    for kind, rate in _in_pyodide(scratch).items():
        figures[f"{kind} in Pyodide, summary"] = rate
        print(f"{kind:10} keep=summary     {rate:9,.0f} requests/s in Pyodide", flush=True)
    return figures


def _in_pyodide(scratch: Path) -> dict[str, float]:
    """Run *simulator_in_pyodide.py* with the playground's archive in Node.js; nothing where there is no Node.js."""
    node, archive, directory = shutil.which("node"), scratch / "tritonnb.zip", Path(__file__).parent
    if node is None:
        return {}
    write_archive(archive)
    runtime = fetch_runtime(ROOT / "build")
    command: list[str | Path] = [node, directory / "simulator_in_node.mjs", runtime, archive]
    command.append(directory / "simulator_in_pyodide.py")
    rates: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return rates


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
