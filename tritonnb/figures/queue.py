"""Queue time and execution time of requests, and the number of waiting requests, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tritonnb.figures.palette import COMPUTE, PAPER, QUEUE, tint
from tritonnb.figures.picture import axes_for
from tritonnb.figures.scale import TimeScale, draw_empty, duration, panel_above, strip_spines
from tritonnb.recording.waits import queue_depth, visible_waits
from tritonnb.scheduling.reasons import pluralize

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

_BINS = 60


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.queue`."""
    ax = axes_for(ax, 4.0, describe(rec))
    if not rec.requests:
        return draw_empty(ax)
    scale = TimeScale.of(rec)
    times, depths = queue_depth(visible_waits(rec))
    xs = [scale.at(time_ns) for time_ns in times]
    ax.fill_between(xs, depths, step="post", color=tint(QUEUE, 0.3), linewidth=0)
    ax.step(xs, depths, where="post", color=QUEUE, linewidth=0.8)
    ax.set_ylabel("requests waiting", fontsize=8)
    ax.set_xlabel(scale.unit, fontsize=8)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(bottom=0, top=max(1, max(depths, default=0)) * 1.1)
    scale.frame(ax)
    strip_spines(ax, keep="bottom left")
    _queue_and_compute(ax, rec, scale)
    return ax


def describe(rec: Recording) -> str:
    """The alternative text."""
    if not rec.requests:
        return f"Queue. {rec.verdict()}"
    queue = sum(request.queue_ns for request in rec.requests) / len(rec.requests)
    compute = sum(request.exec_end_ns - request.exec_start_ns for request in rec.requests) / len(rec.requests)
    _, depths = queue_depth(visible_waits(rec))
    return (
        f"Queue and compute time: a request waits {duration(queue)} and runs {duration(compute)} on average; "
        f"{queue / (queue + compute or 1):.0%} of its time is queue time. At most "
        f"{pluralize(max(depths, default=0), 'request')} waited at the same time."
    )


def _queue_and_compute(ax: Axes, rec: Recording, scale: TimeScale) -> None:
    """Draw mean queue and execution time of the requests that finished in each interval."""
    above = panel_above(ax, 0.8, "time per request (ms, mean)")
    requests = [request for request in rec.requests if scale.shows(request.exec_end_ns, request.exec_end_ns)]
    ends = np.array([scale.at(request.exec_end_ns) for request in requests])
    edges = np.linspace(*scale.ends, _BINS + 1)
    counts = np.histogram(ends, edges)[0]
    base = np.zeros(_BINS)
    for name, color, hatch, values in (
        ("compute", COMPUTE, "", [request.exec_end_ns - request.exec_start_ns for request in requests]),
        ("queue", QUEUE, "//", [request.queue_ns for request in requests]),
    ):
        total = np.histogram(ends, edges, weights=np.array(values, float) / 1e6)[0]
        mean = np.divide(total, counts, out=np.zeros(_BINS), where=counts > 0)
        above.bar(
            edges[:-1], mean, np.diff(edges), bottom=base, align="edge", color=color, hatch=hatch, label=name,
            edgecolor=PAPER, linewidth=0,
        )  # fmt: skip
        base = base + mean
    above.legend(fontsize=7.5, frameon=False, ncols=2, loc="upper left")
    above.margins(y=0.2)
