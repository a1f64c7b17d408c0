"""The figures of a sweep: a bar for each configuration, and the Pareto plot of rate and p99 latency.

The front of the Pareto plot has the configurations that no other one beats in both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.figures.palette import COMPUTE, GREY, INK, LIMIT, REFUSAL, SELECTION, series, tint
from tritonnb.figures.picture import axes_for, figure_of
from tritonnb.figures.scale import SPACE, label_axes, label_log_axis, range_text
from tritonnb.profile.sweep_result import SweepResult
from tritonnb.profile.trial import Trial

#: Maximum number of configurations drawn; of more the best are drawn.
_ROWS = 30
#: Labelled configurations of the Pareto front; others are points only.
_LABELS = 8


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
