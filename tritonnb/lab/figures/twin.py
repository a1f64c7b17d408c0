"""The figures of a twin: recorded execution times by batch size with their fit, and predictions beside measurements."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.core.failures import with_short_traceback
from tritonnb.lab.figures.palette import COMPUTE, INK, REFUSAL, tint
from tritonnb.lab.figures.picture import axes_for, figure_of
from tritonnb.lab.figures.scale import label_axes
from tritonnb.lab.prediction.twin import Twin
from tritonnb.lab.prediction.verify import Verification


@with_short_traceback
def draw(twin: Twin, ax: Axes | None = None, *, model: str | None = None) -> Figure:
    """Draw the execution times of a twin into ``ax`` or a new figure, up to twice the largest recorded size.

    The largest batch size of the model is not exceeded. The twin of a pipeline needs the name of a step as ``model``.

    Examples
    --------
    >>> from tritonnb import fixed, poisson, simulate
    >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", poisson(100, 4, seed=1), fixed(5))
    >>> recording.twin().plot().alt.startswith("Execution time")
    True
    """
    ax = axes_for(ax, 3.2, describe(twin, model))
    times = twin.times_of(model)
    executions = times.executions
    stalled = {begin_ns for begin_ns, _ in times.stalls}
    for is_stall, colour, marker, label in ((False, COMPUTE, ".", "recorded"), (True, REFUSAL, "x", "stalls")):
        chosen = [one for one in executions if (one.begin_ns in stalled) == is_stall]
        if chosen:
            times_ms = [one.time_ns / 1e6 for one in chosen]
            ax.plot([one.rows for one in chosen], times_ms, marker, ms=4, color=colour, label=label)
    largest, name = twin.sizes(model)[-1], model or next(iter(twin.models.times))
    rows = list(range(1, max(largest, min(2 * largest, twin.models.configs[name].max_batch_size)) + 1))
    ranges = [twin.range_ms(size, model) for size in rows]
    ax.fill_between(
        rows, [one.low for one in ranges], [one.high for one in ranges], color=tint(COMPUTE), alpha=0.4, label="range"
    )
    ax.plot(rows, [one.value for one in ranges], color=INK, linewidth=1.2, label="typical")
    ax.set_ylim(bottom=0)
    label_axes(ax, "batch size (rows)", "execution (ms)")
    ax.legend(fontsize=8, loc="upper left", frameon=False, ncols=4, bbox_to_anchor=(0, 1.14))
    return figure_of(ax)


def describe(twin: Twin, model: str | None = None) -> str:
    """Return the alternative text."""
    times = twin.times_of(model)
    sizes = ", ".join(f"{rows} rows {twin.range_ms(rows, model).value:.2f} ms" for rows in twin.sizes(model))
    stalls = len(times.stalls)
    return f"Execution time by batch size, {len(times.executions)} executions: {sizes}; {stalls} stalls."


@with_short_traceback
def draw_verification(verification: Verification, ax: Axes | None = None) -> Figure:
    """Draw each measured figure and the predicted range, as multiples of the predicted value.

    Examples
    --------
    >>> import time, tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=4, dynamic_batching={})
    ...     def sleeps(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         time.sleep(0.002)
    ...         return X
    ...     recording = tnb.load(server["sleeps"], rate=100, arrivals="poisson", requests=60).wait().recording
    ...     result = recording.twin().verify(server["sleeps"], max_queue_delay_microseconds=2000)
    >>> [label.get_text() for label in result.plot().axes[0].get_yticklabels()][:2]
    ['latency p50 ms', 'latency p95 ms']
    """
    ax = axes_for(ax, 2.6, repr(verification))
    measured, prediction = verification.measured, verification.prediction
    for place, (name, value) in enumerate(measured.items()):
        predicted = prediction.ranges[name]
        base = predicted.value or 1.0
        ax.plot([predicted.low / base, predicted.high / base], [place] * 2, color=tint(COMPUTE), linewidth=8)
        colour = REFUSAL if name in verification.outside else INK
        ax.plot(value / base, place, "o", ms=5, color=colour)
        ax.text(value / base, place - 0.3, f"{value:.2f}", ha="center", fontsize=8, color=colour)
    ax.axvline(1, color=COMPUTE, linewidth=1)
    ax.set_yticks(range(len(measured)), [name.replace("_", " ") for name in measured], fontsize=8)
    ax.set_ylim(len(measured) - 0.5, -0.8)
    left, right = ax.get_xlim()
    ax.set_xlim(min(left, 0.8), max(right, 1.2))  # an error of a few percent looks small
    ax.set_title(verification.verdict(), loc="left", fontsize=9, wrap=True)
    label_axes(ax, "measured (dots) and range, as multiples of the prediction")
    return figure_of(ax)
