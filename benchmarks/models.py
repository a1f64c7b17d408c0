"""What the server adds to real models: `dense` and `magika` with 32 clients against the bare session.

The yardstick is the best rate, in rows a second, that an ONNX Runtime session reaches on this machine at
any batch size, with the session options of the served model: called by one thread, and called by as many
threads at once as the model has instances, which is what the server must be held against. Beside it
the best at sizes that 32 clients of one row can fill; clients that ask for more rows at once can fill any.
A first look at each size says which is best. The bare session and the server then take turns, each for the
same time, and the shares are medians of the rounds: the best of many short looks would only be the luckiest.
The models are served as one would tune them. Two instances keep both cores busy only while batches wait, so a model
that gains nothing from large ones (`magika`) gets small ones; where size pays (`dense`), a delay lets batches fill.
"""

from __future__ import annotations

import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks import servers
from benchmarks.load import Measured, Request, wrk

REPOSITORY = servers.ROOT / "model_repository"
CLIENTS = 32
INSTANCES = 2
SIZES = (1, 2, 4, 8, 16, 32, 64)
#: What clients ask for at once, and the tuning for it: the maximum batch size, and the dynamic batcher's settings.
TUNED = {
    "dense": {
        1: (64, "preferred_batch_size: [ 16 ] max_queue_delay_microseconds: 4000"),
        4: (64, "preferred_batch_size: [ 64 ] max_queue_delay_microseconds: 4000"),
    },
    "magika": {1: (4, ""), 4: (4, "")},
}


def models(scratch: Path, seconds: int, rounds: int) -> dict[str, Any]:
    """Both models; target 90 % of the bare session's best."""
    random = np.random.default_rng(0)
    given = {
        "dense": ("INPUT", "OUTPUT", random.random((1, 2048), dtype=np.float32)),
        "magika": ("bytes", "target_label", random.integers(0, 256, (1, 2048), dtype=np.int32)),
    }
    found: dict[str, Any] = {}
    for model, (name, output, row) in given.items():
        bare = Bare(model, name, row)
        for rows in TUNED[model]:
            datatype = "FP32" if row.dtype == np.float32 else "INT32"
            request = Request.of(model, name, np.repeat(row, rows, axis=0), output, datatype)
            found[f"{model}, {rows} rows"] = _turns(model, rows, request, bare, scratch, seconds, rounds)
    return found


def _turns(
    model: str, rows: int, request: Request, bare: Bare, scratch: Path, seconds: int, rounds: int
) -> dict[str, float]:
    """The bare session and the server in turn, for clients that ask for some rows at once."""
    yardsticks = {
        f"{threads} threads, batches of {size}": (threads, size)
        for threads in (1, INSTANCES)
        for most in (CLIENTS * rows, SIZES[-1])
        for size in [bare.best(threads, most)]
    }
    served: list[Measured] = []
    rates: dict[str, list[float]] = {each: [] for each in yardsticks}
    with servers.tritonnb(_tuned(model, rows, scratch), model) as url:
        wrk(url, request, CLIENTS, 2, scratch)
        for _ in range(rounds):
            for name, (threads, size) in yardsticks.items():
                rates[name].append(bare.rate(threads, size, seconds))
            served.append(wrk(url, request, CLIENTS, seconds, scratch))
    rate, p50, p99 = (statistics.median(each) for each in zip(*map(astuple, served), strict=True))
    print(f"{model}: {rate * rows:.0f} rows/s to {CLIENTS} clients of {rows} rows (p50 {p50:.1f} ms, p99 {p99:.1f} ms)")
    found = {"served": rate * rows, "p50_ms": p50, "p99_ms": p99}
    for name, several in rates.items():
        share = statistics.median(each.rate * rows / once for each, once in zip(served, several, strict=True))
        print(f"  {share:.0%} of the bare session on {name}: {statistics.median(several):.0f} rows/s")
        found[name] = share
    return found


def _tuned(model: str, rows: int, scratch: Path) -> Path:
    """A repository with the model under the tuned configuration."""
    most, settings = TUNED[model][rows]
    repository = scratch / f"tuned-{model}-{rows}"
    (repository / model / "1").mkdir(parents=True)
    (repository / model / "1" / "model.onnx").symlink_to(REPOSITORY / model / "1" / "model.onnx")
    config = (REPOSITORY / model / "config.pbtxt").read_text()
    config = config.replace("count: 1", f"count: {INSTANCES}")
    config = config.replace("dynamic_batching { }", f"dynamic_batching {{ {settings} }}")
    config = re.sub("max_batch_size: [0-9]+", f"max_batch_size: {most}", config)
    (repository / model / "config.pbtxt").write_text(config.replace('label_filename: "labels.txt"', ""))
    return repository


class Bare:
    """The session without a server, called by some threads at once with batches of one size."""

    def __init__(self, model: str, name: str, row: np.ndarray[Any, Any]) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(REPOSITORY / model / "1" / "model.onnx", options)
        self._name, self._row = name, row
        self._looks = {(threads, size): self.rate(threads, size, 1) for threads in (1, INSTANCES) for size in SIZES}

    def best(self, threads: int, most: int) -> int:
        """The best of the batch sizes that are not over ``most``."""
        return max((size for size in SIZES if size <= most), key=lambda size: self._looks[threads, size])

    def rate(self, threads: int, size: int, seconds: float) -> float:
        """Rows a second."""
        batch = {self._name: np.repeat(self._row, size, axis=0)}
        self._session.run(None, batch)

        def run(_: int) -> float:
            count, begin = 0, time.perf_counter()
            while time.perf_counter() < begin + seconds:
                self._session.run(None, batch)
                count += size
            return count / (time.perf_counter() - begin)

        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(run, range(threads)))
