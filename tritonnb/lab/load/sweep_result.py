"""The result of a sweep: ranked configurations, to apply, draw and export."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from tritonnb.client.address import ModelAddress
from tritonnb.core.accessors import extensible
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.html_table import html_report
from tritonnb.lab.analysis.constraint import Constraint
from tritonnb.lab.analysis.sustained import SEARCHED, requests_of_run
from tritonnb.lab.load import trial
from tritonnb.lab.load.export import export, perf_analyzer_command
from tritonnb.lab.load.load import config_of, step_of
from tritonnb.lab.load.trial import Trial, simulate_load_curve
from tritonnb.lab.load.workload import LoadOptions
from tritonnb.lab.simulation.service import table
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.recording.recording import Recording
from tritonnb.server.model_handle import ModelHandle

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class ModelOfCopy:
    """The model of a result that was copied or sent to another process, where its server is not."""

    name: str

    def require(self) -> NoReturn:
        """Raise the error of what needs the server."""
        raise UnavailableError(
            f"model '{self.name}': expected the sweep's own result, got a copy, which has no server: apply or export "
            "best.config where the model is served"
        )


@extensible
@with_short_tracebacks
@dataclass(frozen=True)
class SweepResult:
    """Ranked configurations of a sweep.

    Attributes
    ----------
    model : ModelHandle
    running : Trial
        The running configuration.
    trials : list of Trial
        The other configurations, the best first.
    constraint : Constraint or None
    by_rate : bool
        Whether the best answers max_rate; otherwise it answers soonest.
    searched : bool
        Whether the rates are the highest rates that satisfy the constraint.
    max_rate : float
        Maximum requests per second of this server, if the server and not the model limits the rate; otherwise infinity.
    noise : float
        Relative difference (1 is 100 %) of the rate, or the p99, between repeated measurements of the running
        configuration. Smaller improvements are not considered.
    service_times : dict of int to float
        Measured milliseconds by batch size; empty for a given service model and for live trials.
    traffic : dict
        The workload of all trials, as arguments of `load`.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8, dynamic_batching={})
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     result = tnb.sweep(server["double"], count=[1, 2], rate=100, requests=200, service=tnb.fixed(8)).wait()
    >>> result.traffic["rate"], result.searched
    (100, False)
    >>> result.verdict()
    'Best of 2 configurations: count 2: 97 requests/s, p99 13.36 ms. Running: 97 requests/s, p99 15.77 ms.'
    >>> result.to_pandas().shape[0]
    2
    >>> result.perf_analyzer("triton:8000").partition(" --")[0]
    'perf_analyzer -m double -u triton:8000 -i http -b 1'
    """

    plot: ClassVar[Callable[..., Any]]
    plot_pareto: ClassVar[Callable[..., Any]]
    plot_throughput_latency: ClassVar[Callable[..., Any]]

    model: ModelHandle | ModelAddress | ModelOfCopy
    running: Trial
    trials: list[Trial]
    constraint: Constraint | None
    by_rate: bool
    searched: bool
    max_rate: float
    noise: float
    service_times: dict[int, float]
    traffic: LoadOptions

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if isinstance(self.model, ModelHandle):  # a copy has no server
            state["model"] = ModelOfCopy(self.model.name)
        return state

    def __copy__(self) -> SweepResult:
        return replace(self)

    @property
    def best(self) -> Trial:
        """The best configuration that satisfies the constraint; the running one unless another is better.

        Raises
        ------
        InvalidArgumentError
            If no configuration satisfies it.
        """
        if not self._first.meets and not self.running.meets:
            raise InvalidArgumentError(self.verdict())
        return self._first if self._is_better(self._first) else self.running

    def _served_model(self) -> ModelHandle | ModelAddress:
        return self.model.require() if isinstance(self.model, ModelOfCopy) else self.model

    @property
    def _first(self) -> Trial:
        """The best of the other configurations; an extrapolated or predicted one only if all are."""
        others = self._others or self.trials
        known = (trial for trial in others if not (trial.extrapolated or trial.predicted))
        return next((trial for trial in known if trial.meets), others[0])

    @property
    def _others(self) -> list[Trial]:
        """The trials of all configurations but the running configuration."""
        return [trial for trial in self.trials if trial.configs != self.running.configs]

    def _is_better(self, other: Trial) -> bool:
        """Return whether it is better than the running configuration by more than the noise."""
        if not other.meets or other.extrapolated or not self.running.meets:
            return other.meets and not other.extrapolated
        if self.by_rate:
            return other.rate > self.running.rate * (1 + self.noise)
        return other.percentile(99) < self.running.percentile(99) * (1 - self.noise)

    def apply(self) -> str:
        """Apply the best configuration to the running model, as `ConfigHandle.apply` does.

        On another server, it is loaded through the load API, and ``tnb.connect(URL)[NAME].config.restore()`` loads the
        previous one at any time.

        Returns
        -------
        str
            ``"unchanged"`` if the running configuration is the best; otherwise as `ConfigHandle.apply`.

        Raises
        ------
        TritonError
            If the server does not accept it.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0) as server:
        ...     @server.model(max_batch_size=8)
        ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return X * 2
        ...     result = tnb.sweep(server["double"], count=[1, 4], rate=200, requests=200, service=tnb.fixed(8)).wait()
        ...     print(result.apply(), server["double"].config.instance_group[0].count)
        in place 4
        """
        model = self._served_model()
        if not self._is_pipeline:
            return trial.apply_config(model, with_overrides(config_of(model), self.best.edits))
        fields: dict[str, dict[str, object]] = {name: {} for name in trial.executed_models(self.best.configs)}
        for flat, value in self.best.edits.items():
            name, _, field = flat.rpartition(": ")
            fields[name][field] = value
        steps = {name: step_of(model, name) for name in fields if fields[name]}
        outcomes = (
            f"{name}: {trial.apply_config(step, with_overrides(config_of(step), fields[name]))}"
            for name, step in steps.items()
        )
        return ", ".join(outcomes) or "unchanged"

    @property
    def _is_pipeline(self) -> bool:
        return len(self.running.configs) > 1

    def export(self, repository: str | os.PathLike[str]) -> Path:
        """Write the model with the best configuration to a model repository for Triton.

        Of a model on another server, whose files cannot be read, only the *config.pbtxt* is written.

        Parameters
        ----------
        repository : path
            It is created if necessary.

        Returns
        -------
        pathlib.Path
            The model's directory.

        Raises
        ------
        InvalidArgumentError
            If the model is one of this process, and has no files.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> from tempfile import TemporaryDirectory
        >>> with tnb.Server("model_repository", port=0, model_control_mode="explicit") as server:
        ...     model = server.load("identity_fp32")
        ...     sweep = tnb.sweep(model, count=[1, 2], rate=100, requests=200, service=tnb.fixed(8))
        ...     with TemporaryDirectory() as directory:
        ...         print(sorted(path.name for path in sweep.wait().export(directory).iterdir()))
        ['1', 'config.pbtxt']
        """
        model = self._served_model()
        paths = [export(step_of(model, name), config, repository) for name, config in self.best.configs.items()]
        return paths[-1]

    def perf_analyzer(self, url: str = "localhost:8000") -> str:
        """Return a command of Triton's Perf Analyzer with the same workload, to verify the result on another server.

        Parameters
        ----------
        url : str, optional
            ``HOST:PORT`` of its HTTP endpoint, or ``grpc://HOST:PORT``.

        Raises
        ------
        InvalidArgumentError
            If Perf Analyzer has no option for the workload.
        """
        rate = self.traffic.get("rate") or self.best.rate
        return perf_analyzer_command(self.model.name, self.traffic, rate, url)

    def load_curves(self) -> dict[str, list[Recording]]:
        """Simulate the running and the best configuration at different rates, see `simulate_load_curve`.

        Returns
        -------
        dict of str to list of Recording
            ``"running"``, and ``"best"`` if it differs.

        Raises
        ------
        InvalidArgumentError
            If the model is stateful or an ensemble, no configuration satisfies the constraint, or no service times are
            known.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0) as server:
        ...     @server.model(max_batch_size=8, dynamic_batching={})
        ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return X * 2
        ...     result = tnb.sweep(server["double"], count=[1, 2], rate=100, requests=200, service=tnb.fixed(8)).wait()
        >>> list(result.load_curves())
        ['running', 'best']
        """
        if self._is_pipeline:
            raise InvalidArgumentError(f"load_curves() expected a model, got the ensemble '{self.model.name}'")
        recording = self.running.recording
        if not self.service_times and recording is None:
            raise InvalidArgumentError(
                "load_curves() expected measured service times, got none: pass service=, or sweep without live=True"
            )
        service = table(self.service_times) if recording is None or self.service_times else recording.service().function
        trials = {"running": self.running} | ({} if self.best is self.running else {"best": self.best})
        rows = int(self.traffic.get("rows") or 1)
        return {
            name: simulate_load_curve(
                trial.config,
                service,
                rows=rows,
                requests=requests_of_run(trial.config, rows, SEARCHED, (2000, 20_000)),
                seed=self.traffic.get("seed", 0),
            )
            for name, trial in trials.items()
        }

    def verdict(self) -> str:
        """Summarize the result in one or two sentences."""
        first = self._first
        count = len(self.trials)
        if not first.meets:
            none = f"None of {count} configurations satisfies {self._bound()}; the best: {self._text(first)}."
            none += self._predicted()
            return f"{none} Keep the running configuration: {self._text(self.running)}." if self.running.meets else none
        is_limited = first.rate > 0.9 * self.max_rate
        limit = f" This server is limited to about {self.max_rate:.0f} requests/s." if is_limited else ""
        if self._is_better(first):
            text = f"Best of {count} configurations: {self._text(first)}. Running: {self._text(self.running)}."
        elif first.extrapolated:
            text = f"Keep the running configuration: {self._text(self.running)}. "
            text += "All other configurations formed batches of sizes that were not measured."
        else:
            text = f"Keep the running configuration: {self._text(self.running)}."
            if self._others:
                text += f" The best of {len(self._others)} others {self._compared(first)}: {self._text(first)}."
        return f"{text}{limit}{self._unmeasured()}{self._predicted()}{self._undecided()}"

    @property
    def _constrained(self) -> list[str]:
        """The quantities of the constraint that a table of trials does not have."""
        return [name for name in self.constraint.quantities if name not in _SHOWN] if self.constraint else []

    def _text(self, tried: Trial) -> str:
        return trial_text(tried, self._constrained)

    def _compared(self, other: Trial) -> str:
        """State how a configuration that is not better compares: the intervals of both figures overlap, or not."""
        one, two = (trial.rate if self.by_rate else trial.percentile(99) for trial in (self.running, other))
        if abs(two - one) <= self.noise * one:
            return f"is within the measurement noise of {self.noise:.0%}"
        return f"is worse, by more than the measurement noise of {self.noise:.0%}"

    def _undecided(self) -> str:
        """State which predicted configurations may be better than the measured configurations."""
        if not any(trial.predicted for trial in self.trials):
            return ""
        best = self._first if self._is_better(self._first) else self.running
        measured = replace(self, running=best)
        better = [trial.edits_text() for trial in self._others if trial.predicted and measured._is_better(trial)]
        if not better:
            return ""
        return f" Not decided, because only predicted to be better, not measured: {'; '.join(better)}."

    @property
    def remark(self) -> str:
        """The origin of the numbers, and the number of requests behind them."""
        n = min(len(trial.latencies_ms) for trial in [*self.trials, self.running])
        requests = f"Percentiles of at least {n:,} requests."
        recording = self.running.recording
        if recording is not None and recording.simulated:
            return f"Simulated; instances are assumed not to share cores: verify with live=True. {requests}"
        return f"Measured with a real load. {requests}"

    def _unmeasured(self) -> str:
        beyond = [trial.edits_text() for trial in self.trials if trial.extrapolated]
        if not beyond:
            return ""
        sizes = f"of more than {max(self.service_times)} rows" if self.service_times else "of larger sizes"
        return (
            f" Not considered, because batches {sizes} were not measured and their times are extrapolated: "
            f"{'; '.join(beyond)}."
        )

    def _predicted(self) -> str:
        measured = [trial.edits_text() for trial in self.trials if not trial.predicted]
        others = sum(trial.predicted for trial in self._others)
        rest = "The other one was" if others == 1 else f"The other {others} were"
        return f" Measured: {'; '.join(measured)}. {rest} predicted." if others else ""

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row for each other configuration, the best first.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas

        return pandas.DataFrame([trial.row() for trial in self.trials])

    def _bound(self) -> str:
        return "the completion of all requests" if self.constraint is None else self.constraint.text

    def _cells(self) -> list[list[str]]:
        rows = [
            trial.row()
            | {f"{name}_ms": trial.quantity(name) for name in self._constrained}
            | {"predicted": trial.predicted and trial.configs != self.running.configs}
            for trial in [*self.trials, self.running]
        ]
        constrained = [f"{name}_ms" for name in self._constrained]
        names = [*self.trials[0].edits, *(name for name in rows[-1] if name not in constrained)]
        place = names.index("p99_ms") + 1
        names[place:place] = constrained
        for name in ("extrapolated", "predicted"):
            if not any(getattr(trial, name) for trial in self.trials):
                names.remove(name)
        if not self.searched:
            names.remove("of_capacity")
        shown = [
            [f"{row[name]:.0%}" if name == "of_capacity" else _show(row.get(name, "running")) for name in names]
            for row in rows
        ]
        return [[name.replace("_", " ") for name in names], *shown]

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([self.verdict(), *(f"  {line}" for line in lines), self.remark])

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        return html_report(self.verdict(), head, rows, [self.remark])


#: The quantities of latencies that each table of trials has.
_SHOWN = ("p50", "p99")


def trial_text(trial: Trial, constrained: Sequence[str] = ()) -> str:
    """Return the edits, rate, constrained quantities and p99 of a trial as text."""
    edits = f"{trial.edits_text()}: " if trial.edits else ""
    share = "" if math.isnan(trial.capacity_share) else f" ({trial.capacity_share:.0%} of the capacity)"
    latencies = ", ".join(f"{name} {trial.quantity(name):.2f} ms" for name in (*constrained, "p99"))
    return f"{edits}{trial.rate:.0f} requests/s{share}, {latencies}"


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "✓" if value else "✗"
    if isinstance(value, float) and math.isfinite(value):  # three digits: a simulation is not more precise
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def rank_by(by_rate: bool) -> Callable[[Trial], tuple[float, ...]]:
    """Return a sort key: measured trials first, then the best, and of equal ones the one with fewer instances."""

    def rank(trial: Trial) -> tuple[float, ...]:
        p99_ms = trial.percentile(99) if len(trial.latencies_ms) else math.inf
        return (
            trial.predicted,
            not trial.meets,
            trial.extrapolated,
            -trial.rate if by_rate else p99_ms,
            trial.instances,
            p99_ms,
        )

    return rank


#: Lower limit of the noise: smaller differences are never significant.
_NOISE = 0.01


def noise_of(repeated: Sequence[Trial], by_rate: bool) -> float:
    """Return the spread of repeated measurements of one configuration, relative to their median.

    It is twice the median absolute deviation: the difference of two measurements, and robust against outliers if there
    are more.
    """
    measured = [trial.rate if by_rate else trial.percentile(99) for trial in repeated]
    values = list(filter(math.isfinite, measured))
    middle = median(values) if values else 0.0
    if not middle:
        return _NOISE
    return max(_NOISE, 2 * median(abs(value - middle) for value in values) / middle)
