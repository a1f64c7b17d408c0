"""What the server adds to real models: `dense` and `magika` with 32 clients against the bare session.

The yardstick is the best rate, in rows a second, that an ONNX Runtime session reaches on this machine at
any batch size, with the session options of the served model: called by one thread, and called by as many
threads at once as the model has instances, which is what the server must be held against. Beside it
the best at sizes that 32 clients of one row can fill; clients that ask for more rows at once can fill any.
The models are served as one would tune them. Two instances keep both cores busy only while batches wait, so a model
that gains nothing from large ones (`magika`) gets small ones; where size pays (`dense`), a delay lets batches fill.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
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
    dense = random.random((1, 2048), dtype=np.float32)
    magika = random.integers(0, 256, (1, 2048), dtype=np.int32)
    return {
        "dense": _measure("dense", "INPUT", "OUTPUT", dense, scratch, seconds),
        "magika": _measure("magika", "bytes", "target_label", magika, scratch, seconds),
    }


def _measure(
    model: str, name: str, output: str, row: np.ndarray[Any, Any], scratch: Path, seconds: int
) -> dict[str, Any]:
    before = {threads: _rates(model, name, row, threads) for threads in (1, INSTANCES)}
    datatype = "FP32" if row.dtype == np.float32 else "INT32"
    served = {}
    for rows in TUNED[model]:
        request = Request.of(model, name, np.repeat(row, rows, axis=0), output, datatype)
        with servers.tritonnb(_tuned(model, rows, scratch), model) as url:
            wrk(url, request, CLIENTS, 2, scratch)
            served[rows] = wrk(url, request, CLIENTS, seconds, scratch)
    raw = {
        threads: {size: max(rate, rates[size]) for size, rate in _rates(model, name, row, threads).items()}
        for threads, rates in before.items()
    }
    return {f"rows_{rows}": _compare(model, rows, measured, raw) for rows, measured in served.items()}


def _compare(model: str, rows: int, served: Measured, raw: dict[int, dict[int, float]]) -> dict[str, float]:
    """What was served to clients that ask for some rows at once, against the bare session."""
    rate, clients = served.rate * rows, f"{CLIENTS} clients, {rows} rows a request"
    print(f"{model}: {rate:.0f} rows/s to {clients} (p50 {served.p50:.1f} ms, p99 {served.p99:.1f} ms)")
    found = {"served": rate, "p50_ms": served.p50, "p99_ms": served.p99}
    for threads, rates in raw.items():
        best = max(rates, key=rates.__getitem__)
        fillable = max(each for size, each in rates.items() if size <= CLIENTS * rows)
        print(
            f"  {rate / rates[best]:.0%} of the bare session's best on {threads} threads, {rates[best]:.0f} at batches "
            f"of {best}; {rate / fillable:.0%} of its best at batches up to {CLIENTS * rows}, {fillable:.0f}"
        )
        found |= {f"raw_{threads}": rates[best], f"share_{threads}": rate / rates[best]}
        found[f"share_fillable_{threads}"] = rate / fillable
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


def _rates(model: str, name: str, row: np.ndarray[Any, Any], threads: int) -> dict[int, float]:
    """Rows a second of the bare session, called by some threads at once, by batch size."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(REPOSITORY / model / "1" / "model.onnx", options)

    def rate(batch: dict[str, np.ndarray[Any, Any]]) -> float:
        count, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + 1:
            session.run(None, batch)
            count += len(batch[name])
        return count / (time.perf_counter() - begin)

    rates: dict[int, float] = {}
    with ThreadPoolExecutor(threads) as pool:
        for size in SIZES:
            batch = {name: np.repeat(row, size, axis=0)}
            session.run(None, batch)
            rates[size] = sum(pool.map(rate, [batch] * threads))
    return rates
