"""What the server adds to real models: `dense` and `magika` with 32 clients against the bare session.

The yardstick is the best rate, in rows a second, that an ONNX Runtime session reaches on this machine at
any batch size, with the session options of the served model: called by one thread, and called by as many
threads at once as the model has instances, which is what the server must be held against. Beside it
the best at sizes that 32 clients of one row can fill. The models are served as one would tune them: two
instances, and a delay that lets their batches fill.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks import servers
from benchmarks.load import Request, wrk

REPOSITORY = servers.ROOT / "model_repository"
CLIENTS = 32
INSTANCES = 2
SIZES = (1, 2, 4, 8, 16, 32, 64)
TUNED = "dynamic_batching { preferred_batch_size: [ 16 ] max_queue_delay_microseconds: 4000 }"


def models(scratch: Path, seconds: int, rounds: int) -> dict[str, Any]:
    """Both models; target 90 % of the bare session's best."""
    random = np.random.default_rng(0)
    dense = random.random((1, 2048), dtype=np.float32)
    magika = random.integers(0, 256, (1, 2048), dtype=np.int32)
    return {
        "dense": _measure(Request.of("dense", "INPUT", dense, "OUTPUT"), "dense", "INPUT", dense, scratch, seconds),
        "magika": _measure(
            Request.of("magika", "bytes", magika, "target_label", "INT32"), "magika", "bytes", magika, scratch, seconds
        ),
    }


def _measure(
    request: Request, model: str, name: str, row: np.ndarray[Any, Any], scratch: Path, seconds: int
) -> dict[str, float]:
    before = {threads: _rates(model, name, row, threads) for threads in (1, INSTANCES)}
    with servers.tritonnb(_tuned(model, scratch), model) as url:
        wrk(url, request, CLIENTS, 2, scratch)
        served = wrk(url, request, CLIENTS, seconds, scratch)
    p50, p99 = served.p50, served.p99
    print(f"{model}: {served.rate:.0f} rows/s to {CLIENTS} clients (p50 {p50:.1f} ms, p99 {p99:.1f} ms)")
    found = {"served": served.rate, "p50_ms": p50, "p99_ms": p99}
    for threads, rates in before.items():
        raw = {size: max(rate, rates[size]) for size, rate in _rates(model, name, row, threads).items()}
        best = max(raw, key=raw.__getitem__)
        fillable = max(rate for size, rate in raw.items() if size <= CLIENTS)
        print(
            f"  {served.rate / raw[best]:.0%} of the bare session's best on {threads} threads, {raw[best]:.0f} "
            f"at batches of {best}; {served.rate / fillable:.0%} of its best at batches up to {CLIENTS}, {fillable:.0f}"
        )
        found |= {f"raw_{threads}": raw[best], f"share_{threads}": served.rate / raw[best]}
        found[f"share_fillable_{threads}"] = served.rate / fillable
    return found


def _tuned(model: str, scratch: Path) -> Path:
    """A repository with the model under the tuned configuration."""
    repository = scratch / f"tuned-{model}"
    (repository / model / "1").mkdir(parents=True)
    (repository / model / "1" / "model.onnx").symlink_to(REPOSITORY / model / "1" / "model.onnx")
    config = (REPOSITORY / model / "config.pbtxt").read_text()
    config = config.replace("count: 1", f"count: {INSTANCES}").replace("dynamic_batching { }", TUNED)
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
