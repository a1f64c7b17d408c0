"""The figure of a twin: recorded execution times by batch size, their fit, and its range."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.core.failures import with_short_traceback
from tritonnb.figures.palette import COMPUTE, INK, REFUSAL, tint
from tritonnb.figures.picture import axes_for, figure_of
from tritonnb.figures.scale import strip_spines
from tritonnb.recording.twin import Twin


@with_short_traceback
def draw(twin: Twin, ax: Axes | None = None) -> Figure:
    """Draw the execution times of a twin into ``ax`` or a new figure, up to twice the largest recorded size.

    Examples
    --------
    >>> from tritonnb import fixed, poisson, simulate
    >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", poisson(100, 4, seed=1), fixed(5))
    >>> recording.twin().plot().alt.startswith("Execution time")
    True
    """
    ax = axes_for(ax, 3.2, describe(twin))
    executions = twin.times.executions
    stalled = {begin_ns for begin_ns, _ in twin.times.stalls}
    for is_stall, colour, marker, label in ((False, COMPUTE, ".", "recorded"), (True, REFUSAL, "x", "stalls")):
        chosen = [one for one in executions if (one.begin_ns in stalled) == is_stall]
        if chosen:
            times_ms = [one.time_ns / 1e6 for one in chosen]
            ax.plot([one.rows for one in chosen], times_ms, marker, ms=4, color=colour, label=label)
    rows = list(range(1, 2 * twin.sizes[-1] + 1))
    ranges = [twin.range_ms(size) for size in rows]
    ax.fill_between(
        rows, [one.low for one in ranges], [one.high for one in ranges], color=tint(COMPUTE), alpha=0.4, label="range"
    )
    ax.plot(rows, [one.value for one in ranges], color=INK, linewidth=1.2, label="typical")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("batch size (rows)", fontsize=8)
    ax.set_ylabel("execution (ms)", fontsize=8)
    ax.legend(fontsize=8, loc="upper left", frameon=False, ncols=4, bbox_to_anchor=(0, 1.14))
    strip_spines(ax, keep="bottom left")
    return figure_of(ax)


def describe(twin: Twin) -> str:
    """Return the alternative text."""
    sizes = ", ".join(f"{rows} rows {twin.range_ms(rows).value:.2f} ms" for rows in twin.sizes)
    stalls = len(twin.times.stalls)
    return f"Execution time by batch size, {len(twin.times.executions)} executions: {sizes}; {stalls} stalls."
