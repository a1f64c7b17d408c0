"""Draws the README's picture from the scheduler itself: ``python docs/pictures.py``.

Five requests of Triton's Conceptual Guide (4, 2, 2, 6 and 2 rows, at most 8 in a batch, 50 ms an
execution) go through three configurations in virtual time.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb import Recording, fixed, simulate

THIRD = 50_000 / 3
ARRIVALS = [(0, 4), (THIRD, 2), (0, 2), (2 * THIRD, 6), (2 * THIRD, 2)]
CONFIGURATIONS = {
    "no dynamic_batching": "max_batch_size: 8",
    "dynamic_batching { }": "max_batch_size: 8 dynamic_batching { }",
    "dynamic_batching { max_queue_delay_microseconds: 20000 }": (
        "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }"
    ),
}
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"]  # Okabe and Ito's, for everybody's eyes


def draw(axes: Axes, recording: Recording, title: str) -> None:
    """One configuration: how long each request waits, and the batch that takes it."""
    requests = {each.serial: each for each in recording.requests}
    for serial, request in requests.items():
        row = len(requests) - serial
        times = (request.queued_ns, request.exec_start_ns, request.exec_end_ns)
        start, ran, end = (each / 1e6 for each in times)
        axes.plot([start, ran], [row, row], color=COLOURS[serial - 1], linewidth=1.5, linestyle=":")
        axes.plot(start, row, marker="o", color=COLOURS[serial - 1])
        axes.barh(row, end - ran, left=ran, height=0.72, color=COLOURS[serial - 1])
        axes.text(ran + 2, row, f"{request.size} rows", va="center", fontsize=8)
    for batch in recording.batches:
        axes.axvspan(batch.exec_start_ns / 1e6, batch.exec_end_ns / 1e6, color="black", alpha=0.06, linewidth=0)
        axes.text(batch.exec_start_ns / 1e6 + 1, len(requests) - 0.35, f"batch of {batch.size}", fontsize=8)
    total = max(batch.exec_end_ns for batch in recording.batches) / 1e6
    axes.set_title(f"{title}: {total:.0f} ms", loc="left", fontsize=10)
    names = [f"request {len(requests) - row}" for row in range(len(requests))]
    axes.set_yticks(range(len(requests)), names, fontsize=8)
    axes.set_xlim(-4, 256)
    axes.set_ylim(-0.6, len(requests))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False, labelsize=8)


def main() -> None:
    """Write the picture."""
    figure = Figure(figsize=(9, 6.2), layout="constrained")
    panels = figure.subplots(len(CONFIGURATIONS), 1, sharex=True)
    for axes, (title, config) in zip(panels, CONFIGURATIONS.items(), strict=True):
        draw(axes, simulate(config, ARRIVALS, fixed(50)), title)
    panels[-1].set_xlabel("ms (dotted: waiting in the queue)", fontsize=9)
    figure.savefig(Path(__file__).parent / "batches.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
