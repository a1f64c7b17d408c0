"""What a sweep found: configurations in order, the best of which can be applied, drawn and exported."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.field_overrides import with_overrides
from tritonnb.profile import trial
from tritonnb.profile.constraint import Constraint
from tritonnb.profile.export import export
from tritonnb.profile.perf_analyzer import perf_analyzer_command
from tritonnb.profile.remote import RemoteModel
from tritonnb.profile.trial import Trial
from tritonnb.simulation.run import instance_count

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tritonnb.server.model_handle import ModelHandle


@dataclass(frozen=True)
class SweepResult:
    """What a sweep found.

    Attributes
    ----------
    model : ModelHandle
    running : Trial
        The configuration that the model runs with.
    trials : list of Trial
        The others, the best first.
    constraint : Constraint or None
    by_rate : bool
        Whether the best answers most; otherwise it answers soonest.
    searched : bool
        Whether the rates are the highest that obey the constraint.
    most : float
        Requests a second that this server was seen to carry, where not the model is what limits it; otherwise
        infinity.
    noise : float
        By how much (1 is 100 %) the rate, or the p99, of the running configuration differs between repeated
        measurements. What is better by less is not better.
    service_times : dict of int to float
        Milliseconds by batch size, as measured; empty where a service model was given, and live.
    traffic : dict
        What every configuration met, as arguments of `load`.
    """

    model: ModelHandle | RemoteModel
    running: Trial
    trials: list[Trial]
    constraint: Constraint | None
    by_rate: bool
    searched: bool
    most: float
    noise: float
    service_times: dict[int, float]
    traffic: dict[str, Any]

    @property
    def best(self) -> Trial:
        """The best configuration that obeys the constraint; the running one, if no other is better beyond the noise.

        Raises
        ------
        InvalidArgumentError
            If none does.
        """
        if not self._first.meets and not self.running.meets:
            raise InvalidArgumentError(self.verdict())
        return self._first if self._is_better(self._first) else self.running

    @property
    def _first(self) -> Trial:
        """The best of the others; one that was extrapolated only where all were."""
        return next((each for each in self.trials if each.meets and not each.extrapolated), self.trials[0])

    def _is_better(self, other: Trial) -> bool:
        """Whether it is better than the running configuration by more than chance explains."""
        if not other.meets or other.extrapolated or not self.running.meets:
            return other.meets and not other.extrapolated
        if self.by_rate:
            return other.rate > self.running.rate * (1 + self.noise)
        return other.percentile(99) < self.running.percentile(99) * (1 - self.noise)

    def apply(self) -> str:
        """Make the running model use the best configuration; as `ConfigHandle.apply`.

        Raises
        ------
        InvalidArgumentError
            If the model is not one of this process.
        """
        model = self._model_of_this_process("apply")
        return trial.apply(model, with_overrides(model.served.config, self.best.edits))

    def export(self, repository: str | os.PathLike[str]) -> Path:
        """Write the model with the best configuration into a repository that Triton loads.

        Returns
        -------
        pathlib.Path
            The model's directory.

        Raises
        ------
        InvalidArgumentError
            If the model is not one of this process, whose files are known.
        """
        return export(self._model_of_this_process("export"), self.best.config, repository)

    def perf_analyzer(self, url: str = "localhost:8000") -> str:
        """The same traffic as a command of Triton's Perf Analyzer, to check what was found on another server.

        Parameters
        ----------
        url : str, optional
            ``HOST:PORT`` of its HTTP endpoint, or ``grpc://HOST:PORT``.

        Raises
        ------
        InvalidArgumentError
            If Perf Analyzer has no option for such traffic.
        """
        rate = self.traffic.get("rate") or self.best.rate
        return perf_analyzer_command(self.model.name, self.traffic, rate, url)

    def _model_of_this_process(self, what: str) -> ModelHandle:
        if isinstance(self.model, RemoteModel):
            raise InvalidArgumentError(
                f"{what} expected a model of this process, got {self.model.url}: write best.config to its config.pbtxt "
                "there, or send it with the load API of that server"
            )
        return self.model

    def plot(self, ax: Axes | None = None) -> Figure:
        """A bar for each configuration, the best on top: its rate, or its latency.

        Into ``ax``, or a new figure that a notebook shows.
        """
        from tritonnb.figures import sweep as sweep_figure

        return sweep_figure.draw(self, ax)

    def verdict(self) -> str:
        """The outcome in a sentence."""
        first = self._first
        count = len(self.trials)
        if not first.meets:
            none = f"None of {count} configurations obeys {self._bound()}; the nearest: {told(first)}."
            return f"{none} Keep what you have: {told(self.running)}." if self.running.meets else none
        limit = f" This server carries about {self.most:.0f} requests/s." if first.rate > 0.9 * self.most else ""
        if self._is_better(first):
            text = f"Best of {count}: {told(first)}. Now: {told(self.running)}."
        elif first.extrapolated:
            text = f"Keep what you have: {told(self.running)}. "
            text += "No other configuration was tried within the batch sizes that were measured."
        else:
            text = f"Keep what you have: {told(self.running)}. The best of {count} others is not better "
            text += f"beyond the noise of {self.noise:.0%}: {told(first)}."
        return f"{text}{limit}{self._unmeasured()}"

    def _unmeasured(self) -> str:
        beyond = [each.words() for each in self.trials if each.extrapolated]
        if not beyond:
            return ""
        largest = max(self.service_times)
        return (
            f" Not considered, since batches of more than {largest} rows were not measured and their time is "
            f"extrapolated: {'; '.join(beyond)}."
        )

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each configuration, the best first.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas

        return pandas.DataFrame([each.row() for each in self.trials])

    def _bound(self) -> str:
        return "every request being answered" if self.constraint is None else self.constraint.text

    def _cells(self) -> list[list[str]]:
        rows = [each.row() for each in [*self.trials, self.running]]
        names = [*self.trials[0].edits, *(name for name in rows[-1])]
        if not any(each.extrapolated for each in self.trials):
            names.remove("extrapolated")
        shown = [[_show(row.get(name, "now")) for name in names] for row in rows]
        return [[name.replace("_", " ") for name in names], *shown]

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([self.verdict(), *(f"  {line}" for line in lines)])

    def _repr_html_(self) -> str:
        head, *rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self._cells()]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return (
            f"<p><b>{html.escape(self.verdict())}</b></p>"
            f"<table><thead><tr>{head.replace('td>', 'th>')}</tr></thead><tbody>{body}</tbody></table>"
        )


def told(each: Trial) -> str:
    """A trial in a few words."""
    words = f"{each.words()}: " if each.edits else ""
    return f"{words}{each.rate:.0f} requests/s, p99 {each.percentile(99):.2f} ms"


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "✓" if value else "✗"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def rank_by(by_rate: bool) -> Callable[[Trial], tuple[float, ...]]:
    """The best first; what needs fewer instances goes before its equals."""

    def rank(each: Trial) -> tuple[float, ...]:
        p99_ms = each.percentile(99) if len(each.latencies_ms) else math.inf
        return (
            not each.meets,
            each.extrapolated,
            -each.rate if by_rate else p99_ms,
            instance_count(each.config),
            p99_ms,
        )

    return rank


#: Differences of less than this say nothing, however little the measurements differ.
_NOISE = 0.01


def noise_of(repeated: Sequence[Trial], by_rate: bool) -> float:
    """How far repeated measurements of one configuration are apart, as a share of the median.

    It is twice the median distance from the median: of two measurements their difference, and of more one that is far
    off does not count.
    """
    values = np.array([each.rate if by_rate else each.percentile(99) for each in repeated])
    values = values[np.isfinite(values)]
    if not len(values) or not np.median(values):
        return _NOISE
    middle = np.median(values)
    return max(_NOISE, 2 * float(np.median(np.abs(values - middle)) / middle))
