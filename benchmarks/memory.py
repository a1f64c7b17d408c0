"""Memory: the resident set over 200,000 requests; target: it grows by at most 5 % after warm-up."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from benchmarks.load import Request, wrk
from benchmarks.servers import ROOT
from tritonnb.server.server import Server

REQUESTS = 200_000


def memory(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Send the requests in portions and measure the resident set between them."""
    request = Request.of("identity_fp32", "INPUT0", np.zeros((1, 16), np.float32), "OUTPUT0")
    repository = ROOT / "model_repository"
    with Server(repository, port=0, model_control_mode="explicit", load_models=["identity_fp32"]) as server:
        # After the warm-up the buffer of recent events is full: there are three events per request.
        while server.stats("identity_fp32")["model_stats"][0]["inference_count"] < 40_000:
            wrk(server.url, request, 8, 2, scratch)
        start = server.stats("identity_fp32")["model_stats"][0]["inference_count"]
        samples = [resident_mb()]
        while (sent := server.stats("identity_fp32")["model_stats"][0]["inference_count"] - start) < REQUESTS:
            wrk(server.url, request, 32, 2, scratch)
            samples.append(resident_mb())
    growth = max(samples) / samples[0] - 1
    print(f"resident set over {sent} requests: {samples[0]:.1f} to {max(samples):.1f} MB, {growth:+.1%}")
    return {"requests": sent, "first_mb": samples[0], "largest_mb": max(samples), "growth": growth}


def resident_mb() -> float:
    """The resident set of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
