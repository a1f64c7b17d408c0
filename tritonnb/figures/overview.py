"""The overview of a recording: timeline or slots, batch sizes, and latency."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from tritonnb.figures import batch_sizes, latency, slots, timeline
from tritonnb.figures.picture import WIDTH, Picture

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording


def draw(rec: Recording) -> Picture:
    """Draw it; see `Plot`."""
    above: ModuleType = slots if rec.slot_occupancy and rec.batches else timeline
    lanes = (
        sum(rec.slots_of(instance) for instance in rec.instances) * 0.36
        if above is slots
        else 0.75 * len(rec.instances)
    )
    heights = [2.6 + lanes, 3.6, 2.6]
    figure = Picture(figsize=(WIDTH, sum(heights)), layout="constrained", alt=describe(rec))
    axes = figure.subplots(3, 1, height_ratios=heights)
    for panel, ax in zip((above, batch_sizes, latency), axes, strict=True):
        panel.draw(rec, ax)
    return figure


def describe(rec: Recording) -> str:
    """The alternative text."""
    above = slots if rec.slot_occupancy and rec.batches else timeline
    return " ".join(figure.describe(rec) for figure in (above, batch_sizes, latency))
