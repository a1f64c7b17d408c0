"""Two recordings, one above the other on the same time axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritonnb.figures import timeline
from tritonnb.figures.picture import WIDTH, Picture

if TYPE_CHECKING:
    from tritonnb.recording.comparison import Comparison


def draw(comparison: Comparison, *, start_ms: float | None = None, end_ms: float | None = None) -> Picture:
    """Draw both timelines, one above the other, on the same time axis.

    Parameters
    ----------
    start_ms, end_ms : float, optional
        Time range, in milliseconds from the beginning of each recording.

    Returns
    -------
    matplotlib.figure.Figure
        Displayed by a notebook if it is the last expression of a cell.
    """
    before, after = comparison.names
    if comparison.recorded is not None:
        edits = ", ".join(f"{name}: {value}" for name, value in comparison.edits.items()) or "no edit"
        after = f"{after} ({edits})"
    runs = {before: comparison.before, after: comparison.after}
    if (start_ms, end_ms) != (None, None):
        runs = {name: rec.between(start_ms, end_ms) for name, rec in runs.items()}
    lanes = sum(len(run.instances) for run in runs.values())
    figure = Picture(figsize=(WIDTH, 4.6 + 0.75 * lanes), layout="constrained")
    panels = figure.subplots(2, 1)
    for ax, (title, rec) in zip(panels, runs.items(), strict=True):
        timeline.draw(rec, ax)
        summary = rec.summary()
        ax.set_title(
            f"{title}: {summary['batches']} batches of {summary['mean_batch_size']:.1f} rows, latency p50 "
            f"{summary['latency_p50_ms']:.1f} ms, p99 {summary['latency_p99_ms']:.1f} ms",
            loc="left",
            fontsize=9,
        )
    left, right = zip(*(ax.get_xlim() for ax in panels), strict=True)
    for ax in panels:
        ax.set_xlim(min(left), max(right))
    panels[0].set_xlabel("")
    figure.alt = " ".join([comparison.verdict(), *(f"{name}: {timeline.describe(rec)}" for name, rec in runs.items())])
    return figure
