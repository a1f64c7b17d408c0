"""The picture of a sweep: a bar for each configuration, the best on top, and what runs now below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.figures.palette import BLUE, GREEN, GREY, INK, VERMILION, tint
from tritonnb.figures.picture import axes_for, figure_of
from tritonnb.figures.scale import SPACE, strip_spines
from tritonnb.profile.trial import Trial

if TYPE_CHECKING:
    from tritonnb.profile.sweep_result import SweepResult

#: Configurations that fit; of more the best are drawn.
_ROWS = 30


def draw(sweep: SweepResult, ax: Axes | None = None) -> Figure:
    """Draw it; see `SweepResult.plot`."""
    shown = [*sweep.trials[:_ROWS], sweep.running]
    ax = axes_for(ax, 1.3 + 0.34 * len(shown), describe(sweep))
    values = np.nan_to_num([each.rate if sweep.by_rate else each.percentile(99) for each in shown])
    places = list(range(len(shown)))
    for place, value, each in zip(places, values, shown, strict=True):
        paint, hatch = _look(sweep, each)
        ax.barh(place, value, color=tint(paint, 0.75), edgecolor=paint, hatch=hatch, height=0.7)
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85}
        ax.text(value, place, f"{2 * SPACE}{_figures(each)}", va="center", fontsize=8, color=INK, bbox=ground)
    ax.set_yticks(places, [each.words() or "now" for each in shown])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.75 * max(values) or 1)
    strip_spines(ax, keep="bottom left")
    ax.set_xlabel(_axis(sweep), fontsize=8)
    if not sweep.by_rate and sweep.constraint is not None and "p99" in sweep.constraint.bounds:
        ax.axvline(sweep.constraint.bounds["p99"], color=VERMILION, linestyle="--", linewidth=1)
    ax.set_title(sweep.verdict(), loc="left", fontsize=9, wrap=True)
    return figure_of(ax)


def describe(sweep: SweepResult) -> str:
    """The picture in words."""
    listed = "; ".join(f"{each.words()}: {_figures(each)}" for each in sweep.trials[:_ROWS])
    return f"{sweep.verdict()} {listed}."


def _look(sweep: SweepResult, each: Trial) -> tuple[str, str]:
    if not each.meets:
        return VERMILION, "//"
    if each is sweep.best:
        return GREEN, ""
    return (GREY if each is sweep.running or each.extrapolated else BLUE), ""


def _figures(each: Trial) -> str:
    failed = "" if each.meets else ", not allowed"
    failed += ", extrapolated" if each.extrapolated else ""
    return f"{each.rate:,.0f}/s, p99 {each.percentile(99):.1f} ms, mean batch {each.mean_batch_size:.1f}{failed}"


def _axis(sweep: SweepResult) -> str:
    if sweep.searched and sweep.constraint is not None:
        return f"highest rate of Poisson arrivals with {sweep.constraint.text} (requests/s)"
    return "requests answered a second" if sweep.by_rate else "p99 of the latency (ms)"
