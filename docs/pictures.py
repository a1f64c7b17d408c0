"""Draws the README's picture from the scheduler itself: ``python docs/pictures.py``.

Five requests of Triton's Conceptual Guide (4, 2, 2, 6 and 2 rows, at most 8 in a batch, 50 ms an
execution) go through three configurations in virtual time.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from tritonnb import fixed, simulate

THIRD = 50_000 / 3
ARRIVALS = [(0, 4), (THIRD, 2), (0, 2), (2 * THIRD, 6), (2 * THIRD, 2)]
CONFIGURATIONS = {
    "no dynamic_batching": "max_batch_size: 8",
    "dynamic_batching { }": "max_batch_size: 8 dynamic_batching { }",
    "dynamic_batching { max_queue_delay_microseconds: 20000 }": (
        "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }"
    ),
}


def main() -> None:
    """Write the picture."""
    figure = Figure(figsize=(9, 9.5), layout="constrained")
    panels = figure.subplots(len(CONFIGURATIONS), 1)
    for axes, (title, config) in zip(panels, CONFIGURATIONS.items(), strict=True):
        recording = simulate(config, ARRIVALS, fixed(50))
        recording.plot.timeline(ax=axes)
        total = max(batch.exec_end_ns for batch in recording.batches) / 1e6
        axes.set_title(f"{title}: {total:.0f} ms", loc="left", fontsize=10)
        axes.set_xlim(-4, 256)
        axes.set_xlabel("")
    panels[-1].set_xlabel("ms    box: a batch, as high as its share of max_batch_size 8", fontsize=8)
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(Path(__file__).parent / "batches.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
