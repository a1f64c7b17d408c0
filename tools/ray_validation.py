"""Compares two replicas on Ray with their simulation: ``python -m tools.ray_validation --rate 50 --seconds 20``.

A model that sleeps 100 ms + 10 ms per row gets requests at random times (Poisson). The recording of the replicas has
the arrivals, which are simulated with the same configuration and two replicas behind the same router.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import ray

import tritonnb as tnb
from benchmarks.recordings import Setup
from tools.ray_chaos import start_cluster

MODEL = Setup(instances=1, max_rows=8, delay_us=0, base_ms=100, row_ms=10, rate=0)


def latencies_ms(recording: tnb.Recording) -> list[float]:
    """From the reception of each request by its replica to the end of its execution."""
    return [(request.exec_end_ns - request.received_ns) / 1e6 for request in recording.requests]


def show(title: str, latencies: list[float], requests: int, seconds: float) -> None:
    """Print one row."""
    p50, p99 = np.percentile(latencies, [50, 99])
    print(f"{title}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, {requests / seconds:.1f} requests/s")


def compare(server: tnb.ScaledServer, rate: float, seconds: float, seed: int) -> None:
    """Measure once, simulate the same arrivals, and print both."""
    with server.connect() as remote:
        with remote.record("slow") as recording:
            result = tnb.load(remote["slow"], rate=rate, duration=seconds, seed=seed).wait()
        if result.failed:
            raise SystemExit(f"requests failed: {result.errors}")
        service = tnb.linear(per_row_ms=MODEL.row_ms, base_ms=MODEL.base_ms)
        simulated = tnb.simulate(recording.configs["slow"], recording.arrivals(), service, replicas=2, seed=seed)
    print(f"seed {seed}, load average {os.getloadavg()[0]:.1f}")
    show("  measured, by the client ", [float(value) for value in result.latencies_ms], result.requests, seconds)
    show("  measured, in the replica", latencies_ms(recording), len(recording.requests), seconds)
    show("  simulated               ", latencies_ms(simulated), len(simulated.requests), seconds)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    cluster = start_cluster()
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory)
        MODEL.write(repository / "slow")
        server = tnb.scale(
            repository,
            address=cluster.address,
            port=arguments.port,
            replicas=2,
            ray_actor_options={"num_cpus": 0.1},
        )
        try:
            for seed in range(arguments.runs):
                compare(server, arguments.rate, arguments.seconds, seed)
        finally:
            server.stop()
            ray.shutdown()
            cluster.shutdown()


if __name__ == "__main__":
    main()
