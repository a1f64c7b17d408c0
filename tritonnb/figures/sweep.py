"""The figure of a sweep: a bar for each configuration, the best at the top and the running one at the bottom."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.figures.palette import GREY, INK, LIMIT, REFUSAL, SELECTION, series, tint
from tritonnb.figures.picture import axes_for, figure_of
from tritonnb.figures.scale import SPACE, label_axes
from tritonnb.profile.sweep_result import SweepResult
from tritonnb.profile.trial import Trial

#: Maximum number of configurations drawn; of more the best are drawn.
_ROWS = 30


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
