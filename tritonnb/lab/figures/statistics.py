"""``server["name"].plot``: figures of the statistics extension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.client.model import Model
from tritonnb.lab.figures.batch_sizes import SizeCost, describe_costs, draw_costs
from tritonnb.lab.figures.palette import INK, PARTS, QUEUE
from tritonnb.lab.figures.picture import WIDTH, Picture, axes_for, figure_of
from tritonnb.lab.figures.scale import draw_empty, duration, strip_spines
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.statistics_entry import difference, has_wrapped, mean_ms

_PARTS = {"queue": QUEUE, **PARTS}


class StatisticsPlot:
    """Figures of a model's statistics, as returned by the statistics extension of this or any other server.

    Parameters
    ----------
    stats : mapping
        As returned by ``server["name"].stats()``.

    ``server["name"].plot()`` draws both figures.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     before = server["double"].stats()
    ...     _ = server["double"](X=[[1.0], [2.0]])
    ...     plot = server["double"].plot
    >>> plot.batch_sizes(since=before).alt[:12], plot.parts(since=before).alt[:15]
    ('Batch sizes:', 'A request takes')
    """

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._stats = stats

    def __call__(self, *, since: Mapping[str, Any] | None = None) -> Figure:
        """Draw both figures: the parts of the request time, and the batch sizes.

        Parameters
        ----------
        since : mapping, optional
            Earlier statistics: only the difference from them is drawn.
        """
        figure = Picture(figsize=(WIDTH, 6.2), layout="constrained")
        above, below = figure.subplots(2, 1, height_ratios=[1.6, 4.4])
        self.parts(above, since=since)
        self.batch_sizes(below, since=since)
        figure.alt = f"{self._parts_in_words(since)} {describe_costs(self._costs(since))}"
        return figure

    def __repr__(self) -> str:
        return "<figures of statistics: parts(), batch_sizes(); plot() draws both>"

    def batch_sizes(self, ax: Axes | None = None, *, since: Mapping[str, Any] | None = None) -> Figure:
        """Draw the number of batches of each size, their mean execution time and the time per row.

        Parameters
        ----------
        ax : Axes, optional
        since : mapping, optional
            Earlier statistics: only the difference from them is drawn.
        """
        costs = self._costs(since)
        return figure_of(draw_costs(costs, ax, describe_costs(costs), "mean"))

    def parts(self, ax: Axes | None = None, *, since: Mapping[str, Any] | None = None) -> Figure:
        """Draw the mean time of a request in its parts: queue, compute input, infer and output.

        Parameters
        ----------
        ax : Axes, optional
        since : mapping, optional
            Earlier statistics: only the difference from them is drawn.
        """
        stats = self._since(since)["inference_stats"]
        means = {name: mean_ms(stats[name]) for name in _PARTS if name not in self._wrapped(stats)}
        whole, count = mean_ms(stats["success"]), stats["success"]["count"]
        ax = axes_for(ax, 1.6, self._parts_in_words(since))
        if not count:
            return figure_of(draw_empty(ax))
        left = 0.0
        for name, mean in means.items():
            ax.barh(0, mean, left=left, color=_PARTS[name], label=f"{name.replace('_', ' ')} {mean:.2f} ms")
            left += mean
        if "success" not in self._wrapped(stats):
            ax.plot([whole, whole], [-0.5, 0.5], color=INK, linewidth=1.5, label=f"whole request {whole:.2f} ms")
        ax.set_yticks([])
        ax.set_ylim(-0.6, 1.6)
        ax.set_xlabel(f"time (ms, mean of {count} requests)", fontsize=8)
        ax.legend(fontsize=7.5, frameon=False, ncols=5, loc="upper left")
        strip_spines(ax)
        return figure_of(ax)

    def _costs(self, since: Mapping[str, Any] | None) -> list[SizeCost]:
        wrong = {
            row["batch_size"] for row in self._stats["batch_stats"] if any(has_wrapped(row[name]) for name in PARTS)
        }
        return [
            SizeCost(row["batch_size"], row["compute_infer"]["count"], [mean_ms(row[name]) for name in PARTS])
            for row in self._since(since)["batch_stats"]
            if row["batch_size"] not in wrong
        ]

    def _wrapped(self, stats: Mapping[str, Any]) -> list[str]:
        """Return the durations that are not drawn: a wrong total, whose difference from an earlier total is wrong."""
        own = self._stats["inference_stats"]
        return [name for name in ("success", *_PARTS) if has_wrapped(own[name]) or has_wrapped(stats[name])]

    def _parts_in_words(self, since: Mapping[str, Any] | None) -> str:
        stats = self._since(since)["inference_stats"]
        whole = stats["success"]
        if not whole["count"]:
            return "Parts of a request. Nothing was executed."
        wrapped = self._wrapped(stats)
        known = [name for name in _PARTS if name not in wrapped]
        parts = ", ".join(f"{name.replace('_', ' ')} {duration(mean_ms(stats[name]) * 1e6)}" for name in known)
        count = pluralize(whole["count"], "request")
        takes = "an unknown time" if "success" in wrapped else duration(mean_ms(whole) * 1e6)
        text = f"A request takes {takes}, the mean of {count}: {parts}."
        names = ", ".join(name.replace("_", " ") for name in wrapped)
        return (
            f"{text} Not drawn, because the server counted less than zero (server #8874): {names}." if wrapped else text
        )

    def _since(self, before: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return self._stats if before is None else difference(self._stats, before)


def plot(model: Model) -> StatisticsPlot:
    """Draw the statistics: ``plot.batch_sizes()`` and ``plot.parts()``, with ``since=`` earlier `stats`.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     before = server["double"].stats()
    ...     _ = server["double"](X=[[1.0]])
    ...     figure = server["double"].plot.batch_sizes(since=before)
    >>> figure.alt.startswith("Batch sizes")
    True
    """
    return StatisticsPlot(model.stats())
