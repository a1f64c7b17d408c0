"""Draws the figure of the how-to about Ray from the simulator: ``python docs/replicas.py``.

One instance per replica executes batches of at most 8 rows in 20 ms + 2 ms a row. For 1 to 64 replicas, requests arrive
at 60 and at 80 % of what the replicas can execute, behind two routers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tritonnb import linear, poisson, simulate
from tritonnb.lab.figures.picture import Picture

CONFIG = 'name: "m" max_batch_size: 8 dynamic_batching { }'
REPLICAS = (1, 2, 4, 8, 16, 32, 64)
#: Rows per second of one replica with full batches.
CAPACITY = 8 / 0.036
REQUESTS = 12_000
ROUTERS = {"two_choices": "-", "random": "--"}
SHARES = {0.6: "o", 0.8: "s"}


def measure(replicas: int, share: float, router: str) -> tuple[float, float]:
    """Throughput in requests per second, and the 99th percentile of the latency in ms."""
    rate = share * CAPACITY * replicas
    recording = simulate(
        CONFIG,
        poisson(rate, REQUESTS / rate, seed=1),
        linear(per_row_ms=2, base_ms=20),
        replicas=replicas,
        router=router,
    )
    requests = recording.requests
    latencies = [(request.exec_end_ns - request.received_ns) / 1e6 for request in requests]
    seconds = (
        max(request.exec_end_ns for request in requests) - min(request.received_ns for request in requests)
    ) / 1e9
    return len(requests) / seconds, float(np.percentile(latencies, 99))


def main() -> None:
    """Write the figure, and print its values."""
    figure = Picture(figsize=(9, 3.6), layout="constrained")
    throughput, latency = figure.subplots(1, 2)
    texts = []
    for share, marker in SHARES.items():
        for router, style in ROUTERS.items():
            points = [measure(replicas, share, router) for replicas in REPLICAS]
            label = f"{share:.0%} load, {router}"
            if router == "two_choices":
                throughput.plot(REPLICAS, [point[0] for point in points], marker + style, label=f"{share:.0%} load")
            latency.plot(REPLICAS, [point[1] for point in points], marker + style, label=label)
            values = ", ".join(
                f"{n}: {rate:.0f}/s {p99:.0f} ms" for n, (rate, p99) in zip(REPLICAS, points, strict=True)
            )
            texts.append(f"{label}: {values}")
            print(texts[-1])
    for axes, title in ((throughput, "requests per second"), (latency, "p99 latency (ms)")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(REPLICAS, [str(replicas) for replicas in REPLICAS])
        axes.set_xlabel("replicas")
        axes.set_title(title, loc="left", fontsize=10)
        axes.legend(fontsize=8)
    throughput.set_yscale("log")
    latency.set_ylim(bottom=0)
    figure.alt = f"Simulated replicas, 99th percentile and throughput. {'; '.join(texts)}."
    (Path(__file__).parent / "replicas.svg").write_text(figure.svg_for_both_themes(), encoding="utf-8")


if __name__ == "__main__":
    main()
