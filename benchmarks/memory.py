"""Memory: the resident set over 200,000 requests, and what the history of events costs the garbage collector."""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path

import psutil

from benchmarks.load import Requests, floats, wrk
from benchmarks.servers import ROOT
from tritonnb.core.packed_events import unpack
from tritonnb.server.server import Server

REQUESTS = 200_000


def memory(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """The resident set between portions of requests, target: at most 5 % more; a collection with a full history."""
    requests = Requests.binary("identity_fp32", "INPUT0", floats(16), "OUTPUT0")
    repository = ROOT / "model_repository"
    with Server(repository, port=0, model_control_mode="explicit", load_models=["identity_fp32"]) as server:
        # After the warm-up the buffer of recent events is full: there are three events per request.
        while server.stats("identity_fp32")["model_stats"][0]["inference_count"] < 40_000:
            wrk(server.url, requests, 8, 2, scratch)
        start = server.stats("identity_fp32")["model_stats"][0]["inference_count"]
        samples = [resident_mb()]
        while (sent := server.stats("identity_fp32")["model_stats"][0]["inference_count"] - start) < REQUESTS:
            wrk(server.url, requests, 32, 2, scratch)
            samples.append(resident_mb())
        collections_ms = {"history": _collection_ms()}
        objects = [unpack(event) for event in server.call(lambda: list(server.engine.stream.recent))]
        collections_ms["objects"] = _collection_ms()
    growth = max(samples) / samples[0] - 1
    print(f"resident set over {sent} requests: {samples[0]:.1f} to {max(samples):.1f} MB, {growth:+.1%}")
    print(
        f"a full garbage collection with {len(objects)} events: {collections_ms['history']:.1f} ms in the history, "
        f"{collections_ms['objects']:.1f} ms with the same events as objects, too"
    )
    return {
        "events": len(objects),
        "collections_ms": collections_ms,
        "requests": sent,
        "first_mb": samples[0],
        "largest_mb": max(samples),
        "growth": growth,
    }


def _collection_ms() -> float:
    """Measure a full collection after new objects were visited."""
    times_ms = []
    for _ in range(6):
        begin_ns = time.perf_counter_ns()
        gc.collect()
        times_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
    return statistics.median(times_ms[1:])


def resident_mb() -> float:
    """Return the resident set of this process in MB."""
    return float(psutil.Process().memory_info().rss / 1e6)
