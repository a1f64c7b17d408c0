"""What the server adds to real models: `dense` and `magika` with 32 clients against the bare session.

The yardstick is the best rate, in rows a second, that one ONNX Runtime session reaches on this machine at
any batch size, with the session options of the served model; beside it the best at sizes that 32 clients
of one row can fill. The models are served as one would tune them: two instances, and a delay that lets
their batches fill.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks import servers
from benchmarks.load import Request, wrk

REPOSITORY = servers.ROOT / "model_repository"
CLIENTS = 32
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
    before = _rates(model, name, row)
    with servers.tritonnb(_tuned(model, scratch), model) as url:
        wrk(url, request, CLIENTS, 2, scratch)
        served = wrk(url, request, CLIENTS, seconds, scratch)
    raw = {size: max(rate, before[size]) for size, rate in _rates(model, name, row).items()}
    best = max(raw.values())
    fillable = max(rate for size, rate in raw.items() if size <= CLIENTS)
    print(
        f"{model}: {served.rate:.0f} rows/s to {CLIENTS} clients (p50 {served.p50:.1f} ms, p99 {served.p99:.1f} ms): "
        f"{served.rate / best:.0%} of the bare session's best, {best:.0f}; {served.rate / fillable:.0%} of its best at "
        f"batches up to {CLIENTS}, {fillable:.0f}"
    )
    return {"served": served.rate, "raw": best, "share": served.rate / best, "share_fillable": served.rate / fillable}


def _tuned(model: str, scratch: Path) -> Path:
    """A repository with the model under the tuned configuration."""
    repository = scratch / f"tuned-{model}"
    (repository / model / "1").mkdir(parents=True)
    (repository / model / "1" / "model.onnx").symlink_to(REPOSITORY / model / "1" / "model.onnx")
    config = (REPOSITORY / model / "config.pbtxt").read_text()
    config = config.replace("count: 1", "count: 2").replace("dynamic_batching { }", TUNED)
    (repository / model / "config.pbtxt").write_text(config.replace('label_filename: "labels.txt"', ""))
    return repository


def _rates(model: str, name: str, row: np.ndarray[Any, Any]) -> dict[int, float]:
    """Rows a second of the bare session by batch size."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(REPOSITORY / model / "1" / "model.onnx", options)
    rates: dict[int, float] = {}
    for size in (1, 4, 16, 32, 64):
        batch = {name: np.repeat(row, size, axis=0)}
        session.run(None, batch)
        count, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + 1:
            session.run(None, batch)
            count += size
        rates[size] = count / (time.perf_counter() - begin)
    return rates
