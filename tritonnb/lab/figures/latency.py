"""Histogram of the latency, from reception to the end of the execution, with p50, p95 and p99."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from tritonnb.lab.figures.palette import INK, series
from tritonnb.lab.figures.picture import axes_for
from tritonnb.lab.figures.scale import draw_empty, label_axes
from tritonnb.recording.batches import latencies_ms
from tritonnb.recording.recording import Recording
from tritonnb.telemetry.quantiles import quantile

_QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
#: Above this ratio of p99 to p50 the latency axis is logarithmic; a linear axis would show two bars.
_LONG_TAIL = 25.0


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.latency`."""
    ax = axes_for(ax, 3.2, describe(rec))
    if not rec.requests:
        return draw_empty(ax)
    values = np.array(latencies_ms(rec.requests))
    quantiles = _quantiles(values)
    long_tail = quantiles["p99"] > _LONG_TAIL * max(quantiles["p50"], 1e-9) and values[0] > 0
    low, high = _range(values)
    edges = np.geomspace(low, high, 50) if long_tail else np.linspace(low, high, 50)
    if long_tail:
        ax.set_xscale("log")
    else:
        ax.ticklabel_format(useOffset=False)
    ax.hist(values, bins=edges.tolist(), color=series(0))
    for (name, value), line in zip(quantiles.items(), ("-", "--", ":"), strict=True):
        low, high = _interval(values, _QUANTILES[name])
        label = f"{name} {value:.2f} ms (95% interval {low:.2f} to {high:.2f})"
        ax.axvline(value, color=INK, linestyle=line, linewidth=1.4, label=label)
    ax.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
    label_axes(ax, f"latency (ms{', logarithmic' if long_tail else ''}) of n = {len(values):,} requests", "requests")
    return ax


def describe(rec: Recording) -> str:
    """Return the alternative text."""
    if not rec.requests:
        return f"Latency. {rec.verdict()}"
    latencies = latencies_ms(rec.requests)
    quantiles = ", ".join(f"{name} {value:.2f} ms" for name, value in _quantiles(latencies).items())
    return f"Histogram of the latency of {len(latencies)} requests: {quantiles}, longest {latencies[-1]:.2f} ms."


def _range(ordered: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the range of the axis: around latencies that hardly differ, such as of one request, 10 % of them."""
    low, high = float(ordered[0]), float(ordered[-1])
    missing = 0.1 * high - (high - low) if high > 0 else 1.0
    return (low - missing / 2, high + missing / 2) if missing > 0 else (low, high)


def _interval(ordered: npt.NDArray[np.float64], share: float) -> tuple[float, float]:
    """Return the 95 % confidence interval of a quantile, by the normal approximation of the ranks."""
    count = len(ordered)
    spread = 1.96 * math.sqrt(count * share * (1 - share))
    low, high = math.floor(count * share - spread), math.ceil(count * share + spread)
    return float(ordered[max(0, low)]), float(ordered[min(count - 1, high)])


def _quantiles(ordered: Sequence[float] | npt.NDArray[np.float64]) -> dict[str, float]:
    return {name: quantile(ordered, share) for name, share in _QUANTILES.items()}
