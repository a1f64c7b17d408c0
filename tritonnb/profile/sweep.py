"""`sweep`: which configuration serves a model best, in virtual time from measured service times, or live."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.edits import edited
from tritonnb.model_config.validate import validate
from tritonnb.profile import trial
from tritonnb.profile.constraint import Constraint
from tritonnb.profile.examples import Inputs, Shapes
from tritonnb.profile.export import export
from tritonnb.profile.progress import progress
from tritonnb.profile.service_times import measure
from tritonnb.profile.trial import Trial
from tritonnb.profile.workload import workload
from tritonnb.simulation.arrivals import Arrival, Arrivals, ClosedLoop
from tritonnb.simulation.run import instance_count
from tritonnb.simulation.service import Service, table

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from tritonnb.model_handle import ModelHandle

Way = Callable[[dict[str, Any], pb.ModelConfig], Trial]


def sweep(
    model: ModelHandle,
    *,
    constraint: str | None = None,
    rate: float | None = None,
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None = None,
    clients: int | None = None,
    requests: int = 4000,
    size: int | None = None,
    sequence_length: int = 0,
    sequences: int = 4,
    service: Service | None = None,
    live: bool = False,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    seed: int = 0,
    **fields: Any,
) -> Sweep:
    """Try configurations of a model, and say which is best.

    With a workload (``rate``, ``clients`` or ``arrivals``) every configuration meets the same one: the best
    of those that obey the constraint answers soonest (an open loop: lowest p99) or most (a closed one).
    With a constraint alone, the best is the one that obeys it at the highest rate of Poisson arrivals.

    Virtual time does not know that instances slow each other down where they share cores: look at the best
    ones again with ``live=True``.

    Parameters
    ----------
    model : ModelHandle
    constraint : str, optional
        Such as ``"p99 < 50 ms"``; see `Constraint`.
    rate, arrivals, clients, size, sequence_length, sequences, inputs, shapes, seed
        As for `load`. ``arrivals`` goes to ``"poisson"`` where only a rate is given.
    requests : int, optional
        For each configuration.
    service : Service, optional
        By default measured, as by `service_times`.
    live : bool, optional
        Apply each configuration to the running model and send real traffic; the model ends as it was.
    **fields
        Fields of the configuration, as for `Recording.what_if`, each with a list of values:
        ``max_queue_delay_microseconds=[0, 1000]``, ``count=[1, 2]``, ``preferred_batch_size=[[4], [4, 8]]``.

    Returns
    -------
    Sweep
        An interrupt (``KeyboardInterrupt``) ends it early, with what was tried so far.

    Raises
    ------
    InvalidArgumentError
        If arguments contradict each other, a field does not exist, or a configuration is refused.

    Examples
    --------
    >>> best = tnb.sweep(server["digits"], count=[1, 2], constraint="p99 < 50 ms")  # doctest: +SKIP
    >>> best.apply()  # doctest: +SKIP
    """
    bound = None if constraint is None else Constraint.parse(constraint)
    if arrivals is not None and not isinstance(arrivals, (str, ClosedLoop)):
        arrivals = list(arrivals)  # every configuration meets them
    open_loop = clients is None and not isinstance(arrivals, ClosedLoop)
    traffic = {
        "rate": rate,
        "arrivals": "poisson" if open_loop and arrivals is None else arrivals,
        "clients": clients,
        "duration": None,
        "requests": requests,
        "size": size,
        "burst": 8,
        "sequence_length": sequence_length,
        "sequences": sequences,
        "seed": seed,
    }
    if model.served.config.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(f"model '{model.name}' is an ensemble, which runs nothing itself: sweep its steps")
    running = edited(model.served.config, {})
    grid = [({}, running), *((edits, edited(running, edits)) for edits in _grid(fields))]
    for _, config in grid:
        validate(config)
    if running.HasField("sequence_batching") and not sequence_length and not isinstance(arrivals, list):
        raise InvalidArgumentError(f"model '{model.name}' is stateful: say sequence_length=, or list the arrivals")
    searching = open_loop and rate is None and (arrivals is None or isinstance(arrivals, str))
    if searching and (bound is None or live):
        hint = "" if live else ", or what must hold (constraint='p99 < 50 ms')"
        raise InvalidArgumentError(f"say what traffic to expect (rate=, clients= or arrivals=){hint}")
    most = math.inf
    if live:
        way = partial(trial.live, model, traffic | {"inputs": inputs, "shapes": shapes}, bound)
    else:
        arriving = partial(_virtual, traffic)
        wanted = None if searching else arriving(rate)  # a mistake is told before anything is measured
        if service is None:
            measured = measure(model, size=size or 1, inputs=inputs, shapes=shapes, seed=seed)
            service, most = table(measured.times), measured.most
        if wanted is None:
            assert bound is not None
            way = partial(trial.highest_rate, arriving, service, bound, seed, size or 1, most)
        else:
            way = partial(trial.simulated, wanted, service, bound, seed)
    try:
        trials = _tried(way, grid)
    finally:
        if live:
            trial.apply(model, running)
    by_rate = searching or not open_loop
    return Sweep(model, trials[0], sorted(trials[1:], key=_rank(by_rate)), bound, by_rate, searching, most)


def _grid(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the fields' values."""
    if not fields:
        raise InvalidArgumentError("name the fields to try, each with its values: count=[1, 2]")
    for name, values in fields.items():
        if not isinstance(values, (list, tuple, range)) or not values:
            raise InvalidArgumentError(f"{name} needs a list of values to try, got {values!r}")
    return [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]


def _virtual(traffic: dict[str, Any], rate: float | None) -> Arrivals:
    return trial.virtual_arrivals(workload(**traffic | {"rate": rate}))


def _tried(way: Way, grid: list[tuple[dict[str, Any], pb.ModelConfig]]) -> list[Trial]:
    """The trials, the first of which is the running configuration; an interrupt leaves out the rest."""
    trials: list[Trial] = []
    with progress() as tell:
        try:
            for edits, config in grid:
                tell(
                    f"{len(trials)} of {len(grid)} configurations tried" + (f"; {_told(trials[-1])}" if trials else "")
                )
                trials.append(way(edits, config))
        except KeyboardInterrupt:
            if len(trials) < 2:
                raise
    return trials


def _rank(by_rate: bool) -> Callable[[Trial], tuple[float, ...]]:
    """The best first; what needs fewer instances goes before its equals."""

    def rank(each: Trial) -> tuple[float, ...]:
        value = -each.rate if by_rate else each.percentile(99)
        return (not each.meets, value, instance_count(each.config), each.percentile(99))

    return rank


@dataclass(frozen=True)
class Sweep:
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

    def plot(self, ax: Axes | None = None) -> Axes:
        """A bar for each configuration, the best on top: its rate, or its latency.

        Into ``ax``, or a new figure that a notebook shows.
        """
        from tritonnb.profile import sweep_figure  # matplotlib takes a while to import

        return sweep_figure.draw(self, ax)

    def verdict(self) -> str:
        """The outcome in a sentence."""
        first = self.trials[0]
        if not first.meets:
            return f"None of {len(self.trials)} configurations obeys {self._bound()}; the nearest: {_told(first)}."
        limit = f" This server carries about {self.most:.0f} requests/s." if first.rate > 0.9 * self.most else ""
        return f"Best of {len(self.trials)}: {_told(first)}. Now: {_told(self.running)}.{limit}"

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


def _told(each: Trial) -> str:
    words = f"{each.words()}: " if each.edits else ""
    return f"{words}{each.rate:.0f} requests/s, p99 {each.percentile(99):.2f} ms"


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "✓" if value else "✗"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
