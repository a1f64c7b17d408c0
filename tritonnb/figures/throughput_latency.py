"""Throughput against latency: latency rises steeply as the load approaches the capacity; with theory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.figures.palette import GREY, INK
from tritonnb.figures.palette import series as series_colour
from tritonnb.figures.picture import axes_for, figure_of
from tritonnb.figures.scale import SPACE, label_axes, label_log_axis, range_text
from tritonnb.profile.sweep_result import SweepResult
from tritonnb.profile.theory import Theory, theory
from tritonnb.profile.trial import Runs
from tritonnb.recording.batches import latencies_ms
from tritonnb.recording.recording import Recording
from tritonnb.telemetry.quantiles import quantile

_MARKERS = "osD^v"


@dataclass(frozen=True, slots=True)
class _Point:
    """One run: requests per second, latencies in ms."""

    n: int
    p99_ms: float
    theory: Theory

    @classmethod
    def for_recording(cls, rec: Recording) -> _Point:
        ordered = latencies_ms(rec.requests)
        return cls(len(ordered), quantile(ordered, 0.99), theory(rec))


@with_short_traceback
def plot_throughput_latency(runs: Runs, ax: Axes | None = None) -> Figure:
    """Draw latency against throughput of runs at different rates, with the predictions of queueing theory.

    Parameters
    ----------
    runs : sequence of Recording, or mapping of str to sequences of them
        Recordings of one model, live or simulated, each at another rate; several series by name.
    ax : Axes, optional
        By default a new figure is drawn.

    Returns
    -------
    matplotlib.figure.Figure
        The vertical lines are the capacities: the throughput with all instances at their most efficient batch size.
        The predictions are those of `theory`: an M/D/1 queue, which does not batch, and Inoue's bound where it holds.

    Raises
    ------
    InvalidArgumentError
        If the list is empty, or a recording is not of exactly one model.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> config = "max_batch_size: 16 dynamic_batching { }"
    >>> runs = [tnb.simulate(config, tnb.poisson(rate, 2, seed=1), tnb.linear(1, 4)) for rate in (100, 300, 500)]
    >>> figure = plot_throughput_latency(runs)
    >>> figure.alt[:58]
    'Latency against throughput. Of 106 to 481 requests/s, mean'
    """
    named = dict(runs) if isinstance(runs, Mapping) else {"": runs}
    series = {name: _points(recordings) for name, recordings in named.items()}
    if not any(series.values()):
        raise InvalidArgumentError("plot_throughput_latency expected at least one recording, got none")
    ax = axes_for(ax, 4.0, describe(series))
    for number, (name, points) in enumerate(series.items()):
        _draw_series(ax, f"{name}: " if name else "", points, series_colour(number), _MARKERS[number % len(_MARKERS)])
    _draw_theory(ax, next(iter(series.values())))
    ax.set_yscale("log")
    label_log_axis(ax.yaxis)
    ax.set_xlim(left=0)
    label_axes(ax, "throughput (requests/s)", "latency (ms, logarithmic)")
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    simulated = all(rec.simulated for recordings in named.values() for rec in recordings)
    n = range_text([point.n for points in series.values() for point in points])
    ax.set_title(f"n = {n} requests for a point{', simulated' if simulated else ''}", loc="right", fontsize=8)
    return figure_of(ax)


def describe(series: Mapping[str, Sequence[_Point]]) -> str:
    """Return the alternative text."""
    sentences = []
    for name, points in series.items():
        if points:
            first, last = points[0], points[-1]
            sentences.append(
                f"{name or 'Of'} {first.theory.throughput:,.0f} to {last.theory.throughput:,.0f} requests/s, mean "
                f"latency rises from {first.theory.latency_ms:.3g} to {last.theory.latency_ms:.3g} ms and p99 from "
                f"{first.p99_ms:.3g} to {last.p99_ms:.3g} ms; the capacity is {_capacity(last):,.0f} requests/s."
            )
    return f"Latency against throughput. {' '.join(sentences)}"


def draw_sweep(sweep: SweepResult, ax: Axes | None = None) -> Figure:
    """Draw latency against throughput of `load_curves`, with the predictions of queueing theory.

    Parameters
    ----------
    ax : Axes, optional
        By default a new figure is drawn.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8, dynamic_batching={})
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     options = {"constraint": "p99 < 40 ms", "requests": 200, "service": tnb.linear(1, 4)}
    ...     result = tnb.sweep(server["double"], count=[1, 2], **options).wait()
    >>> result.plot_throughput_latency().alt.startswith("Latency")
    True
    """
    return plot_throughput_latency(sweep.load_curves(), ax)


def _points(recordings: Sequence[Recording]) -> list[_Point]:
    return sorted(map(_Point.for_recording, recordings), key=lambda point: point.theory.throughput)


def _capacity(point: _Point) -> float:
    return point.theory.saturation / point.theory.rows


def _draw_series(ax: Axes, name: str, points: Sequence[_Point], color: str, marker: str) -> None:
    throughput = [point.theory.throughput for point in points]
    means = [point.theory.latency_ms for point in points]
    ax.plot(throughput, means, f"-{marker}", color=color, markersize=4, label=f"{name}mean")
    ax.plot(throughput, [point.p99_ms for point in points], f"--{marker}", color=color, markersize=4, mfc="white",
            label=f"{name}p99")  # fmt: skip
    capacity = max(map(_capacity, points))
    ax.axvline(capacity, color=color, linewidth=1, linestyle=":")
    ax.text(capacity, 0.02, f"{SPACE}capacity {capacity:,.0f}/s{SPACE}", fontsize=8, color=INK, ha="right",
            transform=ax.get_xaxis_transform())  # fmt: skip


def _draw_theory(ax: Axes, points: Sequence[_Point]) -> None:
    lines = {
        "M/D/1: without batching": [point.theory.unbatched_latency_ms for point in points],
        "Inoue's bound of the mean": [point.theory.latency_bound_ms or np.inf for point in points],
    }
    for (label, values), style in zip(lines.items(), ("-.", ":"), strict=True):
        known = [(point.theory.rate, value) for point, value in zip(points, values, strict=True) if np.isfinite(value)]
        if known:
            ax.plot(*zip(*known, strict=True), style, color=GREY, linewidth=1.6, label=label)
