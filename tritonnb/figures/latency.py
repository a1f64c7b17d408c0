"""Histogram of the latency, from reception to the end of the execution, with p50, p95 and p99."""

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
#: Above this ratio of p99 to p50 the latency axis is logarithmic; a linear one would show two bars.
_LONG_TAIL = 25.0


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.latency`."""
    ax = axes_for(ax, 3.2, describe(rec))
    if not rec.requests:
        return draw_empty(ax)
    values = np.sort(np.array([request.latency_ns / 1e6 for request in rec.requests]))
    quantiles = _latency_quantiles(rec)
    long_tail = quantiles["p99"] > _LONG_TAIL * max(quantiles["p50"], 1e-9) and values[0] > 0
    low, high = values[0], max(values[-1], values[0] + 1e-6)
    edges = np.geomspace(low, high, 50) if long_tail else np.linspace(low, high, 50)
    if long_tail:
        ax.set_xscale("log")
    ax.hist(values, bins=edges.tolist(), color=BLUE)
    top = ax.get_ylim()[1]
    ax.set_ylim(0, top * 1.3)
    for (name, value), color, line, height in zip(
        quantiles.items(), (INK, ORANGE, VERMILION), ("-", "--", ":"), (1.24, 1.14, 1.04), strict=True
    ):
        ax.axvline(value, color=color, linestyle=line, linewidth=1.4)
        ax.text(value, top * height, f"{SPACE}{name} {value:.2f} ms", fontsize=8, va="center", color=INK)
    ax.set_xlabel("latency (ms)", fontsize=8)
    ax.set_ylabel("requests", fontsize=8)
    strip_spines(ax, keep="bottom left")
    return ax


def describe(rec: Recording) -> str:
    """The alternative text."""
    if not rec.requests:
        return f"Latency. {rec.verdict()}"
    quantiles = ", ".join(f"{name} {value:.2f} ms" for name, value in _latency_quantiles(rec).items())
    longest = max(request.latency_ns for request in rec.requests) / 1e6
    return f"Histogram of the latency of {len(rec.requests)} requests: {quantiles}, longest {longest:.2f} ms."


def _latency_quantiles(rec: Recording) -> dict[str, float]:
    ordered = sorted(request.latency_ns / 1e6 for request in rec.requests)
    return {name: quantile(ordered, share) for name, share in _QUANTILES.items()}
