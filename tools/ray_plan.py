"""Carry out plans with Ray Serve: record a model, plan for several rates, deploy each plan, and measure its constraint.

``python -m tools.ray_plan`` starts a cluster on this machine; the model sleeps, and long enough that two cores suffice
for Ray with four replicas.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tritonnb as tnb
from benchmarks.recordings import Setup
from tools.ray_chaos import start_cluster
from tritonnb.lab.prediction.plan import Plan
from tritonnb.lab.prediction.twin import Twin

CONSTRAINT = "p99 < 1 s"
#: Requests per second that need one to four replicas.
RATES = (8.0, 19.0, 30.0, 41.0)
SECONDS = 30
_MODEL = Setup(instances=1, max_rows=4, delay_us=0, base_ms=200, row_ms=20, rate=0)


def recorded(repository: Path) -> Twin:
    """Record the model on a server of this process; returns its twin."""
    with tnb.Server(repository, port=0) as server:
        recording = tnb.load(server["sleeps"], rate=7, arrivals="poisson", duration=SECONDS).wait().recording
    assert recording is not None
    twin: Twin = recording.twin()
    return twin


def measured_ms(plan: Plan, repository: Path, address: str) -> npt.NDArray[np.float64]:
    """Deploy a plan, send requests at its rate, and return the latencies that the clients see."""
    (repository / "sleeps" / "config.pbtxt").write_text(str(plan.best.config))
    server = tnb.scale(
        repository, address=address, port=0, replicas=plan.best.replicas, ray_actor_options={"num_cpus": 0.1}
    )
    try:
        url = f"{server.url}/v2/models/sleeps"
        tnb.load(url, clients=plan.best.replicas, requests=40).wait()  # warm up
        result = tnb.load(url, rate=plan.rate, arrivals="poisson", duration=SECONDS).wait()
    finally:
        server.stop()
    return result.latencies_ms


def main() -> None:
    """Carry out the plans and print the figures."""
    cluster = start_cluster()
    try:
        with tempfile.TemporaryDirectory() as directory:
            repository = Path(directory) / "models"
            _MODEL.write(repository / "sleeps")
            twin = recorded(repository)
            for rate in RATES:
                plan = twin.plan(CONSTRAINT, rate=rate)
                latencies_ms = measured_ms(plan, repository, cluster.address)
                holds = "holds" if plan.constraint.holds(latencies_ms) else "does not hold"
                predicted, p99_ms = plan.best.prediction.latency_p99_ms, np.quantile(latencies_ms, 0.99)
                print(f"{rate:.0f}/s: {plan.best}; predicted p99 {predicted}, measured {p99_ms:.1f} ms: {holds}")
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
