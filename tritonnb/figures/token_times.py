"""Cumulative distributions of the time to the first token and of the time per output token."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.figures.palette import COMPUTE, QUEUE
from tritonnb.figures.picture import axes_for, figure_of
from tritonnb.figures.scale import duration, label_log_axis, strip_spines
from tritonnb.profile.result import LoadResult
from tritonnb.recording.token_times import TokenTimes


@with_short_traceback
def draw(result: LoadResult, ax: Axes | None = None) -> Figure:
    """Draw the cumulative distributions of the time to the first token and of the time per output token.

    Raises
    ------
    InvalidArgumentError
        If no request was answered by several tokens.
    """
    times = result.token_times
    ax = axes_for(ax, 3.2, describe(times))
    curves = (
        ("time to first token", times.to_first_ms, QUEUE, "-"),
        ("time per output token", times.per_token_ms, COMPUTE, "--"),
    )
    for name, values, colour, style in curves:
        shares = np.arange(1, len(values) + 1) / len(values) * 100
        ax.step(np.concatenate([values[:1], values]), np.concatenate([[0.0], shares]), where="post",
                color=colour, linestyle=style, label=f"{name}, p50 {duration(np.median(values) * 1e6)}")  # fmt: skip
    ax.set_xscale("log")
    label_log_axis(ax.xaxis)
    ax.set_ylim(0, 103)
    ax.set_xlabel(f"ms (logarithmic), n = {times.count:,} generations", fontsize=8)
    ax.set_ylabel("generations (%)", fontsize=8)
    ax.legend(fontsize=8, frameon=False, loc="best")
    strip_spines(ax, keep="bottom left")
    return figure_of(ax)


def describe(times: TokenTimes) -> str:
    """The alternative text."""
    if not times.count:
        raise InvalidArgumentError("figure of token times expected requests with several tokens, got none")
    return f"Cumulative distributions of the times of {times.count:,} generations: {times.verdict()}"
