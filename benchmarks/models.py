"""What the server adds to real models: `dense` and `magika` with 32 clients against the bare session.

The yardstick is the best rate, in rows a second, that ONNX Runtime reaches on this machine at any batch
size, with the session options of the served model; target 90 %.
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


def models(scratch: Path, seconds: int, rounds: int) -> dict[str, Any]:
    """Both models."""
    row = np.random.default_rng(0).random((1, 2048), dtype=np.float32)
    found = {"dense": _measure("dense", "INPUT", "OUTPUT", row, "FP32", (1, 8, 16, 32, 64), scratch, seconds)}
    bytes_row = np.random.default_rng(0).integers(0, 256, (1, 2048), dtype=np.int32)
    found["magika"] = _measure("magika", "bytes", "target_label", bytes_row, "INT32", (1, 4, 16), scratch, seconds)
    return found


def _measure(
    model: str,
    name: str,
    output: str,
    row: np.ndarray[Any, Any],
    datatype: str,
    sizes: tuple[int, ...],
    scratch: Path,
    seconds: int,
) -> dict[str, float]:
    request = Request.of(model, name, row, output, datatype)
    raw_before = _best_rate(model, name, row, sizes)
    with servers.tritonnb(REPOSITORY, model) as url:
        wrk(url, request, CLIENTS, 2, scratch)
        served = wrk(url, request, CLIENTS, seconds, scratch)
    raw = max(raw_before, _best_rate(model, name, row, sizes))
    print(
        f"{model}: {served.rate:.0f} rows/s served to {CLIENTS} clients (p50 {served.p50:.1f} ms, p99 {served.p99:.1f} "
        f"ms); bare session at its best batch size {raw:.0f} rows/s: {served.rate / raw:.0%}"
    )
    return {"served": served.rate, "raw": raw, "share": served.rate / raw}


def _best_rate(model: str, name: str, row: np.ndarray[Any, Any], sizes: tuple[int, ...]) -> float:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(REPOSITORY / model / "1" / "model.onnx", options)
    best = 0.0
    for size in sizes:
        batch = {name: np.repeat(row, size, axis=0)}
        session.run(None, batch)
        count, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + 1:
            session.run(None, batch)
            count += size
        best = max(best, count / (time.perf_counter() - begin))
    return best
