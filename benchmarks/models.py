"""The overhead of the server: `dense` and `magika` with 32 clients against an ONNX Runtime session without a server.

The baseline is the highest rate, in rows per second, of an ONNX Runtime session on this machine at any batch size, with
the session options of the served model. It is called by one thread, and concurrently by as many threads as the model
has instances, with which the server is to be compared. There is a second baseline at batch sizes that 32 clients can
fill. A short run at each size finds the best one. The session and the server are then measured in turn, for the same
time, and the ratios are medians of the rounds, since the maximum of many short runs would be biased.
The served models are tuned. Two instances keep both cores busy only while batches are waiting. A model that does not
benefit from large batches (`magika`) gets small ones; for one that does (`dense`), a delay lets batches fill.
"""

from __future__ import annotations

import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path

import numpy as np
import onnxruntime as ort

from benchmarks import servers
from benchmarks.load import Measured, Request, wrk

REPOSITORY = servers.ROOT / "model_repository"
CLIENTS = 32
INSTANCES = 2
SIZES = (1, 2, 4, 8, 16, 32, 64)
#: By rows per request: the maximum batch size and the dynamic batcher's settings.
TUNED = {
    "dense": {
        1: (64, "preferred_batch_size: [ 16 ] max_queue_delay_microseconds: 4000"),
        4: (64, "preferred_batch_size: [ 64 ] max_queue_delay_microseconds: 4000"),
    },
    "magika": {1: (4, ""), 4: (4, "")},
}


def models(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Both models; target: 90 % of the session's highest rate."""
    random = np.random.default_rng(0)
    inputs = {
        "dense": ("INPUT", "OUTPUT", random.random((1, 2048), dtype=np.float32)),
        "magika": ("bytes", "target_label", random.integers(0, 256, (1, 2048), dtype=np.int32)),
    }
    figures: dict[str, object] = {}
    for model, (name, output, row) in inputs.items():
        baseline = Baseline(model, name, row)
        for rows in TUNED[model]:
            datatype = "FP32" if row.dtype == np.float32 else "INT32"
            request = Request.of(model, name, np.repeat(row, rows, axis=0), output, datatype)
            figures[f"{model}, {rows} rows"] = _compare(model, rows, request, baseline, scratch, seconds, rounds)
    return figures


def _compare(
    model: str, rows: int, request: Request, baseline: Baseline, scratch: Path, seconds: int, rounds: int
) -> dict[str, float]:
    """Measure the session and the server in turn, for clients with a number of rows per request."""
    baselines = {
        f"{threads} threads, batches of {size}": (threads, size)
        for threads in (1, INSTANCES)
        for limit in (CLIENTS * rows, SIZES[-1])
        for size in [baseline.best(threads, limit)]
    }
    served: list[Measured] = []
    rates: dict[str, list[float]] = {name: [] for name in baselines}
    with servers.tritonnb(_tuned(model, rows, scratch), model) as url:
        wrk(url, request, CLIENTS, 2, scratch)
        for _ in range(rounds):
            for name, (threads, size) in baselines.items():
                rates[name].append(baseline.rate(threads, size, seconds))
            served.append(wrk(url, request, CLIENTS, seconds, scratch))
    rate, p50, p99 = (statistics.median(values) for values in zip(*map(astuple, served), strict=True))
    print(f"{model}: {rate * rows:.0f} rows/s to {CLIENTS} clients of {rows} rows (p50 {p50:.1f} ms, p99 {p99:.1f} ms)")
    figures = {"served": rate * rows, "p50_ms": p50, "p99_ms": p99}
    for name, values in rates.items():
        ratio = statistics.median(run.rate * rows / value for run, value in zip(served, values, strict=True))
        print(f"  {ratio:.0%} of the session alone on {name}: {statistics.median(values):.0f} rows/s")
        figures[name] = ratio
    return figures


def _tuned(model: str, rows: int, scratch: Path) -> Path:
    """Create a repository with the model and its tuned configuration."""
    max_batch_size, settings = TUNED[model][rows]
    repository = scratch / f"tuned-{model}-{rows}"
    (repository / model / "1").mkdir(parents=True)
    (repository / model / "1" / "model.onnx").symlink_to(REPOSITORY / model / "1" / "model.onnx")
    config = (REPOSITORY / model / "config.pbtxt").read_text()
    config = config.replace("count: 1", f"count: {INSTANCES}")
    config = config.replace("dynamic_batching { }", f"dynamic_batching {{ {settings} }}")
    config = re.sub("max_batch_size: [0-9]+", f"max_batch_size: {max_batch_size}", config)
    (repository / model / "config.pbtxt").write_text(config.replace('label_filename: "labels.txt"', ""))
    return repository


class Baseline:
    """A session without a server, called concurrently by some threads with batches of one size."""

    def __init__(self, model: str, name: str, row: np.ndarray) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(REPOSITORY / model / "1" / "model.onnx", options)
        self._name, self._row = name, row
        self._short_runs = {
            (threads, size): self.rate(threads, size, 1) for threads in (1, INSTANCES) for size in SIZES
        }

    def best(self, threads: int, limit: int) -> int:
        """The batch size with the highest rate, up to ``limit``."""
        return max((size for size in SIZES if size <= limit), key=lambda size: self._short_runs[threads, size])

    def rate(self, threads: int, size: int, seconds: float) -> float:
        """Rows per second."""
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
