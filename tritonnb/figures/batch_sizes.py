"""Batch sizes: how many batches of each there were, what one took, and what a row of it cost."""

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
    """Batches of one size: medians in ms."""

    size: int
    count: int
    compute_input: float
    compute_infer: float
    compute_output: float

    @property
    def batch_ms(self) -> float:
        """One batch."""
        return self.compute_input + self.compute_infer + self.compute_output

    @property
    def row_ms(self) -> float:
        """One row of it."""
        return self.batch_ms / self.size


def costs(rec: Recording) -> list[SizeCost]:
    """What batches of each size took."""
    found = []
    for size, count in rec.batch_sizes().items():
        batches = [each for each in rec.batches if each.size == size]
        parts = (
            [each.compute_start_ns - each.exec_start_ns for each in batches],
            [each.compute_end_ns - each.compute_start_ns for each in batches],
            [each.exec_end_ns - each.compute_end_ns for each in batches],
        )
        found.append(SizeCost(size, count, *(statistics.median(part) / 1e6 for part in parts)))
    return found


def sweet_spot(found: list[SizeCost]) -> SizeCost:
    """The smallest size whose rows cost at most 5 % more than the cheapest."""
    least = min(each.row_ms for each in found)
    return next(each for each in found if each.row_ms <= 1.05 * least)


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.batch_sizes`."""
    return draw_costs(costs(rec), ax, describe(rec), "median")


def describe(rec: Recording) -> str:
    """The alternative text."""
    found = costs(rec)
    return describe_costs(found) if found else f"Batch sizes. {rec.verdict()}"


def draw_costs(found: list[SizeCost], ax: Axes | None, alt: str, average: str) -> Axes:
    """Draw what batches of each size took, by whatever average."""
    ax = axes_for(ax, 4.4, alt)
    if not found:
        return draw_empty(ax)
    places = list(range(len(found)))
    base = [0.0] * len(found)
    for name, paint in (("compute_input", SKY), ("compute_infer", BLUE), ("compute_output", ORANGE)):
        part = [getattr(each, name) for each in found]
        ax.bar(places, part, bottom=base, color=paint, label=name.replace("_", " "), width=0.72)
        base = [low + high for low, high in zip(base, part, strict=True)]
    ax.set_ylabel(f"ms a batch ({average})", fontsize=8)
    ax.set_xlabel("batch size (rows)", fontsize=8)
    every = max(1, len(found) // 24)
    ax.set_xticks(places[::every], [str(each.size) for each in found][::every])
    ax.set_ylim(0, 1.25 * max(base, default=1) or 1)
    strip_spines(ax, keep="bottom left")
    _counts(ax, found, places)
    _cost_curve(ax, found, places)
    return ax


def describe_costs(found: list[SizeCost]) -> str:
    """In words and numbers."""
    shown = found if len(found) <= 10 else sorted(found, key=lambda each: -each.count)[:10]
    told = [f"{each.count} of {each.size} rows, {duration(each.batch_ms * 1e6)} each" for each in shown]
    best = sweet_spot(found)
    return (
        f"Batch sizes: {'; '.join(told)}{'; and others' if len(found) > 10 else ''}. "
        f"A row is cheapest from {best.size} rows on: {duration(best.row_ms * 1e6)}."
    )


def _cost_curve(ax: Axes, found: list[SizeCost], places: list[int]) -> None:
    curve = ax.twinx()
    curve.set_axes_locator(ax.get_axes_locator())  # beside the panel above, not behind it
    curve.plot(
        places, [each.row_ms for each in found], color=VERMILION, marker="o", markersize=3.5, label="a row of it"
    )
    curve.set_ylim(bottom=0, top=1.3 * max((each.row_ms for each in found), default=1) or 1)
    curve.set_ylabel("ms a row", fontsize=8, color=VERMILION)
    strip_spines(curve, keep="right")
    if len(found) > 1:
        best = sweet_spot(found)
        place = found.index(best)
        label = f"sweet spot: {pluralize(best.size, 'row')}"
        curve.plot(
            place, best.row_ms, marker="*", markersize=14, color=GREEN, markeredgecolor="white", lw=0, label=label
        )
    handles = [*ax.get_legend_handles_labels()[0], *curve.get_legend_handles_labels()[0]]
    ax.legend(handles=handles, fontsize=7.5, frameon=False, ncols=len(handles), loc="upper left")


def _counts(ax: Axes, found: list[SizeCost], places: list[int]) -> None:
    above = panel_above(ax, 0.45, "batches")
    above.bar(places, [each.count for each in found], color=GREEN, width=0.72)
    if len(found) <= 24:
        for place, each in zip(places, found, strict=True):
            above.text(place, each.count, str(each.count), fontsize=7.5, ha="center", va="bottom", color=INK)
    above.margins(y=0.25)
