"""The picture of a load: the latency of every request over the time at which it should have been sent."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.figures.palette import BLUE, INK, ORANGE, SKY, VERMILION
from tritonnb.figures.picture import axes_for, figure_of
from tritonnb.figures.scale import strip_spines
from tritonnb.profile.result import ANSWERED, ERROR, INTENDED, SENT, LoadResult

#: Requests drawn; of more, every k-th.
_DOTS = 4000
#: A generator that was late by more than this share of the latency gets a second row of dots.
_LATE = 0.05


def draw(result: LoadResult, ax: Axes | None = None) -> Figure:
    """Draw it; see `LoadResult.plot`."""
    ax = axes_for(ax, 3.2, describe(result))
    table = result.answers[:: len(result.answers) // _DOTS + 1]
    table = table[np.argsort(table[:, INTENDED])]
    begin = result.answers[:, INTENDED].min() if result.requests else 0
    good = table[table[:, ERROR] == 0]
    failed = table[table[:, ERROR] != 0]
    seconds = (good[:, INTENDED] - begin) / 1e9
    ax.plot(
        seconds, (good[:, ANSWERED] - good[:, INTENDED]) / 1e6, ".", ms=3, color=BLUE, label="since it was to be sent"
    )
    if _was_late(result):
        since_sent = (good[:, ANSWERED] - good[:, SENT]) / 1e6
        ax.plot(seconds, since_sent, ".", ms=3, color=SKY, label="since it was sent, late")
    if len(failed):
        when = (failed[:, INTENDED] - begin) / 1e9
        ax.plot(when, (failed[:, ANSWERED] - failed[:, INTENDED]) / 1e6, "x", color=VERMILION, label="failed")
    for name, paint, line in ((50, INK, "-"), (99, ORANGE, "--")) if len(good) else ():
        value = result.percentile(name)
        ax.axhline(value, color=paint, linestyle=line, linewidth=1.2, label=f"p{name} {value:.2f} ms")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("time (s)", fontsize=8)
    ax.set_ylabel("latency (ms)", fontsize=8)
    ax.legend(fontsize=8, loc="upper left", frameon=False, ncols=5, bbox_to_anchor=(0, 1.14))
    strip_spines(ax, keep="bottom left")
    return figure_of(ax)


def describe(result: LoadResult) -> str:
    """The picture in words."""
    return f"The latency of each request over time. {result.verdict()}"


def _was_late(result: LoadResult) -> bool:
    found = result.summary()
    return bool(found["scheduling_lag_p99_ms"] > _LATE * found["latency_p99_ms"])
