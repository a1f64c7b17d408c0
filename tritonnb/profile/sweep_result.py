"""What a sweep found: configurations in order, the best of which can be applied, drawn and exported."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.edits import edited
from tritonnb.profile import trial
from tritonnb.profile.constraint import Constraint
from tritonnb.profile.export import export
from tritonnb.profile.trial import Trial
from tritonnb.simulation.run import instance_count

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tritonnb.model_handle import ModelHandle


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
    """

    model: ModelHandle
    running: Trial
    trials: list[Trial]
    constraint: Constraint | None
    by_rate: bool
    searched: bool
    most: float

    @property
    def best(self) -> Trial:
        """The best configuration that obeys the constraint.

        Raises
        ------
        InvalidArgumentError
            If none does.
        """
        if not self.trials[0].meets:
            raise InvalidArgumentError(self.verdict())
        return self.trials[0]

    def apply(self) -> str:
        """Make the running model use the best configuration; as `ConfigHandle.apply`."""
        return trial.apply(self.model, edited(self.model.served.config, self.best.edits))

    def export(self, repository: str | os.PathLike[str]) -> Path:
        """Write the model with the best configuration into a repository that Triton loads.

        Returns
        -------
        pathlib.Path
            The model's directory.
        """
        return export(self.model, self.best.config, repository)

    def plot(self, ax: Axes | None = None) -> Figure:
        """A bar for each configuration, the best on top: its rate, or its latency.

        Into ``ax``, or a new figure that a notebook shows.
        """
        from tritonnb.profile import sweep_figure  # matplotlib takes a while to import

        return sweep_figure.draw(self, ax)

    def verdict(self) -> str:
        """The outcome in a sentence."""
        first = self.trials[0]
        if not first.meets:
            return f"None of {len(self.trials)} configurations obeys {self._bound()}; the nearest: {told(first)}."
        limit = f" This server carries about {self.most:.0f} requests/s." if first.rate > 0.9 * self.most else ""
        return f"Best of {len(self.trials)}: {told(first)}. Now: {told(self.running)}.{limit}"

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
        return (not each.meets, -each.rate if by_rate else p99_ms, instance_count(each.config), p99_ms)

    return rank
