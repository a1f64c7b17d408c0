"""``server["name"].plot``: figures of the statistics that every Triton keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from tritonnb.recording.figures.batch_sizes import SizeCost, describe_costs, draw_costs
from tritonnb.recording.figures.palette import BLUE, INK, ORANGE, PINK, SKY
from tritonnb.recording.figures.picture import axes_for
from tritonnb.recording.figures.scale import calm, duration, say_nothing_ran
from tritonnb.telemetry.difference import difference

_PARTS = {"queue": PINK, "compute_input": SKY, "compute_infer": BLUE, "compute_output": ORANGE}


class StatisticsPlot:
    """Draws a model's entry in the answer of the statistics extension, of this server or of any other.

    Parameters
    ----------
    stats : mapping
        Such as ``server["name"].stats()`` gives.

    Examples
    --------
    >>> before = server["digits"].stats()  # doctest: +SKIP
    >>> server["digits"].plot.batch_sizes(since=before)  # doctest: +SKIP
    """

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._stats = stats

    def batch_sizes(self, ax: Axes | None = None, *, since: Mapping[str, Any] | None = None) -> Axes:
        """How many batches of each size there were, what one took, and what a row of it cost.

        Parameters
        ----------
        ax : Axes, optional
        since : mapping, optional
            Earlier statistics: only what came after them is drawn.
        """
        found = [_cost(entry) for entry in self._since(since)["batch_stats"]]
        alt = describe_costs(found) if found else "Batch sizes. Nothing was executed."
        return draw_costs(found, ax, alt, "mean")

    def parts(self, ax: Axes | None = None, *, since: Mapping[str, Any] | None = None) -> Axes:
        """Where a request's time goes on average: queue, input, inference, output.

        Parameters
        ----------
        ax : Axes, optional
        since : mapping, optional
            Earlier statistics: only what came after them is drawn.
        """
        stats = self._since(since)["inference_stats"]
        means = {name: _mean_ms(stats[name]) for name in _PARTS}
        whole = _mean_ms(stats["success"])
        told = ", ".join(f"{name.replace('_', ' ')} {duration(mean * 1e6)}" for name, mean in means.items())
        count = stats["success"]["count"]
        if not count:
            return say_nothing_ran(axes_for(ax, 1.6, "Parts of a request. Nothing was executed."))
        ax = axes_for(ax, 1.6, f"A request takes {duration(whole * 1e6)} on average of {count}: {told}.")
        left = 0.0
        for name, mean in means.items():
            ax.barh(0, mean, left=left, color=_PARTS[name], label=f"{name.replace('_', ' ')} {mean:.2f} ms")
            left += mean
        ax.plot([whole, whole], [-0.5, 0.5], color=INK, linewidth=1.5, label=f"whole request {whole:.2f} ms")
        ax.set_yticks([])
        ax.set_ylim(-0.6, 1.6)
        ax.set_xlabel(f"ms (mean of {count} requests)", fontsize=8)
        ax.legend(fontsize=7.5, frameon=False, ncols=5, loc="upper left")
        calm(ax)
        return ax

    def _since(self, before: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return self._stats if before is None else difference(self._stats, before)


def _mean_ms(counter: Mapping[str, int]) -> float:
    return counter["ns"] / counter["count"] / 1e6 if counter["count"] else 0.0


def _cost(entry: Mapping[str, Any]) -> SizeCost:
    parts = (_mean_ms(entry[name]) for name in ("compute_input", "compute_infer", "compute_output"))
    return SizeCost(entry["batch_size"], entry["compute_infer"]["count"], *parts)
