"""The figures of a sweep: a bar for each configuration, the Pareto plot of rate and p99 latency, and load curves.

The front of the Pareto plot has the configurations that no other configuration beats in both. The curves show latency
against throughput, with theory: latency rises steeply as the load approaches the capacity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.lab.analysis.theory import Theory, theory
from tritonnb.lab.figures.palette import COMPUTE, GREY, INK, LIMIT, REFUSAL, SELECTION, series, tint
from tritonnb.lab.figures.picture import axes_for, figure_of
from tritonnb.lab.figures.scale import SPACE, label_axes, label_log_axis, range_text
from tritonnb.lab.load.sweep_result import SweepResult
from tritonnb.lab.load.trial import Runs, Trial
from tritonnb.recording.batches import latencies_ms
from tritonnb.recording.recording import Recording
from tritonnb.telemetry.quantiles import quantile

#: Maximum number of configurations drawn; of more the best are drawn.
_ROWS = 30
#: Labelled configurations of the Pareto front; others are points only.
_LABELS = 8
_MARKERS = "osD^v"


def draw(sweep: SweepResult, ax: Axes | None = None) -> Figure:
    """Draw a bar for each configuration, the best on top: its rate, or its p99 latency.

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
    ...     result = tnb.sweep(server["double"], count=[1, 2], rate=100, requests=200, service=tnb.fixed(8)).wait()
    >>> result.plot().alt.startswith("Best of")
    True
    """
    shown = [*sweep.trials[:_ROWS], sweep.running]
    ax = axes_for(ax, 1.3 + 0.34 * len(shown), describe(sweep))
    values = np.nan_to_num([trial.rate if sweep.by_rate else trial.percentile(99) for trial in shown])
    places = list(range(len(shown)))
    for place, value, trial in zip(places, values, shown, strict=True):
        color, hatch = _style(sweep, trial)
        ax.barh(place, value, color=tint(color, 0.6), edgecolor=color, hatch=hatch, height=0.7)
        ax.text(value, place, f"{2 * SPACE}{_trial_text(trial)}", va="center", fontsize=8, color=INK)
    ax.set_yticks(places, [trial.edits_text() or "running configuration" for trial in shown])
    ax.invert_yaxis()
    ax.set_xlim(0, 2.2 * max(values) or 1)  # room for the labels
    label_axes(ax, f"{_axis(sweep)}\n{sweep.remark}")
    if not sweep.by_rate and sweep.constraint is not None and "p99" in sweep.constraint.bounds:
        ax.axvline(sweep.constraint.bounds["p99"], color=LIMIT, linestyle="--", linewidth=1)
    ax.set_title(sweep.verdict(), loc="left", fontsize=9, wrap=True)
    return figure_of(ax)


def describe(sweep: SweepResult) -> str:
    """Return the alternative text."""
    listed = "; ".join(f"{trial.edits_text()}: {_trial_text(trial)}" for trial in sweep.trials[:_ROWS])
    return f"{sweep.verdict()} {listed}. {sweep.remark}"


def _style(sweep: SweepResult, trial: Trial) -> tuple[str, str]:
    if not trial.meets:
        return REFUSAL, "//"
    if trial is sweep.best:
        return SELECTION, ""
    return (GREY if trial is sweep.running or trial.extrapolated or trial.predicted else series(0)), ""


def _trial_text(trial: Trial) -> str:
    failed = "" if trial.meets else ", violates the constraint"
    failed += ", extrapolated" if trial.extrapolated else ""
    failed += ", predicted" if trial.predicted else ""
    rate, size = f"{trial.rate:,.0f} requests/s", f"mean batch size {trial.mean_batch_size:.1f}"
    return f"{rate}, p99 {trial.percentile(99):.1f} ms, {size}{failed}"


def _axis(sweep: SweepResult) -> str:
    if sweep.searched and sweep.constraint is not None:
        return f"highest rate of Poisson arrivals (requests/s) that satisfies {sweep.constraint.text}"
    return "requests/s" if sweep.by_rate else "p99 latency (ms)"


def draw_pareto(sweep: SweepResult, ax: Axes | None = None) -> Figure:
    """Draw rate against p99 latency: the Pareto front, the chosen and the running configuration, the constraint.

    Parameters
    ----------
    ax : Axes, optional
        By default a new figure is drawn.

    Returns
    -------
    matplotlib.figure.Figure
        With a description in words, ``figure.alt``.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8, dynamic_batching={})
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     options = {"constraint": "p99 < 40 ms", "requests": 200, "service": tnb.linear(1, 4)}
    ...     result = tnb.sweep(server["double"], count=[1, 2], **options).wait()
    >>> figure = result.plot_pareto()
    >>> figure.alt[:47]
    'Rate against p99 latency of 2 configurations. P'
    """
    ax = axes_for(ax, 4.2, describe_pareto(sweep))
    trials = _measured(sweep)
    front = pareto_front(trials)
    for meets, label, marker, edge, face in (
        (True, "satisfies the constraint", "o", COMPUTE, COMPUTE),
        (False, "violates the constraint", "X", REFUSAL, "none"),
    ):
        group = [trial for trial in trials if trial.meets == meets]
        if group:
            latencies, rates = [trial.percentile(99) for trial in group], [trial.rate for trial in group]
            ax.scatter(latencies, rates, marker=marker, edgecolors=edge, facecolors=face, label=label, zorder=2)
    ax.step([trial.percentile(99) for trial in front], [trial.rate for trial in front], where="post", color=GREY,
            linewidth=1.2, label="Pareto front", zorder=1)  # fmt: skip
    running = sweep.running
    if len(running.latencies_ms):
        ax.plot(running.percentile(99), running.rate, "D", mfc="none", mec=INK, ms=9, label="running configuration")
    chosen = sweep.best if any(trial.meets for trial in [*sweep.trials, running]) else None
    if chosen is not None:
        ax.plot(chosen.percentile(99), chosen.rate, "*", color=SELECTION, mec=INK, ms=15, label="chosen", zorder=3)
    _draw_constraint(ax, sweep)
    _draw_labels(ax, front, chosen)
    ax.set_xscale("log")
    ax.margins(x=0.25, y=0.15)
    label_log_axis(ax.xaxis)
    counts = [len(trial.latencies_ms) for trial in trials]
    n = f", n = {range_text(counts)} requests for a configuration" if counts else ""
    label_axes(ax, f"p99 latency (ms, logarithmic){n}", "requests/s")
    ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    ax.set_title(sweep.verdict(), loc="left", fontsize=9, wrap=True)
    return figure_of(ax)


def describe_pareto(sweep: SweepResult) -> str:
    """Return the alternative text of `draw_pareto`."""
    front = "; ".join(
        f"{trial.edits_text() or 'running'}: {trial.rate:,.0f} requests/s, p99 {trial.percentile(99):.3g} ms"
        for trial in pareto_front(_measured(sweep))
    )
    return f"Rate against p99 latency of {len(sweep.trials)} configurations. Pareto front: {front}. {sweep.verdict()}"


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials of which none has both a lower p99 and a higher rate, by ascending p99."""
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (trial.percentile(99), -trial.rate)):
        if not front or trial.rate > front[-1].rate:
            front.append(trial)
    return front


def _measured(sweep: SweepResult) -> list[Trial]:
    return [trial for trial in [*sweep.trials, sweep.running] if len(trial.latencies_ms)]


def _draw_constraint(ax: Axes, sweep: SweepResult) -> None:
    if sweep.constraint is not None and "p99" in sweep.constraint.bounds:
        bound = sweep.constraint.bounds["p99"]
        ax.axvline(bound, color=LIMIT, linestyle="--", linewidth=1.2)
        ax.text(bound, 1, f"{SPACE}{sweep.constraint.text}", transform=ax.get_xaxis_transform(), fontsize=8, va="top",
                color=INK)  # fmt: skip


def _draw_labels(ax: Axes, front: Sequence[Trial], chosen: Trial | None) -> None:
    """Label the chosen configuration and some of the front, spread over it."""
    spread = {round(index) for index in np.linspace(0, len(front) - 1, min(len(front), _LABELS)).tolist()}
    labelled = {id(trial): trial for trial in [*(front[index] for index in spread), *([chosen] if chosen else [])]}
    lines: defaultdict[tuple[float, float], list[str]] = defaultdict(list)  # the same results share a label
    for trial in labelled.values():
        lines[trial.percentile(99), trial.rate].append(trial.edits_text() or "running")
    for place, texts in lines.items():
        # The label is inside of the axes.
        is_right = place[0] > (front[0].percentile(99) + front[-1].percentile(99)) / 2
        offset, align = (-9, "right") if is_right else (9, "left")
        text = "\n".join(texts)
        ax.annotate(text, place, (offset, 5), textcoords="offset points", fontsize=7.5, color=INK, ha=align)


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
        The predictions are made by `theory`: an M/D/1 queue, which does not batch, and Inoue's bound where it holds.

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
    curves = {name: _points(recordings) for name, recordings in named.items()}
    if not any(curves.values()):
        raise InvalidArgumentError("plot_throughput_latency expected at least one recording, got none")
    ax = axes_for(ax, 4.0, describe_curves(curves))
    for number, (name, points) in enumerate(curves.items()):
        _draw_series(ax, f"{name}: " if name else "", points, series(number), _MARKERS[number % len(_MARKERS)])
    _draw_theory(ax, next(iter(curves.values())))
    ax.set_yscale("log")
    label_log_axis(ax.yaxis)
    ax.set_xlim(left=0)
    label_axes(ax, "throughput (requests/s)", "latency (ms, logarithmic)")
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    simulated = all(rec.simulated for recordings in named.values() for rec in recordings)
    n = range_text([point.n for points in curves.values() for point in points])
    ax.set_title(f"n = {n} requests for a point{', simulated' if simulated else ''}", loc="right", fontsize=8)
    return figure_of(ax)


def describe_curves(curves: Mapping[str, Sequence[_Point]]) -> str:
    """Return the alternative text of `plot_throughput_latency`."""
    sentences = []
    for name, points in curves.items():
        if points:
            first, last = points[0], points[-1]
            sentences.append(
                f"{name or 'Of'} {first.theory.throughput:,.0f} to {last.theory.throughput:,.0f} requests/s, mean "
                f"latency rises from {first.theory.latency_ms:.3g} to {last.theory.latency_ms:.3g} ms and p99 from "
                f"{first.p99_ms:.3g} to {last.p99_ms:.3g} ms; the capacity is {_capacity(last):,.0f} requests/s."
            )
    return f"Latency against throughput. {' '.join(sentences)}"


def draw_curves(sweep: SweepResult, ax: Axes | None = None) -> Figure:
    """Draw latency against throughput of `load_curves`, with the predictions of queueing theory.

    Parameters
    ----------
    ax : Axes, optional
        By default a new figure is drawn.
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
