"""Batch sizes: the number of batches of each size, their execution time, and the time per row."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from tritonnb.figures.palette import BLUE, GREEN, INK, ORANGE, SKY, VERMILION
from tritonnb.figures.picture import axes_for
from tritonnb.figures.scale import draw_empty, duration, panel_above, strip_spines
from tritonnb.scheduling.reasons import pluralize

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording


@dataclass(frozen=True, slots=True)
class SizeCost:
    """Number of batches of one size, and their average times in ms."""

    size: int
    count: int
    compute_input: float
    compute_infer: float
    compute_output: float

    @property
    def batch_ms(self) -> float:
        """Time of one batch."""
        return self.compute_input + self.compute_infer + self.compute_output

    @property
    def row_ms(self) -> float:
        """Time per row."""
        return self.batch_ms / self.size


def size_costs(rec: Recording) -> list[SizeCost]:
    """Number of batches and median times of each batch size."""
    costs = []
    for size, count in rec.batch_sizes().items():
        batches = [batch for batch in rec.batches if batch.size == size]
        parts = (
            [batch.compute_start_ns - batch.exec_start_ns for batch in batches],
            [batch.compute_end_ns - batch.compute_start_ns for batch in batches],
            [batch.exec_end_ns - batch.compute_end_ns for batch in batches],
        )
        costs.append(SizeCost(size, count, *(statistics.median(part) / 1e6 for part in parts)))
    return costs


def most_efficient_size(costs: list[SizeCost]) -> SizeCost:
    """The smallest batch size whose time per row is at most 5 % above the minimum."""
    cheapest_ms = min(cost.row_ms for cost in costs)
    return next(cost for cost in costs if cost.row_ms <= 1.05 * cheapest_ms)


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.batch_sizes`."""
    return draw_costs(size_costs(rec), ax, describe(rec), "median")


def describe(rec: Recording) -> str:
    """The alternative text."""
    costs = size_costs(rec)
    return describe_costs(costs) if costs else f"Batch sizes. {rec.verdict()}"


def draw_costs(costs: list[SizeCost], ax: Axes | None, alt: str, average: str) -> Axes:
    """Draw the times of each batch size; ``average`` says whether they are means or medians."""
    ax = axes_for(ax, 4.4, alt)
    if not costs:
        return draw_empty(ax)
    places = list(range(len(costs)))
    bottoms = [0.0] * len(costs)
    for name, color in (("compute_input", SKY), ("compute_infer", BLUE), ("compute_output", ORANGE)):
        part = [getattr(cost, name) for cost in costs]
        ax.bar(places, part, bottom=bottoms, color=color, label=name.replace("_", " "), width=0.72)
        bottoms = [low + high for low, high in zip(bottoms, part, strict=True)]
    ax.set_ylabel(f"time per batch (ms, {average})", fontsize=8)
    ax.set_xlabel("batch size (rows)", fontsize=8)
    tick_step = max(1, len(costs) // 24)
    ax.set_xticks(places[::tick_step], [str(cost.size) for cost in costs][::tick_step])
    ax.set_ylim(0, 1.25 * max(bottoms, default=1) or 1)
    strip_spines(ax, keep="bottom left")
    _counts(ax, costs, places)
    _cost_curve(ax, costs, places)
    return ax


def describe_costs(costs: list[SizeCost]) -> str:
    """The alternative text of `draw_costs`."""
    shown = costs if len(costs) <= 10 else sorted(costs, key=lambda cost: -cost.count)[:10]
    sizes = [
        f"{pluralize(cost.count, 'batch', 'batches')} of {pluralize(cost.size, 'row')}, {duration(cost.batch_ms * 1e6)}"
        for cost in shown
    ]
    efficient = most_efficient_size(costs)
    return (
        f"Batch sizes: {'; '.join(sizes)}{'; and other sizes' if len(costs) > 10 else ''}. "
        f"The time per row is within 5% of its minimum from {pluralize(efficient.size, 'row')} on: "
        f"{duration(efficient.row_ms * 1e6)}."
    )


def _cost_curve(ax: Axes, costs: list[SizeCost], places: list[int]) -> None:
    curve = ax.twinx()
    curve.set_axes_locator(ax.get_axes_locator())  # beside the panel above, not behind it
    curve.plot(
        places, [cost.row_ms for cost in costs], color=VERMILION, marker="o", markersize=3.5, label="time per row"
    )
    curve.set_ylim(bottom=0, top=1.3 * max((cost.row_ms for cost in costs), default=1) or 1)
    curve.set_ylabel("time per row (ms)", fontsize=8, color=VERMILION)
    strip_spines(curve, keep="right")
    if len(costs) > 1:
        efficient = most_efficient_size(costs)
        place = costs.index(efficient)
        label = f"most efficient from {pluralize(efficient.size, 'row')}"
        curve.plot(
            place, efficient.row_ms, marker="*", markersize=14, color=GREEN, markeredgecolor="white", lw=0, label=label
        )
    handles = [*ax.get_legend_handles_labels()[0], *curve.get_legend_handles_labels()[0]]
    ax.legend(handles=handles, fontsize=7.5, frameon=False, ncols=len(handles), loc="upper left")


def _counts(ax: Axes, costs: list[SizeCost], places: list[int]) -> None:
    above = panel_above(ax, 0.45, "batches")
    above.bar(places, [cost.count for cost in costs], color=GREEN, width=0.72)
    if len(costs) <= 24:
        for place, cost in zip(places, costs, strict=True):
            above.text(place, cost.count, str(cost.count), fontsize=7.5, ha="center", va="bottom", color=INK)
    above.margins(y=0.25)
