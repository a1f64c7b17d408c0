"""Queue time and execution time of requests, and the number of waiting requests, over time.

The depth of the queue is drawn change by change, or in columns if there are too many changes to be seen one by one: a
line for the deepest moment of each column, filled up to the mean. Both are computed from all changes.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tritonnb.lab.figures.palette import COMPUTE, PAPER, QUEUE, tint
from tritonnb.lab.figures.picture import axes_for
from tritonnb.lab.figures.scale import TimeScale, draw_empty, draw_legend, duration, label_axes, panels_above
from tritonnb.recording.recording import Recording
from tritonnb.recording.waits import queue_depth, visible_waits
from tritonnb.scheduling.reasons import pluralize

_BINS = 60
#: Changes of the depth up to this number are drawn one by one; more are drawn as about this many columns.
_MOST_CHANGES, _COLUMNS = 500, 200


def draw(rec: Recording, ax: Axes | None = None) -> Axes:
    """Draw it; see `Plot.queue`."""
    ax = axes_for(ax, 4.0, describe(rec))
    if not rec.requests:
        return draw_empty(ax)
    scale = TimeScale.for_recording(rec)
    times, depths = queue_depth(visible_waits(rec))
    width_ns = _column_width(rec, times)
    if width_ns:
        edges, deepest, mean = depth_columns(times, depths, scale.begin_ns, scale.end_ns, width_ns)
        positions, width = [scale.at(edge) for edge in edges], duration(width_ns)
        filled = ax.stairs(mean, positions, fill=True, color=tint(QUEUE, 0.3), linewidth=0, label=f"mean of {width}")
        line = ax.stairs(deepest, positions, color=QUEUE, linewidth=0.8, label=f"deepest of {width}")
        draw_legend(ax, [line, filled])
    else:
        xs = [scale.at(time_ns) for time_ns in times]
        ax.fill_between(xs, depths, step="post", color=tint(QUEUE, 0.3), linewidth=0)
        ax.step(xs, depths, where="post", color=QUEUE, linewidth=0.8)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(bottom=0, top=max(1, max(depths, default=0)) * 1.1)
    scale.frame(ax)
    label_axes(ax, f"time ({scale.unit})", "requests waiting")
    _queue_and_compute(ax, rec, scale)
    return ax


def describe(rec: Recording) -> str:
    """Return the alternative text."""
    if not rec.requests:
        return f"Queue. {rec.verdict()}"
    queue = sum(request.queue_ns for request in rec.requests) / len(rec.requests)
    compute = sum(request.exec_end_ns - request.exec_start_ns for request in rec.requests) / len(rec.requests)
    times, depths = queue_depth(visible_waits(rec))
    width_ns = _column_width(rec, times)
    columns = f" Deepest and mean queue of every {duration(width_ns)}." if width_ns else ""
    return (
        f"Queue and compute time: a request waits {duration(queue)} and runs {duration(compute)} on average; "
        f"{queue / (queue + compute or 1):.0%} of its time is queue time. At most "
        f"{pluralize(max(depths, default=0), 'request')} waited at the same time.{columns}"
    )


def depth_columns(
    times: list[int], depths: list[int], begin_ns: int, end_ns: int, width_ns: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return edges, maximum and time-weighted mean of the queue depth in columns of equal width.

    Parameters
    ----------
    times, depths : list of int
        The times of changes in ns, and the depth from each on; see `queue_depth`.
    begin_ns, end_ns : int
        The range of the columns; the last column may be shorter.
    width_ns : int

    Examples
    --------
    >>> edges, deepest, mean = depth_columns([0, 5, 6, 12], [1, 3, 0, 2], 0, 20, 10)
    >>> edges.tolist(), deepest.tolist(), mean.tolist()
    ([0, 10, 20], [3, 2], [0.8, 1.6])
    """
    count = max(1, math.ceil((end_ns - begin_ns) / width_ns))
    edges = np.append(begin_ns + width_ns * np.arange(count), max(end_ns, begin_ns + 1))
    changes = np.array(times, np.int64)
    inside = changes[(changes > begin_ns) & (changes < end_ns)]
    starts = np.union1d(edges[:-1], inside)  # between two of them the depth is constant
    depth = np.append(0, depths)[np.searchsorted(changes, starts, side="right")]
    column = np.searchsorted(edges, starts, side="right") - 1
    deepest = np.zeros(count, np.int64)
    np.maximum.at(deepest, column, depth)
    lengths = np.diff(np.append(starts, edges[-1]))
    return edges, deepest, np.bincount(column, depth * lengths, count) / np.diff(edges)


def _column_width(rec: Recording, times: list[int]) -> int:
    """Return the width of columns in ns: 1, 2 or 5 times a power of ten; 0 if changes are drawn one by one."""
    begin_ns, end_ns = rec.span_ns
    if sum(begin_ns <= time_ns <= end_ns for time_ns in times) <= _MOST_CHANGES:
        return 0
    least = max(1.0, (end_ns - begin_ns) / _COLUMNS)
    power = int(10 ** math.floor(math.log10(least)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _queue_and_compute(ax: Axes, rec: Recording, scale: TimeScale) -> None:
    """Draw mean queue and execution time of the requests that finished in each interval."""
    (above,) = panels_above(ax, (0.8, "time per request (ms, mean)"))
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
