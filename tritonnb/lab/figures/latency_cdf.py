"""The cumulative distribution of latencies: the share of requests that were at least this fast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.lab.figures.palette import COMPUTE, INK, LIGHT
from tritonnb.lab.figures.picture import axes_for, figure_of
from tritonnb.lab.figures.scale import SPACE, draw_cumulative, draw_empty, label_axes, label_log_axis
from tritonnb.lab.load.result import LoadResult
from tritonnb.recording.batches import latencies_ms
from tritonnb.recording.recording import Recording
from tritonnb.telemetry.quantiles import quantile

Latencies = Sequence[float] | npt.NDArray[np.float64]
#: Labels of points left of this share of the axis are below the curve, others above it.
_LEFT = 0.2
#: The labelled percentiles, and the requests that are needed for one: ten above it.
_PERCENTILES = {50: 20, 90: 100, 99: 1000, 99.9: 10_000}


def draw(rec: Recording, ax: Axes | None = None, *, log: bool = True) -> Axes:
    """Draw it; see `Plot.latency_cdf`."""
    return draw_latencies(latencies_ms(rec.requests), ax, log=log)


def describe(rec: Recording) -> str:
    """Return the alternative text."""
    return describe_latencies(latencies_ms(rec.requests))


def draw_load(result: LoadResult, ax: Axes | None = None, *, log: bool = True) -> Figure:
    """Draw the cumulative distribution of the latency since the intended send times.

    Parameters
    ----------
    ax : Axes, optional
        By default a new figure is drawn.
    log : bool, optional
        Whether the axis of the latency is logarithmic.

    Returns
    -------
    matplotlib.figure.Figure
        With a description in words, ``figure.alt``.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=4)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     result = tnb.load(server["double"], clients=2, requests=40).wait()
    >>> figure = result.plot_cdf()
    >>> figure.alt[:55]
    'Cumulative distribution of the latency of 40 requests, '
    """
    return figure_of(draw_latencies(result.latencies_ms, ax, log=log))


def draw_latencies(latencies: Latencies, ax: Axes | None, *, log: bool) -> Axes:
    """Draw the distribution of latencies in ms."""
    ax = axes_for(ax, 3.2, describe_latencies(latencies))
    ordered = np.sort(np.asarray(latencies, np.float64))
    if not len(ordered):
        return draw_empty(ax)
    draw_cumulative(ax, ordered, color=COMPUTE)
    if log and ordered[0] > 0:
        ax.set_xscale("log")
        label_log_axis(ax.xaxis)
    for percent, value in _percentiles(ordered).items():
        ax.plot([value, value], [0, percent], color=LIGHT, linewidth=1, zorder=0)
        ax.plot(value, percent, "o", color=INK, markersize=4)
        is_left = ax.transAxes.inverted().transform(ax.transData.transform((value, 0)))[0] < _LEFT
        label = f"{SPACE}p{percent:g} {value:.3g} ms{2 * SPACE}"
        ax.text(value, percent, label, fontsize=8, color=INK, ha="left" if is_left else "right",
                va="top" if is_left else "bottom")  # fmt: skip
    label_axes(ax, f"latency (ms{', logarithmic' if log else ''}), n = {len(ordered):,}", "requests (%)")
    return ax


def describe_latencies(latencies: Latencies) -> str:
    """Return the alternative text of `draw_latencies`; latencies in ms.

    Examples
    --------
    >>> describe_latencies([1.0, 2.0, 9.0])
    'Cumulative distribution of the latency of 3 requests, 1 to 9 ms; too few requests for percentiles.'
    """
    if not len(latencies):
        return "Cumulative distribution of the latency. Nothing was executed."
    ordered = sorted(latencies)
    known = [f"p{percent:g} {value:.3g} ms" for percent, value in _percentiles(ordered).items()]
    words = ", ".join(known) if known else "too few requests for percentiles"
    return (
        f"Cumulative distribution of the latency of {len(ordered):,} request{'s' if len(ordered) > 1 else ''}, "
        f"{ordered[0]:.3g} to {ordered[-1]:.3g} ms; {words}."
    )


def _percentiles(ordered: Latencies) -> dict[float, float]:
    needed = {percent: count for percent, count in _PERCENTILES.items() if len(ordered) >= count}
    return {percent: quantile(ordered, percent / 100) for percent in needed}
