"""Draws the README's picture from the scheduler itself: ``python docs/pictures.py``.

Five requests of Triton's Conceptual Guide (4, 2, 2, 6 and 2 rows, at most 8 in a batch, 50 ms an
execution) go through three configurations in virtual time.
"""

from __future__ import annotations

from pathlib import Path

from tritonnb import fixed, simulate
from tritonnb.lab.figures.picture import Picture

THIRD = 50_000 / 3
ARRIVALS = [(0, 4), (0, 2), (THIRD, 2), (2 * THIRD, 6), (2 * THIRD, 2)]
CONFIGURATIONS = {
    "without dynamic_batching": "",
    "dynamic_batching { }": "dynamic_batching { }",
    "dynamic_batching { max_queue_delay_microseconds: 20000 }": (
        "dynamic_batching { max_queue_delay_microseconds: 20000 }"
    ),
}


def main() -> None:
    """Write the picture."""
    figure = Picture(figsize=(9, 8.6), layout="constrained")
    panels = figure.subplots(len(CONFIGURATIONS), 1)
    totals = []
    for axes, (title, config) in zip(panels, CONFIGURATIONS.items(), strict=True):
        recording = simulate(f'name: "model" max_batch_size: 8 {config}', ARRIVALS, fixed(50))
        recording.plot.timeline(ax=axes)
        total = max(batch.exec_end_ns for batch in recording.batches) / 1e6
        totals.append(f"{title}: {total:.0f} ms")
        axes.set_title(totals[-1], loc="left", fontsize=10)
        axes.set_xlim(-4, 256)
    for axes in panels[:-1]:
        axes.set_xlabel("")
        axes.get_legend().remove()
    figure.alt = f"The same five requests under three configurations. {'; '.join(totals)}."
    (Path(__file__).parent / "batches.svg").write_text(figure.svg_for_both_themes(), encoding="utf-8")


if __name__ == "__main__":
    main()
