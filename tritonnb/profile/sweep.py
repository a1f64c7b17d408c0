"""`sweep`: find the best configuration of a model, by simulation with measured service times or by live trials."""

from __future__ import annotations

import asyncio
import atexit
import html
import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from tritonnb.client.address import ModelAddress
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback, with_short_tracebacks
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import ProblemContext
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.model_config.validate import validate
from tritonnb.profile import trial
from tritonnb.profile.examples import Inputs, Shapes
from tritonnb.profile.load import AnyModel, config_of, find_model
from tritonnb.profile.notebook_wait import UpdatedOutputs, wait
from tritonnb.profile.service_times import measure_for
from tritonnb.profile.sweep_result import SweepResult, noise_of, rank_by, trial_text
from tritonnb.profile.trial import MeasuredService, StoppedError, Trial
from tritonnb.profile.workload import LoadOptions, WorkloadOptions, workload
from tritonnb.recording.constraint import Constraint
from tritonnb.server.model_handle import ModelHandle
from tritonnb.simulation.arrivals import Arrival, Arrivals, ClosedLoop
from tritonnb.simulation.service import Service, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


RunTrial = Callable[[dict[str, object], pb.ModelConfig], Trial]
#: Edits, and the configuration with them.
Grid = list[tuple[dict[str, object], pb.ModelConfig]]


@with_short_traceback
def sweep(
    model: AnyModel,
    name: str | None = None,
    *,
    constraint: str | None = None,
    rate: float | None = None,
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None = None,
    clients: int | None = None,
    requests: int = 4000,
    rows: int | None = None,
    sequence_length: int = 0,
    sequences: int = 4,
    service: Service | None = None,
    live: bool = False,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    seed: int = 0,
    **fields: object,
) -> Sweep:
    """Try configurations of a model in the background and rank them.

    With a workload (``rate``, ``clients`` or ``arrivals``) every configuration is tried with the same workload:
    of those that satisfy the constraint, the best has the lowest p99 latency (open loop) or the highest rate (closed
    loop). With a constraint only, the best is the one that satisfies it at the highest rate of Poisson arrivals.

    The running configuration is measured repeatedly. Another configuration is the best only if its improvement exceeds
    the difference between these measurements (`SweepResult.noise`).

    The simulation does not model that instances slow each other down if they share cores: verify the best
    configurations with ``live=True``.

    Parameters
    ----------
    model, name
        As for `load`.
    constraint : str, optional
        Such as ``"p99 < 50 ms"``; see `Constraint`.
    rate, arrivals, clients, rows, sequence_length, sequences, inputs, shapes, seed
        As for `load`, but ``arrivals`` defaults to ``"poisson"``, and a stateful model needs a ``sequence_length``,
        because the best configuration depends on it.
    requests : int, optional
        Number of requests for each configuration; with ``live=True`` fewer are faster.
    service : Service, optional
        By default measured, as by `service_times`, at the batch sizes that the configurations can form. If they allow
        larger batches than the running model, the model runs with the largest ``max_batch_size`` during the
        measurement. If that is not possible, times are extrapolated, and such configurations are never the best.
    live : bool, optional
        Apply each configuration to the running model and measure a real load; the model is restored at the end. Another
        server must have been started with explicit model control.
    **fields
        Fields of the configuration, as for `Recording.what_if`, each with a list of values:
        ``max_queue_delay_microseconds=[0, 1000]``, ``count=[1, 2]``, ``preferred_batch_size=[[4], [4, 8]]``.

    Returns
    -------
    Sweep
        Returned immediately; the sweep is running.

    Raises
    ------
    InvalidArgumentError
        If arguments contradict each other, a field does not exist, or a configuration is invalid.
    UnavailableError
        If no server responds at a URL.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     result = tnb.sweep(server["double"], count=[1, 2], rate=100, requests=200, service=tnb.fixed(8)).wait()
    >>> len(result.trials)
    2
    """
    bound = None if constraint is None else Constraint(constraint)
    if arrivals is not None and not isinstance(arrivals, (str, ClosedLoop)):
        arrivals = list(arrivals)  # used for every configuration
    open_loop = clients is None and not isinstance(arrivals, ClosedLoop)
    traffic: WorkloadOptions = {
        "rate": rate,
        "arrivals": "poisson" if open_loop and arrivals is None else arrivals,
        "clients": clients,
        "duration": None,
        "requests": requests,
        "rows": rows,
        "burst": 8,
        "sequence_length": sequence_length,
        "sequences": sequences,
        "seed": seed,
    }
    sent: LoadOptions = {**traffic, "inputs": inputs, "shapes": shapes}
    target = find_model(model, name)
    grid = _grid(target, fields)
    running = grid[0][1]
    if running.HasField("sequence_batching") and not sequence_length and not isinstance(arrivals, list):
        raise InvalidArgumentError(
            f"model '{target.name}': a stateful model expected sequence_length= or a list of arrivals, got neither"
        )
    searching = open_loop and rate is None and (arrivals is None or isinstance(arrivals, str))
    if searching and (bound is None or live):
        hint = "" if live else ", or constraint='p99 < 50 ms'"
        raise InvalidArgumentError(f"sweep expected a workload (rate=, clients= or arrivals=){hint}, got neither")
    arrivals_at = partial(_virtual_arrivals, traffic)
    # This raises for invalid arguments before anything is measured.
    fixed_arrivals = None if live or searching else arrivals_at(rate)

    by_rate = searching or not open_loop

    def begin(stopping: Event) -> SweepPlan:
        if live:
            run_trial = partial(trial.run_live_trial, target, sent, bound, stopping)
            return SweepPlan([run_trial, run_trial])
        if service is not None:
            return SweepPlan([trial_runner(MeasuredService(service), math.inf, stopping)])
        request_options: LoadOptions = {"inputs": inputs, "shapes": shapes, "seed": seed}
        measurement = measure_for(target, [config for _, config in grid], rows or 1, request_options, stopping)
        known = [MeasuredService(table(times), max(times)) for times in (measurement.times, *measurement.rounds)]
        return SweepPlan(
            [trial_runner(service_times, measurement.max_rate, stopping) for service_times in known],
            measurement.max_rate,
            measurement.times,
        )

    def trial_runner(known: MeasuredService, max_rate: float, stopping: Event) -> RunTrial:
        if fixed_arrivals is not None:
            return partial(trial.simulate_trial, fixed_arrivals, known, bound, seed)
        assert bound is not None
        return partial(trial.find_highest_rate, arrivals_at, known, bound, seed, rows or 1, max_rate, stopping)

    def result(repeated: list[Trial], trials: list[Trial], plan: SweepPlan) -> SweepResult:
        ranked = sorted(trials, key=rank_by(by_rate))
        noise = noise_of(repeated, by_rate)
        return SweepResult(
            target, repeated[0], ranked, bound, by_rate, searching, plan.max_rate, noise, plan.service_times, sent
        )

    return Sweep(grid, begin, result, partial(trial.restored, target) if live else nullcontext)


@dataclass(frozen=True)
class SweepPlan:
    """The way in which the configurations of a sweep are tried.

    Attributes
    ----------
    runners : list of callable
        The first one runs the trial of each configuration; the others repeat the running one, to measure the noise.
    max_rate, service_times
        As for `SweepResult`.
    """

    runners: list[RunTrial]
    max_rate: float = math.inf
    service_times: dict[int, float] = field(default_factory=dict)


def _grid(model: ModelHandle | ModelAddress, fields: Mapping[str, object]) -> Grid:
    """Return the running configuration, and one for each combination of the values of the fields."""
    served = config_of(model)
    if served.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(
            f"model '{model.name}' expected a model that executes batches, got an ensemble: sweep its steps"
        )
    if not fields:
        raise InvalidArgumentError("sweep expected at least one field with a list of values, such as count=[1, 2]")
    tried: dict[str, Sequence[object]] = {}
    for name, values in fields.items():
        if not isinstance(values, (list, tuple, range)) or not values:
            raise InvalidArgumentError(f"{name} expected a list of values to try, got {values!r}")
        tried[name] = values
    combined: list[dict[str, object]] = [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]
    running = with_overrides(served, {})
    grid: Grid = [({}, running), *((edits, with_overrides(running, edits)) for edits in combined)]
    for _, config in grid:
        with ProblemContext(config):
            validate(config)
    return grid


def _virtual_arrivals(traffic: WorkloadOptions, rate: float | None) -> Arrivals:
    options: WorkloadOptions = {**traffic, "rate": rate}
    return trial.virtual_arrivals(workload(**options))


@with_short_tracebacks
class Sweep:
    """A running or finished sweep.

    Use ``sweep.wait()`` in a cell, ``await sweep`` in an event loop, and ``sweep.stop()`` to end it with the trials so
    far. `result` can be read at any time; `apply`, `plot` and `export` wait for the end and do the same as those of
    `SweepResult`.

    Attributes
    ----------
    tried, total : int
        Configurations tried so far, and in total.
    """

    def __init__(
        self,
        grid: Grid,
        begin: Callable[[Event], SweepPlan],
        make_result: Callable[[list[Trial], list[Trial], SweepPlan], SweepResult],
        restored: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.total = len(grid)
        self._grid = grid  # the running configuration first
        self._begin = begin
        self._make_result = make_result
        self._restored = restored
        self._trials: list[Trial] = []
        self._repeated: list[Trial] = []
        self._plan = SweepPlan([])
        self._stopping = Event()
        self._outputs = UpdatedOutputs()
        self._finished: Future[SweepResult] = Future()
        self._finished.set_running_or_notify_cancel()  # so that waiting code cannot cancel it
        self._thread = Thread(target=self._run, name="tritonnb-sweep", daemon=True)
        atexit.register(self._stop_at_exit)
        self._thread.start()

    @property
    def tried(self) -> int:
        """Configurations tried so far."""
        return len(self._trials)

    @property
    def done(self) -> bool:
        """True if the sweep has finished."""
        return self._finished.done()

    @property
    def result(self) -> SweepResult:
        """The result so far.

        Raises
        ------
        InvalidArgumentError
            If no other configuration than the running one has been tried yet.
        """
        trials = list(self._trials)
        if len(trials) < 2:
            raise InvalidArgumentError(
                "result expected at least one tried configuration, got none yet: wait for the sweep"
            )
        return self._make_result([trials[0], *self._repeated], trials[1:], self._plan)

    def wait(self, timeout: float | None = None) -> SweepResult:
        """Wait until the sweep has finished; a notebook shows its progress.

        ``KeyboardInterrupt`` stops the sweep; the trials so far stay in `result`.

        Parameters
        ----------
        timeout : float, optional
            Seconds.

        Raises
        ------
        TimeoutError
            If it has not finished by then; it keeps running.
        """
        return wait(self._finished, timeout, lambda: f"sweep: {self._progress()}", self.stop)

    def __await__(self) -> Generator[object, None, SweepResult]:
        return asyncio.wrap_future(self._finished).__await__()

    @property
    def best(self) -> Trial:
        """`SweepResult.best`, after waiting for the end."""
        return self.wait().best

    def plot(self, ax: Axes | None = None) -> Figure:
        """`SweepResult.plot`, after waiting for the end."""
        figure: Figure = self.wait().plot(ax)
        return figure

    def plot_pareto(self, ax: Axes | None = None) -> Figure:
        """`SweepResult.plot_pareto`, after waiting for the end."""
        figure: Figure = self.wait().plot_pareto(ax)
        return figure

    def plot_throughput_latency(self, ax: Axes | None = None) -> Figure:
        """`SweepResult.plot_throughput_latency`, after waiting for the end."""
        figure: Figure = self.wait().plot_throughput_latency(ax)
        return figure

    def apply(self) -> str:
        """`SweepResult.apply`, after waiting for the end."""
        return self.wait().apply()

    def export(self, repository: str | os.PathLike[str]) -> Path:
        """`SweepResult.export`, after waiting for the end."""
        return self.wait().export(repository)

    def stop(self) -> None:
        """Start no further trials, without waiting for the current one; a second call has no effect."""
        self._stopping.set()

    def _progress(self) -> str:
        progress = f"{self.tried} of {self.total} configurations tried"
        return f"{progress}; {trial_text(self._trials[-1])}" if self._trials else progress

    def __repr__(self) -> str:
        return repr(self.result) if self.done else f"<Sweep: {self._progress()}>"

    def _repr_html_(self) -> str:
        return self.result._repr_html_() if self.done else html.escape(self._progress())

    def _ipython_display_(self) -> None:
        self._outputs.show(self._repr_html_(), repr(self), update=not self.done)

    def _run(self) -> None:
        try:
            self._try()
            result = self.result
        except BaseException as error:
            self._outputs.update(html.escape(f"sweep failed: {error}"), f"<Sweep: failed: {error}>")
            self._finished.set_exception(error)
        else:
            self._outputs.update(result._repr_html_(), repr(result))
            self._finished.set_result(result)
        finally:
            atexit.unregister(self._stop_at_exit)

    def _try(self) -> None:
        with suppress(StoppedError), self._restored():
            self._plan = self._begin(self._stopping)
            run_trial, *repetitions = self._plan.runners
            for edits, config in self._grid:
                if self._stopping.is_set():
                    return
                self._trials.append(run_trial(edits, config))
                self._outputs.update(html.escape(self._progress()), repr(self))
                while repetitions and not self._stopping.is_set():  # the first one is the running configuration
                    self._repeated.append(repetitions.pop()(edits, config))

    def _stop_at_exit(self) -> None:
        """End a sweep, and let it restore the model, before Python exits."""
        self.stop()
        self._thread.join()
