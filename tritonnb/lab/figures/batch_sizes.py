"""Batch sizes: the number of batches of each size, their execution time, and the time per row."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes

from tritonnb.lab.figures.palette import COMPUTE, GREY, INK, PAPER, PARTS, SELECTION
from tritonnb.lab.figures.picture import axes_for
from tritonnb.lab.figures.scale import draw_empty, duration, label_axes, panels_above
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.statistics_entry import SETTLED

#: The time of a size is compared with others if it has at least this number of batches.
ENOUGH = 20
#: Ticks of an axis at most.
_MOST_TICKS = 32


@dataclass(frozen=True, slots=True)
class SizeCost:
    """Number of batches of one size, and their average times in ms.

    ``parts_ms`` are those of `PARTS`; ``spread_ms`` are the first and third quartile of the execution time of a
    batch, None if they are not known.
    """

    size: int
    count: int
    parts_ms: Sequence[float]
    spread_ms: tuple[float, float] | None = None

    @property
    def batch_ms(self) -> float:
        """Time of one batch."""
        return sum(self.parts_ms)

    @property
    def row_ms(self) -> float:
        """Time per row."""
        return self.batch_ms / self.size


def size_costs(rec: Recording) -> list[SizeCost]:
    """Return the number of batches and the median times of each batch size."""
    costs = []
    for size, count in rec.batch_sizes().items():
        batches = [batch for batch in rec.batches if batch.size == size]
        parts = (
            [batch.compute_start_ns - batch.exec_start_ns for batch in batches],
            [batch.compute_end_ns - batch.compute_start_ns for batch in batches],
            [batch.exec_end_ns - batch.compute_end_ns for batch in batches],
        )
        times_ms = [(batch.exec_end_ns - batch.exec_start_ns) / 1e6 for batch in batches]
        costs.append(SizeCost(size, count, [statistics.median(part) / 1e6 for part in parts], _quartiles(times_ms)))
    return costs


def _quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the first and third quartile; None for a single value."""
    if len(values) < 2:
        return None
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def most_efficient_size(costs: list[SizeCost]) -> SizeCost | None:
    """Return the smallest batch size whose time per row is at most 5 % above the minimum.

    Sizes with fewer than `ENOUGH` batches are ignored. None if fewer than two sizes remain, or if a size that is
    ignored is cheaper: then it is not known yet.
    """
    known = [cost for cost in costs if cost.count >= ENOUGH]
    if len(known) < 2:
        return None
    cheapest_ms = min(cost.row_ms for cost in known)
    found = next(cost for cost in known if cost.row_ms <= 1.05 * cheapest_ms)
    return found if found.row_ms <= 1.05 * min(cost.row_ms for cost in costs) else None


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.batch_sizes`."""
    return draw_costs(size_costs(rec), ax, describe(rec), "median, with quartiles")


def describe(rec: Recording) -> str:
    """Return the alternative text."""
    costs = size_costs(rec)
    return describe_costs(costs) if costs else f"Batch sizes. {rec.verdict()}"


def draw_costs(costs: list[SizeCost], ax: Axes | None, alt: str, average: str) -> Axes:
    """Draw the times of each batch size; ``average`` says whether they are means or medians."""
    ax = axes_for(ax, 4.8, alt)
    if not costs:
        return draw_empty(ax)
    sizes = [cost.size for cost in costs]
    width = 0.72 * min([right - left for left, right in pairwise(sizes)], default=1)
    settled = [cost for cost in costs if cost.count >= SETTLED]
    _times(ax, settled or costs, width)
    few = [cost for cost in costs if settled and cost not in settled]
    if few:
        _times(ax, few, width, hollow=True)
    _spreads(ax, settled or costs)
    ax.set_xticks(_spaced(sizes))
    ax.set_xlim(min(sizes) - max(1, width), max(sizes) + max(1, width))
    tops = [max(cost.batch_ms, cost.spread_ms[1] if cost.spread_ms else 0.0) for cost in settled or costs]
    ax.set_ylim(0, 1.3 * max(tops) or 1)
    _mark_higher(ax, [(cost.size, cost.batch_ms) for cost in costs])
    label_axes(ax, "batch size (rows)", f"time per batch (ms,\n{average})")
    total = sum(cost.count for cost in costs)
    above, top = panels_above(ax, (0.5, "time per row (ms)"), (0.4, f"batches (n = {total:,})"))
    _row_times(above, costs)
    _counts(top, costs, width)
    ax.legend(fontsize=7.5, frameon=False, ncols=4, loc="upper left")
    return ax


def describe_costs(costs: list[SizeCost]) -> str:
    """Return the alternative text of `draw_costs`."""
    if not costs:
        return "Batch sizes. Nothing was executed."
    shown = costs if len(costs) <= 10 else sorted(costs, key=lambda cost: -cost.count)[:10]
    sizes = [
        f"{pluralize(cost.count, 'batch', 'batches')} of {pluralize(cost.size, 'row')}, {duration(cost.batch_ms * 1e6)}"
        for cost in shown
    ]
    listed = f"Batch sizes: {'; '.join(sizes)}{'; and other sizes' if len(costs) > 10 else ''}."
    efficient = most_efficient_size(costs)
    if efficient is None:
        if sum(cost.count >= ENOUGH for cost in costs) < 2:
            return f"{listed} Fewer than two sizes have {ENOUGH} batches, too few to compare their times per row."
        return f"{listed} The size with the shortest time per row has fewer than {ENOUGH} batches, too few to compare."
    return (
        f"{listed} Among sizes with at least {ENOUGH} batches, the time per row is within 5% of its minimum from "
        f"{pluralize(efficient.size, 'row')} on: {duration(efficient.row_ms * 1e6)} (n = {efficient.count})."
    )


def _times(ax: Axes, costs: list[SizeCost], width: float, *, hollow: bool = False) -> None:
    bottoms = [0.0] * len(costs)
    for place, (name, color) in enumerate(PARTS.items()):
        part = [cost.parts_ms[place] for cost in costs]
        if hollow:
            label = f"hollow: n < {SETTLED}" if color == COMPUTE else "_nolegend_"
            style: dict[str, Any] = {"fill": False, "edgecolor": color, "label": label}
        else:
            style = {"color": color, "label": name.replace("_", " ")}
        ax.bar([cost.size for cost in costs], part, bottom=bottoms, width=width, **style)
        bottoms = [low + high for low, high in zip(bottoms, part, strict=True)]


def _spaced(sizes: Sequence[int]) -> list[int]:
    """Return the sizes that have room for a tick: the first, and each that is far enough from the one before."""
    least = (sizes[-1] - sizes[0]) / _MOST_TICKS
    ticks = [sizes[0]]
    for size in sizes[1:]:
        if size - ticks[-1] >= least:
            ticks.append(size)
    return ticks


def _mark_higher(ax: Axes, points: list[tuple[int, float]]) -> None:
    """Write values that exceed the axis at its top."""
    top = ax.get_ylim()[1]
    for size, value in points:
        if value > top:
            ax.text(size, top, f"▲ {duration(value * 1e6)}", fontsize=7, ha="center", va="top", color=INK)


def _spreads(ax: Axes, costs: list[SizeCost]) -> None:
    known = [(cost, cost.spread_ms) for cost in costs if cost.spread_ms is not None]
    if known:
        lows, highs = zip(*(spread for _, spread in known), strict=True)
        ax.vlines([cost.size for cost, _ in known], lows, highs, colors=INK, linewidths=1.2)


def _row_times(above: Axes, costs: list[SizeCost]) -> None:
    """Draw the time per row, and the most efficient size if there are enough batches to tell."""
    sizes, times = [cost.size for cost in costs], [cost.row_ms for cost in costs]
    above.plot(sizes, times, color=GREY, marker="o", markersize=3.5)
    few = [cost for cost in costs if cost.count < SETTLED]
    above.plot([cost.size for cost in few], [cost.row_ms for cost in few], "o", color=GREY, mfc=PAPER, markersize=3.5)
    above.set_ylim(0, 1.45 * max([cost.row_ms for cost in costs if cost not in few] or times) or 1)
    _mark_higher(above, list(zip(sizes, times, strict=True)))
    efficient = most_efficient_size(costs)
    if efficient is not None:
        rows = pluralize(efficient.size, "row")
        label = f"from {rows} on within 5 % of the lowest (of sizes with n ≥ {ENOUGH})"
        above.plot(efficient.size, efficient.row_ms, marker="*", markersize=13, color=SELECTION, lw=0, label=label)
        above.legend(fontsize=7.5, frameon=False, loc="upper left")


def _counts(above: Axes, costs: list[SizeCost], width: float) -> None:
    above.bar([cost.size for cost in costs], [cost.count for cost in costs], color=GREY, width=width)
    if len(costs) <= 24:
        for cost in costs:
            above.text(cost.size, cost.count, str(cost.count), fontsize=7.5, ha="center", va="bottom", color=INK)
    above.margins(y=0.6)  # room for the title
