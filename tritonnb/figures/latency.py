"""Latency: from reception to the end of the execution, as a histogram with the quantiles people agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from tritonnb.figures.palette import BLUE, INK, ORANGE, VERMILION
from tritonnb.figures.picture import axes_for
from tritonnb.figures.scale import SPACE, draw_empty, strip_spines
from tritonnb.telemetry.quantiles import quantile

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

_QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
#: Beyond this ratio of p99 to p50 a linear axis would show two bars.
_LONG_TAIL = 25.0


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.latency`."""
    ax = axes_for(ax, 3.2, describe(rec))
    if not rec.requests:
        return draw_empty(ax)
    values = np.sort(np.array([each.latency_ns / 1e6 for each in rec.requests]))
    marks = _marks(rec)
    long_tail = marks["p99"] > _LONG_TAIL * max(marks["p50"], 1e-9) and values[0] > 0
    low, high = values[0], max(values[-1], values[0] + 1e-6)
    edges = np.geomspace(low, high, 50) if long_tail else np.linspace(low, high, 50)
    if long_tail:
        ax.set_xscale("log")
    ax.hist(values, bins=edges.tolist(), color=BLUE)
    top = ax.get_ylim()[1]
    ax.set_ylim(0, top * 1.3)
    for (name, value), paint, line, height in zip(
        marks.items(), (INK, ORANGE, VERMILION), ("-", "--", ":"), (1.24, 1.14, 1.04), strict=True
    ):
        ax.axvline(value, color=paint, linestyle=line, linewidth=1.4)
        ax.text(value, top * height, f"{SPACE}{name} {value:.2f} ms", fontsize=8, va="center", color=INK)
    ax.set_xlabel("latency (ms)", fontsize=8)
    ax.set_ylabel("requests", fontsize=8)
    strip_spines(ax, keep="bottom left")
    return ax


def describe(rec: Recording) -> str:
    """The alternative text."""
    if not rec.requests:
        return f"Latency. {rec.verdict()}"
    told = ", ".join(f"{name} {value:.2f} ms" for name, value in _marks(rec).items())
    longest = max(each.latency_ns for each in rec.requests) / 1e6
    return f"Histogram of the latency of {len(rec.requests)} requests: {told}, longest {longest:.2f} ms."


def _marks(rec: Recording) -> dict[str, float]:
    ordered = sorted(each.latency_ns / 1e6 for each in rec.requests)
    return {name: quantile(ordered, share) for name, share in _QUANTILES.items()}
